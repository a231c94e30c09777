"""Which integers an input may hold: those that end up as indices must stay inside the axis that they index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

# Ops that hand the elements of input 0 on unchanged.
_PASSING = frozenset(
    "Cast Identity Unsqueeze Squeeze Reshape Flatten Transpose Expand Tile Slice Split Concat Gather GatherElements Clip".split()
)
# Ops that read their input 1 as indices into one axis of input 0.
_INDEXED = frozenset({"Gather", "GatherElements", "ScatterElements"})
_MAX_STEPS = 10_000  # a crafted graph can have any number of paths


def index_range(value: ir.Value, sizes: Mapping[str, int]) -> tuple[int, int] | None:
    """The half-open range of integers that keeps every index made from ``value`` in bounds; None if it indexes nothing.

    ``sizes`` gives the sizes of dynamic axes by name; an axis of unknown size allows index 0 only.
    """
    found = list(_indexings(value, sizes))
    if not found:
        return None
    low, high = max(r[0] for r in found), min(r[1] for r in found)
    return (low, high) if low < high else (low, low + 1)


def _indexings(start: ir.Value, sizes: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """A range for each indexing that elements of ``start`` reach, through copies and additions of constants."""
    pending = [(start, 0, 0)]  # a value, and the least and greatest that was added on the way
    seen: set[tuple[ir.Value, int, int]] = set()
    while pending and len(seen) < _MAX_STEPS:
        item = pending.pop()
        if item in seen:
            continue
        seen.add(item)
        value, least, most = item
        for node, place in value.uses():
            if node.op_type in _INDEXED and place == 1:
                yield -least, _extent(node, sizes) - most
            elif node.op_type == "OneHot" and place == 0 and (depth := _constant(node.inputs[1])) is not None:
                yield -least, int(depth.max()) - most
            elif node.op_type in _PASSING and (place == 0 or node.op_type == "Concat"):
                pending += [(out, least, most) for out in node.outputs]
            elif node.op_type in ("Add", "Sub") and (other := _constant(node.inputs[1 - place])) is not None and other.size:
                if node.op_type == "Add":
                    pending.append((node.outputs[0], least + int(other.min()), most + int(other.max())))
                elif place == 0:
                    pending.append((node.outputs[0], least - int(other.max()), most - int(other.min())))


def _extent(node: ir.Node, sizes: Mapping[str, int]) -> int:
    """The size of the axis that ``node`` indexes; 1 where nothing tells it."""
    data, axis = node.inputs[0], node.attributes.get_int("axis", 0)
    if data is None or data.shape is None or not -len(data.shape) <= axis < len(data.shape):
        return 1
    dim = data.shape[axis]
    return dim if isinstance(dim, int) else sizes.get(dim.value or "", 1)


def _constant(value: ir.Value | None) -> np.ndarray | None:
    """A small integer constant: an initializer or a Constant node's output."""
    if value is None or value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size > 1 << 20 or not np.issubdtype(tensor.dtype.numpy(), np.integer):
        return None
    return tensor.numpy()
