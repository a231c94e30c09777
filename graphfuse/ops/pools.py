"""Pools with small windows: every tap of the window is a slice of the padded image, and the taps are folded element by element.

A window becomes as many loads as it has taps, so large ones are refused: they want partial sums kept in shared memory, which
engines have kernels for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphfuse.ir import expr
from graphfuse.ir.builder import Number, Val
from graphfuse.ir.dtypes import I64
from graphfuse.ir.errors import Refused
from graphfuse.ir.expr import Dim
from graphfuse.ir.program import identity
from graphfuse.ops.call import OpCall
from graphfuse.ops.table import op

MAX_TAPS = 49


@dataclass(frozen=True)
class Window:
    """How a pool walks over the axes of space: one entry of each list for each axis.

    ``low`` and ``high`` are the pads; ``sizes`` the output's. With ``ceil_mode`` the last windows may reach past ``high``.
    """

    kernel: Sequence[int]
    steps: Sequence[int]
    dilations: Sequence[int]
    low: Sequence[Dim]
    high: Sequence[Dim]
    sizes: Sequence[Dim]

    def taps(self) -> Iterator[tuple[int, ...]]:
        """Offsets inside the window, row by row."""
        return itertools.product(*([k * d for k in range(n)] for n, d in zip(self.kernel, self.dilations, strict=True)))

    def tap(self, padded: Val, offsets: Sequence[Dim]) -> Val:
        """The elements that one tap meets, one for each window, of an image that ``padded`` has made large enough."""
        front = padded.rank - len(offsets)
        starts = [*[0] * front, *offsets]
        sizes = [*padded.shape[:front], *self.sizes]
        return padded.builder.slice(padded, starts, sizes, [*[1] * front, *self.steps])

    def reach(self, axis: int) -> Dim:
        """How long the padded axis must be for the last window."""
        return (self.sizes[axis] - 1) * self.steps[axis] + (self.kernel[axis] - 1) * self.dilations[axis] + 1


def window_of(call: OpCall, shape: Sequence[Dim]) -> Window:
    """The window that the node's attributes describe, over axes of ``shape``. Raises Refused (``large-window``...)."""
    rank = len(shape)
    kernel = call.ints("kernel_shape") or []
    steps, dilations = call.ints("strides") or [1] * rank, call.ints("dilations") or [1] * rank
    if not rank == len(kernel) == len(steps) == len(dilations) or min([*kernel, *steps, *dilations], default=0) < 1:
        raise Refused("bad-attribute", "the window of a pool does not fit its input")
    if math.prod(kernel) > MAX_TAPS:
        raise Refused("large-window", f"a window of {math.prod(kernel)} elements is over the {MAX_TAPS} that are computed tap by tap")
    axes = [
        _axis(call, axis, rank, shape[axis], (k - 1) * d + 1, s)
        for axis, (k, d, s) in enumerate(zip(kernel, dilations, steps, strict=True))
    ]
    low, high, sizes = ([a[i] for a in axes] for i in range(3))
    return Window(kernel, steps, dilations, low, high, sizes)


