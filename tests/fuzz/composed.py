"""Families of several ops that belong together: what exporters write for norms, attention and activations, windows, bodies of loops."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from graphfuse.ir.dtypes import BY_NAME
from tests.fuzz.folds import mean_of_last
from tests.fuzz.maker import FLOATS, MAX_ELEMENTS, Maker, V, broadcast, is_fixed

_MATHS = ("f32", "f64", "f16")


def _filled(v: V, low: int = 1) -> bool:
    return v.rank >= low and all(0 not in s for s in v.shape) and is_fixed(v.shape[-1])


def norm(m: Maker) -> None:
    """Variance from means of squares, RMS norm, a softmax or a standard deviation by hand."""
    x = m.pick(_MATHS, _filled)
    if x is None:
        return
    x = m.without_infinities(x)
    m.choose((_variance, _rms, _softmax, _group_norm))(m, x)


def _op(m: Maker, op: str, *inputs: V) -> V:
    shape = broadcast(*(v.shape for v in inputs))
    assert shape is not None
    return m.add(op, inputs, inputs[0].dtype, shape)


def _variance(m: Maker, x: V) -> None:
    mean = mean_of_last(m, x)
    square = mean_of_last(m, _op(m, "Mul", x, x))
    low = _op(m, "Max", _op(m, "Sub", square, _op(m, "Mul", mean, mean)), m.const(0, x.dtype))
    _op(m, "Div", _op(m, "Sub", x, mean), _op(m, "Sqrt", _op(m, "Add", low, m.const(0.25, x.dtype))))


def _rms(m: Maker, x: V) -> None:
    wide = m.cast(x, "f32") if x.dtype == "f16" else x
    root = _op(m, "Sqrt", _op(m, "Add", mean_of_last(m, _op(m, "Mul", wide, wide)), m.const(1e-3, wide.dtype)))
    y = m.cast(_op(m, "Div", wide, root), x.dtype) if wide is not x else _op(m, "Mul", wide, _op(m, "Reciprocal", root))
    _op(m, "Mul", y, m.data(x.dtype, [x.shape[-1][0]]))


def _softmax(m: Maker, x: V) -> None:
    e = _op(m, "Exp", _op(m, "Tanh", x))
    kept = (*x.shape[:-1], (1,) * m.runs)
    total = m.add(
        "ReduceSum", [e, m.ints([-1])] if m.opset >= 13 else [e], x.dtype, kept, **({} if m.opset >= 13 else {"axes": [x.rank - 1]})
    )
    _op(m, "Div", e, total)


def _group_norm(m: Maker, x: V) -> None:
    if x.rank < 2 or not all(is_fixed(s) for s in x.shape) or x.dtype != "f32":
        return
    n, c = x.shape[0][0], x.shape[1][0]
    groups = m.choose([g for g in (1, 2, 4, c) if c % g == 0])
    rest = int(np.prod([s[0] for s in x.shape[1:]])) // groups
    grouped = m.add("Reshape", [x, m.ints([0, groups, -1])], "f32", tuple((k,) * m.runs for k in (n, groups, rest)))
    made = m.add("InstanceNormalization", [grouped, m.const([1] * groups, "f32"), m.const([0] * groups, "f32")], "f32", grouped.shape)
    back = m.add("Reshape", [made, m.ints([s[0] for s in x.shape])], "f32", x.shape)
    per_channel = [c, *[1] * (x.rank - 2)]
    _op(m, "Add", _op(m, "Mul", back, m.data("f32", per_channel)), m.data("f32", per_channel))


def gate(m: Maker) -> None:
    """Swish, gelu and hard-swish by hand; a gated product of two halves."""
    x = m.pick(_MATHS, _filled)
    if x is None:
        return
    x = m.without_infinities(x)
    kind = m.choose(("swish", "gelu", "hard", "halves", "rope"))
    if kind in ("swish", "gelu"):
        inner = _op(m, "Sigmoid", x) if kind == "swish" else _op(m, "Add", _op(m, "Tanh", x), m.const(1, x.dtype))
        _op(m, "Mul", _op(m, "Mul", x, inner) if kind == "gelu" else inner, m.const(0.5, x.dtype) if kind == "gelu" else x)
    elif kind == "hard":
        y = _op(m, "Min", _op(m, "Max", _op(m, "Add", x, m.const(3, x.dtype)), m.const(0, x.dtype)), m.const(6, x.dtype))
        _op(m, "Div", _op(m, "Mul", x, y), m.const(6, x.dtype))
    elif x.shape[-1][0] % 2 == 0:
        _halves(m, x, kind)


def _halves(m: Maker, x: V, kind: str) -> None:
    half = x.shape[-1][0] // 2
    shape = (*x.shape[:-1], (half,) * m.runs)
    more: list[V | None] = [m.ints([half, half])] if m.opset >= 13 else []
    low, high = m.node("Split", [x, *more], [(x.dtype, shape)] * 2, axis=x.rank - 1, **({} if more else {"split": [half, half]}))
    if kind == "halves":
        _op(m, "Mul", _op(m, "Mul", low, _op(m, "Sigmoid", low)), high)
        return
    turned = m.add("Concat", [m.add("Neg", [high], x.dtype, shape), low], x.dtype, x.shape, axis=-1)
    angle = [x.shape[-1][0]]
    _op(m, "Add", _op(m, "Mul", x, m.data(x.dtype, angle)), _op(m, "Mul", turned, m.data(x.dtype, angle)))


def window(m: Maker) -> None:
    """A value under neighbouring slices of itself along one or two axes, folded by Max, Min or Add."""
    x = m.pick({*FLOATS, "i32", "i64"}, lambda v: v.rank >= 1 and v.elements > 0)
    if x is None:
        return
    op = m.choose(("Max", "Min", "Add") if m.opset >= 12 else ("Add",) if x.dtype[0] == "i" else ("Max", "Min", "Add"))
    x = m.without_infinities(x) if x.dtype in FLOATS else m.squarable(x)
    for _ in range(m.integer(1, 2)):
        axis = m.integer(0, x.rank - 1)
        taps, step = m.integer(2, 4), m.choose((1, 1, 1, 2))
        if not is_fixed(x.shape[axis]) or x.shape[axis][0] < taps:
            continue
        length = -(-(x.shape[axis][0] - taps + 1) // step)
        shape = tuple((length,) * m.runs if i == axis else s for i, s in enumerate(x.shape))
        parts = [_tap(m, x, axis, k, k + (length - 1) * step + 1, step, shape) for k in range(taps)]
        made = parts[0]
        for part in parts[1:]:
            made = _op(m, op, made, part)
        x = made


def _tap(m: Maker, x: V, axis: int, start: int, end: int, step: int, shape: tuple[tuple[int, ...], ...]) -> V:
    if m.opset < 10:
        if step == 1:
            return m.add("Slice", [x], x.dtype, shape, starts=[start], ends=[end], axes=[axis])
        index = m.const(np.arange(start, end, step), "i64")
        return m.add("Gather", [x, index], x.dtype, shape, axis=axis)
    return m.add("Slice", [x, m.ints([start]), m.ints([end]), m.ints([axis]), m.ints([step])], x.dtype, shape)


def pool(m: Maker) -> None:
    """Max, average and Lp pools over one or two axes, padded, dilated, with strides; LRN."""
    x = m.pick(["f32"], lambda v: v.rank in (3, 4) and v.elements > 0 and all(is_fixed(s) for s in v.shape))
    if x is None:
        return
    x = m.without_infinities(x)
    op = m.choose(("MaxPool", "MaxPool", "AveragePool", "LRN"))
    if op == "LRN":
        if x.rank == 4:  # ONNX Runtime has no other
            m.add(op, [x], "f32", x.shape, size=m.choose((1, 3, 5)), alpha=0.01, beta=m.choose((0.5, 0.75)), bias=1.5)
        return
    spatial = [s[0] for s in x.shape[2:]]
    kernel = [m.integer(1, min(3, n)) for n in spatial]
    strides = [m.choose((1, 1, 2, 3)) for _ in spatial]
    low, high = ([m.integer(0, k - 1) if m.chance(40) else 0 for k in kernel] for _ in range(2))
    dilations = [m.choose((1, 1, 2)) if m.opset >= (10 if op == "MaxPool" else 19) else 1 for _ in spatial]
    spans = [n + a + b - d * (k - 1) - 1 for n, a, b, d, k in zip(spatial, low, high, dilations, kernel, strict=True)]
    if any(s < 0 for s in spans):
        return
    sizes = [s // t + 1 for s, t in zip(spans, strides, strict=True)]
    attrs: dict[str, object] = {"kernel_shape": kernel, "strides": strides, "pads": [*low, *high]}
    if set(dilations) != {1}:
        attrs["dilations"] = dilations
    if op == "AveragePool" and set(dilations) == {1} and m.chance(50):
        attrs["count_include_pad"] = 1
    m.add(op, [x], "f32", (*x.shape[:2], *((n,) * m.runs for n in sizes)), **attrs)


def function(m: Maker) -> None:
    """Ops that ONNX defines by others, and which a kernel may hold or not: losses, crops, dynamic quantisation."""
    m.choose((_loss, _loss, _dynamic, _moments))(m)


def _loss(m: Maker) -> None:
    if m.opset < 13:
        return
    x = m.pick(["f32"], lambda v: v.rank in (2, 3, 4) and v.elements > 0 and all(is_fixed(s) for s in v.shape))
    if x is None:
        return
    x = m.without_infinities(x)
    sizes = [s[0] for s in x.shape]
    labels = m.const(m.rng().integers(0, sizes[1], [sizes[0], *sizes[2:]]), m.choose(("i64", "i32")))
    op, reduction = m.choose(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")), m.choose(("none", "mean", "sum"))
    inputs = [x, labels, *([m.data("f32", [sizes[1]], positive=True, nonzero=True)] if m.chance(40) else [])]
    attrs = {"reduction": reduction} | ({"ignore_index": m.integer(0, sizes[1])} if m.chance(30) and reduction != "mean" else {})
    m.add(op, inputs, "f32", labels.shape if reduction == "none" else (), **attrs)


def _dynamic(m: Maker) -> None:
    x = m.pick(["f32"], lambda v: v.elements > 0 and all(0 not in s for s in v.shape))
    if x is not None and m.opset >= 11:
        m.node("DynamicQuantizeLinear", [m.without_infinities(x)], [("u8", x.shape), ("f32", ()), ("u8", ())])


def _moments(m: Maker) -> None:
    x = m.pick(["f32"], lambda v: v.rank == 4 and all(0 not in s for s in v.shape))
    if x is not None:
        m.add("MeanVarianceNormalization", [m.without_infinities(x)], "f32", x.shape)


def loop(m: Maker) -> None:
    """A Loop of a known number of steps, whose body reads values from outside and carries one."""
    x = m.pick(["f32", "i64"])
    if x is None or x.dtype not in ("f32", "i64") or V("", x.dtype, x.shape).elements > MAX_ELEMENTS // 4:
        return
    x = m.squarable(x)
    y = m.partner(x)
    if broadcast(x.shape, y.shape) != x.shape:
        return
    step, go, carried, sub, low, out, on = (m.fresh() for _ in range(7))
    kind = BY_NAME[x.dtype].onnx
    nodes = [
        helper.make_node("Sub", [y.name, carried], [sub]),
        helper.make_node("Abs", [sub], [low]),
        helper.make_node("Add", [low, x.name], [out]),
        helper.make_node("Identity", [go], [on]),
    ]
    inputs = [
        helper.make_tensor_value_info(step, TensorProto.INT64, []),
        helper.make_tensor_value_info(go, TensorProto.BOOL, []),
        helper.make_tensor_value_info(carried, kind, [None] * x.rank),
    ]
    outputs = [helper.make_tensor_value_info(on, TensorProto.BOOL, []), helper.make_tensor_value_info(out, kind, [None] * x.rank)]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    m.add("Loop", [m.const(m.integer(0, 3), "i64"), None, x], x.dtype, x.shape, body=body)
