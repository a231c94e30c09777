"""Fuses chains of small ONNX ops into single generated CUDA kernels that run inside TensorRT engines.

``rewrite`` fuses a model, ``check`` proves the numbers, ``build_engine`` makes an engine of it, ``Session`` runs it without
TensorRT. Everything is imported on first use, so that ``import graphfuse`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphfuse.api import (
        GraphfuseError,
        Plan,
        Result,
        Session,
        build_engine,
        check,
        doctor,
        explain,
        export_plugin,
        load_plan,
        restore,
        rewrite,
        scan,
    )

__version__ = "0.1.0"
__all__ = [
    "GraphfuseError", "Plan", "Result", "Session", "__version__", "build_engine", "check", "doctor", "explain", "export_plugin", "load_plan",
    "restore", "rewrite", "scan",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The names of ``graphfuse.api``."""
    if name not in __all__:
        raise AttributeError(f"module 'graphfuse' has no attribute {name!r}")
    if name == "GraphfuseError":
        from graphfuse.ir.errors import GraphfuseError

        return GraphfuseError
    from graphfuse import api

    globals().update({known: getattr(api, known) for known in __all__ if hasattr(api, known)})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
