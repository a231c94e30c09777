"""Reductions over any axes, and the arguments of extrema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphfuse.ir import expr
from graphfuse.ir.builder import Val
from graphfuse.ir.dtypes import BOOL, U8, DType
from graphfuse.ops.call import OpCall
from graphfuse.ops.table import op, register


@dataclass(frozen=True)
class Fold:
    """One way to reduce: ``before`` each element, the fold ``fn``, ``after`` the result."""

    fn: str
    before: Callable[[Val], Val] = lambda x: x
    after: Callable[[Val], Val] = lambda x: x


def mapped(fn: str) -> Callable[[Val], Val]:
    """A scalar operation as a function of a value."""
    return lambda x: x.builder.map(fn, x)


FOLDS = {
    "ReduceSum": Fold("sum"),
    "ReduceProd": Fold("prod"),
    "ReduceMax": Fold("max"),
    "ReduceMin": Fold("min"),
    "ReduceL1": Fold("sum", before=mapped("abs")),
    "ReduceL2": Fold("sum", before=lambda x: x * x, after=mapped("sqrt")),
    "ReduceSumSquare": Fold("sum", before=lambda x: x * x),
    "ReduceLogSum": Fold("sum", after=mapped("log")),
}


def _folding(fold: Fold) -> Callable[[OpCall], Val]:
    def lower(call: OpCall) -> Val:
        x, axes = call.arg(0), reduced_axes(call)
        stored = x.dtype
        if stored is BOOL:
            x = call.b.cast(x, U8)
        found = call.b.reduce(fold.fn, fold.before(x), axes, keepdims=keeps_dims(call))
        return call.b.cast(fold.after(found), BOOL) if stored is BOOL else fold.after(found)

    return lower


for _name, _fold in FOLDS.items():
    register(_name, "reduction", _folding(_fold), known=(1,))


def reduced_axes(call: OpCall) -> list[int]:
    """The axes to reduce: from attribute or input; none named means all, or with noop_with_empty_axes none."""
    rank = call.arg(0).rank
    axes = call.axes(rank, 1)
    if axes:
        return axes
    return [] if call.integer("noop_with_empty_axes", 0) else list(range(rank))


def keeps_dims(call: OpCall) -> bool:
    """Whether reduced axes stay, with size 1."""
    return bool(call.integer("keepdims", 1))


def mean(x: Val, axes: Sequence[int], *, keepdims: bool = True) -> Val:
    """The mean over ``axes``; of integers it truncates."""
    b = x.builder
    return b.reduce("sum", x, axes, keepdims=keepdims) / count(x, axes, x.dtype)


def count(x: Val, axes: Sequence[int], dtype: DType) -> Val:
    """How many elements the axes hold."""
    return x.builder.extent(expr.product(x.shape[a] for a in axes), dtype)


@op("ReduceMean", kind="reduction", known=(1,))
def _reduce_mean(call: OpCall) -> Val:
    return mean(call.arg(0), reduced_axes(call), keepdims=keeps_dims(call))


@op("ReduceLogSumExp", kind="reduction", known=(1,))
def _reduce_log_sum_exp(call: OpCall) -> Val:
    """With the maximum taken out, unless it is infinite, so that exp neither overflows nor vanishes."""
    b, x, axes = call.b, call.arg(0), reduced_axes(call)
    top = b.reduce("max", x, axes, keepdims=True)
    top = b.map("where", b.map("or", b.map("isposinf", top), b.map("isneginf", top)), 0, top)
    total = b.reduce("sum", b.map("exp", x - top), axes, keepdims=True)
    found = b.map("log", total) + top
    return found if keeps_dims(call) else b.reshape(found, [d for i, d in enumerate(found.shape) if i not in axes])


def _arg(fn: str) -> Callable[[OpCall], Val]:
    def lower(call: OpCall) -> Val:
        last = bool(call.integer("select_last_index", 0))
        return call.b.reduce(fn, call.arg(0), [call.axis(0)], keepdims=keeps_dims(call), last=last)

    return lower


register("ArgMax", "reduction", _arg("argmax"))
register("ArgMin", "reduction", _arg("argmin"))


@op("Hardmax", kind="reduction")
def _hardmax(call: OpCall) -> Val:
    """1 at the first maximum, else 0; before opset 13 over all axes from ``axis`` on, taken as one."""
    b, x = call.b, call.arg(0)
    if call.opset < 13:
        axis, shape = call.axis(1), x.shape
        rows = b.reshape(x, [expr.product(shape[:axis]), expr.product(shape[axis:])])
        return b.reshape(_one_at_top(rows, 1), shape)
    return _one_at_top(x, call.axis(-1))


def _one_at_top(x: Val, axis: int) -> Val:
    b = x.builder
    place = b.reduce("argmax", x, [axis], keepdims=True)
    return b.cast(b.map("eq", b.iota(x.shape, axis), place), x.dtype)
