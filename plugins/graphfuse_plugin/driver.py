"""The few driver calls that a plugin needs: load a cubin into the current context, launch from it.

Modules stay loaded until the process ends: a kernel may still be in flight, or in a captured graph, when the last context
that used it goes. Functions are loaded eagerly, because a first launch under stream capture must not load anything.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Protocol

from graphfuse.ir.errors import GraphfuseError

Launch = Callable[[int], None]  # enqueues on the stream with this handle


class Device(Protocol):
    """What runs the kernels of a plugin: the CUDA driver, or in tests something that stands in for it."""

    def arch(self) -> str:
        """Architecture of the current context's device, e.g. ``sm_89``."""

    def load(self, image: bytes, entry: str) -> Any:
        """A function of a cubin, ready to launch in the current context."""

    def launcher(self, function: Any, blocks: int, threads: int, arguments: int) -> Launch:
        """What enqueues it; ``arguments`` is the address of an array of pointers to the arguments, read at each launch."""


class LaunchConfig(ctypes.Structure):
    """The driver's ``CUlaunchConfig``: everything about a launch but the function and its arguments."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("attribute_count", ctypes.c_uint),
    )  # fmt: skip


class Driver:
    """The CUDA driver: through ``cuda.bindings``, and for launches through ctypes, which costs a tenth of the time."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._api: Any = driver
        self._success = driver.CUresult.CUDA_SUCCESS
        self._relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._modules: dict[tuple[int, bytes], Any] = {}
        self._lock = threading.Lock()
        self._call("cuInit", 0)
        self._launch = _native_launch()

    def _call(self, name: str, *args: Any) -> Any:
        status, *values = getattr(self._api, name)(*args)
        if status != self._success:
            raise GraphfuseError(f"the CUDA driver refused {name}: {status.name}")
        return values[0] if len(values) == 1 else values

    def arch(self) -> str:
        device = self._call("cuCtxGetDevice")
        attribute = self._api.CUdevice_attribute
        major = self._call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
        minor = self._call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
        return f"sm_{major}{minor}"

    def load(self, image: bytes, entry: str) -> Any:
        context = int(self._call("cuCtxGetId", self._call("cuCtxGetCurrent")))  # an id is never used twice, an address may be
        key = context, image  # the hash of bytes is worked out once
        with self._lock, self._outside_captures():
            if key not in self._modules:
                self._modules[key] = self._call("cuModuleLoadData", image)
            function = self._call("cuModuleGetFunction", self._modules[key], entry.encode())
            self._call("cuFuncLoad", function)
        return function

    @contextmanager
    def _outside_captures(self) -> Iterator[None]:
        """A capture, in this thread or another one, forbids calls that may allocate; loading takes no part in any capture."""
        before = self._call("cuThreadExchangeStreamCaptureMode", self._relaxed)
        try:
            yield
        finally:
            self._call("cuThreadExchangeStreamCaptureMode", before)

    def launcher(self, function: Any, blocks: int, threads: int, arguments: int) -> Launch:
        return prepared_launch(self._launch, int(function), blocks, threads, arguments)


def _native_launch() -> Any:
    """``cuLaunchKernelEx`` of the library that the bindings use; ctypes releases the interpreter's lock around it."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    except (OSError, AttributeError) as error:
        raise GraphfuseError(f"the CUDA driver is older than 11.8 ({error}); install a later one") from error


def prepared_launch(native: Any, function: int, blocks: int, threads: int, arguments: int) -> Launch:
    """A launch with all but the stream laid out beforehand. ``native`` has the signature of ``cuLaunchKernelEx``."""
    setup = LaunchConfig(blocks, 1, 1, threads, 1, 1, 0, None, None, 0)
    call = partial(native, ctypes.byref(setup), ctypes.c_void_p(function), ctypes.c_void_p(arguments), None)
    last = 0

    def launch(stream: int) -> None:
        nonlocal last
        if stream != last:
            setup.stream = last = stream
        status = call()
        if status:
            raise GraphfuseError(f"launching a fused kernel failed: CUDA error {status}")

    return launch


_installed: Device | None = None
_forked = False


def device() -> Device:
    """The process's device. Raises GraphfuseError without a driver, or in a child of a process that used it."""
    global _installed
    if _forked:
        raise GraphfuseError("this process was forked from one that used CUDA, where CUDA cannot work; start it by spawn")
    if _installed is None:
        try:
            _installed = Driver()
        except (ImportError, RuntimeError) as error:
            raise GraphfuseError(f"no CUDA driver: {error}; fused kernels run on an NVIDIA GPU, `pip install graphfuse[cuda]`") from error
    return _installed


def use(replacement: Device | None) -> None:
    """Run kernels elsewhere (None: on the CUDA driver again)."""
    global _installed
    _installed = replacement


def _after_fork() -> None:
    global _forked
    _forked = isinstance(_installed, Driver)


os.register_at_fork(after_in_child=_after_fork)


@lru_cache(maxsize=1)
def gpu_arch() -> str | None:
    """Architecture of the first GPU of this machine, None where there is none; makes no context."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    try:
        if driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
            return None
        status, first = driver.cuDeviceGet(0)
        attribute = driver.CUdevice_attribute
        major = driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, first)[1]
        minor = driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, first)[1]
    except RuntimeError:  # the driver library itself is absent
        return None
    return f"sm_{major}{minor}" if status == driver.CUresult.CUDA_SUCCESS else None
