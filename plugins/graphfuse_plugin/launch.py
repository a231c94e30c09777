"""Launching a region's kernels from one execution context.

Everything that depends on shapes is decided in ``prepare``, everything that depends on addresses when they first come. What
is left for a launch is to look up what was decided, and one driver call: no allocation on the device, no compilation, no
synchronisation, so it may be captured into a CUDA graph.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from graphfuse.ir.errors import GraphfuseError, ShapeError
from graphfuse_plugin import driver, variants
from graphfuse_plugin.adapt import adapt
from graphfuse_plugin.driver import Launch
from graphfuse_plugin.fields import Kernel
from graphfuse_plugin.region import Region

MAX_BLOCKS = (1 << 31) - 1
MAX_PREPARED = 64  # sets of shapes whose decisions are kept, for each context
MAX_BOUND = 8  # sets of addresses whose launches are kept, for each of them
MAX_LOADED = 64  # kernels hardened at run time that one context keeps at hand

Shapes = tuple[tuple[int, ...], ...]
Pointers = tuple[int, ...]  # addresses of the inputs, then of the outputs


class Arguments:
    """The block of kernel arguments: pointers, then sizes, and the array of addresses that the driver wants.

    The driver copies the block when it is told to launch, so it may be written again at any time.
    """

    def __init__(self, pointers: int, sizes: Sequence[int]) -> None:
        self._count = pointers
        self._values = (ctypes.c_longlong * (pointers + len(sizes)))(*([0] * pointers), *sizes)
        start, step = ctypes.addressof(self._values), ctypes.sizeof(ctypes.c_longlong)
        self._array = (ctypes.c_void_p * len(self._values))(*(start + step * i for i in range(len(self._values))))
        self.address = ctypes.addressof(self._array)

    def write(self, pointers: Pointers) -> None:
        """Set the pointers."""
        self._values[: self._count] = list(pointers)


@dataclass(frozen=True)
class Entry:
    """A variant whose sizes fit the shapes at hand: its alignments, and what makes its launch from a block of arguments."""

    align: tuple[int, ...]
    launch_from: Callable[[int], Launch]


class Prepared:
    """What was decided for one set of shapes: the entries whose sizes fit, from the most to the least demanding.

    ``exact`` says that the kernel is hardened for just these shapes; ``kernel`` is kept for those who want to know. ``bound``
    holds the launch for each of the sets of addresses that came last, so that a server with a few sets of buffers only looks
    them up; when there are too many, the oldest one's block is written again.
    """

    def __init__(self, kernel: Kernel, entries: tuple[Entry, ...], pointers: int, sizes: Sequence[int], exact: bool) -> None:
        self.kernel, self.exact = kernel, exact
        self.bound: dict[Pointers, Launch] = {}
        self._entries, self._pointers, self._sizes = entries, pointers, sizes
        self._blocks: deque[tuple[Pointers, Arguments, list[Launch]]] = deque()  # with a launch for each entry; oldest first

    def bind(self, pointers: Pointers) -> Launch:
        """The launch on these addresses. Raises GraphfuseError when their number or their alignment does not fit."""
        if len(pointers) != self._pointers:
            raise GraphfuseError(f"a fused region of {self._pointers} inputs and outputs was run with {len(pointers)}")
        which = _choose(self._entries, pointers)
        if len(self._blocks) < MAX_BOUND:
            arguments = Arguments(self._pointers, self._sizes)
            launches = [entry.launch_from(arguments.address) for entry in self._entries]
        else:
            before, arguments, launches = self._blocks.popleft()
            del self.bound[before]
        arguments.write(pointers)
        self._blocks.append((pointers, arguments, launches))
        self.bound[pointers] = launches[which]
        return launches[which]


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
        self._bound: dict[Pointers, Launch] = {}

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
        self.current, self._bound = None, {}
        key = tuple(tuple(s) for s in shapes)
        known = self._prepared.get(key)
        if known is None or (not known.exact and variants.active() is not None):
            known = self._decide(key)
            self._prepared[key] = known
            if len(self._prepared) > MAX_PREPARED:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(key)
        self.current, self._bound = known, known.bound

    def _decide(self, shapes: Shapes) -> Prepared:
        env = self.region.interface.bind(shapes)
        kernel, functions = self._pick(env)
        launcher = driver.device().launcher
        entries = []
        for variant, function in zip(kernel.variants, functions, strict=True):
            if variant.fits([0] * self._count, env):  # its sizes fit; addresses are looked at when they come
                blocks = _blocks(variant.blocks(env))
                entries.append(Entry(variant.align, partial(launcher, function, blocks, variant.block) if blocks else lambda _: _nothing))
        if not entries:
            raise ShapeError(
                f"inputs of {_text(shapes)} are too large for the kernels of this engine; build it with shapes that cover them"
            )
        sizes = [env[name] for name in kernel.symbols]
        return Prepared(kernel, tuple(entries), self._count, sizes, kernel.fixed.keys() >= env.keys())

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

    def launch(self, inputs: Sequence[int], outputs: Sequence[int], stream: int) -> None:
        """Enqueue the region on ``stream``. Raises GraphfuseError when it was not prepared or the driver refuses."""
        launch = self._bound.get((*inputs, *outputs))
        if launch is None:
            if self.current is None:
                raise GraphfuseError("a fused region was run without being told its shapes")
            launch = self.current.bind((*inputs, *outputs))
        launch(stream)


def _choose(entries: tuple[Entry, ...], pointers: Pointers) -> int:
    """The first entry whose alignments hold; one look at all pointers together settles it nearly always."""
    bits = 0
    for pointer in pointers:
        bits |= pointer
    for number, entry in enumerate(entries):
        if not bits & (max(entry.align, default=1) - 1) or all(not p % a for p, a in zip(pointers, entry.align, strict=True)):
            return number
    raise GraphfuseError("a tensor of a fused region is not aligned to its own element size")


def _nothing(stream: int) -> None:
    """The launch of an empty grid."""


def _blocks(count: int) -> int:
    if not 0 <= count <= MAX_BLOCKS:
        raise ShapeError(f"a fused region of this size would need {count} blocks; the limit is {MAX_BLOCKS}")
    return count


def _text(shapes: Shapes) -> str:
    return ", ".join("x".join(map(str, s)) or "()" for s in shapes)
