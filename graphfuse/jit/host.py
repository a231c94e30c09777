"""The host device: runs the same CUDA source on the CPU, so that a kernel's numbers can be proven without a GPU.

The source is compiled as C++ after ``host_prelude.h``; ``host_runtime.cpp`` runs the threads of a block as fibers, with
real barriers and shuffles; the blocks of a cluster run together. A barrier that some thread never reaches, or a shuffle from
a lane that is gone, is an error here (KernelFault), not a hang.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from graphfuse.ir.errors import GraphfuseError
from graphfuse.jit import host_build
from graphfuse.jit.arguments import Call, call
from graphfuse.jit.cache import Cache, default_cache
from graphfuse.jit.errors import KernelFault
from graphfuse.jit.host_build import Unit

if TYPE_CHECKING:
    from graphfuse.codegen.source import KernelSource

ARCH = "sm_90"  # what it stands for: it has clusters
_WORTH_SPLITTING = 1 << 15  # threads of a grid below which another OS thread costs more than it saves
_BATCH = 6  # sources a compiler process gets at least, where there are enough: each pays for the prelude again

_loaded: dict[str, ctypes.CDLL] = {}  # by cache key; libraries stay loaded as long as the process lives
_lock = threading.RLock()


class HostDevice:
    """Compiles and runs kernels on the CPU.

    ``threads`` is how many OS threads share a large grid (default: the cores of this process). ``reverse`` runs blocks,
    warps and lanes last to first: a kernel with a race gives other results then.
    """

    name = "host"

    def __init__(self, threads: int | None = None, reverse: bool = False, cache: Cache | None = None) -> None:
        self.threads = max(1, threads or len(os.sched_getaffinity(0)))
        self.reverse = reverse
        self._cache = cache

    def load(self, sources: Sequence[KernelSource]) -> list[HostExecutable]:
        """An executable for each source; those not in the cache are compiled together.

        Raises NoCompiler without a C++ compiler, CompileError for source that does not compile.
        """
        if not sources:
            return []
        cache = self._cache or default_cache()
        units = [Unit(s.on(ARCH)) for s in sources]
        with _lock:
            libraries = _libraries(units, cache, self.threads)
            run = _runtime(cache)
        return [HostExecutable(u, libraries[u.name], run, self) for u in units]


class HostExecutable:
    """A kernel source, ready to run on the CPU. Made by ``HostDevice.load``."""

    def __init__(self, unit: Unit, library: ctypes.CDLL, runtime: ctypes.CDLL, device: HostDevice) -> None:
        self.source = unit.source
        self._device = device
        self._runtime = runtime
        self._slot = ctypes.cast(library.gf_self_slot, ctypes.c_void_p)
        self._invoke = {v.entry: _entry(library, unit, v.entry) for v in unit.source.variants}

    def launch(self, pointers: Sequence[int], env: Mapping[str, int], stream: int = 0) -> None:
        """Runs the kernel to its end. ``pointers`` are addresses in this process, inputs then outputs; ``stream`` is not used.

        Raises KernelFault where the kernel breaks a rule of CUDA; outputs are then partly written.
        """
        todo = call(self.source, pointers, env)
        variant = todo.variant
        parts = list(_split(todo.blocks // variant.cluster, variant.block * variant.cluster, self._device.threads))
        if len(parts) < 2:
            for first, last in parts:
                self._run(todo, first, last)
            return
        jobs = [_pool(len(parts)).submit(self._run, todo, first, last) for first, last in parts]
        wait(jobs)  # all of them, also after a fault: they write into the caller's arrays
        for job in jobs:
            job.result()

    def _run(self, todo: Call, first: int, last: int) -> None:
        message = ctypes.create_string_buffer(256)
        variant, reverse = todo.variant, int(self._device.reverse)
        shape = todo.blocks, variant.block, variant.cluster
        if self._runtime.gf_run(self._invoke[variant.entry], self._slot, todo.words, first, last, *shape, reverse, message, len(message)):
            reason = message.value.decode(errors="replace")
            raise KernelFault(f"kernel {variant.entry}: {reason}; the generated kernel is wrong, please report it")


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    """Kept between launches, because each thread keeps the stacks of its fibers."""
    return ThreadPoolExecutor(threads, thread_name_prefix="graphfuse-host")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of the threads


def _entry(library: ctypes.CDLL, unit: Unit, entry: str) -> ctypes.c_void_p:
    symbol, source = unit.symbol(entry), unit.source
    arity, expected = library[f"{symbol}_arity"](), source.inputs + source.outputs + len(source.symbols)
    if arity != expected:
        raise GraphfuseError(f"kernel {entry}: takes {arity} arguments, its description says {expected}; please report it")
    return ctypes.cast(library[f"{symbol}_invoke"], ctypes.c_void_p)


def _split(blocks: int, block: int, threads: int) -> Iterator[tuple[int, int]]:
    """Ranges of blocks (or clusters), one for each OS thread that is worth its start."""
    parts = min(threads, blocks) if blocks * block >= _WORTH_SPLITTING else min(1, blocks)
    for i in range(parts):
        yield blocks * i // parts, blocks * (i + 1) // parts


def _libraries(units: Sequence[Unit], cache: Cache, jobs: int) -> dict[str, ctypes.CDLL]:
    """The library of each unit by its name, from this process, else from the cache, else built now."""
    found: dict[str, ctypes.CDLL] = {}
    missing: dict[str, Unit] = {}
    for unit in units:
        library = _known(unit, cache)
        if library is not None:
            found[unit.name] = library
        else:
            missing[unit.name] = unit
    for batch, library in _build(list(missing.values()), cache, jobs):
        found.update((u.name, library) for u in batch)
    return found


def _known(unit: Unit, cache: Cache) -> ctypes.CDLL | None:
    """A unit's cache entry names the library that holds it."""
    key = host_build.units_key(unit)
    place = cache.get(key)
    if place is None:
        return None
    library = _load(place.decode(errors="replace"), cache)
    if library is None:
        cache.drop(key)
    return library


