"""Shapes of operators that no fused program can hold, or whose lowering refused: small rules over symbolic sizes.

A rule returns one partial shape for each output (None for one it knows nothing of); a size that cannot be told is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from graphfuse.graph.node_view import NodeView, PartialShape
from graphfuse.ir import expr
from graphfuse.ir.errors import Refused
from graphfuse.ir.expr import Atom, Call, Dim, Expr, Shape
from graphfuse.ops.movement import slice_range

Shapes = list[PartialShape | None]


class NoRule(Exception):
    """The rule needs something that is not known."""


def inferred(view: NodeView) -> Shapes | None:
    """Partial shapes of the node's outputs, None where no rule applies."""
    rule = RULES.get(view.node.op_type) if view.node.domain == "" else None
    try:
        return None if rule is None else rule(view)
    except (NoRule, IndexError, ValueError, TypeError, ArithmeticError):
        return None


def _shape(view: NodeView, index: int) -> Shape:
    shape = view.shape(index)
    if shape is None:
        raise NoRule
    return shape


def _dims(view: NodeView, index: int) -> list[Dim]:
    dims = view.dims(index)
    if dims is None:
        raise NoRule
    return dims


def _sized(dims: Sequence[Dim | None]) -> PartialShape:
    """Sizes that could come out below 0 are no sizes."""
    return tuple(d if d is None or isinstance(d, int) or expr.is_nonneg(d) else None for d in dims)


def broadcast(shapes: Sequence[Sequence[Dim | None]]) -> PartialShape:
    """NumPy's rule; two run-time sizes that may differ give an unknown one, a constant above 1 wins over a run-time size."""
    rank = max(len(s) for s in shapes)
    result: list[Dim | None] = []
    for axis in range(rank):
        dims = {s[len(s) - rank + axis] for s in shapes if len(s) - rank + axis >= 0} - {1}
        fixed = [d for d in dims if isinstance(d, int)]
        if len(dims) <= 1:
            result.append(dims.pop() if dims else 1)
        else:
            result.append(fixed[0] if fixed and fixed[0] > 1 else None)
    return tuple(result)


def implied_equal(view: NodeView) -> dict[Atom, Dim]:
    """Atoms that equal another size in every run in which this element-wise node does not fail.

    ``min(s, k)`` meeting ``s``: if they differed, ``s > k >= 2``, and neither is 1. Exporters cut tables of positions so.
    """
    shapes = [view.shape(i) for i in range(view.count)]
    if view.node.domain != "" or view.node.op_type not in _BROADCASTING:
        return {}
    found: dict[Atom, Dim] = {}
    for axis in range(1, 1 + max(len(s or ()) for s in shapes)):
        dims = {s[-axis] for s in shapes if s is not None and len(s) >= axis}
        for dim in dims:
            atom = _only_call(dim)
            if atom is not None and atom.fn == "min":
                limit, other = (atom.left, atom.right) if isinstance(atom.left, int) else (atom.right, atom.left)
                if isinstance(limit, int) and limit >= 2 and other in dims:
                    found[atom] = other
    return found


def _only_call(dim: Dim) -> Call | None:
    if not isinstance(dim, Expr) or len(dim.terms) != 1:
        return None
    ((mono, factor),) = dim.terms.items()
    return mono[0] if factor == 1 and len(mono) == 1 and isinstance(mono[0], Call) else None


def _elementwise(view: NodeView) -> Shapes:
    return [broadcast([_shape(view, i) for i in range(view.count) if view.input(i) is not None])]


def _same(view: NodeView) -> Shapes:
    return [_shape(view, 0)] + [None] * (len(view.node.outputs) - 1)


# --- movement that depends on known values


