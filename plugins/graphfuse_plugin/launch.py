"""Launching a region's kernels from one execution context.

Everything that depends on shapes is decided in ``prepare``, everything that depends on addresses when they change. What is
left for a launch is to see that they have not, and one driver call: no allocation on the device, no compilation, no
synchronisation, so it may be captured into a CUDA graph.
"""

from __future__ import annotations

import ctypes
import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphfuse.ir.errors import GraphfuseError, ShapeError
from graphfuse_plugin import driver, variants
from graphfuse_plugin.driver import Launch
from graphfuse_plugin.fields import Kernel
from graphfuse_plugin.kernels import adapt
from graphfuse_plugin.region import Region

MAX_BLOCKS = (1 << 31) - 1
MAX_PREPARED = 64  # sets of shapes whose decisions are kept, for each context
MAX_LOADED = 64  # kernels hardened at run time that one context keeps at hand

Shapes = tuple[tuple[int, ...], ...]


class Arguments:
    """The block of kernel arguments: pointers, then sizes, and the array of addresses that the driver wants.

    The driver copies the block when it is told to launch, so the next launch may write it again.
    """

    def __init__(self, pointers: int, sizes: Sequence[int]) -> None:
        self.values = (ctypes.c_longlong * (pointers + len(sizes)))(*([0] * pointers), *sizes)
        start, step = ctypes.addressof(self.values), ctypes.sizeof(ctypes.c_longlong)
        self.array = (ctypes.c_void_p * len(self.values))(*(start + step * i for i in range(len(self.values))))
        self.address = ctypes.addressof(self.array)
        self._pack = struct.Struct(f"={pointers}Q").pack_into

    def write(self, pointers: Sequence[int]) -> None:
        """Set the pointers."""
        self._pack(self.values, 0, *pointers)


@dataclass(frozen=True)
class Entry:
    """One variant with its launch for the shapes at hand; ``mask`` is the alignment of its most demanding pointer - 1."""

    launch: Launch
    align: tuple[int, ...]
    mask: int


@dataclass(frozen=True)
class Prepared:
    """What was decided for one set of shapes: the entries whose sizes fit, from the most to the least demanding.

    ``exact`` says that the kernel is hardened for just these shapes; ``kernel`` is kept for those who want to know.
    """

    kernel: Kernel
    entries: tuple[Entry, ...]
    arguments: Arguments
    exact: bool


