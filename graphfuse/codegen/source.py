"""What code generation hands to the devices: source text and how to launch it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graphfuse.ir import expr
from graphfuse.ir.expr import Dim

CLUSTERS = 90  # the compute capability that brought thread-block clusters
_NUMBER = re.compile(r"[a-z]+_([0-9]{2,3})[af]?")


def capability(arch: str) -> int:
    """The compute capability (major * 10 + minor) that a name like ``sm_90`` stands for."""
    match = _NUMBER.fullmatch(arch)
    assert match, arch
    return int(match[1])


@dataclass(frozen=True)
class Variant:
    """One entry point of a kernel.

    ``grid`` is the number of blocks (one axis) as an expression of the program's symbols; 0 means nothing to launch.
    ``block`` is the number of threads. ``align`` holds, for each pointer argument (inputs, then outputs), the alignment
    in bytes that the entry relies on, ``below_2_31`` sizes that must stay below 2**31 because the entry counts in 32 bits,
    ``at_least`` sizes from which on the entry is the better one; a launcher picks the first variant for which all holds.
    ``cluster`` blocks run together as a thread-block cluster, which is stated in the code. ``before``, if not 0, is the compute
    capability (major * 10 + minor) from which on code does not have the entry, because it has one with clusters.
    """

    entry: str
    grid: Dim
    block: int
    align: tuple[int, ...]
    below_2_31: tuple[Dim, ...] = ()
    at_least: tuple[tuple[Dim, int], ...] = ()
    cluster: int = 1
    before: int = 0

    def fits(self, pointers: Sequence[int], env: Mapping[str, int]) -> bool:
        """Whether the entry may be launched on these addresses and with these values of the symbols."""
        aligned = all(p % a == 0 for p, a in zip(pointers, self.align, strict=True))
        small = all(expr.evaluate(d, env) < 1 << 31 for d in self.below_2_31)
        return aligned and small and all(expr.evaluate(d, env) >= least for d, least in self.at_least)

    def on(self, arch: str) -> bool:
        """Whether code for this architecture (``sm_90``, ``compute_90``) has the entry."""
        number = capability(arch)
        return number >= CLUSTERS if self.cluster > 1 else not self.before or number < self.before

    def blocks(self, env: Mapping[str, int]) -> int:
        """Blocks to launch for these values of the symbols."""
        return expr.evaluate(self.grid, env)


@dataclass(frozen=True)
class KernelSource:
    """CUDA source of one program; the same text compiles for the host device.

    Every entry point takes: a pointer for each input, a pointer for each output, then one ``long long`` for each name in
    ``symbols``. ``variants`` run from the most to the least demanding; the last one needs only natural alignment. Which of them the
    code for an architecture has, ``on`` tells.
    """

    text: str
    variants: tuple[Variant, ...]
    inputs: int
    outputs: int
    symbols: tuple[str, ...]

    def on(self, arch: str) -> KernelSource:
        """The source with the entries that code for this architecture has."""
        return replace(self, variants=tuple(v for v in self.variants if v.on(arch)))

    def pick(self, pointers: Sequence[int], env: Mapping[str, int]) -> Variant:
        """The best variant for these addresses and sizes."""
        return next((v for v in self.variants if v.fits(pointers, env)), self.variants[-1])
