"""Engines that need no Python: every fused node a plugin whose kernel TensorRT itself keeps and launches.

Full TensorRT can do that from 10.9 on (``tensorrt.plugin``, with PTX compiled ahead of time). The engine then runs wherever
TensorRT does: under trtexec, in C++, in a server. TensorRT for RTX cannot; its engines need ``graphfuse_plugin``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from graphfuse.ir.errors import GraphfuseError

if TYPE_CHECKING:
    from graphfuse.engine.build import FusedNode
    from graphfuse.engine.flavour import Flavour
    from graphfuse_plugin.aot import AotTarget

FALLBACK = "build without --aot, and let the program that runs the engine import graphfuse_plugin first"


def check_flavour(flavour: Flavour) -> None:
    """Raises GraphfuseError where this TensorRT takes no plugins compiled ahead of time."""
    if not hasattr(flavour.module, "IPluginV3QuickAOTBuild"):
        reason = "its parser takes only plugins that run in Python" if flavour.name == "tensorrt_rtx" else "they came with TensorRT 10.9"
        raise GraphfuseError(f"{flavour.title} {flavour.version} takes no plugins compiled ahead of time ({reason}); {FALLBACK}")


def network_flags(flavour: Flavour) -> int:
    """The creation flag that makes the parser ask for the ahead-of-time form of a plugin."""
    return 1 << int(flavour.module.NetworkDefinitionCreationFlag.PREFER_AOT_PYTHON_PLUGINS)


def register_nodes(flavour: Flavour, nodes: Sequence[FusedNode], target: AotTarget) -> None:
    """Make every region's plugin known. Raises GraphfuseError naming the node that cannot be one."""
    from graphfuse_plugin.aot import register_aot
    from graphfuse_plugin.region import Region

    trtp = importlib.import_module(f"{flavour.module.__name__}.plugin")
    for spec, name in {node.spec: node.name for node in reversed(nodes)}.items():
        try:
            register_aot(trtp, flavour.module, Region.parse(spec), target)
        except GraphfuseError as error:
            raise GraphfuseError(f"fused node {name!r}: {error}") from error


@contextmanager
def renamed(model: Any) -> Iterator[Any]:
    """The model with each fused node under the name of its region's plugin, as long as the block lasts.

    A file's weights may stand beside it, so the renamed model of a file is a file beside it too.
    """
    if isinstance(model, bytes | onnx.ModelProto):
        own = onnx.ModelProto()
        own.ParseFromString(model) if isinstance(model, bytes) else own.CopyFrom(model)
        _rename(own.graph)
        yield own
        return
    source = Path(os.fspath(model))
    own = onnx.load(source, load_external_data=False)
    _rename(own.graph)
    aside = source.with_name(f".{source.name}.aot.{os.getpid()}")
    try:
        aside.write_bytes(own.SerializeToString())
        yield aside
    except OSError as error:
        raise GraphfuseError(f"{aside}: cannot be written: {error.strerror or error}") from error
    finally:
        aside.unlink(missing_ok=True)


def _rename(graph: onnx.GraphProto) -> None:
    from graphfuse_plugin.aot import aot_name

    for node in graph.node:
        if node.op_type == "FusedRegion":
            node.op_type = aot_name(next((a.s.decode("ascii", "replace") for a in node.attribute if a.name == "spec"), ""))
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                _rename(inner)


def is_aot_layer(plugin: Any, nodes: Sequence[FusedNode]) -> bool:
    """Whether a layer's plugin is one of the nodes' in its ahead-of-time form."""
    from graphfuse_plugin.aot import aot_name

    names = {aot_name(node.spec) for node in nodes}
    return getattr(plugin, "plugin_name", None) in names and hasattr(plugin, "get_launch_params")
