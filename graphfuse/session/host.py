"""Fused nodes on the host device: the kernels' own source, compiled by the C++ compiler and run on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphfuse.codegen import generate
from graphfuse.jit import HostDevice
from graphfuse.jit.host_build import require_compiler
from graphfuse.session.devices import ALIGN, Region, aligned_empty, bind_shapes, unique_programs
from graphfuse.session.fused import FusedNode
from graphfuse.session.values import Value


class HostRegions:
    """Raises GraphfuseError when there is no C++ compiler."""

    name = "host"

    def __init__(self) -> None:
        require_compiler()
        self._device = HostDevice()

    def load(self, nodes: Sequence[FusedNode]) -> list[Region]:
        """The nodes; every different program is compiled once, all of them together."""
        programs, numbers = unique_programs(nodes)
        made = self._device.load([generate(p) for p in programs])
        return [_HostRegion(node, made[n]) for node, n in zip(nodes, numbers, strict=True)]


class _HostRegion:
    def __init__(self, node: FusedNode, executable: Any) -> None:
        self._node = node
        self._executable = executable

    def run(self, inputs: Sequence[Value]) -> list[Value]:
        arrays = [_aligned(v.array) for v in inputs]
        env = bind_shapes(self._node, [a.shape for a in arrays], [a.dtype for a in arrays])
        shapes = self._node.program.output_shapes(env)
        outputs = [aligned_empty(s, t.numpy) for s, (t, _) in zip(shapes, self._node.program.outputs, strict=True)]
        self._executable.launch([a.ctypes.data for a in (*arrays, *outputs)], env)
        return [Value(array=a) for a in outputs]


def _aligned(array: np.ndarray) -> np.ndarray:
    """The array itself where a kernel can read it, else a copy that starts at an aligned address."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGN == 0:
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy
