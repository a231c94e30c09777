"""Where fused nodes run: in NumPy, as host code, or on a GPU; each loads all programs of a model at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from graphfuse.ir import Program, interpret
from graphfuse.ir.errors import GraphfuseError, ShapeError
from graphfuse.session.fused import FusedNode
from graphfuse.session.values import Value

NAMES = ("auto", "cuda", "host", "numpy")
ALIGN = 64  # bytes; host arrays start where the widest vector access of a kernel may


class Region(Protocol):
    """One fused node, ready to run."""

    def run(self, inputs: Sequence[Value]) -> list[Value]:
        """The outputs in order. Raises GraphfuseError when the inputs do not fit the program."""
        ...


class Device(Protocol):
    """A place where fused nodes run."""

    name: str

    def load(self, nodes: Sequence[FusedNode]) -> list[Region]:
        """The nodes, compiled together."""
        ...


def open_device(name: str) -> Device:
    """The device of this name; ``auto`` is the first of cuda, host, numpy that works here.

    Raises GraphfuseError with the reason and the mend when the named one does not work.
    """
    if name not in NAMES:
        raise GraphfuseError(f"there is no device {name!r}; choose one of {', '.join(NAMES)}")
    if name == "numpy":
        return NumpyDevice()
    if name == "host":
        return _open_host()
    if name == "cuda":
        return _open_cuda()
    for attempt in (_open_cuda, _open_host):
        try:
            return attempt()
        except GraphfuseError:
            continue
    return NumpyDevice()


def _open_host() -> Device:
    from graphfuse.session.host import HostRegions

    return HostRegions()


def _open_cuda() -> Device:
    from graphfuse.session.cuda import CudaRegions

    return CudaRegions()


def unique_programs(nodes: Sequence[FusedNode]) -> tuple[list[Program], list[int]]:
    """The different programs among the nodes, and for each node the number of its own."""
    place: dict[Program, int] = {}
    numbers = [place.setdefault(node.program, len(place)) for node in nodes]
    return list(place), numbers


def bind_shapes(node: FusedNode, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype]) -> dict[str, int]:
    """The symbols' values for inputs of these shapes. Raises GraphfuseError naming the region when they do not fit."""
    for (want, _), got, name in zip(node.program.params, dtypes, node.inputs, strict=True):
        if want.numpy != got:
            raise GraphfuseError(f"fused node {node.name}: its program wants {want} for {name!r} and gets {got}; the file is damaged")
    try:
        return node.program.bind(shapes)
    except ShapeError as error:
        raise GraphfuseError(
            f"fused node {node.name}: {error}; the sizes do not fit the shapes that the model was rewritten for"
        ) from error


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised C-contiguous array that starts at a multiple of ``ALIGN`` bytes."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(size + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + size].view(dtype).reshape(shape)


class NumpyDevice:
    """Runs programs in the NumPy interpreter: slow, needs nothing, and is the meaning of a program."""

    name = "numpy"

    def load(self, nodes: Sequence[FusedNode]) -> list[Region]:
        """The nodes; there is nothing to compile."""
        return [_NumpyRegion(node) for node in nodes]


class _NumpyRegion:
    def __init__(self, node: FusedNode) -> None:
        self._node = node

    def run(self, inputs: Sequence[Value]) -> list[Value]:
        arrays = [v.array for v in inputs]
        bind_shapes(self._node, [a.shape for a in arrays], [a.dtype for a in arrays])
        return [Value(array=a) for a in interpret.run(self._node.program, arrays)]
