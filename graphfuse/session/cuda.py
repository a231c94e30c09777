"""Fused nodes on a GPU. Values stay there from one fused node to the next; weights are uploaded once."""

from __future__ import annotations

from collections.abc import Sequence

from graphfuse.codegen import generate
from graphfuse.codegen.config import BY_RULE
from graphfuse.jit import CudaDevice, CudaExecutable, DeviceBuffer, best_arch, to_device
from graphfuse.session.devices import Region, bind_shapes, unique_programs
from graphfuse.session.fused import FusedNode
from graphfuse.session.values import Value
from graphfuse.tune import lookup


class CudaRegions:
    """Raises GraphfuseError when there is no GPU, driver or binding."""

    name = "cuda"

    def __init__(self) -> None:
        self.device = CudaDevice()

    def load(self, nodes: Sequence[FusedNode]) -> list[Region]:
        """The nodes; every different program is compiled once, all of them together."""
        programs, numbers = unique_programs(nodes)
        arch = best_arch(*self.device.capability)
        made = self.device.load([generate(p, lookup(p, arch) or BY_RULE) for p in programs])
        return [CudaRegion(node, made[n]) for node, n in zip(nodes, numbers, strict=True)]


class CudaRegion:
    """A fused node on the GPU."""

    def __init__(self, node: FusedNode, executable: CudaExecutable) -> None:
        self.node = node
        self.executable = executable

    def run(self, inputs: Sequence[Value]) -> list[Value]:
        """The outputs, left on the device. The null stream keeps the order of everything."""
        buffers = [on_device(v, self.executable.device) for v in inputs]
        env = bind_shapes(self.node, [b.shape for b in buffers], [b.dtype for b in buffers])
        outputs = self.allocate(env)
        self.executable.launch([b.pointer for b in (*buffers, *outputs)], env)
        return [Value(device=b) for b in outputs]

    def allocate(self, env: dict[str, int]) -> list[DeviceBuffer]:
        """Memory for the outputs."""
        program = self.node.program
        shapes = program.output_shapes(env)
        return [DeviceBuffer(self.executable.device, s, t.numpy) for s, (t, _) in zip(shapes, program.outputs, strict=True)]


def on_device(value: Value, device: CudaDevice) -> DeviceBuffer:
    """The value in device memory, copied there if it is not yet; it stays with the value."""
    if not isinstance(value.device, DeviceBuffer):
        value.device = to_device(device, value.array)
    return value.device
