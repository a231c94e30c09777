"""Integer tensors computed from shapes: one rule for each operator that exporters build shape arithmetic of.

Arrays are of ``object`` dtype and hold Python numbers and ``Expr``s. A rule gives the outputs' arrays, or raises ``Unknown``.
Dimensions are at least 0, so ``dim == -1`` is decided; what may go either way, such as ``dim == 1``, stays unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import onnx

from graphfuse.graph.node_view import MAX_VALUES, NodeView
from graphfuse.ir import expr
from graphfuse.ir.expr import Dim, Expr

Array = np.ndarray


class Unknown(Exception):
    """The value cannot be told before the model runs."""


def known_outputs(view: NodeView) -> list[Array] | None:
    """The elements of the node's outputs as object arrays, None where they cannot be told."""
    rule = RULES.get(view.node.op_type) if view.node.domain == "" else None
    if rule is None:
        return None
    try:
        made = rule(view)
    except (Unknown, ValueError, IndexError, ArithmeticError, TypeError, AttributeError):
        return None  # a broken model is reported by whoever runs it; here nothing is known
    arrays = [np.asarray(a, dtype=object) for a in (made if isinstance(made, list) else [made])]
    return None if any(a.size > MAX_VALUES for a in arrays) else arrays


def _need(view: NodeView, index: int) -> Array:
    known = view.values(index)
    if known is None:
        raise Unknown
    return known


def _need_ints(view: NodeView, index: int) -> list[int]:
    known = view.ints(index)
    if known is None:
        raise Unknown
    return known


def _scalar(view: NodeView, index: int) -> Any:
    return _need(view, index).reshape(-1)[0]


def _object(items: list[Any]) -> Array:
    made = np.empty(len(items), dtype=object)
    made[:] = items
    return made


# --- where shapes become values

def _shape(view: NodeView) -> Array:
    shape = view.shape(0)
    if shape is None:
        raise Unknown
    rank = len(shape)
    start, end = view.attr("start", 0), view.attr("end", rank)
    return _object(list(shape[slice(*(max(0, min(rank, i + rank if i < 0 else i)) for i in (start, end)))]))


def _size(view: NodeView) -> Array:
    shape = view.shape(0)
    if shape is None:
        raise Unknown
    return np.array(expr.product(shape), dtype=object)


# --- movement

def _gather(view: NodeView) -> Array:
    return np.take(_need(view, 0), _need(view, 1).astype(np.int64), axis=view.attr("axis", 0))


def _gather_elements(view: NodeView) -> Array:
    return np.take_along_axis(_need(view, 0), _need(view, 1).astype(np.int64), axis=view.attr("axis", 0))


def _concat(view: NodeView) -> Array:
    return np.concatenate([_need(view, i) for i in range(view.count)], axis=view.attr("axis", 0))


def _unsqueeze(view: NodeView) -> Array:
    x = _need(view, 0)
    axes = view.attr("axes") or _need_ints(view, 1)
    return np.expand_dims(x, tuple(axes))


def _squeeze(view: NodeView) -> Array:
    x = _need(view, 0)
    axes = view.axes(x.ndim, since=13)
    if axes is None:
        raise Unknown
    return np.squeeze(x, tuple(axes) if axes else None)


def _slice(view: NodeView) -> Array:
    x = _need(view, 0)
    if view.opset < 10:
        starts, ends, axes, steps = view.attr("starts"), view.attr("ends"), view.attr("axes"), None
    else:
        starts, ends = _need_ints(view, 1), _need_ints(view, 2)
        axes = _need_ints(view, 3) if view.input(3) is not None else None
        steps = _need_ints(view, 4) if view.input(4) is not None else None
    where = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis, step = (axes[i] if axes else i), (steps[i] if steps else 1)
        where[axis] = _python_slice(start, end, step, x.shape[axis])
    return x[tuple(where)]


def _python_slice(start: int, end: int, step: int, size: int) -> slice:
    """ONNX clamps as Python does but for going backwards: an end below -size includes element 0, such a start is 0."""
    if step < 0:
        return slice(0 if start < -size else start, None if end < -size else end, step)
    return slice(start, end, step)


def _reshape(view: NodeView) -> Array:
    x, shape = _need(view, 0), _need_ints(view, 1)
    if not view.attr("allowzero", 0):
        shape = [x.shape[i] if d == 0 else d for i, d in enumerate(shape)]
    return x.reshape(shape)


