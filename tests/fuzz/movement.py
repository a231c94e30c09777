"""Families of ops that move elements."""

from __future__ import annotations

import numpy as np

from graphfuse.ir.dtypes import BY_NAME
from tests.fuzz.maker import FLOATS, MAX_ELEMENTS, MAX_RANK, Maker, Shape, Size, V, allowed, is_fixed, per_run

TO_THE_END = (2**31 - 1, 2**63 - 1, 1000)
TO_THE_START = (-(2**31), -(2**63) + 1, -1000)


def _operand(m: Maker, op: str, low: int = 0, types: frozenset[str] | None = None) -> V | None:
    return m.pick(allowed(op, m.opset) if types is None else types, lambda v: v.rank >= low)


def transpose(m: Maker) -> None:
    """Any order, or the default one, which reverses."""
    x = _operand(m, "Transpose")
    if x is None:
        return
    if m.chance(15):
        m.add("Transpose", [x], x.dtype, x.shape[::-1])
        return
    perm = list(range(x.rank))
    for i in range(x.rank - 1, 0, -1):
        j = m.integer(0, i)
        perm[i], perm[j] = perm[j], perm[i]
    m.add("Transpose", [x], x.dtype, tuple(x.shape[p] for p in perm), perm=perm)


def slice_(m: Maker) -> None:
    """Starts and ends from both ends, out of range and sentinels; any step."""
    x = _operand(m, "Slice", 1)
    if x is None:
        return
    axes, written = m.axes(x.rank)
    starts, ends, steps = [], [], []
    shape = list(x.shape)
    for axis in axes:
        start, end, step = _range(m, x.shape[axis])
        starts, ends, steps = [*starts, start], [*ends, end], [*steps, step]
        shape[axis] = per_run(lambda n, a=start, b=end, s=step: _length(n, a, b, s), x.shape[axis])
    result = tuple(shape)
    if m.opset < 10:
        m.add("Slice", [x], x.dtype, result, starts=starts, ends=ends, axes=written)
        return
    inputs = [x, m.ints(starts), m.ints(ends), m.ints(written)]
    m.add("Slice", inputs if set(steps) == {1} and m.chance(50) else [*inputs, m.ints(steps)], x.dtype, result)


def _range(m: Maker, size: Size) -> tuple[int, int, int]:
    top = max(*size, 1)
    step = 1 if m.opset < 10 or m.chance(50) else m.choose((1, 2, -1, 3, -2, 5, -7))
    start, end = m.integer(-top, top), m.integer(-top, top)
    if m.chance(40):
        start = 0 if step > 0 else m.choose((-1, *TO_THE_END))
    if m.chance(40):
        end = m.choose(TO_THE_END if step > 0 else TO_THE_START)
    return start, end, step


def _length(size: int, start: int, end: int, step: int) -> int:
    """ONNX clamps the bounds of a slice as Python does, but for a start before the axis with a negative step: that is at 0."""
    if step < 0 and start < -size:
        start = 0
    return len(range(*slice(start, end, step).indices(size)))


