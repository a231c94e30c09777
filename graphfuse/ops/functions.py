"""Ops that ONNX itself defines by other ops: lowered by lowering the nodes of their function body.

Every op of the newest opset that has a body, and no entry of its own, gets one here, unless its body is made of matrix
products, draws random numbers or holds sequences. Inside a body integer tensors made of shapes and constants are followed as
values, since other nodes want them known; they are arrays of ``object`` dtype where they hold run-time sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import onnx
from onnx import defs

from graphfuse.ir import expr
from graphfuse.ir.builder import Builder, Val
from graphfuse.ir.dtypes import DType, from_numpy
from graphfuse.ir.errors import Refused
from graphfuse.ir.expr import Expr
from graphfuse.ops import table
from graphfuse.ops.call import OpCall
from graphfuse.ops.table import register

_NOT_SMALL = frozenset({
    "Attention", "AffineGrid", "Bernoulli", "CausalConvWithState", "FlexAttention", "LinearAttention", "SequenceMap",
})  # fmt: skip
# inputs that a body turns into sizes
_KNOWN = {"CenterCropPad": (1,), "BlackmanWindow": (0,), "HammingWindow": (0,), "HannWindow": (0,)}
_BY_BODY: set[table.Lowering] = set()
MAX_TABLE = 64  # elements of a constant that a body may hold as data: each is a case of its own in a kernel


@dataclass(frozen=True)
class _Item:
    """A value inside a body: as data, as what is known of it, or both."""

    val: Val | None = None
    known: np.ndarray | None = None


_NOTHING = _Item()


def by_body(op_type: str) -> Callable[[OpCall], list[Val]]:
    """The lowering of an op through its function body."""

    def lower(call: OpCall) -> list[Val]:
        body = function_body(op_type, call)
        items = [_item(call, i) for i in range(max(len(call.args), len(call.values)))]
        results = _Body(call, body).run(dict(zip(body.input, items, strict=False)))
        return results[: max(1, call.n_outputs)]

    return lower


def is_by_body(entry: table.Entry | None) -> bool:
    """Whether an op is known by its function body alone."""
    return entry is not None and entry.rule in _BY_BODY


def _item(call: OpCall, index: int) -> _Item:
    known = call.value(index)
    small = known is not None and known.size <= MAX_TABLE and (known.dtype == object or known.dtype.kind in "iu")
    return _Item(call.args[index] if index < len(call.args) else None, known if small else None)


def function_body(op_type: str, call: OpCall) -> onnx.FunctionProto:
    """The body that ONNX gives a node. Raises Refused when it gives none for these inputs and attributes."""
    schema: Any = defs.get_schema(op_type, call.opset)
    if schema.has_function:
        return cast(onnx.FunctionProto, schema.function_body)
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= call.opset]
    node = onnx.helper.make_node(op_type, _names(call), [f"o{i}" for i in range(call.n_outputs)], **_attributes(call))
    types = [_type(call, i).SerializeToString() for i in range(len(node.input))]
    if not versions:
        raise Refused("unknown-op", f"{op_type} of opset {call.opset} has no function body")
    text = schema.get_context_dependent_function_with_opset_version(max(versions), node.SerializeToString(), types)
    return cast(onnx.FunctionProto, onnx.FunctionProto.FromString(text))


def _names(call: OpCall) -> list[str]:
    given = [call.has(i) or call.value(i) is not None for i in range(max(len(call.args), len(call.values)))]
    while given and not given[-1]:
        given.pop()
    return [f"i{i}" if there else "" for i, there in enumerate(given)]


def _attributes(call: OpCall) -> dict[str, Any]:
    return {k: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in call.attrs.items()}


def _type(call: OpCall, index: int) -> onnx.TypeProto:
    if not call.has(index):
        known = call.value(index)
        return (
            onnx.TypeProto()
            if known is None
            else onnx.helper.make_tensor_type_proto(7 if known.dtype == object else from_numpy(known.dtype).onnx, known.shape)
        )
    x = call.arg(index)
    return onnx.helper.make_tensor_type_proto(x.dtype.onnx, [d if isinstance(d, int) else str(d)[:40] for d in x.shape])


class _Body:
    """One run through the nodes of a body."""

    def __init__(self, call: OpCall, body: onnx.FunctionProto) -> None:
        self.b: Builder = call.b
        self.attrs = call.attrs
        self.body = body
        self.opset = next((o.version for o in body.opset_import if o.domain == ""), call.opset)
        self.defaults = {a.name: a for a in body.attribute_proto}
        if body.name:
            schema = defs.get_schema(body.name, call.opset)
            self.defaults.update((n, a.default_value) for n, a in schema.attributes.items() if a.default_value.type)

    def run(self, items: dict[str, _Item]) -> list[Val]:
        """The outputs of the body."""
        for node in self.body.node:
            made = self._node(node, [items.get(name, _NOTHING) for name in node.input])
            items.update(zip(node.output, made, strict=False))
        return [self._data(items[name], "the result") for name in self.body.output if name in items]

    def _node(self, node: onnx.NodeProto, inputs: Sequence[_Item]) -> list[_Item]:
        attrs = dict(self._node_attributes(node))
        known = _known(node.op_type, attrs, inputs)
        if known is not None:
            return [_Item(None, known)]
        entry = table.lookup(node.domain, node.op_type)
        if entry is None:
            raise Refused("unknown-op", f"its function body holds {node.op_type}")
        args = [None if i in entry.known or item is _NOTHING else self._data(item, node.op_type) for i, item in enumerate(inputs)]
        call = OpCall(self.b, args, attrs, self.opset, len(node.output), [item.known for item in inputs])
        for i in entry.known:
            if i < len(inputs) and inputs[i].val is not None and inputs[i].known is None:
                raise Refused("unknown-value", f"input {i} of {node.op_type} in its function body is known at run time only")
        return [_Item(v) for v in entry.lower(call)]

    def _node_attributes(self, node: onnx.NodeProto) -> Iterator[tuple[str, Any]]:
        for attr in node.attribute:
            if not attr.ref_attr_name:
                yield attr.name, plain(onnx.helper.get_attribute_value(attr))
            elif attr.ref_attr_name in self.attrs:
                yield attr.name, self.attrs[attr.ref_attr_name]
            elif attr.ref_attr_name in self.defaults:
                yield attr.name, plain(onnx.helper.get_attribute_value(self.defaults[attr.ref_attr_name]))

    def _data(self, item: _Item, reader: str) -> Val:
        if item.val is not None:
            return item.val
        known = item.known
        if known is None or known.size > MAX_TABLE:
            raise Refused("unknown-value", f"a large constant of its function body is read by {reader}")
        dtype = from_numpy(np.dtype(np.int64) if known.dtype == object else known.dtype)
        scalars = [self._scalar(v, dtype) for v in known.reshape(-1).tolist()]
        if len(scalars) == 1:
            return self.b.broadcast(scalars[0], known.shape)
        rows = [self.b.reshape(s, [1]) for s in scalars]
        return self.b.reshape(self.b.concat(rows, 0), known.shape) if rows else self.b.broadcast(self.b.const(0, dtype), known.shape)

    def _scalar(self, value: Any, dtype: DType) -> Val:
        return self.b.extent(value, dtype) if isinstance(value, Expr) else self.b.const(value, dtype)


def plain(value: Any) -> Any:
    """An attribute as lowerings want it: text as str, tensors as arrays, lists of Python numbers."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


