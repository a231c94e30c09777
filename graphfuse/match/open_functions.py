"""Ops that ONNX defines by a function body, opened where one kernel cannot hold them: their parts may be several regions.

The loss of a classifier, for one: its softmax is one kernel, and what picks from the result by labels another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir
from onnx import defs
from onnx_ir.passes.common import InlinePass

from graphfuse.graph.bodies import nested
from graphfuse.graph.facts import Depends, Facts
from graphfuse.ir import Builder
from graphfuse.ir.errors import Refused
from graphfuse.lower import NodeRefused, lower_region
from graphfuse.ops.functions import function_body, is_by_body
from graphfuse.ops.table import lookup
from graphfuse.schedule.kernel import plan

NAME = "function-body"  # as it is skipped and reported, like a pattern
_DOMAIN = "graphfuse.opened"
# Ops whose meaning changed in a way that their attributes and inputs do not show, and since which opset.
_CHANGED = {"Softmax": 13, "LogSoftmax": 13, "Hardmax": 13, "Split": 18, "GroupNormalization": 21}


def open_functions(model: ir.Model, facts: Facts) -> int:
    """Opens them in place and says how many; ``facts`` are out of date afterwards if there are any."""
    bodies = [(node, body) for node in model.graph.all_nodes() if (body := _body(node, facts)) is not None]
    if not bodies:
        return 0
    names = _Names(model)
    for number, (node, body) in enumerate(bodies):
        names.give(body, node.name or node.outputs[0].name or node.op_type)
        body.domain, body.name = _DOMAIN, f"{node.op_type}_{number}"
        function = ir.serde.deserialize_function(body)
        node.domain, node.op_type = function.domain, function.name or ""
        model.functions[function.identifier()] = function
    InlinePass(criteria=lambda function: function.domain == _DOMAIN)(model)
    return len(bodies)


def _body(node: ir.Node, facts: Facts) -> onnx.FunctionProto | None:
    """The body to put in the node's place, in the model's opset; None where the node should stay or has none that fits."""
    if not is_by_body(lookup(node.domain, node.op_type)) or all(facts.depends(v) is not Depends.DATA for v in node.outputs):
        return None
    if _is_one_kernel(node, facts):
        return None
    builder = Builder()
    args = facts.arguments(node, builder)
    if args is None:
        return None
    try:
        body = function_body(node.op_type, facts.call(node, builder, args))
    except Exception:  # ONNX raises classes of its own for nodes that no valid model has
        return None
    opset = facts.opset(node)
    if not all(_means_the_same(n, _opset(body, opset), opset) for n in _all_nodes(body.node)):
        return None
    made = {name for n in body.node for name in n.output}
    if not made.issuperset(body.output[: len(node.outputs)]):
        return None
    del body.output[len(node.outputs) :], body.opset_import[:]
    body.opset_import.append(onnx.helper.make_opsetid("", opset))
    return body


def _is_one_kernel(node: ir.Node, facts: Facts) -> bool:
    try:
        plan(lower_region([node], facts, [v for v in node.outputs if v.name]).program)
    except NodeRefused as refused:
        return refused.rule == "unbound-size"  # other nodes may bring the size in
    except Refused:
        return False
    return True


def _opset(body: onnx.FunctionProto, default: int) -> int:
    return next((o.version for o in body.opset_import if o.domain == ""), default)


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from _all_nodes(attribute.g.node)


def _means_the_same(node: onnx.NodeProto, then: int, now: int) -> bool:
    """Whether a node that is written for one opset is the same in a later one."""
    if node.domain not in ("", "ai.onnx"):
        return False
    old, new = (defs.get_schema(node.op_type, version) for version in (then, now))
    if old.since_version == new.since_version:
        return True
    if then < _CHANGED.get(node.op_type, 0) <= now:
        return False
    inputs = [i.name for i in new.inputs][: len(old.inputs)] == [i.name for i in old.inputs]
    attributes = all(a in new.attributes and _default(new, a) == _default(old, a) for a in old.attributes)
    return inputs and attributes and new.min_input <= len(node.input)


def _default(schema: defs.OpSchema, name: str) -> bytes:
    return bytes(schema.attributes[name].default_value.SerializeToString(deterministic=True))


class _Names:
    """Names for what is in a body: they begin with that of the node, and nothing else in the model begins like that."""

    def __init__(self, model: ir.Model) -> None:
        graphs = list(nested(model.graph))
        values = (v.name for g in graphs for v in (*g.inputs, *g.initializers.values(), *(v for n in g for v in n.outputs)))
        self._taken = [name for name in (*values, *(n.name for g in graphs for n in g)) if name and "/" in name]

    def give(self, body: onnx.FunctionProto, wanted: str) -> None:
        """Names the nodes of ``body`` and what they make; its inputs keep theirs."""
        stem, number = wanted, 1
        while any(name.startswith(f"{stem}/") for name in self._taken):
            number += 1
            stem = f"{wanted}_{number}"
        self._taken.append(f"{stem}/")
        kept = {*body.input, ""}
        for k, node in enumerate(body.node):
            node.name = f"{stem}/{node.op_type}_{k}"
            node.input[:] = [n if n in kept else f"{stem}/{n}" for n in node.input]
            node.output[:] = [n if n in kept else f"{stem}/{n}" for n in node.output]
        body.output[:] = [f"{stem}/{n}" for n in body.output]