def split(m: Maker) -> None:
    """Into given or equal parts; from opset 18 also unequal ones by number."""
    x = _operand(m, "Split", 1)
    if x is None:
        return
    axis, written = m.axis(x.rank)
    size = x.shape[axis]
    count = m.integer(2, 3)
    if not is_fixed(size):
        if all(n % count == 0 for n in size) and m.opset < 18:
            part = per_run(lambda n: n // count, size)
            m.node("Split", [x], [(x.dtype, _replaced(x.shape, axis, part))] * count, axis=written)
        return
    first = m.integer(0, size[0])
    parts = [first, size[0] - first] if count == 2 else [first, 0, size[0] - first]
    attrs: dict[str, object] = {"axis": written}
    inputs: list[V | None] = [x]
    even = -(-size[0] // count)
    if (size[0] % count == 0 or (m.opset >= 18 and even * (count - 1) <= size[0])) and size[0] and m.chance(50):
        parts = [even] * (count - 1) + [size[0] - even * (count - 1)]
        attrs |= {"num_outputs": count} if m.opset >= 18 else {}
    elif m.opset < 13:
        attrs["split"] = parts
    else:
        inputs.append(m.ints(parts))
    m.node("Split", inputs, [(x.dtype, _replaced(x.shape, axis, (p,) * m.runs)) for p in parts], **attrs)


def _replaced(shape: Shape, axis: int, size: Size) -> Shape:
    return tuple(size if i == axis else s for i, s in enumerate(shape))


def concat(m: Maker) -> None:
    """Of values that fit, of one with itself, and of parts of one."""
    x = _operand(m, "Concat", 1)
    if x is None:
        return
    axis, written = m.axis(x.rank)
    parts = [x]
    for _ in range(m.integer(1, 3)):
        fits = m.find(
            lambda v: v.dtype == x.dtype and v.rank == x.rank and _replaced(v.shape, axis, (0,)) == _replaced(x.shape, axis, (0,))
        )
        parts.append(fits or x)
    if m.chance(20) and all(is_fixed(s) for s in x.shape):
        parts.insert(m.integer(0, len(parts)), m.data(x.dtype, [m.integer(0, 2) if i == axis else s[0] for i, s in enumerate(x.shape)]))
    size = per_run(lambda *sizes: sum(sizes), *(p.shape[axis] for p in parts))
    made = V("", x.dtype, _replaced(x.shape, axis, size))
    if made.elements <= MAX_ELEMENTS:
        m.add("Concat", parts, x.dtype, made.shape, axis=written)


def reshape(m: Maker) -> None:
    """Neighbours merged, sizes split in two, ones added; written plainly, with 0 and with -1."""
    x = _operand(m, "Reshape")
    if x is None:
        return
    shape = list(x.shape)
    for _ in range(m.integer(1, 3)):
        shape = _regrouped(m, shape)
    wanted = [s[0] if is_fixed(s) else None for s in shape]
    for i, s in enumerate(shape):  # 0 copies the size in the same place
        if i < x.rank and x.shape[i] == s and (wanted[i] is None or wanted[i] == 0 or m.chance(30)):
            wanted[i] = 0
    if any(w == 0 and not (i < x.rank and x.shape[i] == shape[i]) for i, w in enumerate(wanted)):
        return
    unknown = [i for i, w in enumerate(wanted) if w is None]
    others = [i for i, w in enumerate(wanted) if w is not None]
    if len(unknown) > 1 or (unknown and any(0 in shape[i] for i in others)):
        return
    if not unknown and others and m.chance(40):
        place = m.choose(others)
        if all(0 not in shape[i] for i in others if i != place):
            unknown = [place]
    for i in unknown:
        wanted[i] = -1
    m.add("Reshape", [x, m.ints(w for w in wanted if w is not None)], x.dtype, tuple(shape))


def _regrouped(m: Maker, shape: list[Size]) -> list[Size]:
    action = m.integer(0, 3)
    place = m.integer(0, max(0, len(shape) - 1))
    if action == 0 and len(shape) >= 2 and place + 1 < len(shape):
        merged = per_run(lambda a, b: a * b, shape[place], shape[place + 1])
        return [*shape[:place], merged, *shape[place + 2 :]]
    if action == 1 and shape and len(shape) < MAX_RANK:
        for part in (2, 3, 4, 8):
            if all(n % part == 0 for n in shape[place]):
                rest, fixed = per_run(lambda n, p=part: n // p, shape[place]), (part,) * m.runs
                return [*shape[:place], *([fixed, rest] if m.chance(50) else [rest, fixed]), *shape[place + 1 :]]
    if action == 2 and len(shape) < MAX_RANK:
        return [*shape[:place], (1,) * m.runs, *shape[place:]]
    ones = [i for i, s in enumerate(shape) if is_fixed(s) and s[0] == 1]
    return [s for i, s in enumerate(shape) if i != ones[0]] if ones else shape


def squeeze(m: Maker) -> None:
    """Ones taken out (by name, or all of them) or put in."""
    x = _operand(m, "Squeeze")
    if x is None:
        return
    ones = [i for i, s in enumerate(x.shape) if is_fixed(s) and s[0] == 1]
    if ones and m.chance(50):
        out = ones if m.chance(30) else [m.choose(ones)]
        every = out == ones and all(is_fixed(s) for s in x.shape) and m.chance(50)
        axes = [a - x.rank if m.chance(40) else a for a in out]
        shape = tuple(s for i, s in enumerate(x.shape) if i not in out)
        _with_axes(m, "Squeeze", x, [] if every else axes, shape)
    elif x.rank < MAX_RANK:
        count = m.integer(1, min(2, MAX_RANK - x.rank))
        rank = x.rank + count
        places, axes = m.axes(rank, count)
        places, axes = places[:count], axes[:count]
        if m.opset < 11:
            axes = places
        rest = iter(x.shape)
        shape = tuple((1,) * m.runs if i in places else next(rest) for i in range(rank))
        _with_axes(m, "Unsqueeze", x, axes, shape)


def _with_axes(m: Maker, op: str, x: V, axes: list[int], shape: Shape) -> None:
    if m.opset < 13:
        axes = [a + max(x.rank, len(shape)) if a < 0 and m.opset < 11 else a for a in axes]
        m.add(op, [x], x.dtype, shape, **({"axes": axes} if axes else {}))
    else:
        m.add(op, [x, m.ints(axes)] if axes else [x], x.dtype, shape)


def flatten(m: Maker) -> None:
    x = _operand(m, "Flatten")
    if x is None:
        return
    axis = m.integer(0, x.rank)
    written = axis - x.rank if axis < x.rank and m.opset >= 11 and m.chance(30) else axis
    one = (1,) * m.runs
    halves = [per_run(lambda *n: int(np.prod(n)), one, *part) for part in (x.shape[:axis], x.shape[axis:])]
    m.add("Flatten", [x], x.dtype, tuple(halves), axis=written)


def expand(m: Maker) -> None:
    """To more axes and larger ones, by a constant shape that may be shorter than the result."""
    x = _operand(m, "Expand")
    if x is None:
        return
    rank = min(MAX_RANK, x.rank + m.integer(0, 2))
    wanted = []
    for i in range(-rank, 0):
        own = x.shape[i] if -i <= x.rank else (1,) * m.runs
        wanted.append(m.choose((1, 2, 3, 5)) if is_fixed(own) and own[0] == 1 else own[0] if is_fixed(own) and m.chance(50) else 1)
    shape = tuple(
        (w,) * m.runs if (own := x.shape[i] if -i <= x.rank else (1,) * m.runs) == (1,) * m.runs else own
        for i, w in zip(range(-rank, 0), wanted, strict=True)
    )
    if V("", x.dtype, shape).elements <= MAX_ELEMENTS:
        m.add("Expand", [x, m.ints(wanted)], x.dtype, shape)


def tile(m: Maker) -> None:
    x = _operand(m, "Tile", 1)
    if x is None:
        return
    repeats = [m.choose((1, 1, 2, 3, 0)) if m.chance(90) else 1 for _ in x.shape]
    shape = tuple(per_run(lambda n, r=r: n * r, s) for s, r in zip(x.shape, repeats, strict=True))
    if V("", x.dtype, shape).elements <= MAX_ELEMENTS:
        m.add("Tile", [x, m.ints(repeats)], x.dtype, shape)


def pad(m: Maker) -> None:
    """All modes; constant ones also cut off. Attributes up to opset 10, inputs after it, with axes from 18."""
    x = _operand(m, "Pad", 1, allowed("Pad", m.opset) - ({"bool"} if m.chance(60) else frozenset()))
    if x is None:
        return
    modes = ("reflect", "edge", *(("wrap",) if m.opset >= 19 else ()))
    mode = m.choose(("constant", "constant", *modes)) if all(0 not in s for s in x.shape) else "constant"
    low, high = ([_amount(m, s, mode) for s in x.shape] for _ in range(2))
    if any(min(s) + a + b < 0 for s, a, b in zip(x.shape, low, high, strict=True)):
        return
    shape = tuple(per_run(lambda n, p=a + b: n + p, s) for s, a, b in zip(x.shape, low, high, strict=True))
    if V("", x.dtype, shape).elements > MAX_ELEMENTS:
        return
    if m.opset < 11:
        m.add("Pad", [x], x.dtype, shape, pads=[*low, *high], mode=mode, **({"value": 1.5} if m.chance(50) else {}))
        return
    inputs: list[V | None] = [x, m.ints([*low, *high])]
    if mode == "constant" and m.chance(50):
        inputs.append(m.data(x.dtype, []))
    m.add("Pad", inputs, x.dtype, shape, mode=mode)


def _amount(m: Maker, size: Size, mode: str) -> int:
    if not m.chance(50):
        return 0
    if mode == "constant":
        return m.choose((1, 2, 0, -1))
    return m.integer(0, min(2, min(size) - 1)) if min(size) > 0 else 0


def gather(m: Maker) -> None:
    """Constant and run-time indices of any rank, from both ends."""
    x = _operand(m, "Gather", 1)
    if x is None:
        return
    axis, written = m.axis(x.rank)
    if min(x.shape[axis]) == 0:
        return
    index = _indices(m, min(x.shape[axis]), m.choose(([], [1], [3], [2, 2], [2])))
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    if len(shape) <= MAX_RANK and V("", x.dtype, shape).elements <= MAX_ELEMENTS:
        m.add("Gather", [x, index], x.dtype, shape, axis=written)


def _indices(m: Maker, size: int, shape: list[int]) -> V:
    """Valid indices; run-time ones are computed from data by a remainder."""
    kind = m.choose(("i64", "i32"))
    low = -size if m.opset >= 11 else 0
    if m.chance(60) or m.opset < 10:
        start = m.integer(0, size - 1)
        if m.chance(30) and len(shape) == 1 and start + shape[0] <= size:
            return m.const(np.arange(start, start + shape[0]), kind)  # evenly apart: a slice
        return m.const(m.rng().integers(low, size, shape), kind)
    found = m.find(lambda v: v.dtype == kind and v.rank <= 2 and v.elements <= 12)
    if found is None:
        return m.const(m.rng().integers(low, size, shape), kind)
    return m.add("Mod", [found, m.const(size, kind)], kind, found.shape)


def gather_elements(m: Maker) -> None:
    x = _operand(m, "GatherElements", 1)
    if x is None or not all(is_fixed(s) and s[0] for s in x.shape):
        return
    axis, written = m.axis(x.rank)
    shape = [m.integer(1, 3) if i == axis else m.integer(1, s[0]) for i, s in enumerate(x.shape)]
    index = m.const(m.rng().integers(-x.shape[axis][0], x.shape[axis][0], shape), "i64")
    m.add("GatherElements", [x, index], x.dtype, index.shape, axis=written)


def blocks(m: Maker) -> None:
    """DepthToSpace, SpaceToDepth and Resize to the nearest."""
    x = m.pick(["f32"], lambda v: v.rank == 4 and all(is_fixed(s) for s in v.shape))
    if x is None:
        return
    n, c, h, w = (s[0] for s in x.shape)
    kind = m.choose(("DepthToSpace", "SpaceToDepth", "Resize"))
    if kind == "DepthToSpace" and c % 4 == 0 and c:
        mode = {"mode": m.choose(("DCR", "CRD"))} if m.opset >= 11 else {}
        m.add(kind, [x], "f32", _static(m, n, c // 4, h * 2, w * 2), blocksize=2, **mode)
    elif kind == "SpaceToDepth" and h % 2 == 0 and w % 2 == 0 and h and w:
        m.add(kind, [x], "f32", _static(m, n, c * 4, h // 2, w // 2), blocksize=2)
    elif kind == "Resize" and m.opset >= 13 and x.elements and x.elements <= 500:
        a, b = m.integer(1, 3), m.integer(1, 2)
        scales = m.const(np.array([1, 1, a, b]), "f32")
        rule = m.choose((("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")))
        attrs = {"mode": "nearest", "coordinate_transformation_mode": rule[0], "nearest_mode": rule[1]}
        m.add("Resize", [x, None, scales], "f32", _static(m, n, c, h * a, w * b), **attrs)


def _static(m: Maker, *sizes: int) -> Shape:
    return tuple((n,) * m.runs for n in sizes)


def made_up(m: Maker) -> None:
    """Trilu, EyeLike and OneHot: values from indices."""
    op = m.choose(("Trilu", "EyeLike", "OneHot"))
    if op == "OneHot":
        index = m.pick(["i64"], lambda v: 1 <= v.rank <= 2 and v.elements <= 40)
        if index is not None:
            depth = m.integer(1, 6)
            place = m.integer(0, index.rank)
            shape = (*index.shape[:place], (depth,) * m.runs, *index.shape[place:])
            values = m.const(m.choose(([0, 1], [2, -3])), "f32")
            m.add("OneHot", [index, m.const(depth, "i64"), values], "f32", shape, axis=place - index.rank - 1 if m.chance(30) else place)
        return
    x = m.pick({"f32", "i64", "f64", *FLOATS} & allowed(op, m.opset), lambda v: v.rank >= 2 if op == "Trilu" else v.rank == 2)
    if x is None:
        return
    offset = m.integer(-2, 2)
    if op == "Trilu":
        m.add(op, [x, m.const(offset, "i64")], x.dtype, x.shape, upper=m.integer(0, 1))
    else:
        dtype = m.choose(("f32", x.dtype)) if x.dtype in ("f32", "i64") else "f32"
        m.add(op, [x], dtype, x.shape, k=offset, dtype=BY_NAME[dtype].onnx)
