"""Ops that pick elements by index, and those that make indices."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from graphfuse.ir import expr
from graphfuse.ir.builder import Val
from graphfuse.ir.dtypes import I64, from_numpy
from graphfuse.ir.errors import Refused
from graphfuse.ir.expr import Dim
from graphfuse.ops.call import OpCall, normal_axis
from graphfuse.ops.movement import take_range
from graphfuse.ops.table import op


@op("Gather", kind="movement")
def _gather(call: OpCall) -> Val:
    data, indices, axis = call.arg(0), call.arg(1), call.axis(0)
    return _as_slice(call, data, axis) or call.b.gather(data, indices, axis)


def _as_slice(call: OpCall, data: Val, axis: int) -> Val | None:
    """Known indices that follow each other evenly are a slice, which reads better than a gather; else None."""
    known, size = call.value(1), data.shape[axis]
    if known is None or known.ndim > 1 or known.dtype == object or not known.size or not isinstance(size, int):
        return None
    places = [int(i) + size if i < 0 else int(i) for i in known.reshape(-1)]
    steps = {b - a for a, b in itertools.pairwise(places)} or {1}
    if len(steps) > 1 or 0 in steps or not all(0 <= p < size for p in places):
        return None
    part = take_range(data, axis, places[0], len(places), steps.pop())
    return part if known.ndim else call.b.reshape(part, [d for i, d in enumerate(data.shape) if i != axis])


def _counted_from_front(index: Val, size: Dim) -> Val:
    """Indices with negative ones counted from the end, as int64."""
    b = index.builder
    wide = b.cast(index, I64)
    return b.map("where", b.map("lt", wide, 0), wide + b.extent(size), wide)


def _flat_index(parts: Sequence[Val], sizes: Sequence[Dim]) -> Val:
    """The row-major place of an element with these indices in an array of these sizes."""
    place = parts[0]
    for part, size in zip(parts[1:], sizes[1:], strict=True):
        place = place * part.builder.extent(size) + part
    return place


@op("GatherElements", kind="movement")
def _gather_elements(call: OpCall) -> Val:
    data, index, axis = call.arg(0), call.arg(1), call.axis(0)
    if index.rank != data.rank:
        raise Refused("bad-shape", "GatherElements wants indices of the rank of its data")
    own = _counted_from_front(index, data.shape[axis])
    parts = [own if i == axis else call.b.iota(index.shape, i) for i in range(data.rank)]
    return call.b.gather(call.b.reshape(data, [expr.product(data.shape)]), _flat_index(parts, data.shape), 0)


@op("GatherND", kind="movement")
def _gather_nd(call: OpCall) -> Val:
    data, index, batch = call.arg(0), call.arg(1), call.integer("batch_dims", 0)
    depth = index.shape[-1] if index.rank else None
    if not isinstance(depth, int) or not 0 <= batch < index.rank or not 1 <= depth <= data.rank - batch:
        raise Refused("bad-shape", "GatherND has indices that do not fit its data")
    shape = index.shape[:-1]
    columns = [call.b.reshape(take_range(index, index.rank - 1, i, 1), shape) for i in range(depth)]
    parts = [call.b.iota(shape, i) for i in range(batch)]
    parts += [_counted_from_front(column, size) for column, size in zip(columns, data.shape[batch:], strict=False)]
    used = data.shape[: batch + depth]
    flat = call.b.reshape(data, [expr.product(used), *data.shape[batch + depth :]])
    return call.b.gather(flat, _flat_index(parts, used), 0)


@op("Trilu", kind="movement")
def _trilu(call: OpCall) -> Val:
    x = call.arg(0)
    if x.rank < 2:
        raise Refused("bad-shape", "Trilu wants matrices")
    diagonal = call.b.reshape(call.arg(1), ()) if call.has(1) else call.b.const(0, I64)
    matrix = x.shape[-2:]
    offset = call.b.iota(matrix, 1) - call.b.iota(matrix, 0)
    keep = call.b.map("ge" if call.integer("upper", 1) else "le", offset, diagonal)
    return call.b.map("where", keep, x, call.b.const(0, x.dtype))


@op("Range", kind="movement", known=(0, 1, 2))
def _range(call: OpCall) -> Val:
    """Of integers known, or known as run-time sizes, when the graph is rewritten."""
    values = [call.require_value(i, "a bound of a Range") for i in range(3)]
    if any(v.size != 1 or v.dtype.kind not in "iuO" for v in values):
        raise Refused("unknown-value", "only a Range of integers is a movement of elements")
    start, limit = (call.require_dims(i, "a bound of a Range")[0] for i in range(2))
    steps = call.fixed(2, "the step of a Range") or [0]
    if steps[0] == 0:
        raise Refused("bad-shape", "a Range has a step of 0")
    distance = limit - start if steps[0] > 0 else start - limit
    size = expr.emax(0, expr.ceildiv(distance, abs(steps[0])))
    dtype = next((from_numpy(v.dtype) for v in values if v.dtype != object), I64)
    return call.b.iota([size], 0, dtype) * steps[0] + call.b.extent(start, dtype)


@op("ConstantOfShape", kind="movement", known=(0,))
def _constant_of_shape(call: OpCall) -> Val:
    shape = call.require_dims(0, "the shape of a ConstantOfShape")
    value = np.asarray(call.attrs.get("value", np.zeros(1, np.float32)))
    if value.size != 1 or not all(expr.is_nonneg(d) for d in shape):
        raise Refused("unknown-value", "ConstantOfShape wants one value and dimensions of at least 0")
    return call.full(value.reshape(-1)[0].item(), from_numpy(value.dtype), shape)


@op("EyeLike", kind="movement")
def _eye_like(call: OpCall) -> Val:
    x = call.arg(0)
    if x.rank != 2:
        raise Refused("bad-shape", "EyeLike wants a matrix")
    diagonal = call.b.iota(x.shape, 1) - call.b.iota(x.shape, 0)
    dtype = call.dtype("dtype") if "dtype" in call.attrs else x.dtype
    return call.b.cast(call.b.map("eq", diagonal, call.integer("k", 0)), dtype)


@op("OneHot", kind="movement", known=(1,))
def _one_hot(call: OpCall) -> Val:
    index, values = call.arg(0), call.arg(2)
    depth = call.require_dims(1, "the depth of a OneHot")[0]
    axis = normal_axis(call.integer("axis", -1), index.rank + 1)
    shape = [*index.shape[:axis], depth, *index.shape[axis:]]
    if not expr.is_nonneg(depth):
        raise Refused("unknown-value", f"a depth of {depth} may be negative")
    spread = call.b.reshape(index, [*index.shape[:axis], 1, *index.shape[axis:]])
    hit = call.b.map("eq", call.b.iota(shape, axis), _counted_from_front(spread, depth))
    off, on = (call.b.reshape(take_range(values, 0, i, 1), ()) for i in range(2))
    return call.b.map("where", hit, on, off)


@op("ReverseSequence", kind="movement")
def _reverse_sequence(call: OpCall) -> Val:
    """Of each batch the first ``sequence_lens`` steps turned round, the rest as it is."""
    x, lengths, b = call.arg(0), call.arg(1), call.b
    batch, time = call.integer("batch_axis", 1), call.integer("time_axis", 0)
    if {batch, time} != {0, 1} or x.rank < 2:
        raise Refused("bad-attribute", "ReverseSequence wants batch and time on the first two axes")
    step = b.iota(x.shape[:2], time)
    length = b.reshape(b.cast(lengths, I64), [x.shape[0], 1] if batch == 0 else [1, x.shape[1]])
    source = b.map("where", b.map("lt", step, length), length - 1 - step, step)
    parts = [source if axis == time else b.iota(x.shape[:2], axis) for axis in (0, 1)]
    flat = b.reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]])
    return b.gather(flat, _flat_index(parts, x.shape[:2]), 0)
