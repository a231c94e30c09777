"""Kernels for a GPU that an engine was not built for: from the cache, else generated and compiled; never in an execution.

What is kept is the finished kernel, not its source: generating that takes most of the time. So a key covers everything that
the source depends on, the code of this package and the tuned configurations among it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from graphfuse.ir.errors import GraphfuseError, ProgramError
from graphfuse_plugin.fields import Kernel, pack, unpack
from graphfuse_plugin.kernels import compile_kernels, find_cubin
from graphfuse_plugin.region import Region


def adapt(region: Region, kernel: Kernel, arch: str) -> tuple[Kernel, bytes]:
    """``kernel`` with its entries and a cubin for ``arch``: the one that it holds, else one made anew where code generation and NVRTC are here.

    Raises GraphfuseError naming the target to build with.
    """
    image = find_cubin(kernel, arch)
    if image is not None:
        return kernel.on(arch), image
    try:
        made = kept(region, kernel, arch) or make([(region, kernel)], arch)[0]
    except (GraphfuseError, ImportError) as error:
        raise GraphfuseError(
            f"this engine holds kernels for {', '.join(sorted(kernel.cubins))}, not for {arch}, and they cannot be compiled here "
            f"({error}); build it with --target {arch}"
        ) from error
    return made.on(arch), made.cubins[arch]


def kept(region: Region, kernel: Kernel, arch: str) -> Kernel | None:
    """The kernel for ``arch`` that the cache has, None if it has none. Raises GraphfuseError without NVRTC."""
    from graphfuse.jit.cache import default_cache

    cache, name = default_cache(), _key(region, kernel, arch)
    data = cache.get(name)
    try:
        return None if data is None else unpack(region.spec, data)[1][0]
    except ProgramError:
        cache.drop(name)
        return None


def make(wanted: Sequence[tuple[Region, Kernel]], arch: str) -> list[Kernel]:
    """Kernels compiled for ``arch``, on all cores, and kept in the cache. Raises GraphfuseError without NVRTC."""
    from graphfuse.jit.cache import default_cache

    made = compile_kernels([(region.program, kernel.fixed) for region, kernel in wanted], [arch])
    for (region, kernel), compiled in zip(wanted, made, strict=True):
        default_cache().put(_key(region, kernel, arch), pack(region, (compiled,)))
    return made


def _key(region: Region, kernel: Kernel, arch: str) -> str:
    from graphfuse.jit import cache, nvrtc

    fixed = [f"{name}={size}" for name, size in sorted(kernel.fixed.items())]
    return cache.key("kernel", region.spec, arch, fixed, f"nvrtc {nvrtc.version()} code {_code()} tuned {_tuned()}")


@lru_cache(maxsize=1)
def _code() -> str:
    """Changes with the code that generates kernels."""
    import graphfuse

    digest = hashlib.sha256(graphfuse.__version__.encode())
    for path in sorted(Path(graphfuse.__file__).parent.rglob("*")):
        if path.suffix in (".py", ".cuh", ".h", ".cu"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _tuned() -> str:
    """Changes with the tables of tuned configurations."""
    from graphfuse.tune import database

    facts = []
    for path in (database.database_file(), database.SHIPPED):
        try:
            found = path.stat() if path else None
        except OSError:
            found = None
        facts.append(f"{found.st_size} {found.st_mtime_ns}" if found else "none")
    return "; ".join(facts)
