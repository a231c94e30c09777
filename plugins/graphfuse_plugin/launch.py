"""Launching a region's kernel from one execution context.

Everything that depends on shapes is decided in ``prepare``. What is left for ``launch`` is to write the pointers into a
block of arguments made beforehand, to see how they are aligned, and one driver call: no allocation on the device, no
compilation, no synchronisation, so it may be captured into a CUDA graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from graphfuse.ir.errors import GraphfuseError, ShapeError
from graphfuse.ir.program import Program
from graphfuse_plugin import driver
from graphfuse_plugin.fields import Kernel
from graphfuse_plugin.kernels import adapt

MAX_BLOCKS = (1 << 31) - 1


@dataclass(frozen=True)
class Entry:
    """One variant with its launch size for the shapes at hand; ``mask`` is the alignment of its most demanding pointer - 1."""

    function: Any
    blocks: int
    threads: int
    align: tuple[int, ...]
    mask: int


class Arguments:
    """The block of kernel arguments: pointers, then sizes, and the array of addresses that the driver wants."""

    def __init__(self, pointers: int, sizes: Sequence[int]) -> None:
        self.count = pointers
        self.values = (ctypes.c_longlong * (pointers + len(sizes)))(*([0] * pointers), *sizes)
        start, step = ctypes.addressof(self.values), ctypes.sizeof(ctypes.c_longlong)
        self.array = (ctypes.c_void_p * len(self.values))(*(start + step * i for i in range(len(self.values))))
        self.address = ctypes.addressof(self.array)

    def write(self, pointers: list[int]) -> None:
        """Set the pointers; the driver copies the block when it is told to launch."""
        self.values[: self.count] = cast(Any, pointers)


class Launcher:
    """The kernels of one region in one execution context; not shared between contexts."""

    def __init__(self, program: Program, kernels: tuple[Kernel, ...]) -> None:
        self.program = program
        self.kernels = kernels
        self.device: driver.Device | None = None
        self.entries: tuple[Entry, ...] = ()
        self.arguments = Arguments(0, ())
        self._ready: dict[int, tuple[Kernel, tuple[Any, ...]]] = {}

    def load(self) -> None:
        """Load every kernel into the current CUDA context. Raises GraphfuseError where none fits its device."""
        for index in range(len(self.kernels)):
            self._functions(index)

    def _functions(self, index: int) -> tuple[Kernel, tuple[Any, ...]]:
        if index not in self._ready:
            device = self.device = driver.device()
            kernel, image = adapt(self.program, self.kernels[index], device.arch())
            self._ready[index] = kernel, tuple(device.load(image, v.entry) for v in kernel.variants)
        return self._ready[index]

    def prepare(self, shapes: Sequence[Sequence[int]]) -> None:
        """Decide the kernel, its grid and its sizes for these input shapes.

        Raises ShapeError where no kernel serves them, GraphfuseError where none runs on this device.
        """
        self.entries = ()  # nothing of the shapes before may be launched if this fails
        env = self.program.bind(shapes)
        index = next((i for i, k in enumerate(self.kernels) if k.serves(env)), None)
        if index is None:
            raise ShapeError(f"no kernel of this engine serves {env or 'these shapes'}; build it with shapes that cover them")
        kernel, functions = self._functions(index)
        count = len(self.program.params) + len(self.program.results)
        self.arguments = Arguments(count, [env[s] for s in kernel.symbols])
        self.entries = tuple(
            Entry(f, _blocks(v.blocks(env)), v.block, v.align, max(v.align, default=1) - 1)
            for v, f in zip(kernel.variants, functions, strict=True)
            if v.fits([0] * count, env)  # its sizes fit; addresses are looked at in each launch
        )

    def launch(self, inputs: Sequence[int], outputs: Sequence[int], stream: int) -> None:
        """Enqueue the region on ``stream``. Raises GraphfuseError when it was not prepared or the driver refuses."""
        arguments = self.arguments
        pointers = [*inputs, *outputs]
        if not self.entries or len(pointers) != arguments.count:
            raise GraphfuseError("a fused region was run without being told its shapes")
        entry = _pick(self.entries, pointers)
        if entry.blocks == 0:
            return
        arguments.write(pointers)
        assert self.device is not None
        self.device.launch(entry.function, entry.blocks, entry.threads, stream, arguments.address)


def _pick(entries: tuple[Entry, ...], pointers: list[int]) -> Entry:
    """The first variant whose alignments hold; one look at all pointers together settles it nearly always."""
    bits = 0
    for pointer in pointers:
        bits |= pointer
    for entry in entries:
        if not bits & entry.mask or all(not p % a for p, a in zip(pointers, entry.align, strict=True)):
            return entry
    raise GraphfuseError("a tensor of a fused region is not aligned to its own element size")


def _blocks(count: int) -> int:
    if not 0 <= count <= MAX_BLOCKS:
        raise ShapeError(f"a fused region of this size would need {count} blocks; the limit is {MAX_BLOCKS}")
    return count