def _reshape(view: NodeView) -> Shapes:
    x, wanted = view.shape(0), _dims(view, 1)
    copied = not view.attr("allowzero", 0)
    shape: list[Dim | None] = [_copied(x, i) if copied and d == 0 else d for i, d in enumerate(wanted)]
    open_axes = [i for i, d in enumerate(shape) if d == -1]
    for i in open_axes:
        rest = [d for d in shape if d != -1]
        shape[i] = None if x is None or None in rest else _quotient(expr.product(x), expr.product(rest))  # type: ignore[arg-type]
    return [_sized(shape)]


def _copied(x: Shape | None, axis: int) -> Dim | None:
    return None if x is None else x[axis]


def _quotient(total: Dim, rest: Dim) -> Dim | None:
    """``total / rest``, which a model that runs leaves no remainder for."""
    if rest == 0:
        return None
    exact = expr.exact_quotient(total, rest)
    return expr.floordiv(total, rest) if exact is None else exact


def _expand(view: NodeView) -> Shapes:
    return [broadcast([_shape(view, 0), _sized(_dims(view, 1))])]


def _filled(view: NodeView) -> Shapes:
    return [_sized(_dims(view, 0))]


def _tile(view: NodeView) -> Shapes:
    return [_sized([d * r for d, r in zip(_shape(view, 0), _dims(view, 1), strict=True)])]


def _range(view: NodeView) -> Shapes:
    start, limit, delta = (_dims(view, i)[0] for i in range(3))
    if isinstance(delta, Expr) or delta == 0:
        raise NoRule
    if isinstance(start, int | float) and isinstance(limit, int | float):
        length: Dim = max(0, math.ceil((limit - start) / delta))
    elif type(delta) is int:
        length = expr.emax(0, expr.ceildiv(limit - start, delta) if delta > 0 else expr.ceildiv(start - limit, -delta))
    else:
        raise NoRule
    return [(length,)]


def _concat(view: NodeView) -> Shapes:
    shapes = [_shape(view, i) for i in range(view.count)]
    axis = view.attr("axis", 1) % len(shapes[0])
    total: Dim = 0
    for shape in shapes:
        total = total + shape[axis]
    return [tuple(total if i == axis else _agreed([s[i] for s in shapes]) for i in range(len(shapes[0])))]


def _agreed(dims: Sequence[Dim]) -> Dim:
    """Sizes that a model that runs has equal: a constant if there is one."""
    return next((d for d in dims if isinstance(d, int)), dims[0])


def _gather(view: NodeView) -> Shapes:
    x, indices = _shape(view, 0), _shape(view, 1)
    axis = view.attr("axis", 0) % len(x)
    return [x[:axis] + indices + x[axis + 1 :]]


def _gather_nd(view: NodeView) -> Shapes:
    x, indices, batch = _shape(view, 0), _shape(view, 1), view.attr("batch_dims", 0)
    if not isinstance(indices[-1], int):
        raise NoRule
    return [indices[:-1] + x[batch + indices[-1] :]]


def _slice(view: NodeView) -> Shapes:
    """Axes that are cut at bounds that are not known, or of unknown sign, have an unknown size; the others stay."""
    x = _shape(view, 0)
    if view.opset < 10:
        starts, ends, steps = view.attr("starts"), view.attr("ends"), None
        cut = view.attr("axes") or range(len(starts))
    else:
        starts, ends, steps = (None if view.input(i) is None else view.dims(i) for i in (1, 2, 4))
        cut = view.ints(3) or () if view.input(3) is not None else _known_length(view, 1)
    if not cut:
        raise NoRule
    steps = steps if view.opset >= 10 and view.input(4) is not None else [1] * len(cut)
    shape: list[Dim | None] = list(x)
    for place, axis in enumerate(cut):
        bounds = None if starts is None or ends is None or steps is None else (starts[place], ends[place], steps[place])
        shape[axis] = None if bounds is None else _cut_size(x[axis], *bounds)
    return [tuple(shape)]


