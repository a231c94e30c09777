"""From CUDA source to something that runs: NVRTC, the host device, the CUDA device, and the cache between them."""

from graphfuse.jit.buffers import DeviceBuffer, View, to_device, view
from graphfuse.jit.cache import Cache, default_cache
from graphfuse.jit.cuda import CudaDevice, CudaExecutable, PreparedLaunch
from graphfuse.jit.driver import unusable
from graphfuse.jit.errors import CompileError, CudaError, KernelFault, NoCompiler, Unavailable
from graphfuse.jit.host import HostDevice, HostExecutable
from graphfuse.jit.host_build import find_compiler
from graphfuse.jit.nvrtc import Cubin, best_arch, check_arch, compile_cubin, compile_ptx
from graphfuse.jit.parallel import cached_cubin, compile_many
from graphfuse.jit.ptxas import Resources

__all__ = [
    "Cache", "CompileError", "Cubin", "CudaDevice", "CudaError", "CudaExecutable", "DeviceBuffer", "HostDevice", "HostExecutable",
    "KernelFault", "NoCompiler", "PreparedLaunch", "Resources", "Unavailable", "View", "best_arch", "cached_cubin", "check_arch",
    "compile_cubin", "compile_many", "compile_ptx", "default_cache", "find_compiler", "to_device", "unusable", "view",
]  # fmt: skip