def _axis(call: OpCall, axis: int, rank: int, dim: Dim, reach: int, step: int) -> tuple[Dim, Dim, Dim]:
    """Pads before and after, and the number of windows, on one axis."""
    mode = call.string("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        size = expr.ceildiv(dim, step)
        total = expr.emax(0, (size - 1) * step + reach - dim)
        small = expr.floordiv(total, 2)
        return (small, total - small, size) if mode == "SAME_UPPER" else (total - small, small, size)
    pads = call.ints("pads") or [0] * (2 * rank)
    low, high = (0, 0) if mode == "VALID" else (pads[axis], pads[axis + rank])
    if len(pads) != 2 * rank or min(low, high) < 0:
        raise Refused("bad-attribute", "the pads of a pool do not fit its input")
    room = dim + low + high - reach
    if not expr.is_nonneg(room):
        raise Refused("not-provable", f"an axis of {dim} may be shorter than the window of {reach}")
    if not call.integer("ceil_mode", 0):
        return low, high, expr.floordiv(room, step) + 1
    size = expr.ceildiv(room, step) + 1
    # a window that would start in the padding at the end is dropped
    return low, high, expr.emin(size, expr.ceildiv(dim + low, step)) if isinstance(dim, int) else _unknown_ceiling(dim)


def _unknown_ceiling(dim: Dim) -> Dim:
    raise Refused("unknown-value", f"whether the last window of ceil_mode starts inside an axis of {dim} is known at run time only")


def _padded(x: Val, window: Window, fill: Number) -> Val:
    """The image with ``fill`` around it, as far as the last window reaches."""
    front = x.rank - len(window.kernel)
    low = [*[0] * front, *window.low]
    reach = [window.reach(a) for a in range(len(window.kernel))]
    high = [*[0] * front, *(expr.emax(0, r - d - lo) for r, d, lo in zip(reach, x.shape[front:], window.low, strict=True))]
    return x.builder.pad(x, low, high, fill)


@op("MaxPool", kind="norm")
def _max_pool(call: OpCall) -> list[Val]:
    x, b = call.arg(0), call.b
    window = window_of(call, x.shape[2:])
    padded = _padded(x, window, identity("max", x.dtype))
    taps = list(window.taps())
    best = window.tap(padded, taps[0])
    if call.n_outputs < 2:
        for offsets in taps[1:]:
            best = b.map("max", best, window.tap(padded, offsets))
        return [best]
    places = _padded(_places(call, x), window, -1)
    place = window.tap(places, taps[0])
    for offsets in taps[1:]:
        other, where = window.tap(padded, offsets), window.tap(places, offsets)
        better = b.map("or", b.map("gt", other, best), b.map("lt", place, 0))  # the first of equals, and never a pad
        best, place = b.map("where", better, other, best), b.map("where", better, where, place)
    return [best, place]


def _places(call: OpCall, x: Val) -> Val:
    """The place of each element in the flattened input, with space in row-major or, on demand, column-major order."""
    b, front = call.b, x.shape[:2]
    order = list(range(2, x.rank))
    if call.integer("storage_order", 0):
        order.reverse()
    place = b.broadcast(b.const(0, I64), x.shape)
    for axis in (0, 1):
        place = place + b.iota(x.shape, axis) * b.extent(expr.product([*front[axis + 1 :], *x.shape[2:]]))
    for step, axis in enumerate(order):
        place = place + b.iota(x.shape, axis) * b.extent(expr.product(x.shape[a] for a in order[step + 1 :]))
    return place


def _sum_of_taps(x: Val, window: Window) -> Val:
    padded = _padded(x, window, 0)
    total: Val | None = None
    for offsets in window.taps():
        tap = window.tap(padded, offsets)
        total = tap if total is None else total + tap
    assert total is not None
    return total


@op("AveragePool", kind="norm")
def _average_pool(call: OpCall) -> Val:
    """Over the elements of the image, or with count_include_pad over those of the padded one; never over what ceil_mode adds."""
    x = call.arg(0)
    window = window_of(call, x.shape[2:])
    total = _sum_of_taps(x, window)
    whole = bool(call.integer("count_include_pad", 0))
    counts: Val | None = None
    for axis in range(len(window.kernel)):
        count = _taps_inside(call, window, axis, x.shape[axis + 2], x.rank, whole)
        counts = count if counts is None else counts * count
    assert counts is not None
    return total / call.b.cast(counts, x.dtype)


def _taps_inside(call: OpCall, window: Window, axis: int, dim: Dim, rank: int, whole: bool) -> Val:
    """How many taps of each window along one axis fall on elements that count, shaped to broadcast."""
    b = call.b
    shape = [window.sizes[axis] if i == axis + 2 else 1 for i in range(rank)]
    first, last = (0, window.low[axis] + dim + window.high[axis]) if whole else (window.low[axis], window.low[axis] + dim)
    begin = b.iota(shape, axis + 2) * window.steps[axis]
    total = b.broadcast(b.const(0, I64), shape)
    for k in range(window.kernel[axis]):
        place = begin + k * window.dilations[axis]
        inside = b.map("and", b.map("ge", place, b.extent(first)), b.map("lt", place, b.extent(last)))
        total = total + b.cast(inside, I64)
    return total


@op("LpPool", kind="norm")
def _lp_pool(call: OpCall) -> Val:
    x, power, b = call.arg(0), call.integer("p", 2), call.b
    if power < 1:
        raise Refused("bad-attribute", f"LpPool has p = {power}")
    size = b.map("abs", x)
    raised = size if power == 1 else x * x if power == 2 else b.map("pow", size, power)
    total = _sum_of_taps(raised, window_of(call, x.shape[2:]))
    return total if power == 1 else b.map("sqrt", total) if power == 2 else b.map("pow", total, call.number(1 / power, x.dtype))


@op("LRN", kind="norm")
def _lrn(call: OpCall) -> Val:
    """Each element over a power of the mean square of its neighbours in the channels."""
    x, size, b = call.arg(0), call.integer("size", 0), call.b
    if not 1 <= size <= MAX_TAPS or x.rank < 2:
        raise Refused("large-window", f"LRN over {size} channels: 1 to {MAX_TAPS} are computed tap by tap")
    low = (size - 1) // 2
    pads = [[amount if i == 1 else 0 for i in range(x.rank)] for amount in (low, size - 1 - low)]
    padded = b.pad(x * x, pads[0], pads[1], 0)
    starts = [[k if i == 1 else 0 for i in range(x.rank)] for k in range(size)]
    total = b.slice(padded, starts[0], x.shape)
    for start in starts[1:]:
        total = total + b.slice(padded, start, x.shape)
    alpha, beta, bias = (call.real(n, d) for n, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    base = call.number(bias, x.dtype) + call.number(alpha / size, x.dtype) * total
    return x / b.map("pow", base, call.number(beta, x.dtype))
