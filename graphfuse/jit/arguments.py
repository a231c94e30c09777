"""A launch's arguments: one 64-bit word each, as both devices take them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphfuse.ir.errors import GraphfuseError

if TYPE_CHECKING:
    from graphfuse.codegen.source import KernelSource, Variant

MAX_BLOCKS = 2**31 - 1  # the largest x extent of a CUDA grid
MAX_THREADS = 1024
_MASK = 2**64 - 1


@dataclass(frozen=True)
class Call:
    """What to launch: the variant that suits the addresses, the number of blocks, and the argument words."""

    variant: Variant
    blocks: int
    words: ctypes.Array[ctypes.c_uint64]


def call(source: KernelSource, pointers: Sequence[int], env: Mapping[str, int]) -> Call:
    """Chooses the variant for these addresses and lays out the arguments.

    Raises GraphfuseError for a wrong number of pointers, a missing symbol, or a grid that CUDA cannot launch.
    """
    expected = source.inputs + source.outputs
    if len(pointers) != expected:
        raise GraphfuseError(f"launch: {len(pointers)} pointers given, the kernel takes {expected}; pass its inputs, then its outputs")
    missing = [name for name in source.symbols if name not in env]
    if missing:
        raise GraphfuseError(f"launch: no value for dimension {missing[0]}; pass every symbol of the program")
    variant = source.pick(pointers, env)
    if not variant.fits(pointers, env):
        raise GraphfuseError("launch: an address is not a multiple of its element size; pass aligned arrays")
    blocks = variant.blocks(env)
    if not 0 <= blocks <= MAX_BLOCKS or not 1 <= variant.block <= MAX_THREADS:
        raise GraphfuseError(
            f"launch: {blocks} blocks of {variant.block} threads; CUDA takes {MAX_BLOCKS} of {MAX_THREADS}; use smaller shapes"
        )
    if blocks % variant.cluster:
        raise GraphfuseError(f"launch: {blocks} blocks are no whole clusters of {variant.cluster}; please report it")
    values = [*pointers, *(env[name] for name in source.symbols)]
    return Call(variant, blocks, (ctypes.c_uint64 * len(values))(*(v & _MASK for v in values)))
