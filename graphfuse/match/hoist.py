"""Shape arithmetic, computed straight from the shapes of the graph's inputs.

Exporters read shapes off whatever tensor is at hand: ``Reshape(y, Concat(Gather(Shape(y), 0), ...))``. Such a Shape keeps
``y`` alive, and the path through it stands between two nodes that could be one kernel. Every size is known as an
expression of the input sizes, so each small integer tensor that real work reads is computed anew from those.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir

from graphfuse.graph.facts import Facts
from graphfuse.graph.fold import remove_unused
from graphfuse.ir import expr
from graphfuse.ir.dtypes import I32, I64
from graphfuse.ir.expr import Atom, Call, Dim, Sym
from graphfuse.match.names import unused_name, value_names

_CALLS = {"//": "Div", "%": "Mod", "max": "Max", "min": "Min"}
_FIRST_OPSET = 13  # Max and Min of int64, and all rules below


def hoist_shapes(model: onnx_ir.Model, facts: Facts) -> int:
    """Rewrites the shape arithmetic of ``model`` in place; returns how many reads now go to sizes of inputs.

    ``facts`` are the model's, and out of date afterwards unless that is 0. Arithmetic that reads the shapes of nothing but
    inputs stays as it is, so that a second call changes nothing.
    """
    if model.opset_imports.get("", 0) < _FIRST_OPSET:
        return 0
    maker = _Maker(model.graph, facts)
    count = 0
    for node in list(model.graph):
        if all(facts.value(v) is not None for v in node.outputs):
            continue  # arithmetic itself: replaced where it is read
        for index, value in enumerate(node.inputs):
            made = None if value is None else maker.replacement(value)
            if made is not None:
                node.replace_input_with(index, made)
                count += 1
    maker.insert()
    if count:
        remove_unused(model)
    return count


class _Maker:
    def __init__(self, graph: onnx_ir.Graph, facts: Facts) -> None:
        self.graph = graph
        self.facts = facts
        self.sources = _sources(graph, facts)
        self.names = value_names(graph)
        self.nodes: list[onnx_ir.Node] = []
        self.sound: set[onnx_ir.Node] = set()  # arithmetic known to stand on inputs
        self.made: dict[tuple[object, ...], onnx_ir.Value] = {}

    def replacement(self, value: onnx_ir.Value) -> onnx_ir.Value | None:
        """The same numbers from sizes of inputs; None if ``value`` is no such tensor, or stands on them already."""
        if value.producer() is None:
            return None
        known, dtype = self.facts.value(value), self.facts.dtype(value)
        if known is None or known.dtype != object or dtype not in (I64, I32) or self._stands_on_inputs(value):
            return None
        items: list[Dim] = known.reshape(-1).tolist()
        if any(name not in self.sources for item in items for name in expr.symbols(item)):
            return None
        made = self._vector(items)
        if known.ndim != 1:
            made = self._node("Reshape", [made, self._constant(known.shape)])
        return made if dtype is I64 else self._node("Cast", [made], to=onnx_ir.DataType.INT32.value)

    def _stands_on_inputs(self, value: onnx_ir.Value) -> bool:
        """Whether the value is computed from constants and from shapes of inputs alone."""
        pending, seen = [value], {value}
        while pending:
            node = pending.pop().producer()
            if node is None:
                continue  # an input or a constant
            if node in self.sound:
                continue
            if node.op_type == "Shape":
                if node.inputs[0] is None or node.inputs[0].producer() is not None:
                    return False
                continue
            fresh = [v for v in node.inputs if v is not None and v not in seen]
            seen.update(fresh)
            pending += fresh
        self.sound.update(p for p in (v.producer() for v in seen) if p is not None)
        return True

    def insert(self) -> None:
        """Puts the nodes at the head of the graph: they need inputs and constants only."""
        first = next(iter(self.graph), None)
        if first is not None and self.nodes:
            self.graph.insert_before(first, self.nodes)

    def _vector(self, items: Sequence[Dim]) -> onnx_ir.Value:
        parts: list[onnx_ir.Value] = []
        run: list[int] = []
        for item in items:
            if isinstance(item, int):
                run.append(item)
                continue
            parts += [self._constant(run)] if run else []
            run = []
            parts.append(self._dim(item))
        parts += [self._constant(run)] if run else []
        return parts[0] if len(parts) == 1 else self._node("Concat", parts, axis=0)

    def _dim(self, dim: Dim) -> onnx_ir.Value:
        """A tensor of one element."""
        if isinstance(dim, int):
            return self._constant([dim])
        total: onnx_ir.Value | None = None
        for mono, factor in sorted(dim.terms.items(), key=lambda t: expr.render(expr.Expr({t[0]: 1})) if t[0] else "~"):
            term = self._product(mono, factor)
            total = term if total is None else self._node("Add", [total, term])
        assert total is not None
        return total

    def _product(self, mono: Sequence[Atom], factor: int) -> onnx_ir.Value:
        parts = [self._atom(a) for a in mono]
        if factor != 1 or not parts:
            parts.append(self._constant([factor]))
        total = parts[0]
        for part in parts[1:]:
            total = self._node("Mul", [total, part])
        return total

    def _atom(self, atom: Atom) -> onnx_ir.Value:
        if isinstance(atom, Call):  # sizes are at least 0, so truncating and floor division agree
            return self._node(_CALLS[atom.fn], [self._dim(atom.left), self._dim(atom.right)])
        assert isinstance(atom, Sym)
        value, axis = self.sources[atom.name]
        return self._node("Gather", [self._node("Shape", [value]), self._constant([axis])], axis=0)

    def _constant(self, items: Sequence[int]) -> onnx_ir.Value:
        key = ("constant", *items)
        if key not in self.made:
            tensor = onnx_ir.Tensor(np.array(list(items), np.int64), name=self._name("gf_sizes"))
            value = onnx_ir.Value(
                name=tensor.name, type=onnx_ir.TensorType(tensor.dtype), shape=onnx_ir.Shape(tensor.shape), const_value=tensor
            )
            self.graph.register_initializer(value)
            self.made[key] = value
        return self.made[key]

    def _node(self, op_type: str, inputs: Sequence[onnx_ir.Value], **attributes: int) -> onnx_ir.Value:
        key = (op_type, *inputs, *sorted(attributes.items()))
        if key not in self.made:
            name = self._name(f"gf_{op_type.lower()}")
            output = onnx_ir.Value(name=name)
            attrs = [onnx_ir.AttrInt64(k, v) for k, v in attributes.items()]
            self.nodes.append(onnx_ir.Node("", op_type, inputs, attrs, outputs=[output], name=name))
            self.made[key] = output
        return self.made[key]

    def _name(self, wanted: str) -> str:
        name = unused_name(wanted, self.names)
        self.names.add(name)
        return name


def _sources(graph: onnx_ir.Graph, facts: Facts) -> dict[str, tuple[onnx_ir.Value, int]]:
    """For each run-time size of an input's shape, an input and an axis to read it from."""
    found: dict[str, tuple[onnx_ir.Value, int]] = {}
    for value in graph.inputs:
        for axis, dim in enumerate(facts.shape(value) or ()):
            names = expr.symbols(dim)
            if len(names) == 1 and dim == expr.sym(next(iter(names))):
                found.setdefault(next(iter(names)), (value, axis))
    return found
