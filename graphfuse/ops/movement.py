"""Ops that move elements and compute none: they become views, and cost a kernel nothing but its addresses."""

from __future__ import annotations

from collections.abc import Sequence

from graphfuse.ir import expr
from graphfuse.ir.builder import Val, broadcast_shapes
from graphfuse.ir.errors import Refused
from graphfuse.ir.expr import Dim, Shape
from graphfuse.ops.call import OpCall, normal_axis
from graphfuse.ops.table import op

# --- shape changes


@op("Reshape", kind="movement", known=(1,))
def _reshape(call: OpCall) -> Val:
    x = call.arg(0)
    wanted = call.ints("shape") if call.opset < 5 else call.require_dims(1, "the shape of a Reshape")
    if wanted is None:
        raise Refused("bad-attribute", "Reshape has no shape")
    return call.b.reshape(x, resolve_shape(x.shape, wanted, copy_zeros=not call.integer("allowzero", 0)))


def resolve_shape(shape: Shape, wanted: Sequence[Dim], *, copy_zeros: bool) -> list[Dim]:
    """The target of a Reshape: 0 copies a dimension (or is one), -1 takes what is left. Raises Refused when that is no integer."""
    dims: list[Dim] = list(wanted)
    for place, dim in enumerate(dims):
        if dim == 0 and copy_zeros:
            if place >= len(shape):
                raise Refused("bad-shape", "Reshape copies a dimension that its input does not have")
            dims[place] = shape[place]
    if any(not expr.is_nonneg(d) and d != -1 for d in dims) or dims.count(-1) > 1:
        raise Refused("unknown-value", f"Reshape to {dims}: a dimension may be negative")
    if -1 in dims:
        known = expr.product(d for d in dims if d != -1)
        rest = None if known == 0 else expr.exact_quotient(expr.product(shape), known)
        if rest is None:
            raise Refused("not-provable", f"Reshape of {list(shape)} to {dims}: the size left for -1 is not provably whole")
        dims[dims.index(-1)] = rest
    return dims


@op("Flatten", kind="movement")
def _flatten(call: OpCall) -> Val:
    x = call.arg(0)
    axis = call.integer("axis", 1)
    axis = x.rank if axis == x.rank else normal_axis(axis, x.rank)
    return call.b.reshape(x, [expr.product(x.shape[:axis]), expr.product(x.shape[axis:])])


@op("Squeeze", kind="movement", known=(1,))
def _squeeze(call: OpCall) -> Val:
    x = call.arg(0)
    axes = call.axes(x.rank, 1)
    if axes is None:
        if any(not isinstance(d, int) for d in x.shape):
            raise Refused("unknown-value", "Squeeze without axes of a run-time dimension: it may be 1")
        axes = [i for i, d in enumerate(x.shape) if d == 1]
    return call.b.reshape(x, [d for i, d in enumerate(x.shape) if i not in axes])


@op("Unsqueeze", kind="movement", known=(1,))
def _unsqueeze(call: OpCall) -> Val:
    x = call.arg(0)
    listed = call.fixed(1, "axes") if call.opset >= 13 else call.ints("axes")
    if listed is None:
        raise Refused("unknown-value", "Unsqueeze has no axes")
    rank = x.rank + len(listed)
    axes = {normal_axis(a, rank) for a in listed}
    if len(axes) != len(listed):
        raise Refused("bad-axis", "Unsqueeze names an axis twice")
    rest = iter(x.shape)
    return call.b.reshape(x, [1 if i in axes else next(rest) for i in range(rank)])


@op("Transpose", kind="movement")
def _transpose(call: OpCall) -> Val:
    x = call.arg(0)
    perm = call.ints("perm")
    return call.b.transpose(x, list(range(x.rank))[::-1] if perm is None else perm)


@op("Expand", kind="movement", known=(1,))
def _expand(call: OpCall) -> Val:
    x = call.arg(0)
    wanted = tuple(call.require_dims(1, "the shape of an Expand"))
    if not all(expr.is_nonneg(d) for d in wanted):
        raise Refused("unknown-value", f"Expand to {list(wanted)}: a dimension may be negative")
    return call.b.broadcast(x, broadcast_shapes([x.shape, wanted]))