def _expand(view: NodeView) -> Array:
    x, shape = _need(view, 0), _need_ints(view, 1)
    return np.broadcast_to(x, _few_shape(np.broadcast_shapes(x.shape, tuple(shape)))).copy()


def _few_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    if math.prod(shape) > MAX_VALUES:
        raise Unknown
    return shape


def _tile(view: NodeView) -> Array:
    x, repeats = _need(view, 0), _need_ints(view, 1)
    _few_shape(tuple(d * r for d, r in zip(x.shape, repeats, strict=True)))
    return np.tile(x, repeats)


def _constant_of_shape(view: NodeView) -> Array:
    fill = view.attr("value")
    item = 0.0 if fill is None else fill.reshape(-1)[0].item()
    return np.full(_few_shape(tuple(_need_ints(view, 0))), item, dtype=object)


def _range(view: NodeView) -> Array:
    start, limit, delta = (_scalar(view, i) for i in range(3))
    if not all(type(v) is int for v in (start, limit, delta)) or len(range(start, limit, delta)) > MAX_VALUES:
        raise Unknown
    return _object(list(range(start, limit, delta)))


def _split(view: NodeView) -> list[Array]:
    x, count = _need(view, 0), len(view.node.outputs)
    axis = view.attr("axis", 0)
    size = x.shape[axis]
    if view.attr("split") is not None:
        sizes = view.attr("split")
    elif view.opset >= 13 and view.input(1) is not None:
        sizes = _need_ints(view, 1)
    else:
        each = -(-size // count)
        sizes = [min(each, size - each * i) for i in range(count)]
    return list(np.split(x, np.cumsum(sizes)[:-1], axis=axis))


def _scatter_nd(view: NodeView) -> Array:
    x, indices, updates = _need(view, 0).copy(), _need(view, 1).astype(np.int64), _need(view, 2)
    if view.attr("reduction", "none") != "none":
        raise Unknown
    for where in np.ndindex(indices.shape[:-1]):
        x[tuple(indices[where])] = updates[where]
    return x


def _cast(view: NodeView) -> Array:
    x, to = _need(view, 0), view.attr("to")
    if to not in _CASTS:
        raise Unknown
    return np.frompyfunc(_CASTS[to], 1, 1)(x)


def _to_int(item: Any) -> Any:
    if isinstance(item, Expr):
        return item
    if isinstance(item, float) and not math.isfinite(item):
        raise Unknown
    return int(item)


def _to_bool(item: Any) -> bool:
    if isinstance(item, Expr):
        raise Unknown  # a dimension may be 0
    return bool(item)


_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
_CASTS: dict[int, Callable[[Any], Any]] = {**dict.fromkeys(_INTEGERS, _to_int), int(onnx.TensorProto.BOOL): _to_bool}


# --- arithmetic

def _elementwise(fn: Callable[..., Any]) -> Callable[[NodeView], Array]:
    def rule(view: NodeView) -> Array:
        args = [_need(view, i) for i in range(view.count)]
        _few_shape(np.broadcast_shapes(*(a.shape for a in args)))
        return np.frompyfunc(fn, len(args), 1)(*args)

    return rule


def _folded(fn: Callable[[Any, Any], Any]) -> Callable[[NodeView], Array]:
    def rule(view: NodeView) -> Array:
        return reduce(np.frompyfunc(fn, 2, 1), [_need(view, i) for i in range(view.count)])

    return rule


def _integer(item: Any) -> Dim:
    if isinstance(item, Expr) or type(item) is int:
        return item  # type: ignore[no-any-return]
    raise Unknown


def _div(a: Any, b: Any) -> Dim:
    a, b = _integer(a), _integer(b)
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
        a, b = _integer(a), _integer(b)
        if isinstance(a, int) and isinstance(b, int):
            return int(math.fmod(a, b)) if fmod else a % b
        if expr.is_nonneg(b) and (expr.is_nonneg(a) or not fmod):
            return expr.modulo(a, b)
        raise Unknown

    return _elementwise(one)(view)


def _pow(a: Any, b: Any) -> Dim:
    a = _integer(a)
    if type(b) is not int or not 0 <= b <= 8:
        raise Unknown
    return expr.product([a] * b)


def _abs(a: Any) -> Dim:
    if expr.is_nonneg(_integer(a)):
        return a  # type: ignore[no-any-return]
    if isinstance(a, int):
        return -a
    raise Unknown


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Expr) or isinstance(b, Expr):
        if a == b:
            return True
        if _less_known(a, b) or _less_known(b, a):
            return False
        raise Unknown
    return bool(a == b)


