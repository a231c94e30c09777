"""How far two right answers may lie apart.

The fused model and the original compute the same function and round differently: sums in another order, small floats
kept in float32 inside a region. With unit roundoff ``u`` (2^-24 for float32, 2^-11 float16, 2^-8 bfloat16, 2^-53
float64), ``n`` roundings one after another change a value by about ``sqrt(n) * u`` of its size (they are as good as
independent; Higham and Mary, SIAM J. Sci. Comput. 2019), and by ``n * u`` at worst. The tolerance is ``growth * u``.

============  =======  ======  =====================================================================================
type          region   model   why
============  =======  ======  =====================================================================================
float32, 64   2^8      2^10    A region is at most some dozens of operations and one sum; 2^8 = sqrt(2^16) covers a sum
                               of 65,536 terms, and maths libraries that differ by a few units in the last place.
float16,      2^2      2^4     Sums are kept in float32 by both sides, so what counts are the operations that the
bfloat16                       original rounds and the region does not: some 16, hence sqrt(16). An error of one ulp
                               is already 2^2 times nearer to the tolerance than in float32: nothing more is granted.
============  =======  ======  =====================================================================================

The 8-bit floats and smaller are stored, not computed in: their values may be one step apart (a rounding that falls the
other way), whether a region or a model made them.

A whole model gets four times a region's growth: later layers carry errors on, and their weights amplify them.

The tolerance is ``rtol * |want| + atol`` with ``rtol = growth * u``. ``atol`` serves elements near zero that were
*computed* from larger ones by cancellation (a layer norm's output around its mean): their error goes with the size of
their neighbours. It is ``rtol`` times the root mean square of the output; where the output holds columns of different
size (boxes in pixels beside scores in 0..1), the smallest root mean square over the slices that an element lies in
along any axis, but not below 1/64 of that of the whole, as a slice of zeros may itself be the result of cancellation.

Integers and bools have no tolerance: they are equal or they are wrong. Where they come out of floats (argmax, a
quantisation, a comparison), a rounding that falls on the other side of a boundary makes them differ by right; the
check still fails then, and says so, because only the user can judge it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphfuse.ir.errors import GraphfuseError

ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
REGION_GROWTH = {"float64": 2.0**8, "float32": 2.0**8, "float16": 2.0**2, "bfloat16": 2.0**2}
MODEL_FACTOR = 4.0
FLOOR = 1 / 64  # of the root mean square of the whole, below which no slice's scale goes


@dataclass(frozen=True)
class Limits:
    """What the user wants instead of the derived tolerances; None leaves the derived one."""

    rtol: float | None = None
    atol: float | None = None


@dataclass(frozen=True)
class Tolerance:
    """Limits chosen for one output. ``atol`` None means that it follows the size of the values."""

    rtol: float
    atol: float | None = None

    def allowed(self, want: np.ndarray) -> np.ndarray:
        """The largest right difference for each element of ``want`` (float64, finite); the same shape."""
        absolute = self.rtol * scale(want) if self.atol is None else self.atol
        return np.asarray(absolute + self.rtol * np.abs(want))


def is_float(dtype: np.dtype) -> bool:
    """Whether arrays of this type are compared with a tolerance."""
    return dtype.kind == "f" or dtype.name in ROUNDOFF or dtype.name.startswith("float")


def unit_roundoff(name: str) -> float:
    """Half the distance from 1 to the next number of the type; float8 types by their mantissa."""
    if name in ROUNDOFF:
        return ROUNDOFF[name]
    return float(_finfo(name).eps) / 2


def choose(dtype: np.dtype, through: Iterable[str] = (), *, whole: bool, limits: Limits = Limits()) -> Tolerance:
    """The tolerance of an output of ``dtype`` whose value passed through the float types named in ``through``.

    The coarsest of them counts: a float32 output that was float16 on its way is no more exact than float16. ``whole``
    says whether a whole model made it or one region. ``limits`` go before what is derived.
    """
    worst = max({dtype.name, *through}, key=unit_roundoff)
    if worst in REGION_GROWTH:
        rtol, atol = unit_roundoff(worst) * REGION_GROWTH[worst] * (MODEL_FACTOR if whole else 1.0), None
    else:
        rtol, atol = 2 * unit_roundoff(worst), _smallest(worst)
    return Tolerance(rtol if limits.rtol is None else limits.rtol, atol if limits.atol is None else limits.atol)


def _smallest(name: str) -> float:
    return float(_finfo(name).smallest_subnormal)


def _finfo(name: str) -> Any:
    import ml_dtypes

    finfo: Any = ml_dtypes.finfo
    try:
        return finfo(name)
    except (TypeError, ValueError):
        raise GraphfuseError(f"there is no tolerance for arrays of {name}") from None


def scale(want: np.ndarray) -> np.ndarray:
    """The size of the values around each element: see the module's text. Broadcasts against ``want``."""
    top = np.max(np.abs(want)) if want.size else 0.0
    if top == 0.0:
        return np.zeros(())
    squares = np.square(want / top)  # so that squares of the largest float64 stay finite
    whole = np.asarray(np.sqrt(np.mean(squares)))
    result = whole
    for axis in range(want.ndim):
        others = tuple(a for a in range(want.ndim) if a != axis)
        if want.shape[axis] > 1 and any(want.shape[a] > 1 for a in others):
            result = np.minimum(result, np.sqrt(np.mean(squares, axis=others, keepdims=True)))
    return np.asarray(top * np.maximum(result, FLOOR * whole))
