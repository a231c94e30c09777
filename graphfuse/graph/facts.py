"""What is known of a graph before it runs: types, shapes over run-time sizes, known values, and what depends on no data.

One walk through the nodes in their order. The shape of an op of the table is that of its lowering, run on parameters of the
input shapes; other ops have small rules (``shape_rules``), and ``onnx.shape_inference`` answers for the rest. Integer tensors
computed from shapes are followed as values (``shape_values``). A size that nothing tells becomes a symbol of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from graphfuse.graph import bodies, onnx_shapes, programs, shape_rules, shape_values
from graphfuse.graph.names import Names
from graphfuse.graph.node_view import MAX_VALUES, NodeView, PartialShape, attribute
from graphfuse.graph.onnx_shapes import TensorFacts, captured
from graphfuse.graph.ratios import Ratio
from graphfuse.graph.structure import SMALL, Large, Memo, array_key, attributes_key
from graphfuse.ir import dtypes, expr
from graphfuse.ir.builder import Builder, Val
from graphfuse.ir.dtypes import DType
from graphfuse.ir.errors import GraphfuseError, Refused
from graphfuse.ir.expr import Atom, Dim, Expr, Shape
from graphfuse.ops import table
from graphfuse.ops.call import OpCall

RANDOM = frozenset({"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"})


_MOST_WALKS = 4
_BY_LOWERING: Memo[list[tuple[DType, Shape]] | None] = Memo()
_BY_ONNX: Memo[list[tuple[int, PartialShape | None] | None]] = Memo()


class Depends(IntEnum):
    """What a value depends on; of several inputs the highest counts."""

    CONSTANT = 0
    SHAPES = 1
    DATA = 2


class Facts:
    """Facts about the values of a model's graph and of the bodies in it; made once, valid while the graph is not changed."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._equal: dict[Atom, Dim] = {}
        self._value_keys: dict[ir.Value, Hashable] = {}
        self.large_reads = 0  # how often a large constant was handed out: an answer made meanwhile may depend on it
        for _ in range(_MOST_WALKS):
            learned = len(self._equal)
            self._walk()
            if len(self._equal) == learned:
                break

    # --- answers

    def dtype(self, value: ir.Value) -> DType | None:
        """The element type; None where it is unknown or one that programs cannot hold."""
        return dtypes.from_onnx(self._dtypes.get(value, 0))

    def shape(self, value: ir.Value) -> Shape | None:
        """Sizes as ints and expressions of run-time sizes; None where the rank is unknown or the value is no tensor."""
        return self._shapes.get(value)

    def value(self, value: ir.Value) -> np.ndarray | None:
        """The elements where they are known: constants (weights are read only now), and integers computed from shapes.

        An array of ``object`` dtype holds ints and ``Expr``s, at least one of them an ``Expr``; others have the value's own type.
        """
        tensor = constant_tensor(value)
        if tensor is not None:
            self.large_reads += tensor.size > SMALL
            return tensor.numpy() if tensor.dtype != ir.DataType.STRING else None
        known, dtype = self._known.get(value), self.dtype(value)
        self.large_reads += known is not None and known.size > SMALL
        is_passing = known is not None and known.dtype == object and dtype is not None and dtype.is_float  # on its way through floats
        return None if is_passing else known

    def depends(self, value: ir.Value) -> Depends:
        """Whether the value is constant, depends on shapes only, or on data."""
        return self._depends.get(value, Depends.DATA)

    @cached_property
    def input_symbols(self) -> frozenset[str]:
        """Names of the run-time sizes in the shapes of the graph's inputs."""
        shapes = [self._shapes.get(v) or () for v in self.model.graph.inputs]
        return frozenset(name for shape in shapes for dim in shape for name in expr.symbols(dim))

    def is_shape_arithmetic(self, node: ir.Node) -> bool:
        """Whether the node reads shapes and constants only, and is not itself a constant."""
        return all(self.depends(v) is Depends.SHAPES for v in node.outputs)

    def opset(self, node: ir.Node) -> int:
        """The version of the node's domain."""
        imports = self.model.opset_imports
        return imports.get(node.domain, imports.get("ai.onnx", 1) if node.domain == "" else 1)

    def call(self, node: ir.Node, builder: Builder, args: Sequence[Val | None]) -> OpCall:
        """The node as its entry's lowering wants it. Raises Refused if an input that must be known is not.

        ``args``: a Val for each data input, None for omitted and for known ones.
        """
        entry = table.lookup(node.domain, node.op_type)
        values = _Values(self, node)
        for index in entry.known if entry else ():
            if index < len(node.inputs) and node.inputs[index] is not None and values[index] is None:
                raise Refused("unknown-value", f"input {index} of {node.op_type} is known at run time only")
        attrs = {name: attribute(attr) for name, attr in node.attributes.items() if not attr.is_ref()}
        return OpCall(builder, args, attrs, self.opset(node), len(node.outputs), values)

    def arguments(self, node: ir.Node, builder: Builder) -> list[Val | None] | None:
        """A parameter of ``builder`` for each data input, as ``call`` wants them; None where a type or shape is not known."""
        entry = table.lookup(node.domain, node.op_type)
        args: list[Val | None] = []
        for index, value in enumerate(node.inputs):
            dtype, shape = (None, None) if value is None else (self.dtype(value), self._shapes.get(value))
            if value is None or (entry and index in entry.known):
                args.append(None)
            elif dtype is None or shape is None:
                return None
            else:
                args.append(builder.param(dtype, shape))
        return args

    def structure(self, node: ir.Node) -> Hashable | None:
        """What tells the node from others but for names (see ``structure``); None if that cannot be compared.

        What ``value`` answers of inputs larger than ``SMALL`` is not part of it: see ``large_reads``.
        """
        attributes = attributes_key(node)
        if attributes is None:
            return None
        inputs = tuple(None if v is None else (self._dtypes.get(v, 0), self._shapes.get(v), self._value_key(v)) for v in node.inputs)
        return (node.domain, node.op_type, self.opset(node), len(node.outputs), attributes, inputs)

    def _value_key(self, value: ir.Value) -> Hashable:
        if value not in self._value_keys:
            tensor = constant_tensor(value)
            known = self._known.get(value) if tensor is None else None
            if tensor is not None:
                small = tensor.size <= SMALL and tensor.dtype != ir.DataType.STRING
                self._value_keys[value] = array_key(tensor.numpy()) if small else Large(tensor.size)
            else:
                self._value_keys[value] = None if known is None else array_key(known) if known.size <= SMALL else Large(known.size)
        return self._value_keys[value]

    # --- the walk

    def _walk(self) -> None:
        """All nodes in order. What is learned of equal sizes holds for earlier nodes too: then there is another walk."""
        self._names = Names()
        self._dtypes: dict[ir.Value, int] = {}
        self._shapes: dict[ir.Value, Shape | None] = {}
        self._known: dict[ir.Value, np.ndarray] = {}
        self._value_keys.clear()
        self._depends: dict[ir.Value, Depends] = {}
        self._whole: dict[str, tuple[int, PartialShape | None]] | None = None
        self._texts: dict[str, Dim] = {}
        self._depth = 0
        self._start()
        for node in self.model.graph:
            self._visit(node)

    def _start(self) -> None:
        graph = self.model.graph
        for value in graph.inputs:
            self._set(value, Depends.DATA, _code(value), self._declared(value))
        self._set_initializers(graph)

    def _set_initializers(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and not value.is_graph_input():
                self._set(value, Depends.CONSTANT, tensor.dtype.value, tuple(tensor.shape.numpy()))

    def _declared(self, value: ir.Value) -> Shape | None:
        """The shape that a graph input declares; sizes without a number become symbols."""
        if value.shape is None:
            return None
        return tuple(self._input_size(value, axis, dim) for axis, dim in enumerate(value.shape))

    def _input_size(self, value: ir.Value, axis: int, dim: int | ir.SymbolicDim) -> Dim:
        text = dim.value if isinstance(dim, ir.SymbolicDim) else None
        if isinstance(dim, int) and dim >= 0:
            return dim
        if not text:
            return self._names.fresh(f"{value.name}_d{axis}")
        self._texts[text] = self._names.named(text)
        return self._texts[text]

    def _set(self, value: ir.Value, depends: Depends, dtype: int, shape: Shape | None, known: np.ndarray | None = None) -> None:
        self._depends[value], self._dtypes[value], self._shapes[value] = depends, dtype, shape
        if known is not None:
            self._known[value] = known
        elif self._depth:  # bodies are walked through more than once
            self._known.pop(value, None)
            self._value_keys.pop(value, None)

    def _visit(self, node: ir.Node) -> None:
        if node.op_type == "Constant" and node.domain == "":
            tensor = constant_tensor(node.outputs[0])
            if tensor is not None:
                self._set(node.outputs[0], Depends.CONSTANT, tensor.dtype.value, tuple(tensor.shape.numpy()))
                return
        carried = [self._enter(node, body) for _, body in bodies.bodies(node)]
        view = NodeView(node, self.opset(node), self._shapes.get, self._small_value)
        types, shapes = self._types_and_shapes(node, view)
        if carried:
            told = bodies.exits(node, self._shapes.get, carried[0])
            shapes = [_merged(a, b) for a, b in zip([*told, *[None] * len(shapes)], shapes, strict=False)]
        values: list[np.ndarray | None] = [*(shape_values.known_outputs(view) or ()), *[None] * len(node.outputs)]
        depends = self._node_depends(node)
        for value, dtype, shape, array in zip(node.outputs, types, shapes, values, strict=False):
            known = None if array is None or not _agree(shape, array.shape) else _pack(array, dtype)
            self._set(value, depends, dtype, self._complete(value, shape) if known is None else known.shape, known)

    def _enter(self, node: ir.Node, body: ir.Graph) -> list[Shape | None]:
        """Walks through a body; gives the shapes of its carried values, None for those that change or may."""
        self._depth += 1
        self._set_initializers(body)
        entries = bodies.entries(node, body, self._shapes.get, lambda v: self._dtypes.get(v, 0))
        given, made = [i for i, e in enumerate(entries) if e.assumed], body.outputs[1:]
        for attempt in range(_MOST_WALKS):
            for value, entry in zip(body.inputs, entries, strict=True):
                self._set(value, Depends.DATA, entry.dtype or _code(value), self._entry_shape(value, entry))
            for inner in body:
                self._visit(inner)
            broken = [i for i, v in zip(given, made, strict=False) if entries[i].assumed and self._shapes.get(v) != entries[i].shape]
            if not broken:
                break
            for i in broken if attempt < _MOST_WALKS - 2 else given:
                entries[i] = bodies.Entry(entries[i].dtype)
        self._depth -= 1
        return [self._shapes.get(v) if entries[i].assumed else None for i, v in zip(given, made, strict=False)]

    def _entry_shape(self, value: ir.Value, entry: bodies.Entry) -> Shape | None:
        """Of a shape that nothing tells only the declared rank is believed."""
        if entry.shape is not None:
            return self._complete(value, entry.shape)
        return None if value.shape is None else tuple(self._names.fresh(f"{value.name}_d{axis}") for axis in range(len(value.shape)))

    def _small_value(self, value: ir.Value) -> np.ndarray | None:
        tensor = constant_tensor(value)
        if tensor is None:
            return self._known.get(value)
        return tensor.numpy() if tensor.size <= MAX_VALUES and tensor.dtype != ir.DataType.STRING else None

    def _node_depends(self, node: ir.Node) -> Depends:
        if node.op_type in RANDOM and node.domain == "":
            return Depends.DATA
        sources = [v for v in node.inputs if v is not None]
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            sources += captured(node)
        highest = max((self.depends(v) for v in sources), default=Depends.CONSTANT)
        is_shape = node.domain == "" and node.op_type in ("Shape", "Size")
        return min(highest, Depends.SHAPES) if is_shape else highest

    # --- types and shapes

    def _types_and_shapes(self, node: ir.Node, view: NodeView) -> tuple[list[int], list[PartialShape | None]]:
        structure = self.structure(node)
        exact = self._by_lowering(node, structure) or self._by_program(node)
        if exact is not None:
            return [t.onnx for t, _ in exact], [s for _, s in exact]
        if not self._depth:  # a branch that is not taken implies nothing
            self._equal.update(shape_rules.implied_equal(view))
        by_rule = shape_rules.inferred(view) or [None] * len(node.outputs)
        by_onnx = self._by_onnx(node, structure)
        types, shapes = [], []
        for value, rule in zip(node.outputs, [*by_rule, *[None] * len(node.outputs)], strict=False):
            dtype, shape = by_onnx.get(value.name or "", (0, None))
            types.append(dtype or _code(value))
            shapes.append(_merged(rule, shape))
        return types, shapes

    def _by_lowering(self, node: ir.Node, structure: Hashable | None) -> list[tuple[DType, Shape]] | None:
        entry = table.lookup(node.domain, node.op_type)
        if entry is None:
            return None
        reads = self.large_reads
        key = None if structure is None else (entry, structure)
        return _BY_LOWERING.get(key, lambda: self._lowered(node, entry), lambda: self.large_reads == reads)

    def _lowered(self, node: ir.Node, entry: table.Entry) -> list[tuple[DType, Shape]] | None:
        builder = Builder()
        args = self.arguments(node, builder)
        if args is None:
            return None
        try:
            return [(v.dtype, v.shape) for v in entry.lower(self.call(node, builder, args))]
        except GraphfuseError:
            return None

    def _by_program(self, node: ir.Node) -> list[tuple[DType, Shape]] | None:
        """The outputs of a node that is already fused."""
        spec = programs.spec_of(node, self.model)
        if spec is None:
            return None
        shapes = [None if v is None else self._shapes.get(v) for v in programs.parameters_of(node, self.model)]
        return programs.output_facts(spec, shapes)

    def _by_onnx(self, node: ir.Node, structure: Hashable | None) -> dict[str, tuple[int, PartialShape | None]]:
        has_body = node.op_identifier() in self.model.functions or any(True for _ in captured(node))
        if not has_body:
            key = None if structure is None else (structure, *sorted(self.model.opset_imports.items()))
            if any(isinstance(k, Large) and k.size <= onnx_shapes.SHOWN for k in map(self._value_key, filter(None, node.inputs))):
                key = None
            found = _BY_ONNX.get(key, lambda: self._inferred(node))
            if any(found):
                return {v.name or "": f for v, f in zip(node.outputs, found, strict=True) if f is not None}
        if self._depth:
            return self._of_bodies(node)
        if self._whole is None:
            self._whole = onnx_shapes.infer_graph(self.model, self._texts)
        return self._whole

    def _of_bodies(self, node: ir.Node) -> dict[str, tuple[int, PartialShape | None]]:
        """Types of what a node in a body makes, if it has bodies itself: those of what they hand out."""
        skipped = {"Loop": 1}.get(node.op_type, 0)
        made = next((list(graph.outputs)[skipped:] for _, graph in bodies.bodies(node)), [])
        return {v.name or "": (self._dtypes.get(own, 0), None) for v, own in zip(node.outputs, made, strict=False)}

    def _inferred(self, node: ir.Node) -> list[tuple[int, PartialShape | None] | None]:
        """What ``onnx.shape_inference`` says of each output."""
        inputs = {v.name or "": TensorFacts(self._dtypes.get(v, 0), self._shapes.get(v), self._small_value(v)) for v in node.inputs if v}
        found = onnx_shapes.infer_node(node, inputs, self.model.opset_imports)
        return [found.get(v.name or "") for v in node.outputs]

    def _complete(self, value: ir.Value, shape: PartialShape | None) -> Shape | None:
        """Sizes that nothing tells: the number that the model itself states of an inner value, else a symbol.

        Of outputs exporters state the sizes of the run that they traced, so those numbers are not believed.
        """
        stated = value.shape if value.shape is None or shape is None or len(value.shape) == len(shape) else None
        if shape is None:
            if stated is None:
                return None
            shape = (None,) * len(stated)
        return tuple(self._size(value, axis, dim, stated) for axis, dim in enumerate(shape))

    def _size(self, value: ir.Value, axis: int, dim: Dim | None, stated: ir.Shape | None) -> Dim:
        if dim is not None:
            return expr.substitute(dim, self._equal)
        own = None if stated is None or value.is_graph_output() else stated[axis]
        return own if isinstance(own, int) and own >= 0 else self._names.fresh(f"{value.name}_d{axis}")


class _Values(Sequence["np.ndarray | None"]):
    """The known values of a node's inputs, looked up when asked for: weights are not read for nothing."""

    def __init__(self, facts: Facts, node: ir.Node) -> None:
        self._facts, self._inputs = facts, node.inputs

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: Any) -> Any:
        value = self._inputs[index]
        return None if value is None else self._facts.value(value)


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of a value that is the same in every run: an initializer that nobody can feed, or a Constant node's output."""
    if value.is_initializer():
        return None if value.is_graph_input() else value.const_value
    node = value.producer()
    return constant_of(node) if node is not None and node.op_type == "Constant" and node.domain == "" else None


