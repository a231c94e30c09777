"""Softmax and the normalisations. Variances are two-pass: the mean of squared distances from the mean, never E[x2] - E[x]2.

The norms of ONNX compute small floats in float32 and convert back at their end; so do these, by explicit casts.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphfuse.ir import expr
from graphfuse.ir.builder import Number, Val
from graphfuse.ir.dtypes import F32, F64, DType
from graphfuse.ir.errors import Refused
from graphfuse.ops.call import OpCall, along
from graphfuse.ops.reductions import mean
from graphfuse.ops.table import op

# --- softmax


def _softmax_axes(call: OpCall) -> list[int]:
    """One axis; before opset 13 all axes from ``axis`` on, as if they were flattened into one."""
    x = call.arg(0)
    if call.opset >= 13:
        return [call.axis(-1)]
    axis = call.integer("axis", 1)
    return [] if axis == x.rank else list(range(call.axis(1), x.rank))


@op("Softmax", kind="norm")
def _softmax(call: OpCall) -> Val:
    b, x, axes = call.b, call.arg(0), _softmax_axes(call)
    raised = b.map("exp", x - b.reduce("max", x, axes, keepdims=True))
    return raised / b.reduce("sum", raised, axes, keepdims=True)


@op("LogSoftmax", kind="norm")
def _log_softmax(call: OpCall) -> Val:
    b, x, axes = call.b, call.arg(0), _softmax_axes(call)
    moved = x - b.reduce("max", x, axes, keepdims=True)
    return moved - b.map("log", b.reduce("sum", b.map("exp", moved), axes, keepdims=True))


# --- mean and variance


def _widened(call: OpCall, *vals: Val) -> tuple[Val, ...]:
    """All in the type to compute in: float64 when one of them is, else float32."""
    dtype = F64 if any(v.dtype is F64 for v in vals) else F32
    return tuple(call.b.cast(v, dtype) for v in vals)


def _stash_type(call: OpCall) -> DType:
    dtype = call.dtype("stash_type", F32)
    if not dtype.is_float:
        raise Refused("bad-attribute", f"stash_type is {dtype}")
    return dtype


def _inverse_root(x: Val, epsilon: Number) -> Val:
    return 1 / x.builder.map("sqrt", x + epsilon)


def _standardised(x: Val, axes: Sequence[int], epsilon: float) -> tuple[Val, Val, Val]:
    """``(x - mean) / sqrt(variance + epsilon)``, the mean, and the inverse of that root."""
    middle = mean(x, axes)
    distance = x - middle
    inverse = _inverse_root(mean(distance * distance, axes), epsilon)
    return distance * inverse, middle, inverse


@op("LayerNormalization", kind="norm")
def _layer_normalization(call: OpCall) -> list[Val]:
    x, axes, stash = call.arg(0), _trailing_axes(call), _stash_type(call)
    wide, scale = _widened(call, x, call.arg(1))
    normal, middle, inverse = _standardised(wide, axes, call.real("epsilon", 1e-5))
    y = normal * scale
    if call.has(2):
        y = y + call.b.cast(call.arg(2), y.dtype)
    y = call.b.broadcast(y, x.shape)
    return [call.b.cast(y, x.dtype), call.b.cast(middle, stash), call.b.cast(inverse, stash)][: max(1, call.n_outputs)]


def _trailing_axes(call: OpCall) -> list[int]:
    return list(range(call.axis(-1), call.arg(0).rank))


@op("RMSNormalization", kind="norm")
def _rms_normalization(call: OpCall) -> Val:
    x = call.arg(0)
    wide, scale = _widened(call, x, call.arg(1))
    squares = mean(wide * wide, _trailing_axes(call))
    y = wide * _inverse_root(squares, call.real("epsilon", 1e-5)) * scale
    return call.b.cast(call.b.broadcast(y, x.shape), x.dtype)


@op("InstanceNormalization", kind="norm")
def _instance_normalization(call: OpCall) -> Val:
    x = call.arg(0)
    wide, scale, bias = _widened(call, x, call.arg(1), call.arg(2))
    normal, _, _ = _standardised(wide, list(range(2, x.rank)), call.real("epsilon", 1e-5))
    return call.b.cast(normal * along(scale, 1, x.rank) + along(bias, 1, x.rank), x.dtype)


@op("GroupNormalization", kind="norm")
def _group_normalization(call: OpCall) -> Val:
    """Scale and bias are one a group up to opset 20, one a channel after it."""
    x, groups = call.arg(0), call.integer("num_groups", 0)
    per_group = expr.exact_quotient(x.shape[1], groups) if x.rank > 1 and groups > 0 else None
    if per_group is None:
        raise Refused("bad-shape", "the channels do not provably divide into num_groups")
    wide, scale, bias = _widened(call, x, call.arg(1), call.arg(2))
    grouped = call.b.reshape(wide, [x.shape[0], groups, per_group, *x.shape[2:]])
    own = [1, groups, per_group if call.opset >= 21 else 1, *[1] * (x.rank - 2)]
    normal, _, _ = _standardised(grouped, list(range(2, grouped.rank)), call.real("epsilon", 1e-5))
    y = normal * call.b.reshape(scale, own) + call.b.reshape(bias, own)
    return call.b.cast(call.b.reshape(y, x.shape), x.dtype)


@op("BatchNormalization", kind="norm")
def _batch_normalization(call: OpCall) -> Val:
    """Inference: with the given statistics."""
    trains = call.integer("training_mode", 0) or call.n_outputs > 1 or (call.opset < 7 and not call.integer("is_test", 0))
    if trains or not call.integer("spatial", 1):
        raise Refused("training-mode", "BatchNormalization that computes statistics, or is not per channel, is not supported")
    x = call.arg(0)
    axis = min(1, x.rank - 1)
    wide, *vectors = _widened(call, *(call.arg(i) for i in range(5)))
    scale, bias, middle, variance = (along(v, axis, x.rank) for v in vectors)
    return call.b.cast((wide - middle) * (scale * _inverse_root(variance, call.real("epsilon", 1e-5))) + bias, x.dtype)


@op("MeanVarianceNormalization", kind="norm")
def _mean_variance_normalization(call: OpCall) -> Val:
    x = call.arg(0)
    axes = call.axes(x.rank, 1)
    axes = [a for a in (0, 2, 3) if a < x.rank] if axes is None else axes
    (wide,) = _widened(call, x)
    distance = wide - mean(wide, axes)
    return call.b.cast(distance / (call.b.map("sqrt", mean(distance * distance, axes)) + 1e-9), x.dtype)


@op("LpNormalization", kind="norm")
def _lp_normalization(call: OpCall) -> Val:
    """A vector of zeros stays one."""
    b, x, power = call.b, call.arg(0), call.integer("p", 2)
    if power not in (1, 2):
        raise Refused("bad-attribute", f"LpNormalization has p = {power}")
    (wide,) = _widened(call, x)
    size = b.reduce("sum", b.map("abs", wide) if power == 1 else wide * wide, [call.axis(-1)], keepdims=True)
    size = size if power == 1 else b.map("sqrt", size)
    return b.cast(b.map("where", b.map("eq", size, 0), 0, wide / size), x.dtype)


# --- pools over all of space


@op("GlobalAveragePool", kind="norm")
def _global_average_pool(call: OpCall) -> Val:
    return mean(call.arg(0), list(range(2, call.arg(0).rank)))


@op("GlobalMaxPool", kind="norm")
def _global_max_pool(call: OpCall) -> Val:
    return call.b.reduce("max", call.arg(0), list(range(2, call.arg(0).rank)), keepdims=True)
