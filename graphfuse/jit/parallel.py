"""Many kernels for many architectures: from the cache, else compiled in as many processes as there are cores.

NVRTC gains nothing from threads, so the work is shared with child processes (``python -m graphfuse.jit.worker``). They
are started by hand, not by ``multiprocessing``, which would run the user's main script again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from graphfuse.ir.errors import GraphfuseError
from graphfuse.jit import cache as caches
from graphfuse.jit import nvrtc, worker
from graphfuse.jit.cache import Cache, default_cache
from graphfuse.jit.nvrtc import Cubin
from graphfuse.jit.worker import Job

if TYPE_CHECKING:
    from graphfuse.codegen.source import KernelSource

Progress = Callable[[int, int], None]
_WORTH_A_PROCESS = 10  # compiles, of about 0.07 s each; a process costs 0.4 s to start, and more on a busy machine


def cached_cubin(text: str, arch: str, *, options: Sequence[str] = (), cache: Cache | None = None) -> Cubin:
    """``compile_image`` through the cache. Raises what it raises."""
    cache = cache or default_cache()
    key = _key(text, arch, options)
    found = _stored(cache, key)
    if found is None:
        found = nvrtc.compile_image(text, arch, options=options)
        cache.put(key, found.to_bytes())
    return found


def compile_many(
    sources: Sequence[KernelSource],
    archs: Sequence[str],
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    cache: Cache | None = None,
) -> list[dict[str, Cubin]]:
    """For each source, its compiled code by architecture (``sm_XX``, or ``compute_XX`` for PTX).

    ``jobs`` is the number of processes at most (default: the cores); ``progress(done, total)`` is called from any thread
    after each compile. Raises CompileError for the first source that does not compile, Unavailable without NVRTC.
    """
    cache = cache or default_cache()
    for arch in archs:
        nvrtc.check_arch(arch)
    wanted = {_key(s.text, a, ()): Job(s.text, a) for s in sources for a in archs}
    done = {key: cubin for key in wanted if (cubin := _stored(cache, key))}
    missing = {key: job for key, job in wanted.items() if key not in done}

    def finish(key: str, cubin: Cubin) -> None:
        cache.put(key, cubin.to_bytes())
        done[key] = cubin
        if progress:
            progress(len(done), len(wanted))

    _share(missing, jobs or len(os.sched_getaffinity(0)), finish)
    return [{a: done[_key(s.text, a, ())] for a in archs} for s in sources]


def _share(missing: dict[str, Job], processes: int, finish: Callable[[str, Cubin], None]) -> None:
    """This process compiles its share itself; a thread waits for each child."""
    count = max(1, min(processes, len(missing) // _WORTH_A_PROCESS))
    keys = list(missing)
    shares = [{k: missing[k] for k in keys[i::count]} for i in range(count)]
    with ThreadPoolExecutor(max(1, count - 1)) as pool:
        children = [pool.submit(_in_child, share, finish) for share in shares[1:]]
        for key, job in shares[0].items():
            finish(key, nvrtc.compile_image(job.text, job.arch))
    for child in children:
        child.result()


def _in_child(share: dict[str, Job], finish: Callable[[str, Cubin], None]) -> None:
    """Compiles a share in a child process; what a child that broke off left undone is compiled here, with its errors."""
    left = dict(share)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.curdir for p in sys.path)}
    command = [sys.executable, "-m", "graphfuse.jit.worker"]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as child:
            assert child.stdin
            assert child.stdout
            worker.write_jobs(child.stdin, share.values())
            for key, data in zip(share, worker.read_frames(child.stdout), strict=False):
                finish(key, Cubin.from_bytes(data))
                del left[key]
    except (OSError, ValueError):
        pass
    for key, job in left.items():
        finish(key, nvrtc.compile_image(job.text, job.arch))


def _stored(cache: Cache, key: str) -> Cubin | None:
    data = cache.get(key)
    try:
        return Cubin.from_bytes(data) if data is not None else None
    except ValueError:
        cache.drop(key)
        return None


def _key(text: str, arch: str, options: Sequence[str]) -> str:
    if not isinstance(text, str):
        raise GraphfuseError("kernel source is not text")
    return caches.key("cubin", text, arch, (*nvrtc.NUMERIC_OPTIONS, *options), f"nvrtc {nvrtc.version()}")