_CONSTANT_FORMS: dict[str, Callable[[ir.Attr], np.ndarray]] = {
    "value_float": lambda a: np.array(a.as_float(), np.float32),
    "value_floats": lambda a: np.array(a.as_floats(), np.float32),
    "value_int": lambda a: np.array(a.as_int(), np.int64),
    "value_ints": lambda a: np.array(a.as_ints(), np.int64),
}


def constant_of(node: ir.Node) -> ir.TensorProtocol | None:
    """The tensor of a Constant node, None for its string and sparse forms and for a value that a function's caller gives."""
    for name, attr in node.attributes.items():
        if attr.is_ref():
            return None
        if name == "value":
            return attr.as_tensor()
        if name in _CONSTANT_FORMS:
            return ir.tensor(_CONSTANT_FORMS[name](attr))
    return None


def _code(value: ir.Value) -> int:
    return value.type.dtype.value if isinstance(value.type, ir.TensorType) else 0


def _merged(first: PartialShape | None, second: PartialShape | None) -> PartialShape | None:
    """Size by size what the first says, else the second."""
    if first is None or second is None or len(first) != len(second):
        return second if first is None else first
    return tuple(b if a is None else a for a, b in zip(first, second, strict=True))


def _agree(shape: PartialShape | None, actual: tuple[int, ...]) -> bool:
    return shape is None or (
        len(shape) == len(actual) and all(d == n or not isinstance(d, int) for d, n in zip(shape, actual, strict=True))
    )


def _pack(known: np.ndarray, dtype: int) -> np.ndarray | None:
    """Plain numbers in the value's own type, arrays with run-time sizes as they are; None where a number does not fit."""
    if any(isinstance(item, Expr | Ratio) for item in known.flat):
        return known
    kind = dtypes.from_onnx(dtype)
    if kind is None:
        return None
    try:
        return np.asarray(known.tolist(), dtype=kind.numpy).reshape(known.shape)
    except (OverflowError, ValueError, TypeError):
        return None


def inputs_of(node: ir.Node) -> Iterator[ir.Value]:
    """The values that a node reads, those of its subgraphs included."""
    yield from (v for v in node.inputs if v is not None)
    yield from captured(node)
