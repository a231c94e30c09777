"""Running a built engine on the GPU: deserialise, one execution on a stream of its own, outputs back as arrays.

It is made for checking, not for speed: every call copies its inputs to the device and its outputs back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphfuse.engine.flavour import Capture, Flavour, load_flavour
from graphfuse.ir import dtypes
from graphfuse.ir.errors import GraphfuseError, ShapeError
from graphfuse.ir.plugin_types import PLUGIN_TYPES

Array = np.ndarray
NUMPY = {"UINT8": dtypes.U8, **{name: dtype for dtype, name in PLUGIN_TYPES.items()}}  # of a network's inputs and outputs


def run_engine(plan: bytes, inputs: Mapping[str, Array], *, flavour: str | None = None) -> dict[str, Array]:
    """Outputs by name for NumPy ``inputs`` of the engine's dtypes.

    Raises GraphfuseError without a GPU, on a GPU where the flavour does not run, for inputs that do not fit the engine, or
    when TensorRT refuses; any other exception that the plugin met is raised as it is.
    """
    with LoadedEngine(plan, flavour=flavour) as engine:
        return engine.run(inputs)


def runnable_flavour(name: str | None = None) -> Flavour:
    """The flavour, if its engines run on this machine. Raises GraphfuseError with the reason if not."""
    from graphfuse_plugin.driver import gpu_arch

    arch = gpu_arch()
    if arch is None:
        raise GraphfuseError(
            "running an engine needs an NVIDIA GPU and its driver, which are not here; `graphfuse check --device host` does without"
        )
    flavour = load_flavour(name)
    flavour.check_run((int(arch[3:-1]), int(arch[-1])))
    return flavour


class LoadedEngine:
    """An engine with one execution context and one stream; a context manager, because it holds device memory."""

    def __init__(self, plan: bytes, *, flavour: str | None = None) -> None:
        import graphfuse_plugin

        self.flavour = runnable_flavour(flavour)
        graphfuse_plugin.register(self.flavour.module)
        self.cuda = Cuda()
        self.context: Any = None
        with self.flavour.logger.capture() as log, graphfuse_plugin.building() as build:
            self.runtime = self.flavour.module.Runtime(self.flavour.logger)
            self.engine = self.runtime.deserialize_cuda_engine(plan)
            build.reraise()
            self.context = self.engine.create_execution_context() if self.engine is not None else None
            build.reraise()
        if self.context is None:
            self.close()
            raise refused(self.flavour, "could not load the engine", log)

    def __enter__(self) -> LoadedEngine:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the context, the engine and the stream, in that order."""
        self.context = self.engine = self.runtime = None
        self.cuda.close()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One execution; see ``run_engine``."""
        import graphfuse_plugin

        tensors = self.tensors()
        buffers: list[int] = []
        try:
            with self.flavour.logger.capture() as log, graphfuse_plugin.building() as build:
                self.set_inputs(tensors, inputs, buffers)
                outputs = self.set_outputs(tensors, buffers)
                done = self.context.execute_async_v3(self.cuda.stream)
                build.reraise()
                if not done:
                    raise refused(self.flavour, "could not run the engine", log)
            results = {name: self.cuda.download(address, array) for name, (address, array) in outputs.items()}
            self.cuda.synchronise()
            return results
        finally:
            self.cuda.free(buffers)

    def tensors(self) -> list[Tensor]:
        """The engine's inputs and outputs."""
        trt = self.flavour.module
        names = [self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)]
        return [
            Tensor(n, self.engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT, _numpy_type(self.engine.get_tensor_dtype(n), n))
            for n in names
        ]

    def layers(self) -> list[str]:
        """Names of the engine's layers, as TensorRT's inspector tells them; none where it tells nothing."""
        inspector = self.engine.create_engine_inspector()
        if inspector is None:
            return []
        text = inspector.get_engine_information(self.flavour.module.LayerInformationFormat.JSON)
        try:
            rows = json.loads(text).get("Layers", [])
        except (ValueError, AttributeError) as error:
            raise GraphfuseError(f"{self.flavour.title}'s inspector gave no JSON: {str(text)[:80]!r}") from error
        return [row if isinstance(row, str) else str(row.get("Name", "?")) for row in rows]

    def set_inputs(self, tensors: Sequence[Tensor], inputs: Mapping[str, Array], buffers: list[int]) -> None:
        """Copy the inputs to the device and bind them; their addresses are added to ``buffers``. Raises ShapeError."""
        wanted = {t.name: t for t in tensors if t.is_input}
        if set(wanted) != set(inputs):
            raise ShapeError(f"the engine's inputs are {', '.join(sorted(wanted))}; given are {', '.join(sorted(inputs)) or 'none'}")
        for name, tensor in wanted.items():
            array = np.asarray(inputs[name])
            if array.dtype != tensor.dtype:
                raise ShapeError(f"input {name!r} of the engine is {tensor.dtype}, the array given is {array.dtype}")
            if not self.context.set_input_shape(name, array.shape):
                raise ShapeError(f"the engine does not take the shape {array.shape} for input {name!r}; build it with shapes that cover it")
            address = self.cuda.upload(array)
            buffers.append(address)
            self.context.set_tensor_address(name, address)

    def set_outputs(self, tensors: Sequence[Tensor], buffers: list[int]) -> dict[str, tuple[int, Array]]:
        """Allocate and bind every output for the inputs that are bound: its address and an array of its shape, by name."""
        outputs: dict[str, tuple[int, Array]] = {}
        for tensor in tensors:
            if tensor.is_input:
                continue
            shape = tuple(self.context.get_tensor_shape(tensor.name))
            if any(d < 0 for d in shape):
                raise GraphfuseError(f"output {tensor.name!r} has a size that depends on data; this runner cannot allocate it")
            array = np.empty(shape, tensor.dtype)
            address = self.cuda.allocate(array.nbytes)
            buffers.append(address)
            outputs[tensor.name] = (address, array)
            self.context.set_tensor_address(tensor.name, address)
        return outputs


