"""Names for sizes that a region sees only as expressions, such as ``(h - 1)//2 + 1`` after a convolution.

A kernel is told the shapes of its inputs and nothing else. Where those do not give away ``h``, the region is built again
with a symbol for each such size: what counts inside is which sizes are equal, not where they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from graphfuse.ir import expr
from graphfuse.ir.dtypes import DType
from graphfuse.ir.expr import Atom, Call, Dim, Expr, Shape, sym
from graphfuse.ir.program import solvable


class Sizes:
    """Translates dimensions. ``params`` are the region's as the model has them; a symbol stands for a size, so it is at least 0.

    ``names`` says what the new symbols stand for.
    """

    def __init__(self, params: Sequence[tuple[DType, Shape]]) -> None:
        self._atoms: dict[Atom, Dim] = {}
        self._whole: dict[Dim, Dim] = {}
        self.names: dict[str, Dim] = {}
        known = solvable(params)
        dims = {d for _, shape in params for d in shape if isinstance(d, Expr)}
        for dim in sorted(dims, key=lambda d: (expr.weight(d), expr.render(d))):
            if not expr.symbols(self(dim)) - known:
                continue
            fresh = sym(f"gf_size{len(known)}")
            known |= expr.symbols(fresh)
            self.names.update(dict.fromkeys(expr.symbols(fresh), dim))
            self._name(dim, fresh)

    def __call__(self, dim: Dim) -> Dim:
        """The dimension as the region's program has it."""
        return self._whole[dim] if dim in self._whole else expr.substitute(dim, self._atoms)

    def shape(self, dims: Iterable[Dim]) -> Shape:
        """A whole shape."""
        return tuple(self(d) for d in dims)

    def array(self, known: np.ndarray | None) -> np.ndarray | None:
        """A known value; only one of ``object`` dtype can hold sizes."""
        if known is None or known.dtype != object:
            return known
        made = np.empty(known.shape, object)
        made.reshape(-1)[:] = [self(item) if isinstance(item, Expr) else item for item in known.reshape(-1)]
        return made

    def _name(self, dim: Expr, fresh: Expr) -> None:
        """Solves ``dim == fresh`` for a quotient or the like that stands in it alone; else only the whole has a name."""
        left = expr.substitute(dim, self._atoms)
        for mono, factor in left.terms.items() if isinstance(left, Expr) else ():
            if len(mono) != 1 or factor not in (1, -1) or not isinstance(mono[0], Call):
                continue
            rest = left - factor * Expr({mono: 1})
            if mono[0] not in (expr.atoms(rest) if isinstance(rest, Expr) else ()):
                solved = factor * (fresh - rest)
                self._atoms = {a: expr.substitute(d, {mono[0]: solved}) for a, d in self._atoms.items()} | {mono[0]: solved}
                return
        self._whole[dim] = fresh


class Translated(Sequence["np.ndarray | None"]):
    """Known values of a node's inputs, translated when asked for."""

    def __init__(self, values: Sequence[np.ndarray | None], sizes: Sizes) -> None:
        self._values, self._sizes = values, sizes

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        return self._sizes.array(self._values[index])
