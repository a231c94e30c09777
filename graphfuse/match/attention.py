"""Attention in 16-bit floats: scale, mask and softmax between two matrix products, for which engines have one kernel."""

from __future__ import annotations

import onnx_ir

from graphfuse.graph.facts import Facts
from graphfuse.match.flow import Flow
from graphfuse.match.small_ops import FREE_VIEWS

_BEFORE = frozenset({"Add", "Cast", "Div", "Mul", "Sub", "Where"}) | FREE_VIEWS
_AFTER = frozenset({"Cast", "Dropout"}) | FREE_VIEWS
_DEEPEST = 8


def attention_core(softmax: int, flow: Flow, facts: Facts) -> list[int]:
    """Positions of the nodes between the two products around the Softmax at ``softmax``; [] if it stands in no such place."""
    before = _back_to_product(flow.nodes[softmax].inputs[0], flow, _DEEPEST)
    after = _on_to_product(softmax, flow)
    if before is None or after is None:
        return []
    first = min([*before, softmax])
    scores = next(v for v in flow.nodes[first].inputs if v is not None and _is_product(v.producer()))
    dtype = facts.dtype(scores)
    return sorted([*before, softmax, *after]) if dtype is not None and dtype.is_small_float else []


def _is_product(node: onnx_ir.Node | None) -> bool:
    return node is not None and node.op_type == "MatMul"


def _back_to_product(value: onnx_ir.Value | None, flow: Flow, depth: int) -> list[int] | None:
    """The nodes from a product to ``value``, each the only reader of the one before; None if there is no such path."""
    producer = None if value is None else value.producer()
    if value is None or producer is None or producer not in flow.place or depth == 0:
        return None
    if len(flow.readers.get(value, ())) != 1 or value in flow.graph_outputs:
        return None
    if _is_product(producer):
        return []
    if producer.op_type not in _BEFORE:
        return None
    for source in producer.inputs:
        path = _back_to_product(source, flow, depth - 1)
        if path is not None:
            return [*path, flow.place[producer]]
    return None


def _on_to_product(start: int, flow: Flow) -> list[int] | None:
    path: list[int] = []
    for _ in range(_DEEPEST):
        value = flow.nodes[path[-1] if path else start].outputs[0]
        readers = flow.readers.get(value, [])
        if len(readers) != 1 or value in flow.graph_outputs:
            return None
        if _is_product(flow.nodes[readers[0]]):
            return path
        if flow.nodes[readers[0]].op_type not in _AFTER:
            return None
        path.append(readers[0])
    return None
