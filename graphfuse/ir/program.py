"""The fused program: what one region computes, as values over index spaces.

A program is a list of instructions in order; each makes one value from earlier ones. Element-wise instructions
(``map``, ``cast``, ``round``) want operands of one shape; everything that moves data is a *view* that only says where
an element comes from (``transpose``, ``reshape``, ``broadcast``, ``slice``, ``pad``, ``concat``, ``gather``), so it costs
no pass over memory: kernels fold views into the addresses of their loads. ``reduce`` folds axes away.

Shapes may hold run-time dimensions (``graphfuse.ir.expr``); each of them must be readable off the shape of a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphfuse.ir import expr
from graphfuse.ir.dtypes import DType
from graphfuse.ir.errors import ProgramError, ShapeError
from graphfuse.ir.expr import Atom, Dim, Expr, Shape, Sym

VIEWS = frozenset({"transpose", "reshape", "broadcast", "slice", "pad", "concat", "gather"})
ELEMENTWISE = frozenset({"map", "cast", "round"})
SOURCES = frozenset({"param", "const", "extent", "iota"})
REDUCTIONS = frozenset({"sum", "prod", "max", "min", "argmax", "argmin"})


def identity(fn: str, dtype: DType) -> int | float:
    """What the fold ``fn`` of no elements is, and where an accumulator starts; arguments of extrema have none (KeyError)."""
    if fn in ("max", "min") and dtype.is_float:
        return -math.inf if fn == "max" else math.inf
    low = -(1 << (dtype.size * 8 - 1)) if dtype.kind == "i" else 0
    return {"sum": 0, "prod": 1, "max": low, "min": low + (1 << (dtype.size * 8)) - 1}[fn]


@dataclass(frozen=True)
class Instr:
    """One value of a program.

    op         args            attrs
    param      -               index
    const      -               value (scalar; int, float or bool)
    extent     -               size (a dimension as a scalar value)
    iota       -               axis (the index along it)
    map        operands        fn (a row of ``ir.scalars``)
    cast       x               (to ``dtype``; floats to integers truncate)
    round      x               (a small float to the precision of its own type)
    transpose  x               perm
    reshape    x               (to ``shape``)
    broadcast  x               (to ``shape``, aligned at the right as in NumPy)
    slice      x               starts, steps (elements ``starts + steps*i``; all inside x)
    pad        x, fill         low (fill is a scalar value; ``shape`` says how far it goes at the high end)
    concat     parts...        axis
    gather     data, indices   axis (NumPy ``take``; negative indices count from the end, others are clamped into range)
    reduce     x               fn (one of ``REDUCTIONS``), axes (sorted), last (argmax/argmin: of equals take the last)
    """

    op: str
    args: tuple[int, ...]
    dtype: DType
    shape: Shape
    attrs: tuple[tuple[str, Any], ...] = ()

    def attr(self, name: str) -> Any:
        """The attribute ``name``; raises KeyError when there is none."""
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(name)


@dataclass(frozen=True)
class Program:
    """A verified sequence of instructions; made by ``Builder.finish`` or ``ir.text.loads``.

    ``params`` are the dtypes and shapes of the inputs in order, ``results`` the instruction numbers of the outputs.
    """

    params: tuple[tuple[DType, Shape], ...]
    body: tuple[Instr, ...]
    results: tuple[int, ...]
    _cache: dict[str, Any] = field(default_factory=dict, compare=False, hash=False, repr=False)

    @property
    def outputs(self) -> tuple[tuple[DType, Shape], ...]:
        """Dtype and shape of each output."""
        return tuple((self.body[r].dtype, self.body[r].shape) for r in self.results)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the run-time dimensions, in order of their first appearance in the parameters' shapes."""
        if "symbols" not in self._cache:
            names: dict[str, None] = {}
            for _, shape in self.params:
                for dim in shape:
                    names.update(dict.fromkeys(sorted(expr.symbols(dim))))
            self._cache["symbols"] = tuple(names)
        known: tuple[str, ...] = self._cache["symbols"]
        return known

    def bind(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The value of each symbol for these input shapes. Raises ShapeError when they do not fit the program."""
        if len(shapes) != len(self.params):
            raise ShapeError(f"the program takes {len(self.params)} inputs, not {len(shapes)}")
        env: dict[str, int] = {}
        for (_, declared), real in zip(self.params, shapes, strict=True):
            if len(declared) != len(real):
                raise ShapeError(f"an input of rank {len(declared)} ({_dims(declared)}) got the shape {tuple(real)}")
        for want, got in _dim_pairs(self.params, shapes):
            solved = solve(want, got, env)
            if solved is not None:
                env.update([solved])
        missing = [s for s in self.symbols if s not in env]
        if missing:
            raise ShapeError(f"the input shapes do not determine {', '.join(missing)}")
        for index, ((_, declared), real) in enumerate(zip(self.params, shapes, strict=True)):
            if any(expr.evaluate(want, env) != got for want, got in zip(declared, real, strict=True)):
                raise ShapeError(f"input {index} has the shape {tuple(real)}; the program wants {_dims(declared)} ({env})")
        return env

    def output_shapes(self, env: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Shapes of the outputs once the symbols have values."""
        return [tuple(expr.evaluate(d, env) for d in shape) for _, shape in self.outputs]

    def specialise(self, env: Mapping[str, Dim]) -> Program:
        """The same program with the given symbols fixed (or renamed); kernels made from it are hardened to those sizes."""
        table: dict[Atom, Dim] = {Sym(name): value for name, value in env.items()}
        if not table:
            return self
        params = tuple((dtype, _substitute(shape, table)) for dtype, shape in self.params)
        return Program(params, tuple(_specialise(i, table) for i in self.body), self.results)


DIM_ATTRS = frozenset({"size", "starts", "low"})


def _specialise(instr: Instr, table: Mapping[Atom, Dim]) -> Instr:
    attrs = tuple((key, _substitute(value, table) if key in DIM_ATTRS else value) for key, value in instr.attrs)
    return Instr(instr.op, instr.args, instr.dtype, _substitute(instr.shape, table), attrs)


def _substitute(value: Any, table: Mapping[Atom, Dim]) -> Any:
    if isinstance(value, tuple):
        return tuple(_substitute(v, table) for v in value)
    return expr.substitute(value, table)


def _dims(shape: Shape) -> str:
    return "[" + ", ".join(str(d) for d in shape) + "]"


def _dim_pairs(params: Iterable[tuple[DType, Shape]], shapes: Sequence[Sequence[int]]) -> list[tuple[Dim, int]]:
    """(declared, actual) dimensions, plain symbols first so that expressions of them can be checked or solved later."""
    pairs = [(want, got) for (_, shape), real in zip(params, shapes, strict=True) for want, got in zip(shape, real, strict=True)]
    return sorted(pairs, key=lambda p: len(expr.symbols(p[0])) * 100 + len(str(p[0])))


def solve(want: Dim, got: int, env: Mapping[str, int]) -> tuple[str, int] | None:
    """The one unknown symbol in ``want == got`` if the equation is linear in it and has an answer, else None."""
    known: dict[Atom, Dim] = {Sym(name): value for name, value in env.items()}
    left = expr.substitute(want, known)
    if not isinstance(left, Expr):
        return None
    names = expr.symbols(left)
    if len(names) != 1:
        return None
    (name,) = names
    slope = left.terms.get((Sym(name),))
    rest = left - (slope or 0) * expr.sym(name)
    if not slope or not isinstance(rest, int) or (got - rest) % slope:
        return None
    return name, (got - rest) // slope


def solvable(params: Iterable[tuple[DType, Shape]]) -> set[str]:
    """The symbols that the shapes of the parameters determine."""
    known: set[str] = set()
    dims = [d for _, shape in params for d in shape if isinstance(d, Expr)]
    for _ in range(len(dims) + 1):
        before = len(known)
        for dim in dims:
            unknown = expr.symbols(dim) - known
            if len(unknown) == 1:
                (name,) = unknown
                linear = all((Sym(name),) == m or Sym(name) not in expr.atoms(Expr({m: 1})) for m in dim.terms)
                if linear and (Sym(name),) in dim.terms:
                    known.add(name)
        if len(known) == before:
            break
    return known


def check_symbols(program: Program) -> None:
    """Raises ProgramError if a dimension is used that no parameter's shape determines."""
    known = solvable(program.params)
    used: set[str] = set()
    for instr in program.body:
        for dim in (*instr.shape, *_attr_dims(instr)):
            used |= expr.symbols(dim)
    if used - known:
        raise ProgramError(f"dimension {', '.join(sorted(used - known))} cannot be read off the shape of any input")


def _attr_dims(instr: Instr) -> list[Dim]:
    dims: list[Dim] = []
    for key, value in instr.attrs:
        if key in DIM_ATTRS:
            dims += value if isinstance(value, tuple) else [value]
    return dims