@op("Tile", kind="movement", known=(1,))
def _tile(call: OpCall) -> Val:
    x = call.arg(0)
    repeats = call.require_dims(1, "the repeats of a Tile")
    if len(repeats) != x.rank or not all(expr.is_nonneg(r) for r in repeats):
        raise Refused("unknown-value", "Tile wants one repeat of at least 0 for each axis")
    return repeated(x, repeats, inner=False)


def repeated(x: Val, times: Sequence[Dim], *, inner: bool) -> Val:
    """Each axis ``times`` as long: whole axes one after another, or (``inner``) each element next to its copies."""
    before: list[Dim] = []
    middle: list[Dim] = []
    for dim, count in zip(x.shape, times, strict=True):
        if count == 1:
            before, middle = [*before, dim], [*middle, dim]
        else:
            before += [dim, 1] if inner else [1, dim]
            middle += [dim, count] if inner else [count, dim]
    spread = x.builder.broadcast(x.builder.reshape(x, before), middle)
    return x.builder.reshape(spread, [d * t for d, t in zip(x.shape, times, strict=True)])


@op("DepthToSpace", kind="movement")
def _depth_to_space(call: OpCall) -> Val:
    x, size = call.arg(0), call.integer("blocksize", 0)
    batch, depth, height, width = _image(x, size)
    inner = expr.exact_quotient(depth, size * size)
    if inner is None:
        raise Refused("bad-shape", "the depth does not divide by the square of blocksize")
    if call.string("mode", "DCR") == "DCR":
        blocks = call.b.transpose(call.b.reshape(x, [batch, size, size, inner, height, width]), [0, 3, 4, 1, 5, 2])
    else:
        blocks = call.b.transpose(call.b.reshape(x, [batch, inner, size, size, height, width]), [0, 1, 4, 2, 5, 3])
    return call.b.reshape(blocks, [batch, inner, height * size, width * size])


@op("SpaceToDepth", kind="movement")
def _space_to_depth(call: OpCall) -> Val:
    x, size = call.arg(0), call.integer("blocksize", 0)
    batch, depth, height, width = _image(x, size)
    high, wide = expr.exact_quotient(height, size), expr.exact_quotient(width, size)
    if high is None or wide is None:
        raise Refused("not-provable", "the image does not provably divide by blocksize")
    order = [0, 3, 5, 1, 2, 4] if call.string("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    blocks = call.b.transpose(call.b.reshape(x, [batch, depth, high, size, wide, size]), order)
    return call.b.reshape(blocks, [batch, depth * size * size, high, wide])


def _image(x: Val, size: int) -> Shape:
    if x.rank != 4 or size < 1:
        raise Refused("bad-shape", "an image of rank 4 and a blocksize of at least 1 are wanted")
    return x.shape


# --- parts


TO_THE_END = (1 << 31) - 1  # exporters write the largest int32 or int64 for "to the end"; no axis is that long


@op("Slice", kind="movement", known=(1, 2, 3, 4))
def _slice(call: OpCall) -> Val:
    """Starts, ends and axes are attributes up to opset 9; inputs, with steps, after it."""
    x = call.arg(0)
    if call.opset < 10:
        starts: Sequence[Dim] = call.ints("starts") or []
        ends: Sequence[Dim] = call.ints("ends") or []
        steps = None
    else:
        starts, ends = call.require_dims(1, "the starts of a Slice"), call.require_dims(2, "the ends of a Slice")
        steps = call.fixed(4, "the steps of a Slice")
    axes = call.axes(x.rank, 3)
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) == len(set(axes)) or any(a >= x.rank for a in axes):
        raise Refused("bad-shape", "the starts, ends, axes and steps of a Slice do not fit each other")
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 0 and isinstance(end, int) and end >= TO_THE_END:
            raise Refused("ambiguous", "a backward Slice to INT_MAX takes nothing by ONNX and all the rest by ONNX Runtime; write INT_MIN")
        x = take_range(x, axis, *slice_range(x.shape[axis], start, end, step), step)
    return x


