"""Integer arithmetic, comparisons, selection and reductions over known elements, some of them run-time sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from graphfuse.graph import ratios
from graphfuse.graph.node_view import NodeView, Unknown, small_shape
from graphfuse.ir import expr
from graphfuse.ir.expr import Dim, Expr

Array = np.ndarray
Rule = Callable[[NodeView], "Array | list[Array]"]


def apply(fn: Callable[..., Any], *arrays: Array) -> Array:
    """``fn`` of the elements, with broadcasting."""
    return np.asarray(np.frompyfunc(fn, len(arrays), 1)(*arrays), dtype=object)


def _elementwise(fn: Callable[..., Any]) -> Callable[[NodeView], Array]:
    def rule(view: NodeView) -> Array:
        args = [view.need(i) for i in range(view.count)]
        small_shape(np.broadcast_shapes(*(a.shape for a in args)))
        return apply(fn, *args)

    return rule


def _folded(fn: Callable[[Any, Any], Any]) -> Callable[[NodeView], Array]:
    def rule(view: NodeView) -> Array:
        return reduce(lambda a, b: apply(fn, a, b), [view.need(i) for i in range(view.count)])

    return rule


def integer(item: Any) -> Dim:
    """An element that is an integer; raises Unknown for others."""
    if isinstance(item, Expr):
        return item
    if type(item) is int:
        return item
    raise Unknown


def _either(whole: Callable[[Any, Any], Any], real: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: real(a, b) if ratios.is_real(a) or ratios.is_real(b) else whole(a, b)


def _div(a: Any, b: Any) -> Dim:
    a, b = integer(a), integer(b)
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)  # ONNX truncates
    exact = expr.exact_quotient(a, b)
    if exact is not None:
        return exact
    if expr.is_nonneg(a) and expr.is_nonneg(b):
        return expr.floordiv(a, b)
    raise Unknown


def _mod(view: NodeView) -> Array:
    fmod = view.attr("fmod", 0)

    def one(a: Any, b: Any) -> Dim:
        a, b = integer(a), integer(b)
        if isinstance(a, int) and isinstance(b, int):
            return int(math.fmod(a, b)) if fmod else a % b
        if expr.is_nonneg(b) and (expr.is_nonneg(a) or not fmod):
            return expr.modulo(a, b)
        raise Unknown

    return _elementwise(one)(view)


def _pow(a: Any, b: Any) -> Dim:
    a = integer(a)
    if type(b) is not int or not 0 <= b <= 8:
        raise Unknown
    return expr.product([a] * b)


def _abs(a: Any) -> Dim:
    a = integer(a)
    if isinstance(a, int) or expr.is_nonneg(a):
        return abs(a) if isinstance(a, int) else a
    raise Unknown


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, ratios.Ratio) or isinstance(b, ratios.Ratio):
        return _equal(*ratios.cross(a, b))
    if isinstance(a, Expr) or isinstance(b, Expr):
        if a == b:
            return True
        if _less_known(a, b) or _less_known(b, a):
            return False
        raise Unknown
    return bool(a == b)


def _less_known(a: Dim, b: Dim) -> bool:
    return expr.is_less(integer(a), integer(b))


def _less(a: Any, b: Any) -> bool:
    if isinstance(a, ratios.Ratio) or isinstance(b, ratios.Ratio):
        return _less(*ratios.cross(a, b))
    if isinstance(a, Expr) or isinstance(b, Expr):
        if _less_known(a, b):
            return True
        if expr.is_nonneg(integer(a) - integer(b)):
            return False
        raise Unknown
    return bool(a < b)


def _where(view: NodeView) -> Array:
    condition = view.need(0)
    if not condition.any():
        return _select(condition, view, 2)
    if condition.all():
        return _select(condition, view, 1)
    return np.asarray(np.where(condition.astype(bool), view.need(1), view.need(2)), dtype=object)


def _select(condition: Array, view: NodeView, taken: int) -> Array:
    """One branch for all elements: the other need not be known, only its shape."""
    x, other = view.need(taken), view.shape(3 - taken)
    sizes = [d for d in other or () if isinstance(d, int)]
    if other is None or len(sizes) != len(other):
        raise Unknown
    return np.array(np.broadcast_to(x, small_shape(np.broadcast_shapes(x.shape, condition.shape, tuple(sizes)))), dtype=object)


def _reduction(fn: Callable[[Any, Any], Any], since: int, start: int | None) -> Callable[[NodeView], Array]:
    def rule(view: NodeView) -> Array:
        x = view.need(0)
        axes = view.axes(x.ndim, since=since)
        if axes is None:
            raise Unknown
        if not axes:
            if view.attr("noop_with_empty_axes", 0):
                return x
            axes = list(range(x.ndim))
        keep = bool(view.attr("keepdims", 1))
        for axis in sorted(axes, reverse=True):
            parts = [np.take(x, i, axis=axis) for i in range(x.shape[axis])]
            empty = [] if start is None else [np.full(x.shape[:axis] + x.shape[axis + 1 :], start, dtype=object)]
            folded = reduce(lambda a, b: apply(fn, a, b), [np.asarray(p, dtype=object) for p in empty + parts])
            x = np.expand_dims(folded, axis) if keep else folded
        return x

    return rule


def _add(a: Any, b: Any) -> Dim:
    return integer(a) + integer(b)


def _mul(a: Any, b: Any) -> Dim:
    return integer(a) * integer(b)


def _max(a: Any, b: Any) -> Dim:
    return expr.emax(integer(a), integer(b))


def _min(a: Any, b: Any) -> Dim:
    return expr.emin(integer(a), integer(b))


def _boolean(item: Any) -> bool:
    if isinstance(item, bool):
        return item
    raise Unknown


RULES: dict[str, Rule] = {
    "Add": _elementwise(_either(_add, ratios.add)), "Sub": _elementwise(_either(lambda a, b: integer(a) - integer(b), ratios.subtract)),
    "Mul": _elementwise(_either(_mul, ratios.multiply)), "Div": _elementwise(_either(_div, ratios.divide)),
    "Floor": _elementwise(ratios.floor), "Ceil": _elementwise(ratios.ceil),
    "Mod": _mod, "Pow": _elementwise(_pow), "Neg": _elementwise(lambda a: -integer(a)),
    "Abs": _elementwise(_abs), "Max": _folded(_max), "Min": _folded(_min), "Sum": _folded(_add),
    "Equal": _elementwise(_equal), "Less": _elementwise(_less), "Greater": _elementwise(lambda a, b: _less(b, a)),
    "LessOrEqual": _elementwise(lambda a, b: not _less(b, a)), "GreaterOrEqual": _elementwise(lambda a, b: not _less(a, b)),
    "And": _elementwise(lambda a, b: _boolean(a) and _boolean(b)), "Or": _elementwise(lambda a, b: _boolean(a) or _boolean(b)),
    "Xor": _elementwise(lambda a, b: _boolean(a) != _boolean(b)), "Not": _elementwise(lambda a: not _boolean(a)),
    "Where": _where,
    "ReduceSum": _reduction(_add, 13, 0), "ReduceProd": _reduction(_mul, 18, 1),
    "ReduceMax": _reduction(_max, 18, None), "ReduceMin": _reduction(_min, 18, None),
}  # fmt: skip
