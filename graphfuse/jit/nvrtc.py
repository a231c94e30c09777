"""CUDA source to cubin, through NVRTC; needs no GPU and no driver.

Numbers: no fast math, denormals kept, division and square root correctly rounded, and ``--fmad=false``: a product is
rounded before it is added. So a kernel's results equal the host device's bit for bit, except where a transcendental
function (``expf``, ``erff``...) comes from another maths library.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from graphfuse.ir.errors import GraphfuseError
from graphfuse.jit.errors import CompileError, Unavailable, numbered
from graphfuse.jit.ptxas import Resources, resources

_ARCH = re.compile(r"(sm|compute)_([0-9]{2,3})[af]?")
_ERROR = re.compile(r"^kernel\.cu\((\d+)\): (?:catastrophic )?error: (.*)$", re.MULTILINE)
_TIMES = re.compile(r"^ptxas info *: Compile time = .*\n", re.MULTILINE)  # the same text gives the same log
NUMERIC_OPTIONS = ("--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false")


@dataclass(frozen=True)
class Cubin:
    """Compiled code for one architecture: a cubin where ``arch`` is ``sm_XX``, PTX text where it is ``compute_XX``."""

    image: bytes
    arch: str
    log: str
    resources: dict[str, Resources] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """A form for the cache: a line of JSON, then the image."""
        head = {"arch": self.arch, "log": self.log, "resources": {k: asdict(v) for k, v in self.resources.items()}}
        return json.dumps(head).encode() + b"\n" + self.image

    @classmethod
    def from_bytes(cls, data: bytes) -> Cubin:
        """Undoes ``to_bytes``. Raises ValueError for anything else."""
        line, found, image = data.partition(b"\n")
        try:
            head = json.loads(line)
            used = {k: Resources(**v) for k, v in head["resources"].items()}
            cubin = cls(image, head["arch"], head["log"], used)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a stored cubin: {error}") from error
        if not found or not image:
            raise ValueError("not a stored cubin: no image")
        return cubin


def compile_cubin(text: str, arch: str, *, options: Sequence[str] = ()) -> Cubin:
    """Machine code for ``arch`` (``sm_XX``), with the assembler's resource report for each entry.

    Raises CompileError if the text does not compile, Unavailable without NVRTC, GraphfuseError for an unknown arch.
    """
    return _compile(text, check_arch(arch, "sm"), options)


def compile_ptx(text: str, arch: str, *, options: Sequence[str] = ()) -> Cubin:
    """PTX for ``arch`` (``compute_XX``), which a driver at least as new as NVRTC compiles when it is loaded."""
    return _compile(text, check_arch(arch, "compute"), options)


def compile_image(text: str, arch: str, *, options: Sequence[str] = ()) -> Cubin:
    """A cubin for ``sm_XX``, PTX for ``compute_XX``: what ``best_arch`` asks for."""
    return _compile(text, check_arch(arch), options)


def check_arch(arch: str, kind: str | None = None) -> str:
    """``arch`` itself if it is well formed and NVRTC compiles for it; raises GraphfuseError if not."""
    match = _ARCH.fullmatch(arch)
    if not match or (kind and match[1] != kind):
        raise GraphfuseError(f"architecture {arch!r}: not a name like {kind or 'sm'}_89; name one")
    if int(match[2]) not in supported_archs():
        known = " ".join(str(n) for n in supported_archs())
        raise GraphfuseError(f"architecture {arch}: NVRTC {version()} does not compile for it; use one of {match[1]}_ {known}")
    return arch


def best_arch(major: int, minor: int) -> str:
    """What to compile for on a device of this compute capability.

    Its own ``sm_XX`` where NVRTC knows it; else, as PTX, the highest ``compute_XX`` not above it, which the driver
    finishes. Raises GraphfuseError for a device older than all of them.
    """
    wanted = major * 10 + minor
    if wanted in supported_archs():
        return f"sm_{wanted}"
    below = [n for n in supported_archs() if n < wanted]
    if not below:
        lowest = min(supported_archs())
        raise GraphfuseError(
            f"compute capability {major}.{minor}: NVRTC {version()} starts at {lowest}; install an older nvidia-cuda-nvrtc"
        )
    return f"compute_{max(below)}"


@lru_cache(maxsize=1)
def supported_archs() -> tuple[int, ...]:
    """Compute capabilities (major * 10 + minor) that NVRTC compiles for, ascending. Raises Unavailable without NVRTC."""
    return tuple(sorted(_call("nvrtcGetSupportedArchs")))


@lru_cache(maxsize=1)
def version() -> str:
    """NVRTC's version, such as ``13.5``: a part of every cache key. Raises Unavailable without NVRTC."""
    major, minor = _call("nvrtcVersion")
    return f"{major}.{minor}"


