"""Constant folding: nodes that give the same in every run become initializers, computed by ONNX Runtime.

Names and order of the model's inputs and outputs stay. Initializers that are also inputs can be fed, so nothing is folded
through them. Quantised weights stay quantised, and random operators stay as they are. What is constant in a body of If, Loop
or Scan becomes an initializer of the main graph, which bodies see.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from graphfuse.graph.bodies import nested
from graphfuse.graph.evaluate import Evaluation, can_hold
from graphfuse.graph.facts import RANDOM, Facts, constant_tensor
from graphfuse.graph.undecided import undecided

LIMIT_BYTES = 1 << 20
GROWTH = 4
_KEPT = RANDOM | {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Constant"}
_BOUNDED = frozenset(
    {"NonZero", "Compress", "Unique", "NonMaxSuppression"}
)  # results of unknown size, but not larger than 8 bytes * rank * input
_MOST_ROUNDS = 8


def fold_constants(model: ir.Model, limit_bytes: int = LIMIT_BYTES) -> int:
    """Folds the model in place and says how many nodes went away.

    A result above ``limit_bytes`` is kept as a node if it is more than 4 times as large as what it is computed from.
    Constant nodes become initializers, and what nothing uses any more is removed.
    """
    before = sum(1 for _ in model.graph.all_nodes())
    lift_constants(model)
    for _ in range(_MOST_ROUNDS):
        if not _fold_once(model, limit_bytes):
            break
    remove_unused(model)
    return before - sum(1 for _ in model.graph.all_nodes())


def _fold_once(model: ir.Model, limit_bytes: int) -> bool:
    """One round; sizes that depend on computed values (NonZero) are known only in the next."""
    facts = Facts(model)
    known = _known_values(model, facts, limit_bytes)
    nodes = _computable(model, facts, known, limit_bytes)
    going = {*nodes, *(n for n in model.graph.all_nodes() if all(v in known for v in n.outputs))}
    results = Evaluation(model, nodes, known).run([v for n in nodes for v in n.outputs if v not in known and _is_needed(v, going)])
    results.update({v: a for v, a in known.items() if _is_needed(v, going)})
    names = _Names(model)
    for value, array in results.items():
        _replace(model, value, array, names)
    remove_unused(model)
    return any(v not in known for v in results)


def _known_values(model: ir.Model, facts: Facts, limit_bytes: int) -> dict[ir.Value, np.ndarray]:
    """Results of nodes that the facts tell without any run-time size, and those that no input decides."""
    found: dict[ir.Value, np.ndarray] = {}
    for node in model.graph.all_nodes():
        results = undecided(node, facts, limit_bytes)
        if results is not None:
            found.update(zip(node.outputs, results, strict=False))
            continue
        for value in node.outputs:
            array = facts.value(value)
            if array is not None and array.dtype != object and constant_tensor(value) is None:
                found[value] = array
    return found


def _computable(model: ir.Model, facts: Facts, known: dict[ir.Value, np.ndarray], limit_bytes: int) -> list[ir.Node]:
    """Nodes to evaluate: deterministic, fed by constants, results of acceptable size."""
    ready: set[ir.Value] = set(known)
    nodes = []
    for node in model.graph.all_nodes():
        if all(v in ready for v in node.outputs) or not _is_plain(node):
            continue
        inputs = [v for v in node.inputs if v is not None]
        if inputs and all(v in ready or constant_tensor(v) is not None for v in inputs) and _is_acceptable(node, facts, limit_bytes):
            nodes.append(node)
            ready.update(node.outputs)
    return nodes


def _is_plain(node: ir.Node) -> bool:
    has_body = any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())
    return node.domain == "" and node.op_type not in _KEPT and not has_body


def _is_acceptable(node: ir.Node, facts: Facts, limit_bytes: int) -> bool:
    read = sum(_bytes(v, facts) or 0 for v in {v for v in node.inputs if v is not None})
    for value in node.outputs:
        size = _bytes(value, facts)
        if size is None and node.op_type in _BOUNDED and node.inputs[0] is not None and facts.shape(node.inputs[0]) is not None:
            size = 8 * read * max(1, len(facts.shape(node.inputs[0]) or ()))
        if size is None or not can_hold(facts.dtype(value)) or (size > limit_bytes and size > GROWTH * read):
            return False
    return True


def _bytes(value: ir.Value, facts: Facts) -> int | None:
    shape, dtype = facts.shape(value), facts.dtype(value)
    sizes = [d for d in shape or () if isinstance(d, int)]
    return None if shape is None or dtype is None or len(sizes) != len(shape) else math.prod(sizes) * dtype.size


def _is_needed(value: ir.Value, nodes: set[ir.Node]) -> bool:
    """Whether somebody who stays reads the value."""
    return value.is_graph_output() or any(use.node not in nodes for use in value.uses())


class _Names:
    """Names for values of bodies that move to the main graph, where every body sees them."""

    def __init__(self, model: ir.Model) -> None:
        self._main = model.graph
        self._count: dict[str, int] = {}
        for graph in nested(model.graph):
            for value in (*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)):
                self._count[value.name or ""] = self._count.get(value.name or "", 0) + 1

    def moved(self, name: str, graph: ir.Graph | None) -> str:
        """``name`` for a value that was in ``graph``; another one if it was in a body and others bear it as well."""
        if graph is self._main or self._count.get(name, 0) <= 1:
            return name
        number = 2
        while f"{name}_{number}" in self._count:
            number += 1
        self._count[f"{name}_{number}"] = 1
        self._count[name] -= 1
        return f"{name}_{number}"


def _replace(model: ir.Model, value: ir.Value, array: np.ndarray, names: _Names) -> None:
    """The value becomes an initializer of the same name, or if it is an output of its graph, that of a Constant node."""
    node = value.producer()
    assert node is not None
    graph, name = node.graph, value.name or ""
    assert isinstance(graph, ir.Graph)
    if value.is_graph_output():  # an initializer may be an output, but not every reader of models knows
        constant = ir.node("Constant", [], {"value": ir.Tensor(_packed(array), name=name)}, name=node.name)
        made = constant.outputs[0]
        graph.insert_before(node, constant)
        value.name = None  # the old node gives the name up; it goes with the unused ones
        made.name, made.type, made.shape = name, value.type, value.shape
        value.replace_all_uses_with(made, replace_graph_outputs=True)
    else:
        name = names.moved(name, graph)
        value.name = None
        made = _initializer(name, ir.Tensor(_packed(array), name=name))
        value.replace_all_uses_with(made)
        model.graph.register_initializer(made)


def _packed(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(array.shape)


def _initializer(name: str | None, tensor: ir.TensorProtocol) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor)


def lift_constants(model: ir.Model) -> None:
    """Makes initializers of Constant nodes, wherever they stand, but of those that are outputs."""
    names = _Names(model)
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Constant" or node.domain != "" or node.outputs[0].is_graph_output():
            continue
        value, graph = node.outputs[0], node.graph
        tensor = constant_tensor(value)
        if tensor is None or not isinstance(graph, ir.Graph):
            continue
        name = names.moved(value.name or "", graph)
        made = _initializer(name, _named(tensor, name))
        value.replace_all_uses_with(made)
        graph.remove(node, safe=True)
        model.graph.register_initializer(made)


def remove_unused(model: ir.Model) -> int:
    """Removes nodes and initializers, those of bodies as well, that nothing reads; inputs stay. Says how many nodes went."""
    removed = 0
    for node in reversed(list(model.graph.all_nodes())):
        if isinstance(node.graph, ir.Graph) and not any(v.uses() or v.is_graph_output() for v in node.outputs):
            node.graph.remove(node, safe=True)
            removed += 1
    for graph in list(nested(model.graph)):
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                del graph.initializers[name]
    return removed


def _named(tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    """A tensor of its own for the initializer: attributes of cloned models share theirs, and saving renames it."""
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name) if tensor.dtype != ir.DataType.STRING else tensor
