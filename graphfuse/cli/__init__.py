"""The command line: thin commands over the Python face, one small file for each group."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line (``sys.argv`` by default); returns the exit code: 0 fine, 1 a check failed, 2 bad input."""
    from graphfuse.cli.app import run

    return run(arguments)
