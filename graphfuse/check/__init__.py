"""Says whether a fused model is right: inputs to run it with, strict comparisons, a verdict per output and per region."""

from typing import Any

__all__ = ["CheckResult", "check"]


def __getattr__(name: str) -> Any:
    """Imports on first use: ONNX Runtime and Polygraphy are not needed to make inputs."""
    if name == "check":
        from graphfuse.check.run import check

        return check
    if name == "CheckResult":
        from graphfuse.check.verdict import CheckResult

        return CheckResult
    raise AttributeError(name)
