"""Softmax. ``exp(x) / sum(exp(x))`` overflows for large x and is 0 / 0 for small x: it becomes Softmax, which subtracts the maximum.

The form that subtracts it already is recognised and left as it is. ``log(softmax(x))`` becomes LogSoftmax, which knows the
logarithms of probabilities that round to 0.
"""

from __future__ import annotations

import onnx_ir as ir

from graphfuse.patterns.language import Offence, Op, Var
from graphfuse.patterns.library.forms import Reduced, averaged, float_wrong, shape_wrong
from graphfuse.patterns.pattern import Match, Pattern, Tape

_X = Var("x")
_EXP = Op("Exp", _X)
_MOVED = Op("Exp", Op("Sub", _X, Op("ReduceMax", _X, name="max", more=True)))
_SOFTMAX = Op("Softmax", _X, name="softmax")


def _row(match: Match, name: str) -> Reduced | Offence:
    """The one axis of a reduction that keeps it."""
    found = averaged(match, name)
    if isinstance(found, Offence):
        return found
    if not found.keepdims or len(found.axes) != 1:
        return match.wrong(name, f"the sum is over axes {list(found.axes)} with keepdims = {int(found.keepdims)}, one that stays is wanted")
    return found


def _check_row(match: Match) -> Offence | str | None:
    return float_wrong(match, "x") or shape_wrong(match, match["x"])


def _check(match: Match) -> Offence | str | None:
    found = _row(match, "sum")
    if isinstance(found, Offence):
        return found
    moved = match["x"].producer()
    if moved is not None and moved.op_type == "Sub" and any(v is not None and _is_maximum(v) for v in moved.inputs):
        return match.wrong("sum", "a maximum is subtracted already")
    if match.opset < 13 and not found.is_trailing:
        return match.wrong("sum", "before opset 13 Softmax is over all axes from one on, here it would be over one in the middle")
    return _check_row(match)


def _check_moved(match: Match) -> Offence | str | None:
    total, highest = _row(match, "sum"), _row(match, "max")
    if isinstance(total, Offence) or isinstance(highest, Offence):
        return total if isinstance(total, Offence) else highest if isinstance(highest, Offence) else None
    return None if total == highest else match.wrong("max", "the maximum is over another axis than the sum")


def _is_maximum(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type == "ReduceMax"


def _softmax(match: Match, tape: Tape) -> ir.Value:
    found = averaged(match, "sum")
    assert not isinstance(found, Offence), "the check has looked at it"
    return tape.op("Softmax", match["x"], axis=found.axes[0])


def _log_softmax(match: Match, tape: Tape) -> ir.Value:
    axis = match.named["softmax"].attributes.get_int("axis", -1 if match.opset >= 13 else 1)
    return tape.op("LogSoftmax", match["x"], axis=axis)


SOFTMAX = Pattern("softmax", _EXP / Op("ReduceSum", _EXP, name="sum", more=True), "exp(x) / sum(exp(x)) becomes Softmax", _check, _softmax)
LOG_SOFTMAX = Pattern("log-softmax", Op("Log", _SOFTMAX), "log(softmax(x)) becomes LogSoftmax", _check_row, _log_softmax)
STABLE_SOFTMAX = Pattern(
    "softmax-by-parts",
    _MOVED / Op("ReduceSum", _MOVED, name="sum", more=True),
    "softmax with its maximum subtracted, written out",
    _check_moved,
    label="softmax",
)
