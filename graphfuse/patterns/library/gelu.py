"""GELU, with erf and with tanh, however the constants are spread over the products.

Constants count as equal only as far as their type rounds: 0.04 is not 0.044715. Both forms are as accurate as ONNX's own Gelu,
which is defined by them, so they are recognised and left as they are.
"""

from __future__ import annotations

import math

from graphfuse.patterns.language import Offence, Op, Times, Var
from graphfuse.patterns.library.forms import float_wrong
from graphfuse.patterns.pattern import Match, Pattern

_X = Var("x")
_ROOT_2_OVER_PI = math.sqrt(2 / math.pi)
_ERF = Op("Erf", Times(_X, scale=math.sqrt(0.5)))
_CUBE = 0.044715
_INNER = Times(_X + Times(_X, _X, _X, scale=_CUBE), scale=_ROOT_2_OVER_PI) | Times(
    _X, 1 + Times(_X, _X, scale=_CUBE), scale=_ROOT_2_OVER_PI
)


def _check(match: Match) -> Offence | str | None:
    return float_wrong(match, "x")


GELU_ERF = Pattern("gelu-erf", Times(_X, 1 + _ERF, scale=0.5), "x (1 + erf(x / sqrt 2)) / 2", _check, label="gelu")
GELU_TANH = Pattern(
    "gelu-tanh",
    Times(_X, 1 + Op("Tanh", _INNER), scale=0.5),
    "x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2",
    _check,
    label="gelu",
)
