"""The CUDA driver: found once, every call checked."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any, NoReturn

from graphfuse.ir.errors import GraphfuseError
from graphfuse.jit.errors import CudaError, Unavailable

INVALID_CONTEXT = 201


@lru_cache(maxsize=1)
def api() -> Any:
    """The binding's module, initialised. Raises Unavailable without the binding, the driver, or a GPU."""
    try:
        module = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise Unavailable(f"CUDA: cuda-bindings cannot be imported ({error}); install it with: pip install 'graphfuse[cuda]'") from error
    try:
        status = module.cuInit(0)[0]
    except Exception as error:  # whatever the loader raises, there is no driver to use
        reason = str(error).partition("\n")[0]
        raise Unavailable(f"CUDA: no driver ({reason}); install the NVIDIA driver, or use device 'host'") from error
    if int(status):
        raise Unavailable(f"CUDA: {_describe(module, status)}; is there an NVIDIA GPU in this machine, and its driver loaded?")
    if not _counted(module):
        raise Unavailable("CUDA: the driver sees no GPU; check CUDA_VISIBLE_DEVICES, or use device 'host'")
    return module


def unusable() -> str | None:
    """Why CUDA cannot be used here, in one line; None if it can."""
    try:
        api()
    except GraphfuseError as error:
        return str(error)
    return None


def call(name: str, *args: Any) -> Any:
    """One driver call: its result, a tuple of several, None for none. Raises CudaError."""
    result = getattr(api(), name)(*args)
    if int(result[0]):
        fail(name, int(result[0]))
    return result[1] if len(result) == 2 else result[1:] or None


def fail(name: str, code: int) -> NoReturn:
    """Raises the CudaError of a status."""
    module = api()
    raise CudaError(f"{name}: {_describe(module, module.CUresult(code))}", code)


def _counted(module: Any) -> int:
    status, count = module.cuDeviceGetCount()
    return 0 if int(status) else int(count)


def _describe(module: Any, status: Any) -> str:
    """The driver's name and sentence for a status."""
    texts = [module.cuGetErrorName(status), module.cuGetErrorString(status)]
    known = [t[1].decode() for t in texts if not int(t[0]) and t[1]]
    return ": ".join(known) or f"status {int(status)}"
