"""The ways in which exporters write one thing, and what checks ask of reductions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from graphfuse.ir.dtypes import DType
from graphfuse.patterns.language import Either, Matcher, Number, Offence, Op, near
from graphfuse.patterns.pattern import Match


def positive(number: float) -> bool:
    """Whether a constant is a finite number above 0."""
    return 0 < number < math.inf


def square(x: Matcher, *, name: str = "", shared: bool = False) -> Matcher:
    """``x * x`` or ``x ** 2``."""
    return Either(Op("Mul", x, x, name=name, shared=shared), Op("Pow", x, 2, name=name, shared=shared))


def mean(x: Matcher, name: str, *, shared: bool = False) -> Matcher:
    """ReduceMean, or a ReduceSum over a constant count; ``averaged`` tells the axes and checks the count."""
    total = Op("ReduceSum", x, name=name, more=True, shared=shared)
    return Either(Op("ReduceMean", x, name=name, more=True, shared=shared), *_over_count(total, name, shared))


def mean_of_squares(x: Matcher, name: str) -> Matcher:
    """The mean of ``x`` squared."""
    return Either(mean(square(x), name), *_over_count(Op("ReduceSumSquare", x, name=name, more=True), name, False))


def _over_count(total: Matcher, name: str, shared: bool) -> tuple[Matcher, Matcher]:
    count, part = Number(f"{name}.count", test=positive), Number(f"{name}.part", test=positive)
    return Op("Div", total, count, shared=shared), Op("Mul", total, part, shared=shared)


def over_root(x: Matcher, inner: Matcher) -> Matcher:
    """``x / sqrt(inner)``, as a quotient or as a product with the inverse root."""
    root = Op("Sqrt", inner) | Op("Pow", inner, 0.5)
    inverse = Either(Op("Reciprocal", root), 1.0 / root, Op("Pow", inner, -0.5))
    return x / root | x * inverse


@dataclass(frozen=True)
class Reduced:
    """Axes (0 or more, sorted) of a reduction of a value of known rank, and whether they are kept at size 1."""

    axes: tuple[int, ...]
    rank: int
    keepdims: bool

    @property
    def is_trailing(self) -> bool:
        """Whether the axes are the last ones."""
        return self.axes == tuple(range(self.rank - len(self.axes), self.rank))


def averaged(match: Match, name: str) -> Reduced | Offence:
    """The axes of the mean that ``mean`` called ``name``, or why they are not known."""
    view = match.view(name)
    shape = view.shape(0)
    if shape is None:
        return match.wrong(name, "the rank of what is averaged is not known")
    since = {"ReduceSum": 13}.get(view.node.op_type, 18)
    axes = view.axes(len(shape), since=since)
    if axes is None or any(not 0 <= a < len(shape) for a in axes):
        return match.wrong(name, "the axes are not known before the model runs")
    if not axes and view.attr("noop_with_empty_axes", 0):
        return match.wrong(name, "nothing is averaged: noop_with_empty_axes is set")
    found = Reduced(tuple(sorted(axes or range(len(shape)))), len(shape), bool(view.attr("keepdims", 1)))
    return _count_wrong(match, name, found, [shape[a] for a in found.axes]) or found


def _count_wrong(match: Match, name: str, found: Reduced, sizes: list[object]) -> Offence | None:
    """Why a sum over a constant is no mean."""
    if f"{name}.count" not in match and f"{name}.part" not in match:
        return None
    if not all(isinstance(d, int) for d in sizes):
        return match.wrong(name, "how many elements are summed up is known at run time only")
    count = math.prod(d for d in sizes if isinstance(d, int))
    key, wanted = (f"{name}.count", float(count)) if f"{name}.count" in match else (f"{name}.part", 1 / count if count else math.inf)
    if near(wanted, match.dtype(key))(match.number(key)):
        return None
    return match.wrong(name, f"{count} elements are summed up, and the sum is taken {match.number(key):.6g} times or divided by that")


def same_axes(match: Match, first: str, second: str) -> Reduced | Offence:
    """The common axes of two means; an Offence unless both are over the same and keep their rank."""
    one, two = averaged(match, first), averaged(match, second)
    if isinstance(one, Offence) or isinstance(two, Offence):
        return one if isinstance(one, Offence) else two
    if one != two:
        return match.wrong(second, f"the means are over different axes: {list(one.axes)} and {list(two.axes)}")
    return one


def float_wrong(match: Match, name: str) -> str | None:
    """Why the value is no float."""
    dtype: DType | None = match.dtype(name)
    return None if dtype is not None and dtype.is_float else f"{match[name].name!r} is {dtype or 'of unknown type'}, a float is wanted"


def shape_wrong(match: Match, like: ir.Value) -> str | None:
    """Why the match's output is not of the shape of ``like``: a constant with more axes, for one, adds its own."""
    made, wanted = match.facts.shape(match.outputs[0]), match.facts.shape(like)
    return None if made is not None and made == wanted else f"{match.outputs[0].name!r} is not of the shape of {like.name!r}"
