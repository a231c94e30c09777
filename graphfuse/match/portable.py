"""The portable form: regions become calls of functions that hold the original nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir

from graphfuse.graph.facts import Facts
from graphfuse.match.body import Body, make_body
from graphfuse.match.convex import Clusters
from graphfuse.match.flow import Flow
from graphfuse.match.grow import Region
from graphfuse.match.names import DOMAIN, IR_VERSION_KEY, ORIGIN_KEY, fused_name, unused_name

MIN_IR_VERSION = 10  # the first with metadata on nodes and functions


@dataclass(frozen=True)
class Call:
    """A region's call in the rewritten model: the node's name, its function's name, and what the function was made from."""

    region: Region
    name: str
    function: str
    body: Body


Words = Callable[[Sequence[onnx_ir.Node]], Sequence[str]]


def op_types(nodes: Sequence[onnx_ir.Node]) -> list[str]:
    """The words that a region is named after if nothing better is known."""
    return [n.op_type for n in nodes]


def fuse(model: onnx_ir.Model, flow: Flow, facts: Facts, regions: Sequence[Region], words: Words = op_types) -> list[Call]:
    """Replaces ``regions`` of ``model`` in place; returns their calls in order. The regions must be legal together.

    ``flow`` and ``facts`` are those of the model as it is; they are out of date afterwards. ``words`` says what nodes are called
    in the names of their functions.
    """
    if not regions:
        return []
    calls = _name_calls(model, flow, facts, regions, words)
    order = Clusters(flow.preds, [r.members for r in regions])
    by_root = {order.find(c.region.members[0]): c for c in calls}
    roots = order.roots()
    moved: dict[onnx_ir.Value, onnx_ir.Value] = {}
    for number, graph in enumerate(flow.graphs):  # the main graph first: bodies read what it makes
        own = [r for r in roots if flow.scope[r] == number]
        if any(r in by_root for r in own):
            _replace(graph, flow, number, [by_root.get(r, flow.nodes[order.members[r][0]]) for r in own], moved)
    _drop_constants(model.graph, calls)
    model.opset_imports[DOMAIN] = 1
    if model.ir_version < MIN_IR_VERSION:
        model.metadata_props[IR_VERSION_KEY] = str(model.ir_version)
        model.ir_version = MIN_IR_VERSION
    return calls


def _name_calls(model: onnx_ir.Model, flow: Flow, facts: Facts, regions: Sequence[Region], words: Words) -> list[Call]:
    taken = {f.name for f in model.functions.values()} | {n.op_type for n in flow.nodes}
    node_names = {n.name for n in model.graph.all_nodes() if n.name}
    functions: dict[bytes, str] = {}
    calls: list[Call] = []
    for region in regions:
        nodes = [flow.nodes[i] for i in region.members]
        body = make_body(nodes, region.lowered, facts, model.opset_imports)
        content = body.content()
        if content not in functions:
            functions[content] = body.function.name = fused_name(words(nodes), content, taken)
            taken.add(body.function.name)
            model.functions[body.function.identifier()] = body.function
        name = unused_name(functions[content], node_names)
        node_names.add(name)
        calls.append(Call(region, name, functions[content], body))
    return calls


def _replace(
    graph: onnx_ir.Graph,
    flow: Flow,
    number: int,
    sequence: Sequence[Call | onnx_ir.Node],
    moved: dict[onnx_ir.Value, onnx_ir.Value],
) -> None:
    """Makes ``sequence`` the nodes of ``graph``, which is that ``number`` of ``flow``, with a call node for each Call."""
    graph.remove([flow.nodes[i] for i in flow.of_graph(number)])
    for item in sequence:
        graph.append(_call_node(flow, item, moved) if isinstance(item, Call) else item)


def _call_node(flow: Flow, call: Call, moved: dict[onnx_ir.Value, onnx_ir.Value]) -> onnx_ir.Node:
    """The call; its outputs take the place of the old values, which ``moved`` maps to them."""
    fresh = [onnx_ir.Value(name=v.name, type=v.type, shape=v.shape, metadata_props=v.metadata_props) for v in call.body.outputs]
    node = onnx_ir.Node(
        DOMAIN,
        call.function,
        [moved.get(v, v) for v in call.body.inputs],
        outputs=fresh,
        name=call.name,
        metadata_props={ORIGIN_KEY: _origin(flow, call)},
    )
    members = [flow.nodes[i] for i in call.region.members]
    for member in members:  # so that the nodes that go are no users of what stays
        for i in range(len(member.inputs)):
            member.replace_input_with(i, None)
    onnx_ir.convenience.replace_all_uses_with(call.body.outputs, fresh, replace_graph_outputs=True)
    moved.update(zip(call.body.outputs, fresh, strict=True))
    return node


def _origin(flow: Flow, call: Call) -> str:
    """What ``restore`` needs to give back the very same graph."""
    start = flow.starts[flow.scope[call.region.members[0]]]
    origin = {
        "at": [i - start for i in call.region.members],
        "nodes": [flow.nodes[i].name or "" for i in call.region.members],
        "values": [v.name for v in call.body.inner],
        "constants": [v.name for v in call.body.constants],
    }
    return json.dumps(origin, sort_keys=True, separators=(",", ":"))


def _drop_constants(graph: onnx_ir.Graph, calls: Sequence[Call]) -> None:
    """Removes initializers of the main graph that now live in functions only."""
    kept = set(graph.outputs)
    for value in {v: None for call in calls for v in call.body.constants}:
        name = value.name or ""
        if not value.uses() and value not in kept and graph.initializers.get(name) is value:
            del graph.initializers[name]
