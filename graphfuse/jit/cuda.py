"""The CUDA device: loads compiled kernels and launches them on the caller's stream.

Everything is made ready before a launch; a launch is one ``cuLaunchKernel`` and nothing else, so it may be captured
into a CUDA graph. Modules stay loaded as long as the process lives, because nobody knows when the last launch, or the
last captured graph that holds one, is done.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from graphfuse.ir.errors import GraphfuseError
from graphfuse.jit import driver
from graphfuse.jit.arguments import Call, call
from graphfuse.jit.cache import Cache
from graphfuse.jit.errors import CudaError
from graphfuse.jit.nvrtc import best_arch
from graphfuse.jit.parallel import compile_many

if TYPE_CHECKING:
    from graphfuse.codegen.source import KernelSource

_modules: dict[tuple[int, bytes], Any] = {}  # by context and image; never unloaded


class CudaDevice:
    """One GPU. Uses the calling thread's context if that is on this GPU, else the primary context.

    ``ordinal`` None means the GPU of the current context, else GPU 0. Raises Unavailable without CUDA, CudaError for a
    GPU that does not exist.
    """

    name = "cuda"

    def __init__(self, ordinal: int | None = None, cache: Cache | None = None) -> None:
        self._cache = cache
        current = driver.call("cuCtxGetCurrent")
        here = int(driver.call("cuCtxGetDevice")) if int(current) else None
        self.ordinal = ordinal if ordinal is not None else here or 0
        self._device = driver.call("cuDeviceGet", self.ordinal)
        # Held for the life of the process: others who give the primary context back must not take it from under our kernels.
        primary = driver.call("cuDevicePrimaryCtxRetain", self._device)
        self.context: Any = current if here == self.ordinal else primary
        if here is None:
            driver.call("cuCtxSetCurrent", self.context)
        attribute = driver.api().CUdevice_attribute
        self.capability = (
            int(driver.call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self._device)),
            int(driver.call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self._device)),
        )

    @property
    def title(self) -> str:
        """The GPU's name."""
        name: bytes = driver.call("cuDeviceGetName", 256, self._device)
        return name.split(b"\0")[0].decode(errors="replace")

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes this device's context current inside the block, in any thread."""
        if int(driver.call("cuCtxGetCurrent")) == int(self.context):
            yield
            return
        driver.call("cuCtxPushCurrent", self.context)
        try:
            yield
        finally:
            driver.call("cuCtxPopCurrent")

    def load(self, sources: Sequence[KernelSource]) -> list[CudaExecutable]:
        """An executable for each source; those not in the cache are compiled together, for this GPU.

        Raises CompileError, Unavailable without NVRTC, CudaError for code that the driver refuses.
        """
        arch = best_arch(*self.capability)
        compiled = compile_many(sources, [arch], cache=self._cache)
        with self.active():
            return [CudaExecutable(s.on(arch), c[arch].image, self) for s, c in zip(sources, compiled, strict=True)]

    def load_image(self, source: KernelSource, image: bytes) -> CudaExecutable:
        """An executable of code compiled earlier (a cubin for this GPU, or PTX)."""
        with self.active():
            return CudaExecutable(source.on(best_arch(*self.capability)), image, self)

    def synchronize(self, stream: int = 0) -> None:
        """Waits until everything on the stream is done. Raises CudaError if something there failed."""
        with self.active():
            driver.call("cuStreamSynchronize", stream)


class CudaExecutable:
    """A kernel source, loaded on a GPU. Made by ``CudaDevice.load``."""

    def __init__(self, source: KernelSource, image: bytes, device: CudaDevice) -> None:
        self.source = source
        self.device = device
        module = _module(device, image)
        self._functions = {v.entry: _function(module, v.entry) for v in source.variants}

    def launch(self, pointers: Sequence[int], env: Mapping[str, int], stream: int = 0) -> None:
        """Enqueues the kernel. ``pointers`` are device addresses, inputs then outputs. Raises GraphfuseError or CudaError."""
        self.prepare(pointers, env).launch(stream)

    def prepare(self, pointers: Sequence[int], env: Mapping[str, int]) -> PreparedLaunch:
        """A launch whose arguments are laid out already, to be enqueued many times."""
        return PreparedLaunch(self, pointers, env)

    def function(self, entry: str) -> Any:
        """The driver's handle of an entry."""
        return self._functions[entry]


class PreparedLaunch:
    """A kernel with its grid and arguments in place. ``launch`` allocates nothing and waits for nothing."""

    def __init__(self, executable: CudaExecutable, pointers: Sequence[int], env: Mapping[str, int]) -> None:
        self._executable = executable
        self._env = dict(env)
        self._launch_kernel = driver.api().cuLaunchKernel
        self._set(call(executable.source, pointers, env))
        step, first = ctypes.sizeof(ctypes.c_uint64), ctypes.addressof(self._words)
        self._table = (ctypes.c_void_p * len(self._words))(*(first + i * step for i in range(len(self._words))))
        self._parameters = ctypes.addressof(self._table)

    def rebind(self, pointers: Sequence[int]) -> None:
        """Other addresses, for the launches to come; the sizes stay."""
        todo = call(self._executable.source, pointers, self._env)
        ctypes.memmove(self._words, todo.words, ctypes.sizeof(todo.words))
        self._choose(todo)

    def launch(self, stream: int = 0) -> None:
        """Enqueues the kernel on a stream of this GPU's context. Raises CudaError."""
        if not self._blocks:
            return
        (status,) = self._launch_kernel(self._function, self._blocks, 1, 1, self._threads, 1, 1, 0, stream, self._parameters, 0)
        if status:
            self._retry(int(status), stream)

    def _retry(self, status: int, stream: int) -> None:
        """Once more in a thread that has not used CUDA yet, and so has no context; else the error."""
        if status == driver.INVALID_CONTEXT and not int(driver.call("cuCtxGetCurrent")):
            driver.call("cuCtxSetCurrent", self._executable.device.context)
            self.launch(stream)
        else:
            driver.fail(f"cuLaunchKernel of {self._entry}", status)

    def _set(self, todo: Call) -> None:
        self._words = todo.words
        self._choose(todo)

    def _choose(self, todo: Call) -> None:
        self._entry, self._blocks, self._threads = todo.variant.entry, todo.blocks, todo.variant.block
        self._function = self._executable.function(self._entry)


def _module(device: CudaDevice, image: bytes) -> Any:
    key = (int(device.context), image)
    if key not in _modules:
        # PTX is text, and the driver wants its end marked; a cubin knows its own length.
        _modules[key] = driver.call("cuModuleLoadData", image if image.startswith(b"\x7fELF") else image + b"\0")
    return _modules[key]


def _function(module: Any, entry: str) -> Any:
    try:
        function = driver.call("cuModuleGetFunction", module, entry.encode())
        driver.call("cuFuncLoad", function)  # now, not at the first launch: that may be inside a capture
    except AttributeError:  # a binding older than cuFuncLoad: then its driver loads functions with the module or when asked for
        return function
    except CudaError as error:
        raise GraphfuseError(f"kernel {entry}: {error}; the code does not hold this entry or does not fit this GPU") from error
    return function