def _less_known(a: Dim, b: Dim) -> bool:
    return expr.is_less(_integer(a), _integer(b))


def _less(a: Any, b: Any) -> bool:
    if isinstance(a, Expr) or isinstance(b, Expr):
        if _less_known(a, b):
            return True
        if expr.is_nonneg(_integer(a) - _integer(b)):
            return False
        raise Unknown
    return bool(a < b)


def _where(view: NodeView) -> Array:
    condition = _need(view, 0)
    if not condition.any():
        return _select(condition, view, 2)
    if condition.all():
        return _select(condition, view, 1)
    return np.where(condition.astype(bool), _need(view, 1), _need(view, 2))


def _select(condition: Array, view: NodeView, taken: int) -> Array:
    """One branch for all elements: the other need not be known, only its shape."""
    other = view.shape(3 - taken)
    if other is None or not all(isinstance(d, int) for d in other):
        raise Unknown
    x = _need(view, taken)
    return np.broadcast_to(x, _few_shape(np.broadcast_shapes(x.shape, condition.shape, other))).copy()  # type: ignore[arg-type]


def _reduction(fn: Callable[[Any, Any], Any], since: int, start: int | None) -> Callable[[NodeView], Array]:
    def rule(view: NodeView) -> Array:
        x = _need(view, 0)
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
            folded = np.asarray(reduce(np.frompyfunc(fn, 2, 1), empty + parts), dtype=object)
            x = np.expand_dims(folded, axis) if keep else folded
        return x

    return rule


def _add(a: Any, b: Any) -> Dim:
    return _integer(a) + _integer(b)


def _mul(a: Any, b: Any) -> Dim:
    return _integer(a) * _integer(b)


def _max(a: Any, b: Any) -> Dim:
    return expr.emax(_integer(a), _integer(b))


def _min(a: Any, b: Any) -> Dim:
    return expr.emin(_integer(a), _integer(b))


def _boolean(item: Any) -> bool:
    if isinstance(item, bool):
        return item
    raise Unknown


RULES: dict[str, Callable[[NodeView], Array | list[Array]]] = {
    "Shape": _shape, "Size": _size, "Identity": lambda v: _need(v, 0), "Cast": _cast,
    "Gather": _gather, "GatherElements": _gather_elements, "Concat": _concat, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze,
    "Slice": _slice, "Split": _split, "Reshape": _reshape, "Flatten": lambda v: _need(v, 0).reshape(
        math.prod(_need(v, 0).shape[: v.attr("axis", 1)]), -1),
    "Transpose": lambda v: np.transpose(_need(v, 0), v.attr("perm")), "Expand": _expand, "Tile": _tile,
    "ConstantOfShape": _constant_of_shape, "Range": _range, "ScatterND": _scatter_nd,
    "Add": _elementwise(_add), "Sub": _elementwise(lambda a, b: _integer(a) - _integer(b)), "Mul": _elementwise(_mul),
    "Div": _elementwise(_div), "Mod": _mod, "Pow": _elementwise(_pow), "Neg": _elementwise(lambda a: -_integer(a)),
    "Abs": _elementwise(_abs), "Max": _folded(_max), "Min": _folded(_min), "Sum": _folded(_add),
    "Equal": _elementwise(_equal), "Less": _elementwise(_less), "Greater": _elementwise(lambda a, b: _less(b, a)),
    "LessOrEqual": _elementwise(lambda a, b: not _less(b, a)), "GreaterOrEqual": _elementwise(lambda a, b: not _less(a, b)),
    "And": _elementwise(lambda a, b: _boolean(a) and _boolean(b)), "Or": _elementwise(lambda a, b: _boolean(a) or _boolean(b)),
    "Xor": _elementwise(lambda a, b: _boolean(a) != _boolean(b)), "Not": _elementwise(lambda a: not _boolean(a)),
    "Where": _where,
    "ReduceSum": _reduction(_add, 13, 0), "ReduceProd": _reduction(_mul, 18, 1),
    "ReduceMax": _reduction(_max, 18, None), "ReduceMin": _reduction(_min, 18, None),
}  # fmt: skip
