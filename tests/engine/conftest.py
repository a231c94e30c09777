"""Ctrl-C in this tier: a shell ignores it for what it runs in the background, and Python and its children then do as well."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """SIGINT as a person at a terminal has it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
