"""CUDA source to a shared library for the CPU, by the system's C++ compiler."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from graphfuse.jit import cache as caches
from graphfuse.jit.errors import CompileError, NoCompiler, numbered

if TYPE_CHECKING:
    from graphfuse.codegen.source import KernelSource

# -O1: kernels run as fast as with -O2 and compile in two thirds of the time. No contraction, wrapping integers, no type-based aliasing: the GPU's rules. No -march: cached code runs on any CPU of
# its kind. A frame that large would not fit a fiber's stack, so it is refused here instead of crashing there.
FLAGS = (
    "-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-fwrapv", "-fno-strict-aliasing",
    "-fno-exceptions", "-fno-rtti", "-Wframe-larger-than=32768",
)  # fmt: skip
_CANDIDATES = ("c++", "g++", "clang++")
_ERROR = re.compile(r"^(?:kernel_(\w+)|[^:\n]*):(\d+):(?:\d+:)? (?:fatal )?error: (.*)$", re.MULTILINE)
_FRAME = re.compile(r"^.*warning: .*frame size.*$", re.MULTILINE)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Unit:
    """A kernel source as the compiler sees it: its text in a namespace, its entries under names of their own."""

    source: KernelSource

    @cached_property
    def name(self) -> str:
        """A name that depends on the source alone, so that equal sources are one."""
        parts = [self.source.text, *(v.entry for v in self.source.variants)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]

    def symbol(self, entry: str) -> str:
        """The entry's name in the library: entries are ``extern "C"``, and a namespace does not tell those apart."""
        return f"gf_{self.name}_{entry}"

    def text(self) -> str:
        """C++ of this source; follows the prelude."""
        entries = sorted({v.entry for v in self.source.variants})
        assert all(_IDENTIFIER.fullmatch(e) for e in entries), entries
        rename = [f"#define {e} {self.symbol(e)}" for e in entries]
        restore = [f"#undef {e}" for e in entries]
        export = [f"GF_EXPORT({self.symbol(e)})" for e in entries]
        body = [f"namespace gf_{self.name} {{", f'#line 1 "kernel_{self.name}"', self.source.text, '#line 1 "host"']
        return "\n".join([*rename, *body, *restore, *export, "}", ""])


def find_compiler() -> str | None:
    """Path of the C++ compiler that the host device uses: ``$CXX``, else ``c++``, ``g++`` or ``clang++``; None if there is none."""
    command = _command()
    return command[0] if command else None


def require_compiler() -> tuple[str, ...]:
    """The compiler's command. Raises NoCompiler."""
    command = _command()
    if command is None:
        chosen = os.environ.get("CXX")
        reason = f"CXX={chosen} is not a program" if chosen else "no C++ compiler on PATH"
        raise NoCompiler(f"host device: {reason}; install g++, or set CXX")
    return command


def units_key(unit: Unit) -> str:
    """The cache key of a unit's place: which library holds it."""
    return caches.key("host", unit.name + unit.source.text, platform.machine(), FLAGS, _toolchain())


def library_key(units: Sequence[Unit]) -> str:
    """The cache key of the library that holds these units."""
    return caches.key("host-library", "".join(units_key(u) for u in units), platform.machine(), (), "")


def runtime_key() -> str:
    """The cache key of the host device's run time."""
    return caches.key("host-runtime", runtime_text(), platform.machine(), FLAGS, _toolchain())


def prelude() -> str:
    """The C++ text that goes before every kernel."""
    return _read("host_abi.h") + '#line 1 "host_prelude.h"\n' + _read("host_prelude.h")


def runtime_text() -> str:
    """The C++ text of the run time that runs blocks."""
    return _read("host_abi.h") + '#line 1 "host_runtime.cpp"\n' + _read("host_runtime.cpp")


def build_units(batches: Sequence[Sequence[Unit]]) -> list[bytes]:
    """One shared library for each batch, built at the same time. Raises CompileError or NoCompiler."""
    with ThreadPoolExecutor(max(1, len(batches))) as pool:
        return list(pool.map(_build_batch, batches))


def build(text: str, *more: str) -> bytes:
    """A shared library of C++ text. Raises CompileError (with the compiler's messages as its log) or NoCompiler."""
    command = require_compiler()
    with tempfile.TemporaryDirectory(prefix="graphfuse-") as folder:
        library = Path(folder) / "out.so"
        words = [*command, *FLAGS, *more, "-x", "c++", "-", "-o", str(library)]
        done = subprocess.run(words, input=text, capture_output=True, text=True, errors="replace", cwd=folder)
        too_large = _FRAME.search(done.stderr)  # GCC and Clang make an error of this warning by different options
        if done.returncode != 0 or too_large:
            log = too_large[0].replace("warning:", "error:") if too_large else done.stderr
            raise CompileError(f"{command[0]} failed with {done.returncode}", log)
        return library.read_bytes()


def _build_batch(units: Sequence[Unit]) -> bytes:
    try:
        return build(prelude() + "".join(u.text() for u in units))
    except CompileError as error:
        raise _explained(error, units) from None


def _explained(error: CompileError, units: Sequence[Unit]) -> CompileError:
    """The compiler's first error, with the lines of the kernel that it is in."""
    found = _ERROR.search(error.log)
    if not found:
        return CompileError(f"host device: {error}: {error.log.strip().partition(chr(10))[0] or 'no message'}", error.log)
    unit = next((u for u in units if u.name == found[1]), None)
    where = unit.source.variants[0].entry if unit else "prelude"
    shown = numbered(unit.source.text, int(found[2])) if unit else found[0]
    return CompileError(f"host device: kernel {where}, line {found[2]}: {found[3]}\n{shown}", error.log)


def _command() -> tuple[str, ...] | None:
    chosen = shlex.split(os.environ.get("CXX", ""))
    for name, *rest in [chosen] if chosen else [[c] for c in _CANDIDATES]:
        path = shutil.which(name)
        if path:
            return (path, *rest)
    return None


def _toolchain() -> str:
    """What the compiler says it is, and the text that goes before the kernels: parts of every key."""
    return _compiler_version(require_compiler()) + hashlib.sha256(prelude().encode()).hexdigest()


@lru_cache(maxsize=8)
def _compiler_version(command: tuple[str, ...]) -> str:
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise NoCompiler(f"host device: {command[0]} --version fails; install g++, or set CXX")
    return " ".join(command[1:]) + done.stdout


@lru_cache(maxsize=8)
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
