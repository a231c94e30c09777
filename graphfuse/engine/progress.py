"""How far a build is: TensorRT's progress monitor, told to whoever shows it; and the way to stop a build."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol


class Progress(Protocol):
    """Shows phases of a build. TensorRT's are nested, named for people, and may come from several threads."""

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        """A phase of so many steps begins, inside of another one or of none."""

    def step(self, phase: str, done: int) -> None:
        """So many of its steps are done."""

    def finish(self, phase: str) -> None:
        """It is over, whether or not all steps were done."""


class Silent:
    """Shows nothing."""

    def start(self, phase: str, parent: str | None, steps: int) -> None: ...

    def step(self, phase: str, done: int) -> None: ...

    def finish(self, phase: str) -> None: ...


class Unfailing:
    """Shows what another one shows; what goes wrong there does not end the build."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        with suppress(Exception):
            self._shown.start(phase, parent, steps)

    def step(self, phase: str, done: int) -> None:
        with suppress(Exception):
            self._shown.step(phase, done)

    def finish(self, phase: str) -> None:
        with suppress(Exception):
            self._shown.finish(phase)


class Monitor:
    """The part of TensorRT's monitor that is ours."""

    def __init__(self, shown: Progress, stopped: Callable[[], bool]) -> None:
        self._shown = shown
        self._stopped = stopped

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        self._shown.start(phase_name, parent_phase, num_steps)

    def step_complete(self, phase_name: str, step: int) -> bool:
        """False stops the build: TensorRT returns without an engine."""
        self._shown.step(phase_name, step + 1)
        return not self._stopped()

    def phase_finish(self, phase_name: str) -> None:
        self._shown.finish(phase_name)


def make_monitor(trt: Any, shown: Progress, stopped: Callable[[], bool]) -> Any:
    """A monitor for a builder's config, which must outlive it; ``stopped`` is asked after every step."""
    return _monitor_class(trt)(shown, stopped)


@lru_cache(maxsize=4)
def _monitor_class(trt: Any) -> Any:
    def init(self: Any, shown: Progress, stopped: Callable[[], bool]) -> None:
        trt.IProgressMonitor.__init__(self)
        Monitor.__init__(self, shown, stopped)

    return type("BuildMonitor", (Monitor, trt.IProgressMonitor), {"__init__": init})
