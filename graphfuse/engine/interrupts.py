"""Ctrl-C during a build: held back until it can do no harm.

An exception inside certain callbacks of TensorRT would crash the process, so none is raised there. The build is asked to
stop at its next step instead (``progress``), and the interrupt is raised once TensorRT has returned.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Whether Ctrl-C was pressed since the hold began."""

    pressed = False

    def check(self) -> None:
        """Raises KeyboardInterrupt if it was; for places between TensorRT's calls."""
        if self.pressed:
            raise KeyboardInterrupt


@contextmanager
def interrupts_held() -> Iterator[Interrupts]:
    """Ctrl-C is noted while it lasts and handed on at the end. Only the main thread has interrupts to hold."""
    held = Interrupts()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield held
        return

    def hold(number: int, frame: FrameType | None) -> None:
        held.pressed = True

    signal.signal(signal.SIGINT, hold)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)
        if held.pressed:  # an error that the interrupt brought about gives way to it
            before(signal.SIGINT, None)