def _cut_size(dim: Dim, start: Dim, end: Dim, step: Dim) -> Dim | None:
    try:
        return slice_range(dim, start, end, step)[1] if isinstance(step, int) else None
    except Refused:
        return None


def _known_length(view: NodeView, index: int) -> range:
    length = _shape(view, index)[0]
    if not isinstance(length, int):
        raise NoRule
    return range(length)


# --- linear algebra


def _matmul(view: NodeView) -> Shapes:
    a, b = _shape(view, 0), _shape(view, 1)
    rows = a[-2:-1] if len(a) > 1 else ()
    columns = b[-1:] if len(b) > 1 else ()
    return [broadcast([a[:-2], b[:-2]]) + rows + columns]


def _gemm(view: NodeView) -> Shapes:
    a, b = _shape(view, 0), _shape(view, 1)
    return [(a[1] if view.attr("transA", 0) else a[0], b[0] if view.attr("transB", 0) else b[1])]


def _einsum(view: NodeView) -> Shapes:
    left, arrow, right = view.attr("equation").replace(" ", "").partition("->")
    if not arrow or "." in left:
        raise NoRule
    sizes: dict[str, Dim] = {}
    for i, term in enumerate(left.split(",")):
        for letter, dim in zip(term, _shape(view, i), strict=True):
            if letter not in sizes or sizes[letter] == 1 or (isinstance(dim, int) and dim != 1):
                sizes[letter] = dim
    return [tuple(sizes[letter] for letter in right)]


# --- windows


def _conv(view: NodeView) -> Shapes:
    x, w = _shape(view, 0), _shape(view, 1)
    kernel = view.attr("kernel_shape") or list(w[2:])
    return [(x[0], w[0], *_windows(view, x[2:], kernel))]


def _pool(view: NodeView) -> Shapes:
    x = _shape(view, 0)
    shape = (*x[:2], *_windows(view, x[2:], view.attr("kernel_shape")))
    return [shape] * len(view.node.outputs)


def _windows(view: NodeView, sizes: Sequence[Dim], kernel: Sequence[Dim]) -> PartialShape:
    count = len(sizes)
    strides, dilations = (view.attr(name) or [1] * count for name in ("strides", "dilations"))
    pads, auto = view.attr("pads") or [0] * (2 * count), view.attr("auto_pad", "NOTSET")
    made: list[Dim | None] = []
    for i, size in enumerate(sizes):
        reach = dilations[i] * (kernel[i] - 1) + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            made.append(expr.ceildiv(size, strides[i]))
            continue
        room = size - reach + (0 if auto == "VALID" else pads[i] + pads[i + count])
        made.append(_steps(room, strides[i], view.attr("ceil_mode", 0), size, pads[i] if auto == "NOTSET" else 0))
    return tuple(m if not isinstance(m, int) or m >= 0 else None for m in made)


def _steps(room: Dim, stride: int, ceil: int, size: Dim, low: int) -> Dim | None:
    if not ceil:
        return expr.floordiv(room, stride) + 1
    steps = expr.ceildiv(room, stride) + 1
    if isinstance(steps, int) and isinstance(size, int):
        return steps - 1 if (steps - 1) * stride >= size + low else steps  # a window never starts in the padding at the end
    return None


def _conv_transpose(view: NodeView) -> Shapes:
    x, w = _shape(view, 0), _shape(view, 1)
    count = len(x) - 2
    kernel = view.attr("kernel_shape") or list(w[2:])
    strides, dilations, extra = (view.attr(n) or [d] * count for n, d in (("strides", 1), ("dilations", 1), ("output_padding", 0)))
    channels = w[1] * view.attr("group", 1)
    given, auto, pads = view.attr("output_shape"), view.attr("auto_pad", "NOTSET"), view.attr("pads") or [0] * (2 * count)
    if given:
        return [(x[0], channels, *given[-count:])]
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return [(x[0], channels, *(d * s for d, s in zip(x[2:], strides, strict=True)))]
    spatial = [
        strides[i] * (x[2 + i] - 1) + extra[i] + dilations[i] * (kernel[i] - 1) + 1 - (0 if auto == "VALID" else pads[i] + pads[i + count])
        for i in range(count)
    ]
    return [(x[0], channels, *spatial)]


