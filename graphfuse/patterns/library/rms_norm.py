"""RMS norm as Pow, ReduceMean, Add, Sqrt, Div or Mul, with or without scale; casts to a wider type and back.

There is no mean to subtract, so nothing cancels: it is recognised and left as it is. Squares of float16 that would overflow
do not in a region, which computes in float32.
"""

from __future__ import annotations

from graphfuse.patterns.language import Maybe, Number, Offence, Var, Weight
from graphfuse.patterns.library.forms import averaged, float_wrong, mean_of_squares, over_root, positive
from graphfuse.patterns.pattern import Match, Pattern

_X = Var("x")
_NORMAL = Maybe("Cast", over_root(_X, mean_of_squares(_X, "mean") + Number("epsilon", test=positive)))


def _check(match: Match) -> Offence | str | None:
    found = averaged(match, "mean")
    if isinstance(found, Offence):
        return found
    if not found.keepdims:
        return match.wrong("mean", "the mean does not keep its axes (keepdims = 0)")
    if not found.is_trailing:
        return match.wrong("mean", f"the mean is over axes {list(found.axes)} of {found.rank}, RMS norm is over the last ones")
    return float_wrong(match, "x")


RMS_NORM = Pattern("rms-norm", _NORMAL * Weight("scale") | _NORMAL, "the decomposed RMS norm, over the last axes", _check, label="rmsnorm")
