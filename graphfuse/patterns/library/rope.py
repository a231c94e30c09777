"""Rotary embedding in its rotate-half form: ``x * cos + concat(-x[half:], x[:half]) * sin``. Recognised and left as it is."""

from __future__ import annotations

from graphfuse.patterns.language import Maybe, Offence, Op, Var
from graphfuse.patterns.library.forms import float_wrong
from graphfuse.patterns.pattern import Match, Pattern

_X = Maybe("Cast", Var("x"))  # exporters may write the same cast twice
_SLICED = Op("Concat", Op("Neg", Op("Slice", _X, more=True, name="upper")), Op("Slice", _X, more=True, name="lower"), name="concat")
_SPLIT = Op("Concat", Op("Neg", Op("Split", _X, more=True, name="split", output=1)), Op("Split", _X, more=True, output=0), name="concat")


def _check(match: Match) -> Offence | str | None:
    shape = match.shape("x")
    if shape is None or not shape or not isinstance(shape[-1], int) or shape[-1] % 2:
        return match.wrong("concat", "the last size of what is rotated is not a known, even number")
    if match.view("concat").attr("axis") not in (-1, len(shape) - 1):
        return match.wrong("concat", "the halves are not put together along the last axis")
    if "split" in match:
        view = match.view("split")
        halves = len(view.node.outputs) == 2 and match.facts.shape(view.node.outputs[0]) == (*shape[:-1], shape[-1] // 2)
        return float_wrong(match, "x") if halves else match.wrong("split", "the last axis is not split into halves")
    for name, start, end in (("lower", 0, shape[-1] // 2), ("upper", shape[-1] // 2, shape[-1])):
        if not _is_part(match, name, len(shape), start, end, shape[-1]):
            return match.wrong(name, f"it does not read elements {start} to {end} of the last axis")
    return float_wrong(match, "x")


def _is_part(match: Match, name: str, rank: int, start: int, end: int, size: int) -> bool:
    """Whether a Slice reads ``[start, end)`` of the last axis, step 1, and all of the others."""
    view = match.view(name)
    given = [view.attr("starts"), view.attr("ends"), view.attr("axes")] if view.opset < 10 else [view.ints(i) for i in (1, 2, 3)]
    steps = view.ints(4) if view.opset >= 10 and view.input(4) is not None else [1]
    numbers = [g[0] for g in given if g is not None and len(g) == 1]
    if len(numbers) != 3 or steps != [1] or numbers[2] not in (-1, rank - 1):
        return False
    first, last = (min(n + size if n < 0 else n, size) for n in numbers[:2])
    return (first, last) == (start, end)


ROPE = Pattern("rope", _X * Var("cos") + (_SLICED | _SPLIT) * Var("sin"), "rotary embedding, rotate-half form", _check)
