"""What can go wrong between CUDA source and a finished launch."""

from __future__ import annotations

from graphfuse.ir.errors import GraphfuseError


class Unavailable(GraphfuseError):
    """A tool or library that the user can install is missing; the message names it and the mend."""


class NoCompiler(Unavailable):
    """No C++ compiler was found, so the host device cannot run kernels."""


class CompileError(GraphfuseError):
    """Generated source did not compile: a bug of ours. The message shows the compiler's first error and the lines around it."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class KernelFault(GraphfuseError):
    """The host device caught a kernel breaking a rule of CUDA: a barrier that not all threads reach, a shuffle from a lane that is gone."""


class CudaError(GraphfuseError):
    """A CUDA driver call failed. ``code`` is the driver's number for the reason."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


def numbered(text: str, line: int, around: int = 3) -> str:
    """The lines of ``text`` around the 1-based ``line``, numbered, with a mark at that line."""
    lines = text.splitlines()
    first, last = max(1, line - around), min(len(lines), line + around)
    return "\n".join(f"{'>' if n == line else ' '}{n:5d} | {lines[n - 1]}" for n in range(first, last + 1))