class Launcher:
    """The kernels of one region in one execution context; not shared between contexts."""

    def __init__(self, region: Region, kernels: tuple[Kernel, ...]) -> None:
        self.region = region
        self.kernels = kernels
        self.current: Prepared | None = None
        self._count = region.interface.pointers
        self._prepared: OrderedDict[Shapes, Prepared] = OrderedDict()
        self._loaded: dict[int, tuple[Kernel, tuple[Any, ...]]] = {}
        self._hardened: OrderedDict[tuple[tuple[str, int], ...], tuple[Kernel, tuple[Any, ...]]] = OrderedDict()
        self._forget_addresses()

    def load(self) -> None:
        """Load every kernel into the current CUDA context. Raises GraphfuseError where none fits its device."""
        for index in range(len(self.kernels)):
            self._functions(index)

    def _functions(self, index: int) -> tuple[Kernel, tuple[Any, ...]]:
        if index not in self._loaded:
            device = driver.device()
            kernel, image = adapt(self.region, self.kernels[index], device.arch())
            self._loaded[index] = kernel, tuple(device.load(image, v.entry) for v in kernel.variants)
        return self._loaded[index]

    # --- shapes

    def prepare(self, shapes: Sequence[Sequence[int]]) -> None:
        """Decide the kernel, its grid and its sizes for these input shapes.

        Raises ShapeError when no kernel serves them or the grid does not fit; launches are refused until it is called again.
        """
        self.current = None
        self._forget_addresses()
        key = tuple(tuple(s) for s in shapes)
        known = self._prepared.get(key)
        if known is None or (not known.exact and variants.active() is not None):
            known = self._decide(key)
            self._prepared[key] = known
            if len(self._prepared) > MAX_PREPARED:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(key)
        self.current = known

    def _decide(self, shapes: Shapes) -> Prepared:
        env = self.region.interface.bind(shapes)
        kernel, functions = self._pick(env)
        arguments = Arguments(self._count, [env[name] for name in kernel.symbols])
        launcher = driver.device().launcher
        entries = []
        for variant, function in zip(kernel.variants, functions, strict=True):
            if variant.fits([0] * self._count, env):  # its sizes fit; addresses are looked at when they come
                blocks = _blocks(variant.blocks(env))
                launch = launcher(function, blocks, variant.block, arguments.address) if blocks else _nothing
                entries.append(Entry(launch, variant.align, max(variant.align, default=1) - 1))
        if not entries:
            raise ShapeError(
                f"inputs of {_text(shapes)} are too large for the kernels of this engine; build it with shapes that cover them"
            )
        return Prepared(kernel, tuple(entries), arguments, kernel.fixed.keys() >= env.keys())

    def _pick(self, env: Mapping[str, int]) -> tuple[Kernel, tuple[Any, ...]]:
        """The most particular kernel that serves these sizes; kernels stand in that order."""
        serving = [i for i, kernel in enumerate(self.kernels) if kernel.serves(env)]
        if serving and len(self.kernels[serving[0]].fixed) == len(env):
            return self._functions(serving[0])
        found = self._hardened_now(env)
        if found is not None:
            return found
        if not serving:
            held = "; ".join(str(dict(k.fixed)) for k in self.kernels) or "none"
            raise ShapeError(
                f"no kernel of this engine serves the sizes {dict(env)} (it has kernels for {held}); build it with shapes that cover them"
            )
        return self._functions(serving[0])

    def _hardened_now(self, env: Mapping[str, int]) -> tuple[Kernel, tuple[Any, ...]] | None:
        """A kernel that was compiled for these sizes since the engine was loaded."""
        asked = variants.active()
        if asked is None:
            return None
        key = tuple(sorted(env.items()))
        if key not in self._hardened:
            device = driver.device()
            kernel = asked.find(self.region, env, device.arch())
            if kernel is None:
                return None
            (image,) = kernel.cubins.values()
            self._hardened[key] = kernel, tuple(device.load(image, v.entry) for v in kernel.variants)
            if len(self._hardened) > MAX_LOADED:
                self._hardened.popitem(last=False)
        self._hardened.move_to_end(key)
        return self._hardened[key]

    # --- addresses

    def _forget_addresses(self) -> None:
        self._inputs: list[int] | None = None
        self._outputs: list[int] | None = None
        self._launch: Launch = _nothing

    def launch(self, inputs: Sequence[int], outputs: Sequence[int], stream: int) -> None:
        """Enqueue the region on ``stream``. Raises GraphfuseError when it was not prepared or the driver refuses."""
        if inputs != self._inputs or outputs != self._outputs:
            self._bind(inputs, outputs)
        self._launch(stream)

    def _bind(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Write the addresses into the arguments and choose the variant by their alignment."""
        self._forget_addresses()
        pointers = [*inputs, *outputs]
        if self.current is None or len(pointers) != self._count:
            raise GraphfuseError("a fused region was run without being told its shapes")
        self._launch = _choose(self.current.entries, pointers)
        self.current.arguments.write(pointers)
        self._inputs, self._outputs = list(inputs), list(outputs)  # copies: a caller may write into its own


def _choose(entries: tuple[Entry, ...], pointers: list[int]) -> Launch:
    """The first variant whose alignments hold; one look at all pointers together settles it nearly always."""
    bits = 0
    for pointer in pointers:
        bits |= pointer
    for entry in entries:
        if not bits & entry.mask or all(not p % a for p, a in zip(pointers, entry.align, strict=True)):
            return entry.launch
    raise GraphfuseError("a tensor of a fused region is not aligned to its own element size")


def _nothing(stream: int) -> None:
    """The launch of an empty grid."""


def _blocks(count: int) -> int:
    if not 0 <= count <= MAX_BLOCKS:
        raise ShapeError(f"a fused region of this size would need {count} blocks; the limit is {MAX_BLOCKS}")
    return count


def _text(shapes: Shapes) -> str:
    return ", ".join("x".join(map(str, s)) or "()" for s in shapes)
