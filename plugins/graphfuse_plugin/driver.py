"""The few driver calls that a plugin needs: load a cubin into the current context, launch from it.

Modules stay loaded until the process ends: a kernel may still be in flight, or in a captured graph, when the last context
that used it goes. Functions are loaded eagerly, because a first launch under stream capture must not load anything.
"""

from __future__ import annotations

import hashlib
import threading
from functools import lru_cache
from typing import Any, Protocol

from graphfuse.ir.errors import GraphfuseError


class Device(Protocol):
    """What runs the kernels of a plugin: the CUDA driver, or in tests something that stands in for it."""

    def arch(self) -> str:
        """Architecture of the current context's device, e.g. ``sm_89``."""

    def load(self, image: bytes, entry: str) -> Any:
        """A function of a cubin, ready to launch in the current context."""

    def launch(self, function: Any, blocks: int, threads: int, stream: int, arguments: int) -> None:
        """Enqueue it; ``arguments`` is the address of an array of pointers to the arguments."""


class Driver:
    """The CUDA driver through ``cuda.bindings``."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._api: Any = driver
        self._success = driver.CUresult.CUDA_SUCCESS
        self._launch = driver.cuLaunchKernel
        self._modules: dict[tuple[int, bytes], Any] = {}
        self._lock = threading.Lock()
        self._call("cuInit", 0)

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
        key = (context, hashlib.sha256(image).digest())
        with self._lock:
            if key not in self._modules:
                self._modules[key] = self._call("cuModuleLoadData", image)
            function = self._call("cuModuleGetFunction", self._modules[key], entry.encode())
        self._call("cuFuncLoad", function)
        return function

    def launch(self, function: Any, blocks: int, threads: int, stream: int, arguments: int) -> None:
        (status,) = self._launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, 0)
        if status != self._success:
            raise GraphfuseError(f"launching a fused kernel failed: {status.name}")


_installed: Device | None = None


def device() -> Device:
    """The process's device. Raises GraphfuseError without a driver."""
    global _installed
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
