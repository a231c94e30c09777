"""Reads the assembler's resource report (``--ptxas-options=-v``) out of a compile log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_BARRIERS = re.compile(r"used (\d+) barriers")


@dataclass(frozen=True)
class Resources:
    """What one entry uses: registers a thread; bytes of shared memory a block; bytes of stack and of spills a thread."""

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_stores: int
    spill_loads: int
    barriers: int = 0


def resources(log: str) -> dict[str, Resources]:
    """Entry name to resources, for each entry that the log reports on."""
    return {name: _parse(part) for name, part in _sections(log)}


def _sections(log: str) -> Iterator[tuple[str, str]]:
    marks = list(_ENTRY.finditer(log))
    ends = [m.start() for m in marks[1:]] + [len(log)]
    for mark, end in zip(marks, ends, strict=False):
        yield mark[1], log[mark.end() : end]


def _parse(part: str) -> Resources:
    stack = _STACK.search(part)
    frame, stores, loads = (int(g) for g in stack.groups()) if stack else (0, 0, 0)
    return Resources(_number(_USED, part), _number(_SHARED, part), frame, stores, loads, _number(_BARRIERS, part))


def _number(pattern: re.Pattern[str], part: str) -> int:
    found = pattern.search(part)
    return int(found[1]) if found else 0
