"""What a model takes and gives, and the check of what a caller hands in."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir

from graphfuse.ir.errors import GraphfuseError
from graphfuse.session.values import numpy_type, onnx_type


@dataclass(frozen=True)
class Port:
    """An input or output of a model. ``shape`` is None where the model does not say; a dimension is an int, a name or None.

    ``dtype`` is a TensorProto.DataType, 0 for what is not a tensor. ``optional`` inputs have a default in the model.
    """

    name: str
    dtype: int
    shape: tuple[int | str | None, ...] | None
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.name!r} {self.type_name}{self.shape_text}"

    @property
    def type_name(self) -> str:
        """The element type as NumPy names it."""
        return str(numpy_type(self.dtype)) if self.dtype not in (0, 8) else ("string" if self.dtype else "no tensor")

    @property
    def shape_text(self) -> str:
        """The shape as in ``[batch, 3, 64, ?]``."""
        return "[...]" if self.shape is None else "[" + ", ".join("?" if d is None else str(d) for d in self.shape) + "]"

    def accept(self, given: Any) -> np.ndarray:
        """The array to use for ``given``. Raises GraphfuseError unless its dtype, rank and fixed dimensions are the port's."""
        array = np.asarray(given)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        self.check(array.dtype, array.shape)
        return array

    def check(self, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        """Raises GraphfuseError unless an array of this dtype and shape fits the port."""
        if self.dtype and onnx_type(dtype) != self.dtype:
            raise GraphfuseError(f"input {self.name!r} is {dtype}; the model wants {self.type_name}: convert it with .astype")
        if self.shape is not None and not fits(self.shape, shape):
            raise GraphfuseError(f"input {self.name!r} has the shape {list(shape)}; the model wants {self.shape_text}")


def fits(shape: tuple[int | str | None, ...], real: tuple[int, ...]) -> bool:
    """Whether a real shape has the rank and the fixed dimensions of a declared one."""
    return len(shape) == len(real) and all(not isinstance(d, int) or d == r for d, r in zip(shape, real, strict=True))


def port(value: onnx_ir.Value) -> Port:
    """The port of a graph's input or output."""
    known = isinstance(value.type, onnx_ir.TensorType)
    dims = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
    has_default = value.is_initializer()
    return Port(value.name or "", int(value.type.dtype) if known and value.type is not None else 0, dims, has_default)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` that a person who wrote ``name`` most likely meant; None if none is close."""
    by_case = {n.lower(): n for n in names}
    close = difflib.get_close_matches(name.lower(), by_case, 1, cutoff=0.6)
    return by_case[close[0]] if close else None


def accept_inputs(ports: Iterable[Port], given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays by input name. Raises GraphfuseError for an unknown or missing name, a wrong dtype, rank or fixed dimension."""
    by_name = {p.name: p for p in ports}
    check_names(by_name.values(), given)
    return {name: by_name[name].accept(array) for name, array in given.items()}


def check_names(ports: Iterable[Port], given: Mapping[str, Any]) -> None:
    """Raises GraphfuseError unless every name is an input, and every input without a default is named."""
    by_name = {p.name: p for p in ports}
    unknown = [name for name in given if name not in by_name]
    if unknown:
        close = nearest(str(unknown[0]), by_name)
        hint = f"did you mean {close!r}?" if close else f"its inputs are {', '.join(by_name) or 'none'}"
        raise GraphfuseError(f"the model has no input {unknown[0]!r}; {hint}")
    missing = [str(p) for p in by_name.values() if not p.optional and p.name not in given]
    if missing:
        raise GraphfuseError(f"the model needs the input {', '.join(missing)}; give an array for each")
