"""Bars for the phases of a build, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from graphfuse.engine.progress import Progress as Shown


class Phases:
    """A bar for each phase that is going on, an inner one under its outer one and further in; gone when the phase is over."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._open: dict[str, tuple[TaskID, int]] = {}  # with its depth; names are unique among those going on

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        depth = self._open[parent][1] + 1 if parent in self._open else 0
        self._open[phase] = self._bars.add_task("  " * depth + phase, total=steps), depth

    def step(self, phase: str, done: int) -> None:
        self._bars.update(self._open[phase][0], completed=done)

    def finish(self, phase: str) -> None:
        task, _ = self._open.pop(phase)
        self._bars.remove_task(task)


@contextmanager
def phases(text: str) -> Iterator[Shown | None]:
    """Shows phases on stderr under a line of text while it lasts; None in a pipe, where nothing is to be shown."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bars.add_task(text, total=None)
        yield Phases(bars)
