"""Integer tensors computed from shapes: one rule for each operator that exporters build shape arithmetic of.

Arrays are of ``object`` dtype and hold Python numbers and ``Expr``s. A rule gives the outputs' arrays, or raises ``Unknown``.
Dimensions are at least 0, so ``dim == -1`` is decided; what may go either way, such as ``dim == 1``, stays unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from graphfuse.graph import ratios, shape_arithmetic
from graphfuse.graph.node_view import MAX_VALUES, NodeView, Unknown, small_shape
from graphfuse.graph.shape_arithmetic import Rule, apply
from graphfuse.ir import expr
from graphfuse.ir.expr import Expr

Array = np.ndarray


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


def _scalar(view: NodeView, index: int) -> Any:
    return view.need(index).reshape(-1)[0]


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
    x, indices, axis = view.need(0), view.need(1).astype(np.int64), view.attr("axis", 0)
    small_shape((indices.size, x.size // max(1, x.shape[axis])))
    return np.take(x, indices, axis=axis)


def _gather_elements(view: NodeView) -> Array:
    return np.take_along_axis(view.need(0), view.need(1).astype(np.int64), axis=view.attr("axis", 0))


def _concat(view: NodeView) -> Array:
    return np.concatenate([view.need(i) for i in range(view.count)], axis=view.attr("axis", 0))


def _unsqueeze(view: NodeView) -> Array:
    x = view.need(0)
    axes = view.attr("axes") or view.need_ints(1)
    return np.expand_dims(x, tuple(axes))


def _squeeze(view: NodeView) -> Array:
    x = view.need(0)
    axes = view.axes(x.ndim, since=13)
    if axes is None:
        raise Unknown
    return np.squeeze(x, tuple(axes) if axes else None)


def _slice(view: NodeView) -> Array:
    x = view.need(0)
    if view.opset < 10:
        starts, ends, axes, steps = view.attr("starts"), view.attr("ends"), view.attr("axes"), None
    else:
        starts, ends = view.need_ints(1), view.need_ints(2)
        axes = view.need_ints(3) if view.input(3) is not None else None
        steps = view.need_ints(4) if view.input(4) is not None else None
    where = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis, step = (axes[i] if axes else i), (steps[i] if steps else 1)
        where[axis] = _python_slice(start, end, step, x.shape[axis])
    made: Array = x[tuple(where)]
    return made


def _python_slice(start: int, end: int, step: int, size: int) -> slice:
    """ONNX clamps as Python does but for going backwards: an end below -size includes element 0, such a start is 0."""
    if step < 0:
        return slice(0 if start < -size else start, None if end < -size else end, step)
    return slice(start, end, step)


def _reshape(view: NodeView) -> Array:
    x, shape = view.need(0), view.need_ints(1)
    if not view.attr("allowzero", 0):
        shape = [x.shape[i] if d == 0 else d for i, d in enumerate(shape)]
    return x.reshape(shape)


def _expand(view: NodeView) -> Array:
    x, shape = view.need(0), view.need_ints(1)
    return np.array(np.broadcast_to(x, small_shape(np.broadcast_shapes(x.shape, tuple(shape)))), dtype=object)


def _tile(view: NodeView) -> Array:
    x, repeats = view.need(0), view.need_ints(1)
    small_shape(tuple(d * r for d, r in zip(x.shape, repeats, strict=True)))
    return np.tile(x, repeats)


def _constant_of_shape(view: NodeView) -> Array:
    fill = view.attr("value")
    item = 0.0 if fill is None else fill.reshape(-1)[0].item()
    return np.full(small_shape(tuple(view.need_ints(0))), item, dtype=object)


def _range(view: NodeView) -> Array:
    start, limit, delta = (_scalar(view, i) for i in range(3))
    if not all(type(v) is int for v in (start, limit, delta)) or len(range(start, limit, delta)) > MAX_VALUES:
        raise Unknown
    return _object(list(range(start, limit, delta)))


def _split(view: NodeView) -> list[Array]:
    x, count = view.need(0), len(view.node.outputs)
    axis = view.attr("axis", 0)
    size = x.shape[axis]
    if view.attr("split") is not None:
        sizes = view.attr("split")
    elif view.opset >= 13 and view.input(1) is not None:
        sizes = view.need_ints(1)
    else:
        each = -(-size // count)
        sizes = [min(each, size - each * i) for i in range(count)]
    return list(np.split(x, np.cumsum(sizes)[:-1], axis=axis))


def _scatter_nd(view: NodeView) -> Array:
    x: Array = view.need(0).copy()
    indices, updates = view.need(1).astype(np.int64), view.need(2)
    if view.attr("reduction", "none") != "none":
        raise Unknown
    for where in np.ndindex(indices.shape[:-1]):
        x[tuple(indices[where])] = updates[where]
    return x


def _cast(view: NodeView) -> Array:
    x, to = view.need(0), view.attr("to")
    if to not in _CASTS:
        raise Unknown
    return apply(_CASTS[to], x)


def _to_int(item: Any) -> Any:
    if isinstance(item, float):
        if not math.isfinite(item):
            raise Unknown
        return int(item)
    return ratios.to_int(item) if isinstance(item, ratios.Ratio) else item if isinstance(item, Expr) else int(item)


def _to_bool(item: Any) -> bool:
    if isinstance(item, Expr | ratios.Ratio):
        raise Unknown  # a dimension may be 0
    return bool(item)


def _to_float(item: Any) -> ratios.Real:
    return item if ratios.is_real(item) else ratios.from_int(item if isinstance(item, Expr) else int(item))


_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
_CASTS: dict[int, Callable[[Any], Any]] = {
    **dict.fromkeys(_INTEGERS, _to_int),
    **dict.fromkeys(_FLOATS, _to_float),
    int(onnx.TensorProto.BOOL): _to_bool,
}


RULES: dict[str, Rule] = {
    "Shape": _shape, "Size": _size, "Identity": lambda v: v.need(0), "Cast": _cast,
    "Gather": _gather, "GatherElements": _gather_elements, "Concat": _concat, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze,
    "Slice": _slice, "Split": _split, "Reshape": _reshape, "Flatten": lambda v: v.need(0).reshape(
        math.prod(v.need(0).shape[: v.attr("axis", 1)]), -1),
    "Transpose": lambda v: np.transpose(v.need(0), v.attr("perm")), "Expand": _expand, "Tile": _tile,
    "ConstantOfShape": _constant_of_shape, "Range": _range, "ScatterND": _scatter_nd,
    **shape_arithmetic.RULES,
}  # fmt: skip
