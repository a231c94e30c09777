"""Which patterns there are: ours, those of installed packages, those of the user's own files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Union

from graphfuse.ir.errors import GraphfuseError
from graphfuse.patterns.library import LIBRARY
from graphfuse.patterns.pattern import Pattern

GROUP = "graphfuse.patterns"
_MODULE = "graphfuse_user_patterns"
Source = Union[Pattern, str, "os.PathLike[str]"]


def user_patterns(sources: Iterable[Source] = ()) -> tuple[Pattern, ...]:
    """The patterns in ``sources``: patterns, or files of some, which are executed now.

    Raises GraphfuseError for a file that cannot be executed or that defines no pattern.
    """
    listed = [sources] if isinstance(sources, str | os.PathLike | Pattern) else sources
    return tuple(p for s in listed for p in ([s] if isinstance(s, Pattern) else from_file(Path(s))))


def all_patterns(sources: Iterable[Source] = ()) -> tuple[Pattern, ...]:
    """The user's ``sources``, then ours and those of packages. Raises GraphfuseError, also for a name that two patterns have."""
    found = (*user_patterns(sources), *LIBRARY, *installed())
    names: set[str] = set()
    for pattern in found:
        if pattern.name in names:
            raise GraphfuseError(f"pattern {pattern.name!r} is defined twice; give one of them another name")
        names.add(pattern.name)
    return found


def from_file(path: Path) -> list[Pattern]:
    """Executes a Python file, which the user has to trust, and returns the patterns that are its global names."""
    if not path.is_file():
        raise GraphfuseError(f"{path}: no such file of patterns; check the path")
    module = ModuleType(_MODULE)
    module.__file__ = str(path)
    before = sys.modules.get(_MODULE)
    sys.modules[_MODULE] = module  # dataclasses, for one, look their module up
    try:
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    except Exception as error:  # whatever the user's code raises
        line = next((t for t in reversed(_lines(error, str(path)))), None)
        where = f"{path}:{line}" if line else str(path)
        raise GraphfuseError(f"{where}: cannot be executed: {type(error).__name__}: {error}; mend the file") from error
    finally:
        if before is None:
            del sys.modules[_MODULE]
        else:
            sys.modules[_MODULE] = before
    return _patterns(list(vars(module).values()), str(path))


def _lines(error: BaseException, path: str) -> list[int]:
    lines, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return lines


def _patterns(items: Iterable[Any], where: str) -> list[Pattern]:
    flat = [p for item in items for p in (item if isinstance(item, list | tuple) else [item])]
    found = list({id(p): p for p in flat if isinstance(p, Pattern)}.values())
    if not found:
        raise GraphfuseError(f"{where}: defines no pattern; give a graphfuse.patterns.Pattern a name of its own there")
    return found


@cache
def installed() -> tuple[Pattern, ...]:
    """The patterns of installed packages: entry points of the group ``graphfuse.patterns``, a pattern, a list of some, or a module."""
    return tuple(p for point in sorted(entry_points(group=GROUP), key=lambda e: e.name) for p in _from_package(point))


def _from_package(point: EntryPoint) -> list[Pattern]:
    try:
        item = point.load()
    except Exception as error:  # whatever the package raises
        raise GraphfuseError(f"the patterns of entry point {point.name!r} cannot be loaded: {error}; mend or remove its package") from error
    return _patterns(vars(item).values() if isinstance(item, ModuleType) else [item], f"entry point {point.name!r}")
