"""Layer norm as ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, with or without scale and bias; casts to a wider type within.

This form is two-pass already, so it is recognised and left as it is: region growing makes one kernel of it.
"""

from __future__ import annotations

from graphfuse.patterns.language import Maybe, Number, Offence, Op, Var, Weight
from graphfuse.patterns.library.forms import float_wrong, mean, over_root, positive, same_axes, square
from graphfuse.patterns.pattern import Match, Pattern

_X = Var("x")
_DISTANCE = Op("Sub", _X, mean(_X, "mean"), name="distance")
_VARIANCE = mean(square(Maybe("Cast", _DISTANCE)), "variance")
_NORMAL = Maybe("Cast", over_root(_DISTANCE, _VARIANCE + Number("epsilon", test=positive)))
_SCALED = _NORMAL * Weight("scale")


def _check(match: Match) -> Offence | str | None:
    found = same_axes(match, "mean", "variance")
    if isinstance(found, Offence):
        return found
    if not found.keepdims:
        return match.wrong("mean", "the mean does not keep its axes (keepdims = 0)")
    if not found.is_trailing:
        return match.wrong("mean", f"the mean is over axes {list(found.axes)} of {found.rank}, layer norm is over the last ones")
    for name in ("scale", "bias"):
        shape = match.shape(name) if name in match.values else ()
        if shape is None or len(shape) > len(found.axes):
            return f"{name} {match[name].name!r} is not one number for each element of the normalised axes"
    return float_wrong(match, "x")


LAYER_NORM = Pattern(
    "layer-norm",
    _SCALED + Weight("bias") | _SCALED | _NORMAL,
    "the decomposed layer norm, over the last axes",
    _check,
    label="layernorm",
)
