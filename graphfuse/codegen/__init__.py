"""CUDA source from fused programs."""

from graphfuse.codegen.generate import generate
from graphfuse.codegen.source import KernelSource, Variant

__all__ = ["KernelSource", "Variant", "generate"]
