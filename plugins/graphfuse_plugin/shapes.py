"""Output shapes for TensorRT: dimensions of a program as expressions of TensorRT's own.

The symbols of a program are not TensorRT's; each is read off a dimension of an input, directly or by solving
``slope*symbol + rest == dimension``, in an order in which every ``rest`` is known already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphfuse.ir import expr
from graphfuse.ir.errors import ShapeError
from graphfuse.ir.expr import Atom, Call, Dim, Expr, Sym
from graphfuse.ir.program import Program


@dataclass(frozen=True)
class Reading:
    """``symbol == (inputs[param][axis] - rest) // slope``."""

    symbol: str
    param: int
    axis: int
    slope: int
    rest: Dim


def readings(program: Program) -> tuple[Reading, ...]:
    """How to get each symbol, in an order that works. Plain dimensions come first: they need no arithmetic."""
    dims = [(p, a, d) for p, (_, shape) in enumerate(program.params) for a, d in enumerate(shape) if isinstance(d, Expr)]
    dims.sort(key=lambda item: (len(item[2].terms), len(str(item[2]))))
    found: dict[str, Reading] = {}
    for _ in dims:
        for param, axis, dim in dims:
            reading = _solve(dim, found, param, axis)
            if reading is not None:
                found[reading.symbol] = reading
    return tuple(found.values())


def _solve(dim: Expr, known: dict[str, Reading], param: int, axis: int) -> Reading | None:
    unknown = expr.symbols(dim) - known.keys()
    if len(unknown) != 1:
        return None
    (name,) = unknown
    slope = dim.terms.get((Sym(name),), 0)
    rest = dim - slope * expr.sym(name)
    if not slope or name in expr.symbols(rest):
        return None
    return Reading(name, param, axis, slope, rest)


class ShapeTranslator:
    """Builds IDimensionExpr objects for one call of get_output_shapes; equal parts are built once."""

    def __init__(self, trt: Any, builder: Any, inputs: Sequence[Any]) -> None:
        self._ops = trt.DimensionOperation
        self._builder = builder
        self._inputs = inputs
        self._symbols: dict[str, Any] = {}
        self._known: dict[Dim, Any] = {}

    def read_symbols(self, program: Program) -> None:
        """Bind every symbol to the inputs' dimensions. Raises ShapeError where constant dimensions contradict the program."""
        self._check(program)
        for item in readings(program):
            size = self._inputs[item.param][item.axis]
            if item.rest != 0:
                size = self._op("SUB", size, self.dim(item.rest))
            if item.slope != 1:
                size = self._op("FLOOR_DIV", size, self.dim(item.slope))
            self._symbols[item.symbol] = size

    def _check(self, program: Program) -> None:
        if len(self._inputs) != len(program.params):
            raise ShapeError(f"the fused region takes {len(program.params)} inputs, the network gives {len(self._inputs)}")
        for number, (got, (_, want)) in enumerate(zip(self._inputs, program.params, strict=True)):
            shown = [d.get_constant_value() if d.is_constant() else "?" for d in got]
            fits = len(shown) == len(want) and all(not isinstance(w, int) or g in ("?", w) for g, w in zip(shown, want, strict=True))
            if not fits:
                raise ShapeError(f"input {number} of the fused region has the shape {shown} in the network; it was made for {list(want)}")

    def dim(self, dim: Dim) -> Any:
        """The IDimensionExpr for ``dim``."""
        if dim not in self._known:
            self._known[dim] = self._builder.constant(dim) if isinstance(dim, int) else self._sum(dim)
        return self._known[dim]

    def _sum(self, dim: Expr) -> Any:
        """Positive terms first, then the negative ones subtracted, so that no part is negative without need."""
        terms = sorted(dim.terms.items(), key=lambda term: (term[1] < 0, str(term[0])))
        total: Any = None
        for mono, coef in terms:
            part = self._product(mono, abs(coef))
            if total is None:
                total = part if coef > 0 else self._op("SUB", self.dim(0), part)
            else:
                total = self._op("SUM" if coef > 0 else "SUB", total, part)
        return total

    def _product(self, mono: tuple[Atom, ...], factor: int) -> Any:
        parts = [self._atom(a) for a in mono]
        if factor != 1 or not parts:
            parts.insert(0, self.dim(factor))
        total = parts[0]
        for part in parts[1:]:
            total = self._op("PROD", total, part)
        return total

    def _atom(self, atom: Atom) -> Any:
        if isinstance(atom, Sym):
            return self._symbols[atom.name]
        if not isinstance(atom, Call):
            raise ShapeError(f"an output's shape holds the loop index {atom}")
        left, right = self.dim(atom.left), self.dim(atom.right)
        if atom.fn == "%":  # TensorRT has no modulo
            return self._op("SUB", left, self._op("PROD", right, self._op("FLOOR_DIV", left, right)))
        return self._op({"//": "FLOOR_DIV", "max": "MAX", "min": "MIN"}[atom.fn], left, right)

    def _op(self, name: str, left: Any, right: Any) -> Any:
        return self._builder.operation(getattr(self._ops, name), left, right)


def output_shapes(trt: Any, program: Program, inputs: Sequence[Any], builder: Any) -> list[Any]:
    """The DimsExprs of each output for the DimsExprs ``inputs``."""
    translator = ShapeTranslator(trt, builder, inputs)
    translator.read_symbols(program)
    return [trt.DimsExprs([translator.dim(d) for d in shape]) for _, shape in program.outputs]
