"""Families of ops that read many elements for each result: reductions, norms, quantisation, and big ops in between."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TypeProto, ValueInfoProto, helper

from graphfuse.ir.dtypes import BY_NAME
from tests.fuzz.maker import FLOATS, INTS, MAX_ELEMENTS, Maker, Shape, V, allowed, broadcast, is_fixed

REDUCE = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd", "ReduceLogSumExp",
    "ReduceLogSum",
)  # fmt: skip
AXES_ARE_INPUTS = {"ReduceSum": 13}


def reduce(m: Maker) -> None:
    """Over any axes, some, all or none, kept or not."""
    op = m.choose(REDUCE)
    kinds = {*FLOATS, "i32", "i64"} if op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceProd") else {*FLOATS}
    if op in ("ReduceMax", "ReduceMin"):
        kinds |= {"i8", "u8"}
    x = m.pick(allowed(op, m.opset) & kinds, lambda v: v.elements > 0 and all(0 not in s for s in v.shape))
    if x is None:
        return
    if op not in ("ReduceMax", "ReduceMin"):  # of integers too: ONNX Runtime's sums do not wrap
        x = m.squarable(x)
    if op == "ReduceLogSumExp":
        x = m.without_infinities(x)
    if op in ("ReduceMax", "ReduceMin") and x.dtype in FLOATS:
        x = m.without_nan(x)  # it goes through ours, as in NumPy; ONNX Runtime's kernels differ from each other
    if op == "ReduceLogSum":
        x = m.add("Add", [m.add("Abs", [x], x.dtype, x.shape), m.const(0.5, x.dtype)], x.dtype, x.shape)
    if op == "ReduceProd" and x.dtype in INTS:  # nor do its products
        x = m.add("Sign", [x], x.dtype, x.shape)
    if op == "ReduceProd" and x.dtype in FLOATS and not m.wild:
        x = m.add("Tanh", [x], x.dtype, x.shape) if x.dtype in allowed("Tanh", m.opset) else x
    places, written = m.axes(x.rank, 1) if x.rank else ([], [])
    if m.opset < 11:
        written = places
    attrs = {"keepdims": 0} if m.chance(50) else {}
    inputs: list[V | None] = [x]
    if not places or m.chance(15):
        places = list(range(x.rank))
    elif m.opset < AXES_ARE_INPUTS.get(op, 18):
        attrs["axes"] = written
    else:
        inputs.append(m.ints(written))
    m.add(op, inputs, x.dtype, _reduced(m, x, places, bool(attrs.get("keepdims", 1))), **attrs)


def _reduced(m: Maker, x: V, places: list[int], keep: bool) -> Shape:
    one = (1,) * m.runs
    return tuple(one if i in places else s for i, s in enumerate(x.shape) if keep or i not in places)


def arg_extremum(m: Maker) -> None:
    op = m.choose(("ArgMax", "ArgMin"))
    x = m.pick(allowed(op, m.opset) & {*FLOATS, *INTS}, lambda v: v.rank >= 1 and all(0 not in s for s in v.shape))
    if x is None:
        return
    x = m.without_nan(x) if x.dtype in FLOATS else x
    axis, written = m.axis(x.rank)
    attrs = {"axis": axis if m.opset < 11 else written} | ({"keepdims": 0} if m.chance(50) else {})
    if m.opset >= 12 and m.chance(30):
        attrs["select_last_index"] = 1
    m.add(op, [x], "i64", _reduced(m, x, [axis], bool(attrs.get("keepdims", 1))), **attrs)


def softmax(m: Maker) -> None:
    """Both meanings: one axis, or before opset 13 all from one on."""
    op = m.choose(("Softmax", "LogSoftmax", "Softmax", "Hardmax"))
    x = m.pick(allowed(op, m.opset), lambda v: v.rank >= 1 and all(0 not in s for s in v.shape))
    if x is None:
        return
    x = m.without_nan(x) if op == "Hardmax" else m.without_infinities(x)
    axis, written = m.axis(x.rank)
    attrs = {"axis": axis if m.opset < 11 else written} if m.chance(80) or (m.opset < 13 and x.rank < 2) else {}
    m.add(op, [x], x.dtype, x.shape, **attrs)


def _filled(v: V) -> bool:
    return v.rank >= 1 and all(0 not in s for s in v.shape) and is_fixed(v.shape[-1])


def layer_norm(m: Maker) -> None:
    """As one node where there is one, or as the nine nodes that exporters write."""
    x = m.pick(["f32", "f64", "f16"], _filled)
    if x is None:
        return
    x, size = m.squarable(x), [x.shape[-1][0]]
    if m.opset >= 17 and m.chance(50):
        bias = [m.data(x.dtype, size)] if m.chance(50) else []
        m.add("LayerNormalization", [x, m.data(x.dtype, size), *bias], x.dtype, x.shape, axis=m.choose((-1, x.rank - 1)))
        return
    mean = mean_of_last(m, x)
    away = m.add("Sub", [x, mean], x.dtype, x.shape)
    square = [away, away] if m.chance(50) else [away, m.const(2.0, x.dtype)]
    squared = m.add("Mul" if square[1] is away else "Pow", square, x.dtype, x.shape)
    variance = mean_of_last(m, squared)
    root = m.add("Sqrt", [m.add("Add", [variance, m.const(1e-3, x.dtype)], x.dtype, variance.shape)], x.dtype, variance.shape)
    y = m.add("Div", [away, root], x.dtype, x.shape)
    if m.chance(60):
        y = m.add("Mul", [y, m.data(x.dtype, size)], x.dtype, x.shape)
        m.add("Add", [y, m.data(x.dtype, size)], x.dtype, x.shape)


def mean_of_last(m: Maker, x: V) -> V:
    """The mean over the last axis, which is kept."""
    shape = _reduced(m, x, [x.rank - 1], True)
    if m.opset >= 18:
        return m.add("ReduceMean", [x, m.ints([-1])], x.dtype, shape)
    return m.add("ReduceMean", [x], x.dtype, shape, axes=[x.rank - 1 if m.opset < 11 else -1])


def other_norm(m: Maker) -> None:
    """BatchNormalization, InstanceNormalization, LpNormalization, global pools."""
    op = m.choose(("BatchNormalization", "InstanceNormalization", "LpNormalization", "GlobalAveragePool", "GlobalMaxPool"))
    low = 1 if op == "LpNormalization" else 2 if op == "BatchNormalization" else 3
    x = m.pick(["f32"], lambda v: v.rank >= low and all(0 not in s for s in v.shape) and (v.rank < 2 or is_fixed(v.shape[1])))
    if x is None:
        return
    x = m.squarable(x)
    if op == "LpNormalization":
        m.add(op, [x], "f32", x.shape, axis=m.axis(x.rank)[1], p=m.integer(1, 2))
    elif op.startswith("Global"):
        m.add(op, [m.without_nan(x)], "f32", _reduced(m, x, list(range(2, x.rank)), True))
    else:
        channels = [x.shape[1][0]]
        vectors = [m.data("f32", channels), m.data("f32", channels)]
        if op == "BatchNormalization":
            vectors += [m.data("f32", channels), m.data("f32", channels, positive=True, nonzero=True)]
        m.add(op, [x, *vectors], "f32", x.shape)


def quantise(m: Maker) -> None:
    """QuantizeLinear, often with DequantizeLinear behind it, per tensor or per axis."""
    if m.opset < 10:
        return
    x = m.pick(["f32"])
    if x is None:
        return
    x = m.without_nan(x)
    axis = m.integer(0, x.rank - 1) if x.rank and m.opset >= 13 and m.chance(40) else None
    if axis is not None and not is_fixed(x.shape[axis]):
        axis = None
    shape = [] if axis is None else [x.shape[axis][0]]
    dtype = m.choose(("i8", "u8"))
    scale = m.data("f32", shape, positive=True, nonzero=True)
    zero = m.const(m.rng().integers(0, 20, shape), dtype)
    attrs = {} if m.opset < 13 else {"axis": 0 if axis is None else axis}
    y = m.add("QuantizeLinear", [x, scale, zero], dtype, x.shape, **attrs)
    if m.chance(70):
        m.add("DequantizeLinear", [y, scale, zero], "f32", x.shape, **attrs)


def matmul(m: Maker) -> None:
    """A big op: what is before it and behind it may not share a region."""
    x = m.pick(["f32", "f64"], lambda v: v.rank >= 2 and is_fixed(v.shape[-1]) and v.elements > 0)
    if x is None or any(0 in s for s in x.shape):
        return
    x = m.squarable(x)
    columns = m.integer(1, 6)
    made = (*x.shape[:-1], (columns,) * m.runs)
    if V("", x.dtype, made).elements <= MAX_ELEMENTS:
        m.add("MatMul", [x, m.data(x.dtype, [x.shape[-1][0], columns])], x.dtype, made)


def branch(m: Maker) -> None:
    """An If whose branches capture inner values."""
    condition = m.pick(["bool"], lambda v: v.rank == 0) or m.const(m.chance(50), "bool")
    x = m.pick(["f32", "i64"])
    if x is None or x.dtype not in ("f32", "i64"):
        return
    y = m.partner(x)
    shape = broadcast(x.shape, y.shape)
    if shape is None:
        return
    graphs = {name: _branch(m, name, op, x, y) for name, op in (("then_branch", "Add"), ("else_branch", m.choose(("Sub", "Mul"))))}
    m.add("If", [condition], x.dtype, shape, **graphs)


def _branch(m: Maker, name: str, op: str, x: V, y: V) -> object:
    inner, outer = m.fresh(), m.fresh()
    nodes = [helper.make_node(op, [x.name, y.name], [inner]), helper.make_node("Neg", [inner], [outer])]
    typed = TypeProto()
    typed.tensor_type.elem_type = BY_NAME[x.dtype].onnx
    return helper.make_graph(nodes, name, [], [ValueInfoProto(name=outer, type=typed)])


def running(m: Maker) -> None:
    """CumSum, forwards and backwards."""
    if m.opset < 11:
        return
    x = m.pick(["f32", "i64"], lambda v: v.rank >= 1)
    if x is not None and x.dtype in ("f32", "i64"):
        x = m.squarable(x)
        attrs = {"reverse": m.integer(0, 1), "exclusive": m.integer(0, 1)}
        m.add("CumSum", [x, m.const(np.array(m.axis(x.rank)[1]), "i64")], x.dtype, x.shape, **attrs)


Family = Callable[[Maker], None]
