"""Ops that make tensors larger out of their own elements or a fill: borders, and nearest-neighbour resizing by whole factors."""

from __future__ import annotations

from collections.abc import Sequence

from graphfuse.ir import expr
from graphfuse.ir.builder import Val
from graphfuse.ir.errors import Refused
from graphfuse.ir.expr import Dim
from graphfuse.ops.call import OpCall, normal_axis
from graphfuse.ops.movement import repeated, take_range
from graphfuse.ops.table import op


@op("Pad", kind="movement", known=(1, 3))
def _pad(call: OpCall) -> Val:
    x = call.arg(0)
    low, high = _pad_amounts(call, x.rank)
    mode = call.string("mode", "constant")
    if mode == "constant":
        x, low, high = _crop(x, low, high)
        return call.b.pad(x, low, high, call.b.reshape(call.arg(2), ()) if call.has(2) else _fill(call, x))
    for axis in range(x.rank):
        if low[axis] != 0 or high[axis] != 0:
            x = _mirror(x, axis, low[axis], high[axis], mode)
    return x


def _fill(call: OpCall, x: Val) -> Val:
    return call.b.const(call.real("value", 0.0) if x.dtype.is_float else 0, x.dtype)


def _pad_amounts(call: OpCall, rank: int) -> tuple[list[Dim], list[Dim]]:
    old = call.ints("pads" if call.opset > 1 else "paddings") or []
    listed: Sequence[Dim] = old if call.opset < 11 else call.require_dims(1, "the pads of a Pad")
    axes = call.axes(rank, 3)
    axes = list(range(rank)) if axes is None else axes
    if len(listed) != 2 * len(axes) or len(set(axes)) != len(axes):
        raise Refused("bad-shape", "the pads of a Pad do not fit its axes")
    low: list[Dim] = [0] * rank
    high: list[Dim] = [0] * rank
    for place, axis in enumerate(axes):
        low[axis], high[axis] = listed[place], listed[len(axes) + place]
    return low, high


def _crop(x: Val, low: list[Dim], high: list[Dim]) -> tuple[Val, list[Dim], list[Dim]]:
    """Negative pads cut off: what is left of ``x``, and the pads that add."""
    begins, ends = ([0 if expr.is_nonneg(p) else -p for p in pads] for pads in (low, high))
    x = x.builder.slice(x, begins, [d - b - e for d, b, e in zip(x.shape, begins, ends, strict=True)])
    low, high = ([p if expr.is_nonneg(p) else 0 for p in pads] for pads in (low, high))
    return x, low, high


def _mirror(x: Val, axis: int, low: Dim, high: Dim, mode: str) -> Val:
    """One axis with borders taken from its own elements; the builder refuses borders that reach past the other end."""
    size = x.shape[axis]
    if not (expr.is_nonneg(low) and expr.is_nonneg(high)):
        raise Refused("unsupported-mode", f"Pad in mode {mode} with negative pads is not supported")
    if mode == "reflect":
        left, right = take_range(x, axis, low, low, -1), take_range(x, axis, size - 2, high, -1)
    elif mode == "wrap":
        left, right = take_range(x, axis, size - low, low), take_range(x, axis, 0, high)
    elif mode == "edge":
        left, right = _stretched(x, axis, 0, low), _stretched(x, axis, size - 1, high)
    else:
        raise Refused("unsupported-mode", f"Pad has no mode {mode[:20]!r}")
    return x.builder.concat([left, x, right], axis)


def _stretched(x: Val, axis: int, place: Dim, size: Dim) -> Val:
    shape = [size if i == axis else d for i, d in enumerate(x.shape)]
    return x.builder.broadcast(take_range(x, axis, place, 1), shape)


@op("Resize", kind="movement", known=(1, 2, 3))
def _resize(call: OpCall) -> Val:
    """Nearest neighbour, enlarged by whole factors, where every coordinate rule that is let through picks ``i // factor``."""
    x = call.arg(0)
    if call.string("mode", "nearest") != "nearest":
        raise Refused("unsupported-mode", "only nearest-neighbour Resize is a movement of elements")
    factors = _resize_factors(call, x)
    if not all(_is_plain_nearest(call, f) for f in factors if f != 1):
        raise Refused("unsupported-mode", "this Resize does not repeat each element the same number of times")
    return repeated(x, factors, inner=True)


def _is_plain_nearest(call: OpCall, factor: Dim) -> bool:
    if call.opset < 11:
        return True
    place = call.string("coordinate_transformation_mode", "half_pixel")
    rule = call.string("nearest_mode", "round_prefer_floor")
    if place == "asymmetric":
        return rule == "floor" or (rule == "round_prefer_floor" and factor == 2)
    return place in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel") and rule.startswith("round_prefer_")


def _resize_factors(call: OpCall, x: Val) -> list[Dim]:
    place = 1 if call.opset < 11 else 2
    scales, sizes = call.value(place), call.dims(3) if call.opset >= 11 else None
    axes = [normal_axis(a, x.rank) for a in call.ints("axes") or range(x.rank)]
    factors: list[Dim] = [1] * x.rank
    if sizes:
        if call.string("keep_aspect_ratio_policy", "stretch") != "stretch" or len(sizes) != len(axes):
            raise Refused("unsupported-mode", "Resize that keeps the aspect ratio is not supported")
        found = [None if x.shape[a] == 0 else expr.exact_quotient(s, x.shape[a]) for s, a in zip(sizes, axes, strict=True)]
    else:
        if scales is None or scales.size != len(axes):
            raise Refused("unknown-value", "the scales of a Resize are not known when the graph is rewritten")
        found = [int(s) if s == int(s) and s >= 1 else None for s in scales.reshape(-1).tolist()]
    for axis, factor in zip(axes, found, strict=True):
        if factor is None:
            raise Refused("unsupported-mode", "Resize by a factor that is not whole is no movement of elements")
        factors[axis] = factor
    return factors


@op("Upsample", kind="movement", known=(1,))
def _upsample(call: OpCall) -> Val:
    x = call.arg(0)
    scales = call.attrs.get("scales") if call.opset < 9 else call.require_value(1, "the scales of an Upsample").reshape(-1).tolist()
    if call.string("mode", "nearest") != "nearest" or not scales or len(scales) != x.rank or any(s != int(s) or s < 1 for s in scales):
        raise Refused("unsupported-mode", "only Upsample to the nearest by whole factors is a movement of elements")
    return repeated(x, [int(s) for s in scales], inner=True)
