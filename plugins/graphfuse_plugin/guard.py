"""No callback of ours may throw into TensorRT unseen.

TensorRT calls the plugin from C++. An exception there is at best a line on stderr and a build that fails for an unnamed
reason; from some callbacks it is an engine without its kernels, or a crash of the process. So every callback is wrapped: what
it raises is stored with its traceback in the *build* that is going on, and whoever started the build raises it again.

Where TensorRT takes an exception for a clean failure (``guarded``), it gets a short one. Where it would not
(``guarded_or``), it gets a value that does no harm; a plan made then lacks the fields and does not load. A value of the wrong
kind, which TensorRT reports as badly or not at all, is an exception as well (``returns``).
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class CallbackFailed(RuntimeError):
    """What TensorRT is told; the story is in the build's failures."""


@dataclass(frozen=True)
class Failure:
    """An exception of a callback; it still holds its traceback."""

    callback: str
    error: BaseException


@dataclass
class Build:
    """One engine build: the architectures to compile for (None: the machine's own default) and what went wrong.

    ``shared`` holds what equal regions have in common, what TensorRT points into among it, so that it outlives the plugins
    (only the latest ``limit`` where nobody says when the build ends); ``plugins`` those themselves; ``compiled`` the kernels.
    """

    targets: tuple[str, ...] | None = None
    failures: deque[Failure] = field(default_factory=lambda: deque(maxlen=32))
    shared: OrderedDict[Any, Any] = field(default_factory=OrderedDict)
    limit: int | None = None
    plugins: deque[object] = field(default_factory=deque)
    compiled: dict[Any, Any] = field(default_factory=dict)

    def reraise(self) -> None:
        """Raise the first stored exception with its own traceback, and forget all of them. Nothing happens if there is none."""
        if self.failures:
            first = self.failures[0].error
            self.failures.clear()
            raise first

    def share(self, key: Any, make: Callable[[], T]) -> T:
        """What ``make`` returned for this key the first time."""
        found: T | None = self.shared.get(key)
        if found is None:
            found = self.shared[key] = make()
            if self.limit is not None and len(self.shared) > self.limit:
                self.shared.popitem(last=False)
        return found

    def abandon(self) -> None:
        """Keep the plugins for good: of a build that is stopped halfway TensorRT gives some of them back once too often."""
        while self.plugins:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.plugins.popleft()))


_AMBIENT = Build(limit=64, plugins=deque(maxlen=0))  # for builds that others drive, and for engines at run time
_active: list[tuple[int, Build]] = []
_LOCK = threading.Lock()


def _after_fork() -> None:
    """Whoever held the lock, or was building, is not in the child."""
    global _LOCK
    _LOCK = threading.Lock()
    _active[:] = [entry for entry in _active if entry[0] == threading.get_ident()]


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def building(targets: Sequence[str] | None = None) -> Iterator[Build]:
    """While it lasts, regions configured by this thread's builder are compiled for ``targets`` (``sm_89``...)."""
    build = Build(None if targets is None else tuple(targets))
    entry = (threading.get_ident(), build)
    with _LOCK:
        _active.append(entry)
    try:
        yield build
    except BaseException:
        build.abandon()
        raise
    finally:
        with _LOCK:
            _active.remove(entry)


def current() -> Build:
    """The build of this thread; for a thread that TensorRT made, the latest one; outside of builds, the process's."""
    with _LOCK:
        own = [b for thread, b in _active if thread == threading.get_ident()]
        return (own or [b for _, b in _active] or [_AMBIENT])[-1]


def reraise() -> None:
    """Raise the first exception that a callback has stored outside of ``building`` blocks, or in the current one."""
    current().reraise()


def record(callback: str, error: BaseException) -> None:
    """Store an exception. Its frames are emptied: they hold objects that live only as long as the callback."""
    if error.__traceback__ is not None:
        traceback.clear_frames(error.__traceback__)
    current().failures.append(Failure(callback, error))


def guarded(method: F) -> F:
    """For callbacks from which TensorRT takes an exception as a failure of the parse, the build or the execution."""

    @functools.wraps(method)
    def call(*args: Any) -> Any:
        try:
            return method(*args)
        except BaseException as error:
            raise failed(method.__name__, error) from None

    return cast(F, call)


def failed(callback: str, error: BaseException) -> CallbackFailed:
    """What TensorRT is to be told of an exception, which is stored."""
    record(callback, error)
    return CallbackFailed(f"{type(error).__name__}: {error}")


def guarded_or(harmless: Callable[..., Any]) -> Callable[[F], F]:
    """For callbacks that must return: on an exception they return ``harmless(*args)``."""

    def wrap(method: F) -> F:
        @functools.wraps(method)
        def call(*args: Any) -> Any:
            try:
                return method(*args)
            except BaseException as error:
                record(method.__name__, error)
                return harmless(*args)

        return cast(F, call)

    return wrap


def returns(check: Callable[[Any, Any], bool], what: str) -> Callable[[F], F]:
    """Inside of the others: a value for which ``check(self, value)`` does not hold is a TypeError that names the callback."""

    def wrap(method: F) -> F:
        @functools.wraps(method)
        def call(self: Any, *args: Any) -> Any:
            value = method(self, *args)
            if not check(self, value):
                raise TypeError(f"{method.__name__} of a fused region returned {repr(value)[:80]} instead of {what}; please report it")
            return value

        return cast(F, call)

    return wrap
