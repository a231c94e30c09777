"""The input recipe that a model may carry in its metadata: which arrays to run it with, from which seed.

``corpus.inputs`` is a JSON list of ``{name, kind, dtype, shape, ...}``, ``corpus.dims`` and ``corpus.alt_dims`` give sizes to the
symbols in shapes. It comes from a file that people download, so every field is checked before anything is allocated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphfuse.ir import dtypes
from graphfuse.ir.errors import GraphfuseError

MAX_ELEMENTS = 1 << 27  # of all inputs together
_MAX_TEXT = 1 << 20
_MAX_RANK = 16
_NUMBERS: dict[str, tuple[str, ...]] = {
    "normal": ("scale", "offset"),
    "uniform": ("low", "high"),
    "int": ("low", "high"),
    "mask": (),
    "steps": ("start",),
}
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Spec:
    """One input: ``kind`` says how it is drawn, ``numbers`` holds that kind's parameters, ``shape`` sizes and symbols."""

    name: str
    kind: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """The inputs in the order they are drawn in, and the sizes of their symbols, main and alternative."""

    specs: tuple[Spec, ...]
    dims: Mapping[str, int]
    alt_dims: Mapping[str, int]

    def draw(self, sizes: Mapping[str, int], *, alt: bool, seed: int) -> dict[str, Array]:
        """The arrays; ``sizes`` go before the recipe's own. Raises GraphfuseError for sizes that are missing or too big."""
        dims = {**self.dims, **(self.alt_dims if alt else {}), **sizes}
        shapes = {s.name: _resolve(s, dims) for s in self.specs}
        check_elements(shapes)
        rng = np.random.default_rng(seed)
        return {s.name: np.ascontiguousarray(_DRAW[s.kind](rng, shapes[s.name], s.numbers)).astype(s.dtype) for s in self.specs}


def read_recipe(props: Mapping[str, str]) -> Recipe | None:
    """The recipe in a model's metadata; None where there is none. Raises GraphfuseError for a malformed one."""
    if "corpus.inputs" not in props:
        return None
    texts = {key: props.get(f"corpus.{key}", "{}") for key in ("inputs", "dims", "alt_dims")}
    if any(len(t) > _MAX_TEXT for t in texts.values()):
        raise GraphfuseError(f"input recipe: longer than {_MAX_TEXT} characters")
    try:
        rows, dims, alt = (json.loads(t) for t in texts.values())
    except (ValueError, RecursionError) as error:
        raise GraphfuseError(f"input recipe: not JSON ({error})") from None
    if not isinstance(rows, list):
        raise GraphfuseError("input recipe: corpus.inputs is not a list")
    specs = tuple(_spec(row) for row in rows)
    if len({s.name for s in specs}) != len(specs):
        raise GraphfuseError("input recipe: an input is named twice")
    return Recipe(specs, _sizes("dims", dims), _sizes("alt_dims", alt))


def check_elements(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises GraphfuseError when arrays of these shapes would be unreasonably big."""
    total = sum(int(np.prod(s, dtype=object)) for s in shapes.values())
    if total > MAX_ELEMENTS:
        raise GraphfuseError(f"inputs of {total} elements are over the limit of {MAX_ELEMENTS}; give smaller sizes, or arrays of your own")


def is_size(value: Any) -> bool:
    """Whether a parsed JSON value can be a dimension."""
    return type(value) is int and 0 <= value <= MAX_ELEMENTS


def _sizes(name: str, table: Any) -> dict[str, int]:
    if not isinstance(table, dict) or not all(is_size(v) for v in table.values()):
        raise GraphfuseError(f"input recipe: corpus.{name} does not map names to sizes")
    return table


def _spec(row: Any) -> Spec:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        raise GraphfuseError("input recipe: an input without a name")
    name, kind, shape = row["name"], row.get("kind"), row.get("shape")
    if not isinstance(kind, str) or kind not in _NUMBERS:
        raise GraphfuseError(f"input recipe: {name} has the unknown kind {str(kind)[:40]!r}")
    if not isinstance(shape, list) or len(shape) > _MAX_RANK or not all(isinstance(d, str) or is_size(d) for d in shape):
        raise GraphfuseError(f"input recipe: the shape of {name} is not a list of at most {_MAX_RANK} sizes and symbols")
    dtype = next((t.numpy for t in dtypes.ALL if t.numpy.name == row.get("dtype")), None)
    if dtype is None:
        raise GraphfuseError(f"input recipe: {name} has the unknown dtype {str(row.get('dtype'))[:40]!r}")
    numbers = {key: row[key] for key in _NUMBERS[kind] if key in row}
    if not all(type(v) in (int, float) and -(2**62) < v < 2**62 for v in numbers.values()):
        raise GraphfuseError(f"input recipe: a parameter of {name} is not a number within reason")
    if kind == "int" and not (all(type(numbers.get(k)) is int for k in ("low", "high")) and numbers["low"] < numbers["high"]):
        raise GraphfuseError(f"input recipe: {name} needs integers low < high")
    if kind in ("mask", "steps") and not shape:
        raise GraphfuseError(f"input recipe: {name} of kind {kind} needs an axis")
    return Spec(name, kind, dtype, tuple(shape), numbers)


def _resolve(spec: Spec, dims: Mapping[str, int]) -> tuple[int, ...]:
    for dim in spec.shape:
        if isinstance(dim, str) and dim not in dims:
            raise GraphfuseError(f"input {spec.name}: no size is given for {dim}; name one ({dim}=N)")
    return tuple(dims[d] if isinstance(d, str) else d for d in spec.shape)


def _mask(shape: tuple[int, ...]) -> Array:
    """Ones, but zeros in the last quarter of the last axis, as padding is."""
    made, padded = np.ones(shape), shape[-1] // 4
    if padded:
        made[..., -padded:] = 0
    return made


_DRAW: dict[str, Callable[[np.random.Generator, tuple[int, ...], Mapping[str, Any]], Array]] = {
    "normal": lambda rng, shape, n: rng.standard_normal(shape) * n.get("scale", 1.0) + n.get("offset", 0.0),
    "uniform": lambda rng, shape, n: rng.uniform(n.get("low", 0.0), n.get("high", 1.0), shape),
    "int": lambda rng, shape, n: rng.integers(n["low"], n["high"], shape),
    "mask": lambda rng, shape, n: _mask(shape),
    "steps": lambda rng, shape, n: np.broadcast_to(np.arange(shape[-1]) + n.get("start", 0), shape),
}
