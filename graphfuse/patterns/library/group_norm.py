"""Group norm as exporters hide it: Reshape to groups, InstanceNormalization with neither scale nor bias, Reshape back, Mul, Add.

InstanceNormalization is two-pass already, so it is recognised and left as it is.
"""

from __future__ import annotations

from graphfuse.patterns.language import Offence, Op, Var, Weight
from graphfuse.patterns.library.forms import float_wrong
from graphfuse.patterns.pattern import Match, Pattern

_X = Var("x")
_GROUPS = Op("Reshape", _X, Var("groups"), name="groups")
_NORMAL = Op("Reshape", Op("InstanceNormalization", _GROUPS, Weight("ones"), Weight("zeros"), name="norm"), Var("back"), name="back")
_SCALED = _NORMAL * Weight("scale")


def _check(match: Match) -> Offence | str | None:
    shape, grouped = match.shape("x"), match.facts.shape(match.named["groups"].outputs[0])
    if shape is None or grouped is None or len(shape) < 3 or len(grouped) != 3:
        return match.wrong("groups", "it does not make (batch, groups, elements) of a tensor of known rank")
    if grouped[0] != shape[0]:
        return match.wrong("groups", "the batch is not kept")
    if not isinstance(grouped[1], int) or not isinstance(shape[1], int) or grouped[1] < 1 or shape[1] % grouped[1]:
        return match.wrong("groups", f"{shape[1]} channels do not provably divide into {grouped[1]} groups")
    if match.facts.shape(match.named["back"].outputs[0]) != shape:
        return match.wrong("back", "the shape before the groups does not come back")
    for name, wanted in (("ones", 1), ("zeros", 0)):
        known = match.facts.value(match[name])
        if known is None or (known != wanted).any():
            return match.wrong("norm", "InstanceNormalization has a scale or a bias of its own")
    for name in ("scale", "bias"):
        if name in match.values and not _is_per_channel(match, name, len(shape), shape[1]):
            return f"{name} {match[name].name!r} is not one number a channel"
    return float_wrong(match, "x")


def _is_per_channel(match: Match, name: str, rank: int, channels: int) -> bool:
    shape = match.shape(name) or ()
    own = (1,) * (rank - len(shape)) + tuple(shape)
    return len(shape) <= rank and all(d == 1 or (axis == 1 and d == channels) for axis, d in enumerate(own))


GROUP_NORM = Pattern(
    "group-norm",
    _SCALED + Weight("bias") | _SCALED | _NORMAL,
    "Reshape, InstanceNormalization, Reshape, with scale and bias a channel",
    _check,
    label="groupnorm",
)
