"""Arrays in device memory: our own, and views of other libraries' arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfuse.ir.errors import GraphfuseError
from graphfuse.jit import dlpack, driver

if TYPE_CHECKING:
    from graphfuse.jit.cuda import CudaDevice

_LEGACY_STREAM = 1  # what both protocols call stream 0


class DeviceBuffer:
    """A C-contiguous array in device memory that we own; freed when the last reference goes.

    ``stream`` is the stream that writes it: whoever takes the array through a protocol is ordered after that stream.
    Raises CudaError when memory runs out.
    """

    def __init__(self, device: CudaDevice, shape: Sequence[int], dtype: np.dtype[Any] | type, stream: int = 0) -> None:
        self.device = device
        self.shape = tuple(int(n) for n in shape)
        self.dtype = np.dtype(dtype)
        self.stream = stream
        self.nbytes = prod(self.shape) * self.dtype.itemsize
        self.pointer = 0
        self._driver = driver.api()
        with device.active():
            self.pointer = int(driver.call("cuMemAlloc", max(1, self.nbytes)))

    def copy_from(self, array: np.ndarray[Any, Any]) -> DeviceBuffer:
        """Fills the buffer, ordered on its stream; ``array`` may change afterwards. Raises GraphfuseError if it does not fit."""
        source = np.ascontiguousarray(array)
        if array.shape != self.shape or array.dtype != self.dtype:
            raise GraphfuseError(f"array: {array.dtype}{list(array.shape)} does not fit a buffer of {self.dtype}{list(self.shape)}")
        with self.device.active():
            driver.call("cuMemcpyHtoDAsync", self.pointer, source.ctypes.data, self.nbytes, self.stream)
            driver.call("cuStreamSynchronize", self.stream)
        return self

    def to_host(self) -> np.ndarray[Any, Any]:
        """A copy, taken after everything on the buffer's stream is done."""
        result = np.empty(self.shape, self.dtype)
        with self.device.active():
            driver.call("cuMemcpyDtoHAsync", result.ctypes.data, self.pointer, self.nbytes, self.stream)
            driver.call("cuStreamSynchronize", self.stream)
        return result

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.kind == "V" or self.dtype.isbuiltin != 1:
            raise AttributeError(f"{self.dtype} has no name in the CUDA array interface; use DLPack")
        address = self.pointer if self.nbytes else 0
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (address, False), "strides": None, "version": 3,
            "stream": self.stream or _LEGACY_STREAM,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CUDA, self.device.ordinal)

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:  # fmt: skip
        """A capsule without a version, which every consumer takes. ``stream`` -1 means: do not order."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("a device buffer is only handed over in place; copy it with to_host()")
        if stream != -1:
            with self.device.active():
                _order(self.stream, stream or 0)
        return dlpack.export(self.pointer, self.shape, self.dtype, self.__dlpack_device__(), self)

    def __del__(self) -> None:
        if not getattr(self, "pointer", 0):
            return
        try:  # the driver's functions are held, so nothing is imported here; while Python shuts down the driver frees all
            free, push, pop = self._driver.cuMemFree, self._driver.cuCtxPushCurrent, self._driver.cuCtxPopCurrent
            if int(push(self.device.context)[0]) == 0:
                free(self.pointer)
                pop()
        except Exception:
            pass


@dataclass(frozen=True)
class View:
    """Someone's C-contiguous array in device memory; ``owner`` keeps it alive. ``pointer`` is 0 only for no elements."""

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: object = field(repr=False, compare=False)


def to_device(device: CudaDevice, array: np.ndarray[Any, Any], stream: int = 0) -> DeviceBuffer:
    """A copy of a NumPy array in device memory."""
    return DeviceBuffer(device, array.shape, array.dtype, stream).copy_from(array)


def view(array: object, stream: int = 0) -> View:
    """The device memory of any object with ``__cuda_array_interface__`` or ``__dlpack__``; work on ``stream`` comes after its producer's.

    Raises GraphfuseError for anything else: memory of the CPU, an array that is not C-contiguous, an unknown element type.
    """
    if isinstance(array, DeviceBuffer):
        with array.device.active():
            _order(array.stream, stream)
        return View(array.pointer, array.shape, array.dtype, array)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):  # first: the other protocol has no bfloat16
        return _from_dlpack(array, stream)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_interface(array, interface, stream)
    raise GraphfuseError(f"array: {type(array).__name__} has neither __cuda_array_interface__ nor __dlpack__; copy it to the device first")


def _from_interface(array: object, interface: dict[str, Any], stream: int) -> View:
    if interface.get("mask") is not None:
        raise GraphfuseError("array: masked arrays are not supported; pass a plain one")
    dtype, shape = np.dtype(interface["typestr"]), tuple(int(n) for n in interface["shape"])
    strides = interface.get("strides")
    steps = None if strides is None else tuple(s / dtype.itemsize for s in strides)
    _require_contiguous(shape, steps)
    producer = interface.get("stream")
    if producer is not None:
        _order(0 if producer == _LEGACY_STREAM else producer, stream)
    return View(int(interface["data"][0] or 0), shape, dtype, array)


def _from_dlpack(array: Any, stream: int) -> View:
    kind = int(array.__dlpack_device__()[0])
    if kind not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        where = "in the CPU's memory" if kind in (dlpack.CPU, dlpack.CUDA_HOST) else f"on a device of kind {kind}"
        raise GraphfuseError(f"array: {type(array).__name__} is {where}; copy it to the CUDA device first")
    try:
        capsule = array.__dlpack__(stream=stream or _LEGACY_STREAM)
    except BufferError as error:  # PyTorch: a tensor that needs a gradient
        raise GraphfuseError(f"array: {type(array).__name__} is not handed over: {error}") from error
    found = dlpack.describe(capsule)
    _require_contiguous(found.shape, found.strides)
    return View(found.pointer, found.shape, found.dtype, capsule)


def _require_contiguous(shape: tuple[int, ...], strides: Sequence[float] | None) -> None:
    """Strides count elements; those of dimensions of one element do not matter, nor do any where there are no elements."""
    if strides is None or 0 in shape:
        return
    for i, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if size > 1 and stride != prod(shape[i + 1 :]):
            raise GraphfuseError(f"array: strides {list(strides)} of shape {list(shape)} are not C-contiguous; make it contiguous first")


def _order(producer: int, consumer: int) -> None:
    """Work enqueued on ``consumer`` from now on waits for what ``producer`` holds now; the CPU does not wait."""
    if producer == consumer:
        return
    event = driver.call("cuEventCreate", 2)  # without timing
    driver.call("cuEventRecord", event, producer)
    driver.call("cuStreamWaitEvent", consumer, event, 0)
    driver.call("cuEventDestroy", event)