@dataclass(frozen=True)
class Tensor:
    """An input or output of an engine."""

    name: str
    is_input: bool
    dtype: np.dtype


def _numpy_type(trt_type: Any, name: str) -> np.dtype:
    if trt_type.name not in NUMPY:
        raise GraphfuseError(f"tensor {name!r} of the engine is {trt_type.name}, which NumPy cannot hold; cast it at the model's edge")
    return NUMPY[trt_type.name].numpy


def refused(flavour: Flavour, what: str, log: Capture) -> GraphfuseError:
    """The error of a call that TensorRT answered with nothing; its messages tell why."""
    return GraphfuseError(f"{flavour.title} {what}: {'; '.join(log.errors()[:2])[:600] or 'no reason given'}")


class Cuda:
    """Memory and a stream in the primary context of the first GPU."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.api: Any = driver
        self.call("cuInit", 0)
        self.device = self.call("cuDeviceGet", 0)
        self._before = self.call("cuCtxGetCurrent")
        self.call("cuCtxSetCurrent", self.call("cuDevicePrimaryCtxRetain", self.device))
        self._stream = self.call("cuStreamCreate", int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def call(self, name: str, *args: Any) -> Any:
        """One driver call. Raises GraphfuseError."""
        status, *values = getattr(self.api, name)(*args)
        if status != self.api.CUresult.CUDA_SUCCESS:
            raise GraphfuseError(f"the CUDA driver refused {name}: {status.name}")
        return values[0] if values else None

    @property
    def stream(self) -> int:
        """Handle of the stream."""
        return int(self._stream)

    def allocate(self, size: int) -> int:
        """Device memory; an empty tensor gets an address too, because TensorRT wants one."""
        return int(self.call("cuMemAlloc", max(size, 16)))

    def upload(self, array: Array) -> int:
        """A copy of ``array`` on the device."""
        address = self.allocate(array.nbytes)
        if array.nbytes:
            self.call("cuMemcpyHtoDAsync", address, np.ascontiguousarray(array).ctypes.data, array.nbytes, self._stream)
            self.synchronise()  # the source may be a temporary
        return address

    def download(self, address: int, array: Array) -> Array:
        """Fill ``array`` from the device once the stream has come to it."""
        if array.nbytes:
            self.call("cuMemcpyDtoHAsync", array.ctypes.data, address, array.nbytes, self._stream)
        return array

    def synchronise(self) -> None:
        """Wait for the stream."""
        self.call("cuStreamSynchronize", self._stream)

    def free(self, addresses: Sequence[int]) -> None:
        """Give memory back."""
        for address in addresses:
            self.call("cuMemFree", address)

    def close(self) -> None:
        """Give the stream and the context back; doing it again changes nothing."""
        if self._stream is not None:
            self.call("cuStreamDestroy", self._stream)
            self.call("cuCtxSetCurrent", self._before)  # ours may end with the release
            self.call("cuDevicePrimaryCtxRelease", self.device)
            self._stream = None
