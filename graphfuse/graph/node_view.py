"""What the rules for shapes and values see of a node: its attributes, and what is known of its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from graphfuse.ir.expr import Dim, Shape

PartialShape = tuple[Dim | None, ...]  # None: a size that the rule cannot tell
MAX_VALUES = 4096  # elements; larger tensors are not followed as values


class Unknown(Exception):
    """A value cannot be told before the model runs."""


def small_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """``shape``, if so many elements are still followed; raises Unknown otherwise."""
    if math.prod(shape) > MAX_VALUES:
        raise Unknown
    return shape


class NodeView:
    """A node with lookups into the facts gathered so far."""

    def __init__(
        self,
        node: ir.Node,
        opset: int,
        shape_of: Callable[[ir.Value], Shape | None],
        value_of: Callable[[ir.Value], np.ndarray | None],
    ) -> None:
        self.node = node
        self.opset = opset
        self._shape_of = shape_of
        self._value_of = value_of

    @property
    def count(self) -> int:
        """How many inputs are written down, omitted ones included."""
        return len(self.node.inputs)

    def input(self, index: int) -> ir.Value | None:
        """Input ``index``; None where it is omitted."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def shape(self, index: int) -> Shape | None:
        """The shape of input ``index``, None if its rank is unknown or the input omitted."""
        value = self.input(index)
        return None if value is None else self._shape_of(value)

    def values(self, index: int) -> np.ndarray | None:
        """The known elements of input ``index`` as an object array of Python numbers and ``Expr``s, if there are few."""
        value = self.input(index)
        known = None if value is None else self._value_of(value)
        return None if known is None or known.size > MAX_VALUES or known.dtype.kind not in "iubfO" else known.astype(object)

    def need(self, index: int) -> np.ndarray:
        """As ``values``; raises Unknown when there are none."""
        known = self.values(index)
        if known is None:
            raise Unknown
        return known

    def need_ints(self, index: int) -> list[int]:
        """As ``ints``; raises Unknown when there are none."""
        known = self.ints(index)
        if known is None:
            raise Unknown
        return known

    def dims(self, index: int) -> list[Dim] | None:
        """The known elements of a one-dimensional (or scalar) integer input."""
        known = self.values(index)
        return None if known is None or known.ndim > 1 else known.reshape(-1).tolist()

    def ints(self, index: int) -> list[int] | None:
        """As ``dims``, but None unless every element is a plain integer."""
        dims = self.dims(index)
        plain = [d for d in dims or () if type(d) is int]
        return None if dims is None or len(plain) != len(dims) else plain

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as a Python value (tensors as NumPy arrays, bytes decoded)."""
        found = self.node.attributes.get(name)
        return default if found is None or found.is_ref() else attribute(found)

    def axes(self, rank: int, *, since: int, index: int = 1, name: str = "axes") -> list[int] | None:
        """Axes from the attribute, or from input ``index`` from opset ``since`` on; made positive. [] if absent, None if unknown."""
        given = self.attr(name)
        if given is None and self.opset >= since and self.input(index) is not None:
            given = self.ints(index)
            if given is None:
                return None
        return [a + rank if a < 0 else a for a in given or []]


def attribute(attr: ir.Attr) -> Any:
    """The value of an attribute as a lowering wants it: int, float, str, bool-free lists of them, NumPy arrays for tensors."""
    match attr.type:
        case ir.AttributeType.TENSOR:
            return attr.as_tensor().numpy()
        case ir.AttributeType.TENSORS:
            return [t.numpy() for t in attr.as_tensors()]
        case ir.AttributeType.INTS:
            return list(attr.as_ints())
        case ir.AttributeType.FLOATS:
            return list(attr.as_floats())
        case ir.AttributeType.STRINGS:
            return list(attr.as_strings())
    return attr.value
