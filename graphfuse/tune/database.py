"""Tuned configurations, looked up when a kernel is generated: those measured here, then those that ship with the package.

A file of them may have been downloaded: it is read with limits, and an entry can only choose among legal configurations,
which never change a result. What is damaged is passed over with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import graphfuse
from graphfuse.codegen.config import Config
from graphfuse.ir import Program, dumps
from graphfuse.ir.errors import GraphfuseError
from graphfuse.tune.files import data_folder, write_json

VERSION = 1
LIMIT = 16 << 20  # bytes of a file that is read
SHIPPED = Path(__file__).parent / "tuned.json"


@dataclass(frozen=True)
class Entry:
    """One decision, with the figures behind it. ``us`` and ``default_us`` are microseconds, measured in turns."""

    config: Config
    us: float
    default_us: float
    tried: int
    region: str
    dtypes: tuple[str, ...]
    sizes: dict[str, int]
    gpu: str
    driver: int
    nvrtc: str
    date: str

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "config": self.config.to_json()}


def key(program: Program, arch: str, sizes: Mapping[str, int] | None = None) -> str:
    """What an entry is found by: the program (dtypes and fixed shapes are in it), the bucket of open sizes, arch, version."""
    digest = hashlib.sha256(dumps(program).encode()).hexdigest()[:32]
    return "|".join((digest, bucket(program, sizes or {}), arch, graphfuse.__version__))


def bucket(program: Program, sizes: Mapping[str, int]) -> str:
    """Open sizes rounded up to powers of two, by name: sizes of one bucket share a configuration."""
    return ",".join(f"{name}={1 << max(0, sizes[name] - 1).bit_length()}" for name in program.symbols if name in sizes)


def lookup(program: Program, arch: str, sizes: Mapping[str, int] | None = None) -> Config | None:
    """The tuned configuration of a program, None where there is none. Reads only; a bad file or entry counts as none.

    Where a program leaves sizes open and ``sizes`` are not known, an entry is taken only if those of all buckets agree.
    """
    tables = [table for path in (database_file(), SHIPPED) if path is not None and (table := _entries(path))]
    if not tables:
        return None
    digest, _, *rest = key(program, arch).split("|")
    if sizes or not program.symbols:
        wanted = key(program, arch, sizes)
        return next((config for table in tables if (config := table.get(wanted)) is not None), None)
    for table in tables:
        found = {config for name, config in table.items() if name.split("|")[0] == digest and name.split("|")[2:] == rest}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def database_file() -> Path | None:
    """The file of this machine: ``$GRAPHFUSE_TUNED``, else one in the data folder. ``GRAPHFUSE_TUNED=`` (empty) means none."""
    chosen = os.environ.get("GRAPHFUSE_TUNED")
    if chosen is not None:
        return Path(chosen) if chosen else None
    return data_folder() / "tuned.json"


def store(entries: Mapping[str, Entry], path: Path) -> None:
    """Adds entries to a file, in place of older ones for the same keys. Raises GraphfuseError where it cannot be written."""
    with _lock:
        known = _document(path)["entries"] if path.exists() else {}
        known.update((name, entry.to_json()) for name, entry in entries.items())
        write_json(path, {"version": VERSION, "entries": dict(sorted(known.items()))})


_lock = threading.Lock()


def _entries(path: Path) -> dict[str, Config]:
    try:
        status = path.stat()
    except OSError:
        return {}
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):  # reading a pipe would wait for its writer
        warnings.warn(f"{path}: not a file of tuned configurations; going without it", stacklevel=2)
        return {}
    return _parsed(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _parsed(path: Path, changed: int, size: int) -> dict[str, Config]:
    """The configurations of a file, by key; ``changed`` and ``size`` make a rewritten file a new one."""
    try:
        entries = _document(path)["entries"]
    except GraphfuseError as error:
        warnings.warn(f"{error}; going without it", stacklevel=2)
        return {}
    found = {}
    for name, entry in entries.items():
        try:
            found[name] = Config.from_json(entry["config"])
        except (GraphfuseError, KeyError, TypeError) as error:
            warnings.warn(f"{path}: entry {name[:40]!r} passed over: {error}", stacklevel=2)
    return found


def _document(path: Path) -> dict[str, Any]:
    """The file as JSON. Raises GraphfuseError unless it is a database of this version."""
    try:
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
        if len(data) > LIMIT:
            raise GraphfuseError(f"{path}: over {LIMIT >> 20} MB, too large for tuned configurations; delete it or tune again")
        document = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise GraphfuseError(f"{path}: not a file of tuned configurations ({error}); delete it or tune again") from error
    if not isinstance(document, dict) or document.get("version") != VERSION or not isinstance(document.get("entries"), dict):
        raise GraphfuseError(f"{path}: not a file of tuned configurations of version {VERSION}; delete it or tune again")
    return document
