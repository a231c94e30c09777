"""Arrays to run a model with: from its own recipe, made up to suit it, or from a file; all checked against the model."""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from graphfuse.check import ranges
from graphfuse.check.recipe import Array, Recipe, check_elements, read_recipe
from graphfuse.ir.errors import GraphfuseError

log = logging.getLogger("graphfuse")

# Sizes that differ from each other, so that two axes mixed up are noticed: the leading axis, an image's, any other.
_LEADING = (2, 3)
_SPATIAL = (64, 96, 32, 128)
_OTHER = (12, 20, 9, 16, 28, 7)


def make_inputs(model: ir.Model, *, sizes: Mapping[str, int] | None = None, alt: bool = False, seed: int = 0) -> dict[str, Array]:
    """One array for each input that the model needs, the same ones for the same arguments.

    A recipe in the model's metadata is followed; without one (or with a malformed one: a warning says so) floats are normal,
    bools and integers 0 or 1, bytes span their range, and integers that index a Gather stay inside its axis. ``sizes`` gives
    dynamic dimensions by name; ``alt`` picks other sizes for the rest. Inputs that have a default value are left to it.

    Raises GraphfuseError for a size that fits no dimension, or inputs of types that cannot be made up.
    """
    sizes = dict(sizes or {})
    _check_sizes(model, sizes)
    recipe = _usable_recipe(model)
    made = recipe.draw(sizes, alt=alt, seed=seed) if recipe else _make_up(model, sizes, alt, seed)
    wanted = {v.name for v in _required(model)}
    return check_inputs({name: array for name, array in made.items() if name in wanted}, model)


def load_inputs(path: str | os.PathLike[str], model: ir.Model) -> dict[str, Array]:
    """The arrays of an ``.npz`` file by input name. Raises GraphfuseError unless they are inputs of this model."""
    return check_inputs(read_arrays(path), model)


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of an ``.npz`` file by name. Raises GraphfuseError for anything else."""
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise GraphfuseError(f"{path}: one bare array; save inputs by name: numpy.savez(path, name=array)")
        with file:
            return {name: file[name] for name in file.files}
    except OSError as error:
        raise GraphfuseError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise GraphfuseError(f"{path}: not an .npz file of plain arrays ({error}); write one with numpy.savez") from None


def check_inputs(arrays: Mapping[str, Array], model: ir.Model) -> dict[str, Array]:
    """The arrays in the model's order. Raises GraphfuseError where names, dtypes, ranks or sizes do not fit it."""
    known = {str(v.name): v for v in model.graph.inputs}
    if unknown := [name for name in arrays if name not in known]:
        raise GraphfuseError(f"input {unknown[0]}: the model has no such input; it has {', '.join(known)}")
    if missing := [v.name for v in _required(model) if v.name not in arrays]:
        raise GraphfuseError(f"input {missing[0]}: the model needs it and it is not given")
    sizes: dict[str, int] = {}
    return {name: _fitted(np.asarray(arrays[name]), value, sizes) for name, value in known.items() if name in arrays}


def _required(model: ir.Model) -> Iterator[ir.Value]:
    return (v for v in model.graph.inputs if v.name not in model.graph.initializers)


def _numpy_type(value: ir.Value) -> np.dtype[Any]:
    """Raises GraphfuseError for anything but tensors of numbers of whole bytes."""
    code = value.dtype
    if (
        not isinstance(value.type, ir.TensorType)
        or code is None
        or code in (ir.DataType.UNDEFINED, ir.DataType.STRING)
        or code.itemsize < 1
    ):
        raise GraphfuseError(f"input {value.name}: {value.type} is not supported; graphfuse runs models of dense number tensors")
    return np.dtype(code.numpy())


def _fitted(array: Array, value: ir.Value, sizes: dict[str, int]) -> Array:
    wanted = _numpy_type(value)
    if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize and wanted.kind == "V":
        array = array.view(wanted)  # a file does not keep the names of bfloat16 and its kin
    if array.dtype != wanted:
        raise GraphfuseError(f"input {value.name}: has dtype {array.dtype}, the model wants {wanted}; convert it with .astype")
    if value.shape is None:
        return array
    text = f"[{', '.join(str(d) for d in value.shape)}]"
    if array.ndim != len(value.shape):
        raise GraphfuseError(f"input {value.name}: has shape {list(array.shape)}, the model wants {text}")
    for dim, size in zip(value.shape, array.shape, strict=True):
        name = None if isinstance(dim, int) else dim.value
        expected = dim if isinstance(dim, int) else size if name is None else sizes.setdefault(name, size)
        if size != expected:
            reason = "" if name is None else f", where {name} is {expected} in an earlier input"
            raise GraphfuseError(f"input {value.name}: has shape {list(array.shape)}, the model wants {text}{reason}")
    return array