def _build(units: list[Unit], cache: Cache, jobs: int) -> Iterator[tuple[list[Unit], ctypes.CDLL]]:
    count = min(jobs, -(-len(units) // _BATCH))
    batches = [units[i::count] for i in range(count)]
    for batch, image in zip(batches, host_build.build_units(batches), strict=True):
        key = host_build.library_key(batch)
        cache.put(key, image)
        library = _load_built(key, cache)
        for unit in batch:
            cache.put(host_build.units_key(unit), key.encode())
        yield batch, library


def _runtime(cache: Cache) -> ctypes.CDLL:
    key = host_build.runtime_key()
    library = _load(key, cache)
    if library is None:
        cache.put(key, host_build.build(host_build.runtime_text(), "-O2"))
        library = _load_built(key, cache)
    word, text = ctypes.c_void_p, ctypes.c_char_p
    library.gf_run.argtypes = [word, word, word, *[ctypes.c_uint] * 5, ctypes.c_int, text, ctypes.c_size_t]
    return library


def _load(key: str, cache: Cache) -> ctypes.CDLL | None:
    """The library stored under this key; None if the cache does not have it, or it does not load."""
    if key in _loaded or cache.get(key) is None:
        return _loaded.get(key)
    try:
        return _load_built(key, cache)
    except GraphfuseError:  # made for another machine
        cache.drop(key)
        return None


def _load_built(key: str, cache: Cache) -> ctypes.CDLL:
    """Loads what the cache has: by its file, else (gone meanwhile, or a folder that may not hold programs) by a temporary one."""
    path, image = cache.file(key), cache.get(key)
    try:
        library = ctypes.CDLL(str(path)) if path else _load_image(image)
    except OSError:
        library = _load_image(image)
    _loaded[key] = library
    return library


def _load_image(image: bytes | None) -> ctypes.CDLL:
    """Loads a library that is in memory only; the loader needs a file, but not for longer than it takes to load."""
    if image is None:
        raise GraphfuseError("host device: a library vanished from the cache while it was loaded; try again")
    with tempfile.TemporaryDirectory(prefix="graphfuse-") as folder:
        path = Path(folder) / "kernel.so"
        path.write_bytes(image)
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise GraphfuseError(
                f"host device: the compiled library does not load ({error}); does TMPDIR allow programs, and CXX fit?"
            ) from error
