"""Builds fused programs, checking every instruction as it is added.

The op table, the deserialiser and the tests all come through here, so a ``Program`` that exists is a valid one. Shapes
and types of results are derived, never stated; equal instructions are shared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphfuse.ir import dtypes, expr, scalars
from graphfuse.ir.dtypes import BOOL, F32, I64, DType
from graphfuse.ir.errors import ProgramError
from graphfuse.ir.expr import Dim, Shape
from graphfuse.ir.program import REDUCTIONS, VIEWS, Instr, Program, check_symbols, identity

Number = int | float | bool
MAX_BODY = 20_000
MAX_PARAMS = 256
MAX_RANK = 16


@dataclass(frozen=True)
class Val:
    """A value under construction; arithmetic operators build ``map`` instructions with NumPy broadcasting."""

    builder: Builder
    id: int

    @property
    def instr(self) -> Instr:
        return self.builder.body[self.id]

    @property
    def dtype(self) -> DType:
        return self.instr.dtype

    @property
    def shape(self) -> Shape:
        return self.instr.shape

    @property
    def rank(self) -> int:
        return len(self.instr.shape)

    def __add__(self, other: Val | Number) -> Val:
        return self.builder.map("add", self, other)

    def __radd__(self, other: Number) -> Val:
        return self.builder.map("add", other, self)

    def __sub__(self, other: Val | Number) -> Val:
        return self.builder.map("sub", self, other)

    def __rsub__(self, other: Number) -> Val:
        return self.builder.map("sub", other, self)

    def __mul__(self, other: Val | Number) -> Val:
        return self.builder.map("mul", self, other)

    def __rmul__(self, other: Number) -> Val:
        return self.builder.map("mul", other, self)

    def __truediv__(self, other: Val | Number) -> Val:
        return self.builder.map("div", self, other)

    def __rtruediv__(self, other: Number) -> Val:
        return self.builder.map("div", other, self)

    def __neg__(self) -> Val:
        return self.builder.map("neg", self)


class Builder:
    """Collects instructions. ``exact_rounding`` rounds small floats after every operation, as an unfused model would."""

    def __init__(self, *, exact_rounding: bool = False) -> None:
        self.exact_rounding = exact_rounding
        self.params: list[tuple[DType, Shape]] = []
        self.body: list[Instr] = []
        self._known: dict[Instr, int] = {}

    def finish(self, results: Sequence[Val]) -> Program:
        """The program with these outputs; instructions that no output needs are dropped."""
        if not results:
            raise ProgramError("a program needs at least one output")
        live = _live(self.body, [r.id for r in results])
        place = {old: new for new, old in enumerate(live)}
        body = tuple(Instr(i.op, tuple(place[a] for a in i.args), i.dtype, i.shape, i.attrs) for i in (self.body[old] for old in live))
        program = Program(tuple(self.params), body, tuple(place[r.id] for r in results))
        check_symbols(program)
        return program

    # --- sources

    def param(self, dtype: DType, shape: Sequence[Dim]) -> Val:
        """The next input."""
        if len(self.params) >= MAX_PARAMS:
            raise ProgramError(f"a program takes at most {MAX_PARAMS} inputs")
        self.params.append((dtype, tuple(shape)))
        return self._add("param", (), dtype, tuple(shape), index=len(self.params) - 1)

    def const(self, value: Number, dtype: DType) -> Val:
        """A scalar; converted to ``dtype`` (raises ProgramError when an integer does not fit)."""
        if dtype.is_float:
            value = dtype.nearest(value)
        elif dtype is BOOL:
            value = bool(value)
        else:
            if isinstance(value, float) and not value.is_integer():
                raise ProgramError(f"{value} is no {dtype} constant")
            value = int(value)
            low = -(1 << (dtype.size * 8 - 1)) if dtype.kind == "i" else 0
            if not low <= value < low + (1 << (dtype.size * 8)):
                raise ProgramError(f"{value} does not fit {dtype}")
        return self._add("const", (), dtype, (), value=value)

    def extent(self, size: Dim, dtype: DType = I64) -> Val:
        """A dimension as a scalar value; in a small float it keeps the precision of the compute type (counts of means)."""
        if isinstance(size, int) and not (dtype.is_small_float and dtype.nearest(size) != size):
            return self.const(size, dtype)
        return self._add("extent", (), dtype, (), size=size)

    def iota(self, shape: Sequence[Dim], axis: int, dtype: DType = I64) -> Val:
        """The index along ``axis``."""
        if not 0 <= axis < len(shape) or not dtype.is_integer:
            raise ProgramError("iota needs an axis of its shape and an integer type")
        return self._add("iota", (), dtype, tuple(shape), axis=axis)

    # --- element-wise

    def map(self, fn: str, *operands: Val | Number) -> Val:
        """``fn`` of the operands, broadcast to one shape; plain numbers take the type of the other operands."""
        row = scalars.TABLE.get(fn)
        if row is None:
            raise ProgramError(f"unknown scalar operation {fn!r}")
        typed = [o.dtype for o in operands[1 if fn == "where" else 0 :] if isinstance(o, Val)]
        if not typed:
            raise ProgramError(f"{fn} needs at least one operand that is a value")
        vals = [o if isinstance(o, Val) else self.const(o, typed[0]) for o in operands]
        if row.discontinuous:
            vals = [self.round(v) for v in vals]
        try:
            dtype = row.result_type(tuple(v.dtype for v in vals))
        except TypeError as error:
            raise ProgramError(str(error)) from None
        shape = broadcast_shapes([v.shape for v in vals])
        args = tuple(self.broadcast(v, shape).id for v in vals)
        made = self._add("map", args, dtype, shape, fn=fn)
        return self.round(made) if self.exact_rounding else made

    def cast(self, x: Val, dtype: DType) -> Val:
        """Conversion as ONNX Cast: floats to integers truncate, anything to bool is ``!= 0``."""
        x = self.round(x)
        return x if x.dtype is dtype else self._add("cast", (x.id,), dtype, x.shape)

    def round(self, x: Val) -> Val:
        """A small float rounded to its own type; other values, and those rounded already, come back as they are."""
        return x if self._is_rounded(x.id) else self._add("round", (x.id,), x.dtype, x.shape)

    def _is_rounded(self, number: int) -> bool:
        instr = self.body[number]
        if not instr.dtype.is_small_float or instr.op in ("param", "const", "round", "cast"):
            return True
        if instr.op in VIEWS:
            data = instr.args[:1] if instr.op == "gather" else instr.args
            return all(self._is_rounded(a) for a in data)
        if instr.op == "map" and instr.attr("fn") in ("where", "min", "max", "neg", "abs"):
            return all(self._is_rounded(a) for a in instr.args)
        return instr.op == "reduce" and instr.attr("fn") in ("max", "min") and self._is_rounded(instr.args[0])

    # --- views

    def transpose(self, x: Val, perm: Sequence[int]) -> Val:
        """Axis ``i`` of the result is axis ``perm[i]`` of ``x``."""
        perm = tuple(perm)
        if sorted(perm) != list(range(x.rank)):
            raise ProgramError(f"{perm} does not order {x.rank} axes")
        if perm == tuple(range(x.rank)):
            return x
        return self._add("transpose", (x.id,), x.dtype, tuple(x.shape[p] for p in perm), perm=perm)

    def reshape(self, x: Val, shape: Sequence[Dim]) -> Val:
        """The same elements in row-major order; raises ProgramError unless the sizes are provably equal."""
        shape = tuple(shape)
        if expr.product(shape) != expr.product(x.shape):
            raise ProgramError(f"cannot reshape {list(x.shape)} to {list(shape)}: sizes are not provably equal")
        if shape == x.shape:
            return x
        if x.instr.op == "reshape":  # of a reshape: only the last one counts
            return self.reshape(Val(self, x.instr.args[0]), shape)
        return self._add("reshape", (x.id,), x.dtype, shape)

    def broadcast(self, x: Val, shape: Sequence[Dim]) -> Val:
        """Repeated along missing axes and axes of size 1, as NumPy does."""
        shape = tuple(shape)
        if shape == x.shape:
            return x
        extra = len(shape) - x.rank
        if extra < 0 or any(a != b and a != 1 for a, b in zip(x.shape, shape[extra:], strict=True)):
            raise ProgramError(f"cannot broadcast {list(x.shape)} to {list(shape)}")
        return self._add("broadcast", (x.id,), x.dtype, shape)

    def slice(self, x: Val, starts: Sequence[Dim], sizes: Sequence[Dim], steps: Sequence[int] | None = None) -> Val:
        """Elements ``starts + steps*i`` for ``i < sizes`` on each axis.

        All must lie inside ``x``; raises ProgramError where that cannot be proven.
        """
        steps = tuple(steps) if steps is not None else (1,) * x.rank
        starts, sizes = tuple(starts), tuple(sizes)
        if not len(starts) == len(sizes) == len(steps) == x.rank:
            raise ProgramError("slice needs a start, a size and a step for each axis")
        for start, size, step, dim in zip(starts, sizes, steps, x.shape, strict=True):
            if step == 0:
                raise ProgramError("a slice's step is not 0")
            if size == 0:
                continue
            if not _stays_inside(start, size, step, dim):
                raise ProgramError(f"a slice from {start} by {step}, {size} long, may leave an axis of {dim}")
        if sizes == x.shape and all(s == 1 for s in steps):
            return x
        if x.instr.op == "slice":
            return self._slice_of_slice(x, starts, sizes, steps)
        return self._add("slice", (x.id,), x.dtype, sizes, starts=starts, steps=steps)

    def _slice_of_slice(self, x: Val, starts: Shape, sizes: Shape, steps: tuple[int, ...]) -> Val:
        """One slice of what ``x`` slices, where that too can be proven to stay inside; windows are seen through it."""
        whole = Val(self, x.instr.args[0])
        outer = zip(x.instr.attr("starts"), x.instr.attr("steps"), starts, steps, strict=True)
        first, by = zip(*((start + step * at, step * stride) for start, step, at, stride in outer), strict=True)
        parts = zip(first, sizes, by, whole.shape, strict=True)
        if all(size == 0 or _stays_inside(start, size, step, dim) for start, size, step, dim in parts):
            return self.slice(whole, first, sizes, by)
        return self._add("slice", (x.id,), x.dtype, sizes, starts=starts, steps=steps)

    def pad(self, x: Val, low: Sequence[Dim], high: Sequence[Dim], fill: Val | Number) -> Val:
        """``x`` with ``fill`` around it; amounts are at least 0."""
        fill = fill if isinstance(fill, Val) else self.const(fill, x.dtype)
        low, high = tuple(low), tuple(high)
        if not len(low) == len(high) == x.rank or not all(expr.is_nonneg(p) for p in (*low, *high)):
            raise ProgramError("pad needs two amounts of at least 0 for each axis")
        if fill.shape != () or fill.dtype is not x.dtype:
            raise ProgramError("the fill of a pad is a scalar of the padded type")
        if all(p == 0 for p in (*low, *high)):
            return x
        shape = tuple(lo + d + hi for lo, d, hi in zip(low, x.shape, high, strict=True))
        return self._add("pad", (x.id, fill.id), x.dtype, shape, low=low)

    def concat(self, parts: Sequence[Val], axis: int) -> Val:
        """The parts one after another along ``axis``; empty parts vanish."""
        if not parts or not 0 <= axis < parts[0].rank:
            raise ProgramError("concat needs parts and an axis that they have")
        first = parts[0]
        for part in parts:
            same = part.rank == first.rank and part.dtype is first.dtype
            if not same or any(i != axis and a != b for i, (a, b) in enumerate(zip(part.shape, first.shape, strict=True))):
                raise ProgramError(f"concat on axis {axis} of {[list(p.shape) for p in parts]} does not fit")
        kept = [p for p in parts if p.shape[axis] != 0] or [first]
        if len(kept) == 1:
            return kept[0]
        total: Dim = 0
        for part in kept:
            total = total + part.shape[axis]
        shape = tuple(total if i == axis else d for i, d in enumerate(first.shape))
        return self._add("concat", tuple(p.id for p in kept), first.dtype, shape, axis=axis)

    def gather(self, data: Val, indices: Val, axis: int) -> Val:
        """NumPy ``take`` along ``axis``; an index outside the axis reads the nearest element instead of foreign memory."""
        if not 0 <= axis < data.rank or not indices.dtype.is_integer:
            raise ProgramError("gather needs an axis of its data and integer indices")
        if data.shape[axis] == 0:
            raise ProgramError("gather from an empty axis")
        shape = data.shape[:axis] + indices.shape + data.shape[axis + 1 :]
        return self._add("gather", (data.id, indices.id), data.dtype, shape, axis=axis)

    # --- reductions

    def reduce(self, fn: str, x: Val, axes: Sequence[int], *, keepdims: bool = False, last: bool = False) -> Val:
        """``x`` folded over ``axes`` (none: no reduction). argmax and argmin take one axis and return int64."""
        axes = tuple(sorted({a + x.rank if a < 0 else a for a in axes}))
        if fn not in REDUCTIONS or any(not 0 <= a < x.rank for a in axes):
            raise ProgramError(f"cannot reduce a value of rank {x.rank} by {fn} over axes {axes}")
        arg = fn in ("argmax", "argmin")
        if x.dtype is BOOL or (arg and len(axes) != 1):
            raise ProgramError(f"{fn} does not take {x.dtype} over axes {axes}")
        if arg:
            x = self.round(x)
        if not axes:
            return x
        empty = any(x.shape[a] == 0 for a in axes)
        if arg and empty:
            raise ProgramError(f"{fn} over an empty axis has no value")
        shape = tuple(d for i, d in enumerate(x.shape) if i not in axes)
        more = {"last": bool(last)} if arg else {}
        if empty:
            made = self.broadcast(self.const(identity(fn, x.dtype), x.dtype), shape)
        else:
            made = self._add("reduce", (x.id,), I64 if arg else x.dtype, shape, fn=fn, axes=axes, **more)
        if not arg and self.exact_rounding:
            made = self.round(made)
        return self.reshape(made, [1 if i in axes else d for i, d in enumerate(x.shape)]) if keepdims else made

    def _add(self, op: str, args: tuple[int, ...], dtype: DType, shape: Shape, **attrs: Any) -> Val:
        if len(self.body) >= MAX_BODY:
            raise ProgramError(f"a program has at most {MAX_BODY} instructions")
        if len(shape) > MAX_RANK:
            raise ProgramError(f"rank {len(shape)} is more than {MAX_RANK}")
        for dim in shape:
            if isinstance(dim, int) and not 0 <= dim < 1 << 48:
                raise ProgramError(f"{dim} is no dimension")
        if 0 in shape and op not in ("param", "broadcast"):  # nothing is computed for nothing
            return self.broadcast(self.const(0, dtype), shape)
        instr = Instr(op, args, dtype, shape, tuple(sorted(attrs.items(), key=lambda t: t[0])))
        key = instr
        if op == "const":  # 0.0 == -0.0 == False and nan != nan: share by text instead
            key = Instr(op, args, dtype, shape, (("value", const_text(attrs["value"])),))
        if key not in self._known:
            self._known[key] = len(self.body)
            self.body.append(instr)
        return Val(self, self._known[key])


def const_text(value: Number) -> str | int:
    """A constant as JSON can hold it without loss: floats as hexadecimal text, integers and bools as numbers."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    return "nan" if math.isnan(value) else ("inf" if value == math.inf else "-inf" if value == -math.inf else value.hex())


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """The common shape by NumPy's rule; raises ProgramError if two run-time sizes are not provably equal."""
    rank = max(len(s) for s in shapes)
    result: list[Dim] = []
    for axis in range(rank):
        dims = {s[len(s) - rank + axis] for s in shapes if len(s) - rank + axis >= 0} - {1}
        if len(dims) > 1:
            raise ProgramError(f"sizes {', '.join(sorted(str(d) for d in dims))} are not provably equal")
        result.append(dims.pop() if dims else 1)
    return tuple(result)


def _stays_inside(start: Dim, size: Dim, step: int, dim: Dim) -> bool:
    """Whether the ``size`` elements from ``start`` by ``step`` are provably in ``[0, dim)``; there may be none of them."""
    ends = (start, start + step * (size - 1))
    if all(expr.is_nonneg(e) and expr.is_less(e, dim) for e in ends):
        return True
    if step > 0:  # so many fit: size <= ceil((dim - start) / step)
        return expr.is_nonneg(start) and expr.is_nonneg(expr.ceildiv(dim - start, step) - size)
    return expr.is_less(start, dim) and expr.is_nonneg(expr.floordiv(start, -step) + 1 - size)


def _live(body: Sequence[Instr], roots: Sequence[int]) -> list[int]:
    needed = set(roots) | {n for n, i in enumerate(body) if i.op == "param"}
    for number in range(len(body) - 1, -1, -1):
        if number in needed:
            needed.update(body[number].args)
    return sorted(needed)


__all__ = ["F32", "Builder", "Val", "broadcast_shapes", "const_text", "dtypes"]
