"""``E[x2] - E[x]2`` becomes the mean squared distance from the mean.

The difference of two large, nearly equal numbers loses all digits where the mean is large against the spread, and may even be
negative, so that the root after it is NaN. The two-pass form has neither fault, at the price of one more pass over a
row that a fused kernel holds in registers. Where the model has ``x - E[x]`` already, that is used. Means that drop their
axes (as JAX exports them) get them back for the distance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphfuse.patterns.language import Offence, Var
from graphfuse.patterns.library.forms import Reduced, float_wrong, mean, mean_of_squares, same_axes, shape_wrong, square
from graphfuse.patterns.pattern import Match, Pattern, Tape

_X = Var("x")
_MEAN = mean(_X, "mean", shared=True)


def _check(match: Match) -> Offence | str | None:
    found = same_axes(match, "mean", "mean_of_squares")
    if isinstance(found, Offence):
        return found
    return float_wrong(match, "x") or shape_wrong(match, match.named["mean"].outputs[0])


def _two_pass(match: Match, tape: Tape) -> ir.Value:
    x, middle, found = match["x"], _mean_value(match), _axes(match)
    known = _distance_node(x, middle) if found.keepdims else None
    if not found.keepdims:
        axes = list(found.axes)
        middle = tape.op("Unsqueeze", middle, axes=axes) if match.opset < 13 else tape.op("Unsqueeze", middle, _constant(tape, axes))
    distance = tape.op("Sub", x, middle) if known is None else tape.move(known)
    return _mean_of(match, tape, tape.op("Mul", distance, distance))


def _mean_value(match: Match) -> ir.Value:
    """The mean itself: the reduction, or where that is a sum what is made of it by the count."""
    total = match.named["mean"].outputs[0]
    if match.named["mean"].op_type == "ReduceMean":
        return total
    scaled = (n for n in match.nodes if n.op_type in ("Mul", "Div") and total in n.inputs)
    return next(scaled).outputs[0]


def _distance_node(x: ir.Value, middle: ir.Value) -> ir.Node | None:
    """The node that makes ``x - mean`` already."""
    readers = (use.node for use in middle.uses())
    return next((n for n in readers if n.op_type == "Sub" and n.domain == "" and list(n.inputs) == [x, middle]), None)


def _mean_of(match: Match, tape: Tape, value: ir.Value) -> ir.Value:
    found = _axes(match)
    if match.opset < 18:
        return tape.op("ReduceMean", value, axes=found.axes, keepdims=int(found.keepdims))
    return tape.op("ReduceMean", value, _constant(tape, found.axes), keepdims=int(found.keepdims))


def _axes(match: Match) -> Reduced:
    found = same_axes(match, "mean", "mean_of_squares")
    assert not isinstance(found, Offence), "the check has looked at them"
    return found


def _constant(tape: Tape, axes: Sequence[int]) -> ir.Value:
    return tape.constant(np.array(axes, np.int64))


VARIANCE = Pattern(
    "variance",
    mean_of_squares(_X, "mean_of_squares") - square(_MEAN),
    "the mean of squares less the squared mean becomes the mean squared distance from the mean",
    _check,
    _two_pass,
)
