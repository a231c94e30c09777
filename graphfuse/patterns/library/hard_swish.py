"""Hard-swish with Clip or HardSigmoid. Recognised only: ONNX's HardSwish adds 1/2 to x / 6, which near -3 is less exact than x + 3."""

from __future__ import annotations

from graphfuse.patterns.language import Offence, Op, Times, Var, near
from graphfuse.patterns.library.forms import float_wrong
from graphfuse.patterns.pattern import Match, Pattern

_X = Var("x")
_CLIPPED = Op("Clip", _X + 3, name="clip", more=True) | Op("Min", Op("Max", _X + 3, 0), 6) | Op("Max", Op("Min", _X + 3, 6), 0)
_GATE = Op("HardSigmoid", _X, name="gate")


def _check(match: Match) -> Offence | str | None:
    if "clip" in match and (found := _bounds(match)) != (0.0, 6.0):
        return match.wrong("clip", f"it clips to {found[0]} and {found[1]}, 0 and 6 are wanted")
    if "gate" in match:
        view = match.view("gate")
        alpha, beta = view.attr("alpha", 0.2), view.attr("beta", 0.5)
        if not near(1 / 6, match.dtype("x"))(alpha) or beta != 0.5:
            return match.wrong("gate", f"HardSigmoid has alpha = {alpha:.9g} and beta = {beta:.9g}, 1/6 and 1/2 are wanted")
    return float_wrong(match, "x")


def _bounds(match: Match) -> tuple[float | None, float | None]:
    view = match.view("clip")
    if view.opset < 11:
        return view.attr("min"), view.attr("max")
    low, high = (view.values(i) for i in (1, 2))
    return (None if low is None else float(low.reshape(-1)[0])), (None if high is None else float(high.reshape(-1)[0]))


HARD_SWISH = Pattern("hard-swish", Times(_X, _CLIPPED, scale=1 / 6) | _X * _GATE, "x clip(x + 3, 0, 6) / 6", _check, label="hardswish")