# --- what is known of a node's result, from what is known of its inputs


def _known(op_type: str, attrs: dict[str, Any], inputs: Sequence[_Item]) -> np.ndarray | None:
    """The result of integer and shape arithmetic; None where it is none or an input is not known."""
    if op_type == "Constant":
        return _constant(attrs)
    if op_type in ("Shape", "Size") and inputs[0].val is not None:
        dims = inputs[0].val.shape
        found = dims[slice(attrs.get("start", 0), attrs.get("end"))] if op_type == "Shape" else expr.product(dims)
        return np.array(found, object)
    arrays = [item.known for item in inputs]
    rule = _VALUES.get(op_type)
    if rule is None or not arrays or any(a is None or a.dtype.kind not in "iuO" for a in arrays):
        return None
    return np.asarray(rule(attrs, *[np.asarray(a, object) for a in arrays]), object)


def _constant(attrs: dict[str, Any]) -> np.ndarray | None:
    for name, value in attrs.items():
        if name == "value":
            return np.asarray(value)
        if name in ("value_int", "value_ints", "value_float", "value_floats"):
            return np.asarray(value, np.int64 if "int" in name else np.float32)
    return None


def _quotient(attrs: dict[str, Any], a: np.ndarray, b: np.ndarray) -> Any:
    if any(not expr.is_nonneg(v) for v in (*a.reshape(-1), *b.reshape(-1))):
        raise Refused("unknown-value", "a division of sizes in its function body has an unknown sign")
    return a // b


def _part(attrs: dict[str, Any], x: np.ndarray, start: np.ndarray, end: np.ndarray, *more: np.ndarray) -> Any:
    if x.ndim != 1 or len(more) > 1 or any(isinstance(v, Expr) for v in (*start, *end)):
        raise Refused("unknown-value", "a slice of sizes in its function body is not known")
    return x[int(start[0]) : int(end[0])]


def _each(fn: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda attrs, a, b: np.frompyfunc(fn, 2, 1)(a, b)


_VALUES: dict[str, Callable[..., Any]] = {
    "Identity": lambda attrs, x: x,
    "Cast": lambda attrs, x: x if attrs.get("to") in (6, 7) else _refuse_cast(),
    "Gather": lambda attrs, x, i: np.take(x, i.astype(np.int64), axis=attrs.get("axis", 0)),
    "Concat": lambda attrs, *parts: np.concatenate(parts, axis=attrs.get("axis", 0)),
    "Slice": _part,
    "Squeeze": lambda attrs, x, axes=None: np.squeeze(x, None if axes is None else tuple(int(a) for a in axes)),
    "Unsqueeze": lambda attrs, x, axes: np.expand_dims(x, tuple(int(a) for a in axes)),
    "Add": _each(lambda a, b: a + b),
    "Sub": _each(lambda a, b: a - b),
    "Mul": _each(lambda a, b: a * b),
    "Max": _each(expr.emax),
    "Min": _each(expr.emin),
    "Div": _quotient,
}


def _refuse_cast() -> None:
    raise Refused("unknown-value", "its function body computes with sizes as other than integers")


def enter_functions() -> None:
    """Enters every op that has a body and no entry; called when all families are in."""
    schemas: list[Any] = list(defs.get_all_schemas())  # the stubs of the package lack what is asked of them here
    for schema in schemas:
        has_body = schema.has_function or schema.has_context_dependent_function
        if has_body and schema.domain == "" and schema.name not in _NOT_SMALL and table.is_new(schema.name):
            rule = by_body(schema.name)
            _BY_BODY.add(rule)
            register(schema.name, "pointwise", rule, known=_KNOWN.get(schema.name, ()))
