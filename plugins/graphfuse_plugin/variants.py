"""Kernels hardened at run time: where it is asked for, sizes that an engine meets get kernels of their own.

They are compiled in a thread beside the engine's work; until one is there, the general kernel serves. How many are kept is
bounded: of those that nobody has used for longest, the description and the machine code are dropped. What the driver has
loaded stays loaded, because a captured graph may hold it; so the number of kernels ever loaded is bounded as well.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from graphfuse_plugin.fields import Kernel
from graphfuse_plugin.kernels import compile_kernels
from graphfuse_plugin.region import Region

SWITCH = "GRAPHFUSE_SPECIALISE"  # the environment's way to ask: how many kernels to keep
LOADS_FOR_EACH = 8  # kernels loaded at most over a process's life, for each one kept
Key = tuple[str, tuple[tuple[str, int], ...], str]  # spec, sizes, architecture


class Variants:
    """At most ``limit`` hardened kernels, least recently used first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._jobs: OrderedDict[Key, Future[Kernel | None]] = OrderedDict()
        self._started = 0
        self._pool = ThreadPoolExecutor(1, "graphfuse-specialise")
        self._lock = threading.Lock()

    def find(self, region: Region, env: Mapping[str, int], arch: str) -> Kernel | None:
        """The kernel for exactly these sizes if it is ready; if it is not, it will be. Never waits."""
        key = region.spec, tuple(sorted(env.items())), arch
        with self._lock:
            job = self._jobs.get(key) or self._start(key, region, dict(env))
            if job is None:
                return None
            self._jobs.move_to_end(key)
        return job.result() if job.done() and not job.cancelled() else None

    def _start(self, key: Key, region: Region, env: dict[str, int]) -> Future[Kernel | None] | None:
        if self._started >= self.limit * LOADS_FOR_EACH:
            return None
        self._started += 1
        self._jobs[key] = job = self._pool.submit(_compile, region, env, key[2])
        while len(self._jobs) > self.limit:
            self._jobs.popitem(last=False)[1].cancel()
        return job

    def wait(self) -> None:
        """Until everything asked for is compiled."""
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            job.exception()

    def __len__(self) -> int:
        return len(self._jobs)

    def close(self) -> None:
        """Drop what is not being compiled yet."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _compile(region: Region, env: dict[str, int], arch: str) -> Kernel | None:
    """None where it cannot be compiled: the general kernel goes on serving, and the reason is logged."""
    try:
        (kernel,) = compile_kernels([(region.program, env)], [arch])
    except Exception as error:
        logging.getLogger("graphfuse").warning("no kernel hardened for %s: %s", env, error)
        return None
    return kernel if kernel.fixed == env else None


_installed: Any = ...  # not decided yet


def specialise(limit: int | None) -> Variants | None:
    """From now on keep up to ``limit`` kernels hardened for the sizes that engines meet; None or 0: none, the default.

    The environment variable GRAPHFUSE_SPECIALISE=limit does the same for a process that loads this package.
    """
    global _installed
    if isinstance(_installed, Variants):
        _installed.close()
    made = _installed = Variants(limit) if limit else None
    return made


def active() -> Variants | None:
    """The process's kernels, None unless somebody asked for them."""
    if _installed is ...:
        text = os.environ.get(SWITCH, "")
        specialise(int(text) if text.isdecimal() else None)
    found: Variants | None = _installed
    return found


def _after_fork() -> None:
    """The child has no worker thread; it begins anew."""
    global _installed
    _installed = Variants(_installed.limit) if isinstance(_installed, Variants) else _installed


os.register_at_fork(after_in_child=_after_fork)
