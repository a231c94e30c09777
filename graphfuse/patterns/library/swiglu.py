"""Swish (SiLU), and SwiGLU: a gate through Swish times what it gates. Recognised and left as they are."""

from __future__ import annotations

from graphfuse.graph.facts import constant_tensor
from graphfuse.patterns.language import Number, Offence, Op, Var
from graphfuse.patterns.library.forms import float_wrong, positive
from graphfuse.patterns.pattern import Match, Pattern

_X = Var("x")
_SWISH = _X * Op("Sigmoid", _X)


def _check_swiglu(match: Match) -> Offence | str | None:
    if constant_tensor(match["gated"]) is not None or match.shape("gated") != match.shape("x"):
        return f"{match['gated'].name!r} is not of the gate's own shape"
    return float_wrong(match, "x")


def _check(match: Match) -> Offence | str | None:
    return float_wrong(match, "x")


SWIGLU = Pattern("swiglu", _SWISH * Var("gated"), "a gate through Swish times what it gates", _check_swiglu)
SWISH = Pattern(
    "swish",
    _SWISH | _X * Op("Sigmoid", _X * Number("alpha", test=positive)),
    "x sigmoid(x), or x sigmoid(alpha x)",
    _check,
)
