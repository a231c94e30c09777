"""From CUDA source to something that runs: NVRTC, the host device, the CUDA device, and the cache between them."""

from graphfuse.jit.parallel import compile_many
from graphfuse.jit.cache import Cache, default_cache
from graphfuse.jit.errors import CompileError, CudaError, KernelFault, NoCompiler, Unavailable
from graphfuse.jit.host import HostDevice, HostExecutable
from graphfuse.jit.nvrtc import Cubin, best_arch, check_arch, compile_cubin, compile_ptx
from graphfuse.jit.ptxas import Resources

__all__ = [
    "Cache", "CompileError", "Cubin", "CudaError", "HostDevice", "HostExecutable", "KernelFault", "NoCompiler", "Resources", "Unavailable",
    "best_arch", "check_arch", "compile_cubin", "compile_many", "compile_ptx", "default_cache",
]  # fmt: skip
