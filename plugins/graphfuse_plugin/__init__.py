"""The TensorRT plugin that runs fused regions: ``import graphfuse_plugin`` before an engine with them is loaded.

Importing it registers the plugin with every TensorRT that is imported already (``tensorrt``, ``tensorrt_rtx``). With one
that is imported later, call ``register()``.
"""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

from graphfuse.ir.errors import GraphfuseError
from graphfuse_plugin.creator import FusedRegionCreator, make_creator_class
from graphfuse_plugin.fields import marker
from graphfuse_plugin.guard import Build, building, reraise
from graphfuse_plugin.kernels import COVERING, default_targets
from graphfuse_plugin.plugin import NAME, NAMESPACE, VERSION, FusedRegionPlugin
from graphfuse_plugin.region import unsupported_io
from graphfuse_plugin.variants import specialise

__all__ = [
    "COVERING", "NAME", "NAMESPACE", "VERSION", "Build", "FusedRegionCreator", "FusedRegionPlugin", "building", "default_targets", "marker",
    "register", "reraise", "specialise", "unsupported_io",
]  # fmt: skip

_creators: dict[Any, Any] = {}  # by module; a registry holds no reference that Python knows of
_LOCK = threading.Lock()


def register(trt: ModuleType | Any | None = None) -> list[str]:
    """Register the plugin with ``trt``, or with every TensorRT imported so far; doing it again changes nothing.

    Returns the names of the modules that know the plugin now. Raises GraphfuseError if another plugin has its name.
    """
    modules = [trt] if trt is not None else [sys.modules[n] for n in ("tensorrt", "tensorrt_rtx") if n in sys.modules]
    for module in modules:
        if hasattr(module, "get_plugin_registry"):
            _register(module)
    return [module.__name__ for module in _creators]


def _register(trt: Any) -> None:
    with _LOCK:
        if trt in _creators:
            return
        creator = make_creator_class(trt)()
        if not trt.get_plugin_registry().register_creator(creator, NAMESPACE):
            raise GraphfuseError(f"another plugin is registered as {NAMESPACE}::{NAME} version {VERSION} in {trt.__name__}; load only one")
        _creators[trt] = creator


register()
