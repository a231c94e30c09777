"""A wholly fused model bound to arrays on the device: everything is made ready once, then it is launched again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from graphfuse.ir.errors import GraphfuseError
from graphfuse.jit import DeviceBuffer, PreparedLaunch, view
from graphfuse.session.cuda import CudaRegion, CudaRegions, on_device
from graphfuse.session.devices import Device, bind_shapes
from graphfuse.session.interface import Port, check_names

if TYPE_CHECKING:
    from graphfuse.session.session import Session


class Placed(Protocol):
    """An array in device memory."""

    @property
    def pointer(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...


class Binding:
    """Kernels with their arguments in place. Made by ``Session.bind``.

    ``outputs`` are arrays on the device by name, with ``__cuda_array_interface__`` and ``__dlpack__``; each launch writes
    them anew. The inputs are read where they lie, so write new values there before the next launch.
    """

    def __init__(self, launches: Sequence[PreparedLaunch], outputs: dict[str, Any], kept: list[object]) -> None:
        self.outputs = outputs
        self._launches = tuple(launches)
        self._made = [b for b in outputs.values() if isinstance(b, DeviceBuffer)]
        self._kept = kept  # inputs, weights and intermediate values that the launches point to

    @property
    def kernels(self) -> int:
        """Launches that ``launch`` makes, those of empty arrays not counted out."""
        return len(self._launches)

    def launch(self, stream: int = 0) -> None:
        """Enqueues the kernels on a CUDA stream (its handle as an integer), and does nothing else: it may be captured in a graph."""
        for prepared in self._launches:
            prepared.launch(stream)
        for buffer in self._made:  # whoever takes an output is ordered after this stream
            buffer.stream = stream


def bind(session: Session, device: Device, inputs: Mapping[str, Any]) -> Binding:
    """The binding of a session's model to these arrays. Raises GraphfuseError with the reason where that cannot be."""
    if not isinstance(device, CudaRegions):
        raise GraphfuseError(f"bind needs a session on device 'cuda'; this one runs on {device.name!r}: use run")
    if session.unfused:
        raise GraphfuseError(f"bind takes wholly fused models, and node {session.unfused[0]} of this one runs in ONNX Runtime: use run")
    check_names(session.inputs, inputs)
    placed: dict[str, Placed] = {name: on_device(value, device.device) for name, value in session.constants.items()}
    ports = {p.name: p for p in session.inputs}
    placed.update((name, _view(ports[name], array)) for name, array in inputs.items())
    launches = []
    nodes, regions = session.fused_regions()
    for node, region in zip(nodes, regions, strict=True):
        assert isinstance(region, CudaRegion)
        buffers = [placed[name] for name in node.inputs]
        env = bind_shapes(node, [b.shape for b in buffers], [b.dtype for b in buffers])
        made = region.allocate(env)
        placed.update(zip(node.outputs, made, strict=True))
        launches.append(region.executable.prepare([b.pointer for b in (*buffers, *made)], env))
    outputs = {p.name: inputs.get(p.name, placed[p.name]) for p in session.outputs}
    return Binding(launches, outputs, list(placed.values()))


def _view(port: Port, array: Any) -> Placed:
    """The array's memory. Raises GraphfuseError unless it is contiguous device memory of the port's dtype and shape."""
    try:
        found = view(array)
    except GraphfuseError as error:
        raise GraphfuseError(f"input {port.name!r}: {error}") from error
    port.check(found.dtype, found.shape)
    return found
