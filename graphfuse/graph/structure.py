"""What a node is but for names: two nodes of equal structure have equal types, shapes and programs.

Networks repeat their layers, so answers are remembered by structure, for the process: the hundredth layer costs little, and
so does the second walk through the first. A structure holds attributes, types, shapes, and known values as long as they are
small; a node with other attributes or that reads larger values has none, and is looked at every time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import onnx_ir as ir

SMALL = 64  # elements of a value that is compared by content
_MOST = 1 << 14
_PLAIN = (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING)
_LISTS = (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS)
T = TypeVar("T")


@dataclass(frozen=True)
class Large:
    """Stands in a structure for a value of ``size`` elements that is known, but not compared by content."""

    size: int


class Memo(Generic[T]):
    """Answers by structure; forgets all of them when there are too many."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, T] = {}

    def get(self, key: Hashable | None, make: Callable[[], T], sound: Callable[[], bool] = lambda: True) -> T:
        """The answer for ``key``, made if it is new; remembered if ``sound`` says so afterwards. None is no key."""
        if key is None:
            return make()
        if key in self._answers:
            return self._answers[key]
        made = make()
        if sound():
            if len(self._answers) >= _MOST:
                self._answers.clear()
            self._answers[key] = made
        return made


def attributes_key(node: ir.Node) -> Hashable | None:
    """The attributes of ``node`` by content; None where they hold bodies, large tensors or a caller's values."""
    parts: list[Hashable] = []
    for name, attr in node.attributes.items():
        content = None if attr.is_ref() else _attribute_key(attr)
        if content is None:
            return None
        parts.append((name, attr.type.value, content))
    return tuple(parts)


def _attribute_key(attr: ir.Attr) -> Hashable | None:
    if attr.type in _PLAIN:
        return repr(attr.value)  # tells -0.0 from 0.0
    if attr.type in _LISTS:
        return repr(list(attr.value))
    if attr.type == ir.AttributeType.TENSOR and attr.as_tensor().size <= SMALL and attr.as_tensor().dtype != ir.DataType.STRING:
        return array_key(attr.as_tensor().numpy())
    return None


def array_key(array: np.ndarray) -> Hashable:
    """A small array by content; elements of ``object`` arrays are told apart by type as well, as 1 and 1.0 are."""
    if array.dtype == object:
        return (array.shape, *((type(item), repr(item) if isinstance(item, float) else item) for item in array.flat))
    return (array.shape, array.dtype.name, array.tobytes())
