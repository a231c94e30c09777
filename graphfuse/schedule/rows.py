"""Walking an output row by row.

An output uses a reduction at some index of the kept axes. Where that index is a one-to-one function of some of the output's
own indices, those indices *are* the row and the others are the columns; this file finds them and turns the function round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphfuse.ir import expr
from graphfuse.ir.errors import Refused
from graphfuse.ir.expr import Atom, Call, Dim, Expr, Shape, Var
from graphfuse.schedule.scalar import Index, delinear

ROW = "r"
COLUMN = "c"


@dataclass(frozen=True)
class RowOutput:
    """Output ``result``: its index as a function of the row ``r`` and of the column ``c`` below ``columns``."""

    result: int
    index: Index
    columns: Dim


def column(total: Dim) -> Dim:
    """The column index of a walk over ``total`` columns."""
    return expr.var(COLUMN, total)


def invert(result: int, used: Index, kept: Shape, shape: Shape) -> RowOutput:
    """The walk over an output of ``shape`` that reads a reduction at ``used`` (in indices ``o0, o1...``), rows first.

    Raises Refused(``reduction-rows``) when the output's indices do not split into rows and columns.
    """
    if len(used) != len(kept) or any(_covers(u) for u in used):
        raise Refused("reduction-rows", "a reduction is read at an index that memory decides")
    digits = {axis: _digits(Var(f"o{axis}", dim), used) for axis, dim in enumerate(shape) if dim != 1}
    table: dict[Atom, Dim] = {}
    for axis, parts in digits.items():
        table[Var(f"o{axis}", shape[axis])] = _compose(parts, {p: expr.var(p.name, p.extent) for p in parts})
    place: dict[Var, Dim] = {}
    for own, size, position in zip(
        (expr.substitute(u, table) for u in used), kept, delinear(expr.var(ROW, expr.product(kept)), kept), strict=True
    ):
        place.update(_solve(own, size, position, place))
    columns = [p for parts in digits.values() for p in parts if p not in place]
    total = expr.product(p.extent for p in columns)
    place.update(zip(columns, delinear(column(total), [p.extent for p in columns]), strict=True))
    index = tuple(_compose(digits[axis], place) if axis in digits else 0 for axis in range(len(shape)))
    return RowOutput(result, index, total)


def _covers(used: Dim) -> bool:
    return any(not v.name.startswith("o") for v in expr.variables(used))


def _digits(index: Var, used: Index) -> list[Var]:
    """``index`` as digits of a mixed radix, cut wherever a reduction's index divides it; most significant first."""
    cuts: list[Dim] = []
    for item in used:
        for atom in expr.atoms(item):
            if isinstance(atom, Call) and atom.fn in ("//", "%") and index in expr.atoms(atom.left):
                cuts.append(atom.right)
                inner = atom.left
                if isinstance(inner, Expr) and atom.fn == "%":
                    cuts += [a.right * atom.right for a in expr.atoms(inner) if isinstance(a, Call) and a.fn == "//"]
    ordered = sorted({c for c in cuts if c != 1 and c != index.extent}, key=lambda c: (len(str(c)), str(c)))
    digits: list[Var] = []
    below: Dim = 1
    for cut in [*ordered, index.extent]:
        extent = expr.exact_quotient(cut, below)
        if extent is None:
            raise Refused("reduction-rows", f"an axis of {index.extent} does not split at {cut}")
        if extent != 1:
            digits.insert(0, Var(f"{index.name}_{len(digits)}", extent))
        below = cut
    return digits


def _compose(digits: Sequence[Var], place: dict[Var, Dim]) -> Dim:
    total: Dim = 0
    for digit in digits:
        total = total * digit.extent + place[digit]
    return total


def _solve(own: Dim, size: Dim, position: Dim, taken: dict[Var, Dim]) -> dict[Var, Dim]:
    """The digits in ``own`` from the value ``position``, if ``own`` is a mixed radix that runs through ``0..size-1`` once."""
    parts: list[tuple[Dim, Var]] = []
    rest = own
    for digit in sorted(expr.variables(own), key=lambda v: v.name):
        factor = expr.coefficient(own, digit)
        if factor is None or digit in taken:
            raise Refused("reduction-rows", "a reduction is read at an index that is not one-to-one in the output's indices")
        parts.append((factor, digit))
        rest = rest - factor * expr.var(digit.name, digit.extent)
    if rest != 0:
        raise Refused("reduction-rows", "an output holds only some of the rows")
    solved: dict[Var, Dim] = {}
    below: Dim = 1
    while parts:
        found = next((p for p in parts if p[0] == below), None)
        if found is None:
            raise Refused("reduction-rows", "an output skips rows")
        parts.remove(found)
        quotient = expr.floordiv(position, below)
        below = below * found[1].extent
        solved[found[1]] = quotient if below == size else expr.modulo(quotient, found[1].extent)
    if below != size:
        raise Refused("reduction-rows", "an output holds only some of the rows")
    return solved