def slice_range(dim: Dim, start: Dim, end: Dim, step: int) -> tuple[Dim, Dim]:
    """First index and number of elements of ``start:end:step`` on an axis of ``dim``, right for every value of its symbols.

    Raises Refused when a bound's sign, which decides from which end it counts, is not known.
    """
    if step == 0:
        raise Refused("bad-shape", "a Slice has a step of 0")
    if step > 0:
        start, end = _place(start, 0, dim), _place(end, 0, dim)
        return start, expr.emax(0, expr.ceildiv(end - start, step))
    start, end = _last_start(start, dim), _place(end, -1, dim - 1)
    return start, expr.emax(0, expr.ceildiv(start - end, -step))


def _last_start(bound: Dim, dim: Dim) -> Dim:
    """Where a walk backwards begins: held in the axis at both ends, so one from before its beginning still meets element 0.

    NumPy finds nothing there. An axis without elements has its beginning at -1, from where nothing is met.
    """
    if expr.is_nonneg(bound):
        return _place(bound, -1, dim - 1)
    if not expr.is_less(bound, 0):
        raise Refused("unknown-value", f"a Slice bound of {bound} may be negative or not")
    return expr.emax(dim + bound, expr.emin(0, dim - 1))


def _place(bound: Dim, low: Dim, high: Dim) -> Dim:
    """A bound as an index in ``[low, high]``, a range that is as long as the axis; negative ones count from the end.

    Those are written with a minimum, so that the last 5 of ``n`` are ``min(5, n)`` just as the first 5 are.
    """
    if isinstance(bound, int) and abs(bound) >= TO_THE_END:
        return high if bound > 0 else low
    if expr.is_nonneg(bound):
        return expr.emin(bound, high)
    if expr.is_less(bound, 0):
        end = high - low  # == dim
        return end - expr.emin(-bound, end - low)
    raise Refused("unknown-value", f"a Slice bound of {bound} may be negative or not")


@op("Split", kind="movement", known=(1,))
def _split(call: OpCall) -> list[Val]:
    x = call.arg(0)
    axis = call.axis(0)
    sizes = call.dims(1)
    if sizes is None:
        sizes = list(call.ints("split") or []) or _even_parts(x.shape[axis], call)
    if not sizes or len(sizes) != call.n_outputs:
        raise Refused("bad-shape", "the parts of a Split are not as many as its outputs")
    if not all(expr.is_nonneg(s) for s in sizes) or sum(sizes[1:], sizes[0]) != x.shape[axis]:
        raise Refused("not-provable", f"the parts {sizes} do not provably make up an axis of {x.shape[axis]}")
    parts: list[Val] = []
    begin: Dim = 0
    for size in sizes:
        parts.append(take_range(x, axis, begin, size))
        begin = begin + size
    return parts


def _even_parts(dim: Dim, call: OpCall) -> list[Dim]:
    count = call.integer("num_outputs", call.n_outputs)
    if count < 1 or count != call.n_outputs:
        raise Refused("bad-attribute", f"Split has {call.n_outputs} outputs, not {count}")
    even = expr.exact_quotient(dim, count)
    if even is not None:
        return [even] * count
    if not isinstance(dim, int) or call.opset < 18:
        raise Refused("not-provable", f"an axis of {dim} does not provably split into {count} equal parts")
    size = -(-dim // count)
    return [*[size] * (count - 1), dim - size * (count - 1)]


def take_range(x: Val, axis: int, begin: Dim, size: Dim, step: int = 1) -> Val:
    """Elements ``begin``, ``begin + step``... (``size`` of them) along one axis."""
    begins = [begin if i == axis else 0 for i in range(x.rank)]
    sizes = [size if i == axis else d for i, d in enumerate(x.shape)]
    return x.builder.slice(x, begins, sizes, [step if i == axis else 1 for i in range(x.rank)])


@op("Concat", kind="movement")
def _concat(call: OpCall) -> Val:
    parts = call.given()
    return call.b.concat(parts, call.axis(1, parts[0].rank))
