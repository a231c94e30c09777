"""Sizes of an engine's inputs: the text form, and the optimisation profiles made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graphfuse.ir.errors import GraphfuseError, ShapeError

Range = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # smallest, usual, largest
Ranges = Mapping[str, Range]  # one profile, by input
_SHAPE = re.compile(r"\d+(x\d+)*")
_EXAMPLE = "write it like x:1x3x8,4x3x8,8x3x8 (smallest, usual, largest) or x:1x3x8"


def parse_shapes(items: str | Iterable[str]) -> dict[str, Range]:
    """``["x:1x3x8,4x3x8,8x3x8", "y:5"]`` as a mapping; one shape stands for all three. A name may hold colons.

    Raises ShapeError for anything that does not read like that, a name given twice, or sizes out of order.
    """
    ranges: dict[str, Range] = {}
    for name, value in map(_parse_item, [items] if isinstance(items, str) else items):
        if name in ranges:
            raise ShapeError(f"shapes of input {name!r} are given twice; give them once")
        ranges[name] = value
    return ranges


def parse_profiles(items: Iterable[str]) -> list[dict[str, Range]]:
    """As ``parse_shapes``, for several profiles: the second shapes of an input belong to the second profile, and so on.

    An input given once has these shapes in every profile. Raises ShapeError where inputs are given differently often.
    """
    given: dict[str, list[Range]] = {}
    for name, value in map(_parse_item, items):
        given.setdefault(name, []).append(value)
    count = max(map(len, given.values()), default=1)
    for name, values in given.items():
        if len(values) not in (1, count):
            raise ShapeError(
                f"input {name!r} has shapes for {len(values)} profiles, another input for {count}; give one for each, or one for all"
            )
    return [{name: values[k % len(values)] for name, values in given.items()} for k in range(count)]


def _parse_item(item: str) -> tuple[str, Range]:
    name, colon, text = item.rpartition(":")
    shapes = [_parse_shape(item, part) for part in text.split(",")]
    if not colon or not name or len(shapes) not in (1, 3):
        raise ShapeError(f"shapes {item!r} are not understood; {_EXAMPLE}")
    smallest, usual, largest = shapes * 3 if len(shapes) == 1 else shapes
    return name, check_range(name, (smallest, usual, largest))


def _parse_shape(item: str, text: str) -> tuple[int, ...]:
    text = text.strip()
    if text and not _SHAPE.fullmatch(text):
        raise ShapeError(f"shapes {item!r} are not understood; {_EXAMPLE}")
    return tuple(int(part) for part in text.split("x")) if text else ()


def check_range(name: str, value: Range) -> Range:
    """``value`` itself. Raises ShapeError unless the three have one rank and grow."""
    smallest, usual, largest = value
    if not len(smallest) == len(usual) == len(largest):
        raise ShapeError(f"the shapes of input {name!r} differ in rank; {_EXAMPLE}")
    if any(not 0 <= low <= mid <= high for low, mid, high in zip(*value, strict=True)):
        raise ShapeError(f"the shapes of input {name!r} do not grow: each size of smallest <= usual <= largest")
    return value


def make_profiles(builder: Any, network: Any, profiles: Sequence[Ranges]) -> list[Any]:
    """Optimisation profiles for the network's inputs; none where all of them are static.

    Raises ShapeError when a dynamic input has no shapes, or when shapes do not fit the network.
    """
    return [made for ranges in profiles or [{}] if (made := _make_profile(builder, network, ranges)) is not None]


def _make_profile(builder: Any, network: Any, shapes: Ranges) -> Any | None:
    given = {name: check_range(name, plain_range(name, value)) for name, value in shapes.items()}
    inputs = {tensor.name: tensor for tensor in (network.get_input(i) for i in range(network.num_inputs))}
    for name in given:
        if name not in inputs:
            raise ShapeError(f"shapes are given for {name!r}, but the model's inputs are {', '.join(map(repr, inputs))}")
        _check_fit(inputs[name], given[name])
    dynamic = {name: tensor for name, tensor in inputs.items() if -1 in tuple(tensor.shape)}
    missing = [tensor for name, tensor in dynamic.items() if name not in given]
    if missing:
        raise ShapeError(f"input {missing[0].name!r} has dynamic sizes; add {' '.join(_option(t) for t in missing)} with sizes of your own")
    _check_names(dynamic.values(), given)
    return _profile(builder, {name: given[name] for name in dynamic}) if dynamic else None


def plain_range(name: str, value: Any) -> Range:
    """``value`` as tuples of ints; lists and NumPy integers are welcome. Raises ShapeError for anything else."""
    try:
        smallest, usual, largest = (tuple(int(d) for d in shape) for shape in value)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"the shapes of input {name!r} must be three shapes: smallest, usual, largest") from error
    return smallest, usual, largest


def _check_fit(tensor: Any, value: Range) -> None:
    want = tuple(tensor.shape)
    if len(want) != len(value[0]):
        raise ShapeError(f"input {tensor.name!r} has rank {len(want)}, the shapes given have rank {len(value[0])}; {_EXAMPLE}")
    for shape in value:
        if any(w not in (-1, s) for w, s in zip(want, shape, strict=True)):
            raise ShapeError(f"input {tensor.name!r} is {_text(want)} in the model; {_text(shape)} does not fit it")


def _check_names(tensors: Iterable[Any], given: Mapping[str, Range]) -> None:
    """Sizes that carry one name in the model are one size: an engine for others could not run."""
    seen: dict[tuple[str, int], tuple[str, int]] = {}
    for tensor in tensors:
        for axis, size in enumerate(tensor.shape):
            label = tensor.get_dimension_name(axis) if size == -1 else ""
            for which in range(3) if label else ():
                here = given[tensor.name][which][axis]
                first, value = seen.setdefault((label, which), (tensor.name, here))
                if value != here:
                    raise ShapeError(
                        f"size {label!r} is {value} in input {first!r} and {here} in input {tensor.name!r}; they must be equal"
                    )


def _option(tensor: Any) -> str:
    name = tensor.name if re.fullmatch(r"[\w./:-]+", tensor.name) else f"'{tensor.name}'"
    shapes = ",".join("x".join(str(size if d == -1 else d) for d in tensor.shape) for size in (1, 4, 8))
    return f"--shapes {name}:{shapes}"


def _text(shape: Iterable[int]) -> str:
    return "x".join("?" if d == -1 else str(d) for d in shape) or "a scalar"


def _profile(builder: Any, ranges: Mapping[str, Range]) -> Any:
    profile = builder.create_optimization_profile()
    for name, (smallest, usual, largest) in ranges.items():
        profile.set_shape(name, smallest, usual, largest)
    if not profile:
        raise GraphfuseError("TensorRT did not accept these shapes as an optimisation profile")
    return profile