def _compile(text: str, arch: str, options: Sequence[str]) -> Cubin:
    program = _call("nvrtcCreateProgram", text.encode(), b"kernel.cu", 0, [], [])
    try:
        return _compile_program(program, text, arch, options)
    finally:
        _call("nvrtcDestroyProgram", program)


def _compile_program(program: Any, text: str, arch: str, options: Sequence[str]) -> Cubin:
    flags = [f"--gpu-architecture={arch}", *NUMERIC_OPTIONS, "--ptxas-options=-v", *_no_cache(), *options]
    (status,) = _api().nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
    log = _TIMES.sub("", _read(program, "ProgramLog").decode(errors="replace")).strip("\0 \n")
    if int(status) != 0:
        raise _compile_error(status, text, arch, log)
    ptx = arch.startswith("compute_")
    image = _read(program, "PTX" if ptx else "CUBIN")
    return Cubin(image, arch, log, resources(log))


@lru_cache(maxsize=1)
def _no_cache() -> tuple[str, ...]:
    """The flag that switches NVRTC's own cache off, where it has one: code from that cache comes without its resource report."""
    program = _call("nvrtcCreateProgram", b"", b"kernel.cu", 0, [], [])
    (status,) = _api().nvrtcCompileProgram(program, 1, [b"--no-cache"])
    _call("nvrtcDestroyProgram", program)
    return ("--no-cache",) if int(status) == 0 else ()


def _compile_error(status: Any, text: str, arch: str, log: str) -> CompileError:
    found = _ERROR.search(log)
    if not found:
        first = next((line for line in log.splitlines() if "error" in line), log.partition("\n")[0])
        return CompileError(f"kernel for {arch}: {_error_name(status)}: {first or 'no log'}", log)
    line = int(found[1])
    return CompileError(f"kernel for {arch}, line {line}: {found[2]}\n{numbered(text, line)}", log)


def _read(program: Any, what: str) -> bytes:
    size: int = _call(f"nvrtcGet{what}Size", program)
    buffer = b"\0" * size  # the binding writes into it
    _call(f"nvrtcGet{what}", program, buffer)
    return buffer


def _call(name: str, *args: Any) -> Any:
    """One checked NVRTC call: its result, or a tuple of them."""
    result = getattr(_api(), name)(*args)
    if int(result[0]) != 0:
        raise GraphfuseError(f"{name}: {_error_name(result[0])}; is the installed nvidia-cuda-nvrtc whole?")
    return result[1] if len(result) == 2 else result[1:]


def _error_name(status: Any) -> str:
    return str(getattr(status, "name", status))


@lru_cache(maxsize=1)
def _api() -> Any:
    """The binding's module, with the library proven to load: it is looked for in pip's packages, then in the system."""
    mend = "install it with: pip install 'graphfuse[cuda]'"
    try:
        module = importlib.import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise Unavailable(f"NVRTC: the package cuda-bindings cannot be imported ({error}); {mend}") from error
    probe: Callable[[], Any] = module.nvrtcVersion
    try:
        probe()
    except Exception as error:  # whatever the loader raises, the library is not usable
        reason = str(error).partition("\n")[0]
        raise Unavailable(f"NVRTC: its library does not load ({reason}); {mend}") from error
    return module
