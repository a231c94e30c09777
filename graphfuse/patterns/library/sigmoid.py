"""Sigmoid and softplus out of exponentials that overflow.

``exp(x) / (1 + exp(x))`` is inf / inf for large x and becomes Sigmoid; ``log(1 + exp(x))`` is infinite there and 0 for small x, and
becomes Softplus. ``1 / (1 + exp(-x))`` is right everywhere: exp overflows only where the result is 0.
"""

from __future__ import annotations

import onnx_ir as ir

from graphfuse.patterns.language import Offence, Op, Var
from graphfuse.patterns.library.forms import float_wrong, shape_wrong
from graphfuse.patterns.pattern import Match, Pattern, Tape

_X = Var("x")
_EXP = Op("Exp", _X)


def _check(match: Match) -> Offence | str | None:
    return float_wrong(match, "x") or shape_wrong(match, match["x"])


def _sigmoid(match: Match, tape: Tape) -> ir.Value:
    return tape.op("Sigmoid", match["x"])


def _softplus(match: Match, tape: Tape) -> ir.Value:
    return tape.op("Softplus", match["x"])


SIGMOID = Pattern("sigmoid", _EXP / (1 + _EXP), "exp(x) / (1 + exp(x)) becomes Sigmoid", _check, _sigmoid)
SOFTPLUS = Pattern("softplus", Op("Log", 1 + _EXP), "log(1 + exp(x)) becomes Softplus", _check, _softplus)
