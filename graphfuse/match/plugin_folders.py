"""Our patterns as folders of `polygraphy plugin`: match, list, replace and autotune work on them, one pattern at a time.

Polygraphy executes ``<folder>/<name>/pattern.py`` and asks it for places in an ONNX GraphSurgeon graph. Each place is answered
with a ``FusedRegion`` plugin node that carries the program of the nodes there, so importing ``graphfuse_plugin`` is all that an
engine needs (`graphfuse polygraphy plugin ...` does). Places of different patterns never overlap: any choice of them can be
replaced together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx_ir

from graphfuse.graph.load import load_model
from graphfuse.ir import dumps
from graphfuse.ir.errors import GraphfuseError
from graphfuse.ir.plugin_types import MAX_RANK, PLUGIN_TYPES
from graphfuse.lower import Lowered
from graphfuse.match.flow import Flow
from graphfuse.match.legal import Legality
from graphfuse.match.names import DOMAIN, PLUGIN_OP, PLUGIN_VERSION
from graphfuse.match.normalise import normalise
from graphfuse.patterns import Pattern, all_patterns, recognise

_MARK = "# Written by `graphfuse polygraphy-plugins`; writing it again replaces it.\n"
_SCRIPT = (
    _MARK
    + '''"""{summary}"""

from graphfuse.match import plugin_folders


def get_plugin_metadata():
    return plugin_folders.metadata({name!r})


def get_matching_subgraphs(graph):
    return plugin_folders.matching_subgraphs(graph, {name!r})


def replace_with_plugin(graph, input_tensors, output_tensors, attrs=None, op=None):
    return plugin_folders.replace_with_plugin(graph, input_tensors, output_tensors, attrs, op)
'''
)


def write_folders(folder: Path) -> list[str]:
    """Writes a folder for each pattern in force; returns their names. Raises GraphfuseError for files that are not ours, or cannot be written."""
    patterns = all_patterns()
    files = {folder / p.name / "pattern.py": _SCRIPT.format(name=p.name, summary=p.summary.replace('"', "'")) for p in patterns}
    try:
        for path in files:
            if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(_MARK):
                raise GraphfuseError(f"{path}: is there already and was written by somebody else; choose another folder")
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GraphfuseError(f"{error.filename or folder}: cannot be written: {error.strerror or error}; choose another folder") from error
    return [p.name for p in patterns]


def metadata(name: str) -> dict[str, str]:
    """What Polygraphy calls the plugin, and the op type of its nodes."""
    return {"name": name, "op": PLUGIN_OP}


def matching_subgraphs(graph: Any, name: str) -> list[dict[str, Any]]:
    """The places of one pattern in a GraphSurgeon graph: names of inputs and outputs, and the plugin's attributes.

    Raises GraphfuseError for a graph that is no valid model.
    """
    import onnx_graphsurgeon

    model = load_model(onnx_graphsurgeon.export_onnx(graph))
    known = {v.name for v in _values(model)}
    found = []
    for lowered in _places(model, name):
        inputs, outputs = ([v.name for v in side] for side in (lowered.inputs, lowered.outputs))
        if known.issuperset([*inputs, *outputs]) and _fits_plugin(lowered):
            attributes = {"spec": dumps(lowered.program), "plugin_namespace": DOMAIN, "plugin_version": PLUGIN_VERSION}
            found.append({"inputs": inputs, "outputs": outputs, "attributes": attributes})
    return found


def _values(model: onnx_ir.Model) -> Iterator[onnx_ir.Value]:
    yield from model.graph.inputs
    yield from model.graph.initializers.values()
    for node in model.graph:
        yield from node.outputs


def _places(model: onnx_ir.Model, name: str) -> Iterator[Lowered]:
    """The programs of a pattern's matches, or of what its rewrites made, in a model that this may change."""
    patterns: Sequence[Pattern] = all_patterns()
    facts, repairs, _ = normalise(model, patterns)
    flow = Flow(model.graph)
    recognised = recognise(flow.nodes, facts, patterns)
    legality = Legality(flow, facts)
    groups = [m.nodes for m in recognised.matches if m.pattern.name == name]
    groups += [r.nodes for r in repairs if r.pattern.name == name and not any(recognised.of(n) for n in r.nodes)]
    for nodes in groups:
        if all(n in flow.place and n.graph is model.graph for n in nodes):
            answer = legality.check(sorted(flow.place[n] for n in nodes))
            if isinstance(answer, Lowered):
                yield answer


def _fits_plugin(lowered: Lowered) -> bool:
    tensors = (*lowered.program.params, *lowered.program.outputs)
    return all(dtype in PLUGIN_TYPES and len(shape) <= MAX_RANK for dtype, shape in tensors)


def replace_with_plugin(graph: Any, input_tensors: Sequence[Any], output_tensors: Sequence[Any], attrs: Any = None, op: Any = None) -> Any:
    """Puts one plugin node in the place of a match; what nothing needs any more goes. Returns the node."""
    import onnx_graphsurgeon

    for tensor in output_tensors:
        tensor.inputs.clear()
    node = onnx_graphsurgeon.Node(
        op=op or PLUGIN_OP,
        name=f"{PLUGIN_OP}_{output_tensors[0].name}",
        attrs=dict(attrs or {}),
        inputs=list(input_tensors),
        outputs=list(output_tensors),
        domain=DOMAIN,
    )
    graph.nodes.append(node)
    graph.cleanup().toposort()
    return node