def _global_pool(view: NodeView) -> Shapes:
    x = _shape(view, 0)
    return [x[:2] + (1,) * (len(x) - 2)]


def _resize(view: NodeView) -> Shapes:
    x = _shape(view, 0)
    at = 1 if view.node.op_type == "Upsample" or view.opset < 11 else 2
    axes = view.attr("axes") or list(range(len(x)))
    if view.input(3) is not None and (_shape(view, 3) != (0,)):
        if view.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise NoRule
        made = dict(zip(axes, _sized(_dims(view, 3)), strict=True))
    else:
        scales = view.attr("scales") or _dims(view, at)
        made = {a: _scaled(x[a], s) for a, s in zip(axes, scales, strict=True)}
    return [tuple(made.get(i, d) for i, d in enumerate(x))]


def _scaled(dim: Dim, scale: Dim | float) -> Dim | None:
    """floor(dim * scale), exact where the scale is a whole number or one over a power of two."""
    if isinstance(scale, Expr):
        return None
    if isinstance(dim, int):
        return int(dim * scale)
    if float(scale).is_integer():
        return dim * int(scale)
    inverse = 1.0 / scale
    return expr.floordiv(dim, int(inverse)) if inverse.is_integer() and int(inverse) & (int(inverse) - 1) == 0 else None


# --- counts


def _nonzero(view: NodeView) -> Shapes:
    return [(len(_shape(view, 0)), None)]


def _first(view: NodeView, index: int) -> Dim | None:
    dims = view.dims(index)
    return dims[0] if dims else None


def _topk(view: NodeView) -> Shapes:
    x = _shape(view, 0)
    axis = view.attr("axis", -1) % len(x)
    size = view.attr("k") if view.opset < 10 else _first(view, 1)
    shape = tuple(size if i == axis else d for i, d in enumerate(x))
    return [shape, shape]


def _one_hot(view: NodeView) -> Shapes:
    indices, depth = _shape(view, 0), _first(view, 1)
    axis = view.attr("axis", -1) % (len(indices) + 1)
    return [(*indices[:axis], depth if not isinstance(depth, float) else int(depth), *indices[axis:])]


_BROADCASTING = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Mean", "Sum", "And", "Or", "Xor", "Equal", "Less", "Greater", "LessOrEqual",
    "GreaterOrEqual", "Where", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "PRelu",
)  # fmt: skip
_SHAPE_KEEPING = ("BatchNormalization", "InstanceNormalization", "LRN", "Dropout", "ScatterND", "ScatterElements", "CumSum", "Trilu")

RULES: dict[str, Callable[[NodeView], Shapes]] = {
    **dict.fromkeys(_BROADCASTING, _elementwise), **dict.fromkeys(_SHAPE_KEEPING, _same),
    "Reshape": _reshape, "Expand": _expand, "ConstantOfShape": _filled, "Tile": _tile, "Range": _range, "Concat": _concat,
    "Gather": _gather, "GatherND": _gather_nd, "GatherElements": lambda v: [_shape(v, 1)], "Slice": _slice,
    "MatMul": _matmul, "MatMulInteger": _matmul, "QLinearMatMul": lambda v: [None], "Gemm": _gemm, "Einsum": _einsum,
    "Conv": _conv, "ConvInteger": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _pool, "AveragePool": _pool, "LpPool": _pool,
    "GlobalAveragePool": _global_pool, "GlobalMaxPool": _global_pool, "GlobalLpPool": _global_pool,
    "Resize": _resize, "Upsample": _resize, "NonZero": _nonzero, "TopK": _topk, "OneHot": _one_hot,
}  # fmt: skip