def _check_sizes(model: ir.Model, sizes: Mapping[str, int]) -> None:
    names = _symbols(model)
    for name, size in sizes.items():
        if name not in names:
            known = f"it has {', '.join(names)}" if names else "it has none"
            raise GraphfuseError(f"size {name}={size}: the inputs have no dimension of that name; {known}")
        if size < 0:
            raise GraphfuseError(f"size {name}={size}: a dimension is at least 0")


def _usable_recipe(model: ir.Model) -> Recipe | None:
    try:
        recipe = read_recipe(model.metadata_props)
        if recipe is not None:
            _check_recipe(recipe, model)
    except GraphfuseError as error:
        log.warning("%s; inputs are made up instead", error)
        return None
    return recipe


def _check_recipe(recipe: Recipe, model: ir.Model) -> None:
    specs = {s.name: s for s in recipe.specs}
    for value in _required(model):
        spec = specs.get(str(value.name))
        if spec is None:
            raise GraphfuseError(f"input recipe: nothing for input {value.name}")
        if spec.dtype != _numpy_type(value):
            raise GraphfuseError(f"input recipe: {value.name} has dtype {spec.dtype}, the model wants {_numpy_type(value)}")
        if value.shape is not None and not _same_shape(spec.shape, value.shape):
            raise GraphfuseError(f"input recipe: {value.name} has shape {list(spec.shape)}, the model wants {value.shape}")


def _same_shape(stated: tuple[int | str, ...], declared: ir.Shape) -> bool:
    if len(stated) != len(declared):
        return False
    pairs = zip(stated, declared, strict=True)
    return all(have == want if isinstance(want, int) else isinstance(have, int) or want.value in (None, have) for have, want in pairs)


# --- made up ----------------------------------------------------------------------------------------------------------


def _make_up(model: ir.Model, sizes: Mapping[str, int], alt: bool, seed: int) -> dict[str, Array]:
    table = {**_default_sizes(model, alt), **sizes}
    shapes = {str(v.name): tuple(table[key] for key in _keys(v)) for v in _required(model)}
    check_elements(shapes)
    rng = np.random.default_rng(seed)
    return {str(v.name): _array(rng, v, shapes[str(v.name)], table) for v in _required(model)}


def _keys(value: ir.Value) -> list[str]:
    """A name for each axis: its symbol, or its place where it has none; a static axis is named by its digits."""
    if value.shape is None:
        raise GraphfuseError(f"input {value.name}: its rank is not stated, so no array can be made up; give one")
    return [str(d) if isinstance(d, int) else d.value or f"{value.name}[{axis}]" for axis, d in enumerate(value.shape)]


def _symbols(model: ir.Model) -> list[str]:
    """The names of the inputs' dynamic axes, once each, in order."""
    shaped = [v for v in _required(model) if v.shape is not None]
    keys = [k for v in shaped for k, d in zip(_keys(v), v.shape or (), strict=True) if not isinstance(d, int)]
    return list(dict.fromkeys(keys))


def _default_sizes(model: ir.Model, alt: bool) -> dict[str, int]:
    table: dict[str, int] = {}
    pools = {"leading": iter(_LEADING[alt:]), "spatial": iter(_SPATIAL[alt:]), "other": iter(_OTHER[alt:])}
    spare = iter(range(30, 1 << 20))
    for value in _required(model):
        for axis, (key, dim) in enumerate(zip(_keys(value), value.shape or (), strict=True)):
            role = "leading" if axis == 0 else "spatial" if len(value.shape or ()) == 4 else "other"
            if isinstance(dim, int):
                table[key] = dim
            elif key not in table:
                table[key] = next(pools[role], None) or next(spare)
    return table


def _array(rng: np.random.Generator, value: ir.Value, shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    dtype = _numpy_type(value)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind not in "iu":
        return rng.standard_normal(shape).astype(dtype)
    low, high = ranges.index_range(value, sizes) or ((0, 256) if dtype == np.uint8 else (-128, 128) if dtype == np.int8 else (0, 2))
    return rng.integers(low, high, shape).astype(dtype)
