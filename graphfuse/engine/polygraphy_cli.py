"""Polygraphy's command line with our plugin: ``graphfuse polygraphy convert model.onnx --convert-to trt ...``.

Polygraphy loads plugins from shared libraries only. So this entry loads TensorRT, registers the plugin, and hands over.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from graphfuse.ir.errors import GraphfuseError


def run(arguments: Sequence[str], flavour: str | None = None) -> int:
    """Polygraphy's own exit code for these arguments. Raises GraphfuseError without Polygraphy or TensorRT.

    With a model in plugin form Polygraphy builds and runs engines whose fused nodes are our layers. What the plugin met is
    raised after Polygraphy is done, with its own traceback.
    """
    import graphfuse_plugin
    from graphfuse.engine.flavour import load_flavour

    chosen = load_flavour(flavour)
    if chosen.name == "tensorrt_rtx":
        if "polygraphy.config" in sys.modules and not sys.modules["polygraphy.config"].USE_TENSORRT_RTX:
            raise GraphfuseError("Polygraphy was imported before without TensorRT for RTX; set POLYGRAPHY_USE_TENSORRT_RTX=1 first")
        os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1"  # Polygraphy looks at it when it is imported
    try:
        tools = importlib.import_module("polygraphy.tools")
    except ImportError as error:
        raise GraphfuseError(f"Polygraphy cannot be imported ({error}); install it with: pip install polygraphy") from error
    graphfuse_plugin.register(chosen.module)
    before, sys.argv = sys.argv, ["polygraphy", *arguments]
    try:
        with graphfuse_plugin.building() as build:
            code = _exit_code(tools)
            build.reraise()
        return code
    finally:
        sys.argv = before


def _exit_code(tools: object) -> int:
    """Polygraphy ends by SystemExit; its code may be a number, None, or a text that goes to stderr."""
    try:
        result = tools.main()  # type: ignore[attr-defined]
    except SystemExit as end:
        result = end.code
    if result is None or isinstance(result, int):
        return result or 0
    print(result, file=sys.stderr)
    return 1
