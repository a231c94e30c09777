"""Sigmoid and softplus out of exponentials that overflow.

``exp(x) / (1 + exp(x))`` is inf / inf for large x and becomes ``1 / (1 + exp(-x))``, where exp overflows only if the result rounds to
0. (Not Sigmoid, which ONNX Runtime computes without the digits of small results.) ``log(1 + exp(x))`` is infinite for large x
and 0 for small x, and becomes Softplus; not in float64, for which ONNX Runtime has none.
"""

from __future__ import annotations

import onnx_ir as ir

from graphfuse.ir.dtypes import F64
from graphfuse.patterns.language import Number, Offence, Op, Var
from graphfuse.patterns.library.forms import float_wrong, shape_wrong
from graphfuse.patterns.pattern import Match, Pattern, Tape

_X = Var("x")
_EXP = Op("Exp", _X)


def _check(match: Match) -> Offence | str | None:
    return float_wrong(match, "x") or shape_wrong(match, match["x"])


def _sigmoid(match: Match, tape: Tape) -> ir.Value:
    one, x = match["one"], match["x"]
    return tape.op("Div", one, tape.op("Add", one, tape.op("Exp", tape.op("Neg", x))))


def _check_softplus(match: Match) -> Offence | str | None:
    return "it is in float64" if match.dtype("x") is F64 else _check(match)


def _softplus(match: Match, tape: Tape) -> ir.Value:
    return tape.op("Softplus", match["x"])


SIGMOID = Pattern("sigmoid", _EXP / (_EXP + Number("one", 1.0)), "exp(x) / (1 + exp(x)) becomes 1 / (1 + exp(-x))", _check, _sigmoid)
SOFTPLUS = Pattern("softplus", Op("Log", 1 + _EXP), "log(1 + exp(x)) becomes Softplus", _check_softplus, _softplus)
