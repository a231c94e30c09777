"""Compiled artefacts, kept in memory and on disk between runs.

The folder is ``$GRAPHFUSE_CACHE_DIR``, else the user's cache folder. ``GRAPHFUSE_CACHE_DIR=`` (set, but empty) keeps
everything in memory. A folder that cannot be written, or that others could write to, is not used either: the files
hold machine code. Every file ends in a checksum, so that a damaged one is built again; files appear by an atomic
rename, so that processes may write the same entry at once. Files used longest ago go first when the limit is reached.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

VERSION = "1"  # of the file format and of what the keys cover
_MAGIC = b"GFCACHE1"
_TRAILER = len(_MAGIC) + 32
_LIMIT = 512 << 20
_MEMORY_LIMIT = 64 << 20
_STALE_SECONDS = 3600.0  # a temporary file this old belongs to a process that died


def key(kind: str, text: str, arch: str, options: Sequence[str], compiler: str) -> str:
    """The name of an artefact: a hash over all that its bytes depend on. Each part is hashed with its length."""
    digest = hashlib.sha256()
    for part in (VERSION, kind, text, arch, compiler, str(len(options)), *options):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def default_folder() -> Path | None:
    """Where artefacts are kept on disk; None if the user switched that off."""
    chosen = os.environ.get("GRAPHFUSE_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    try:
        import platformdirs
    except ImportError:
        return Path.home() / ".cache" / "graphfuse"
    return Path(platformdirs.user_cache_dir("graphfuse"))


@dataclass(frozen=True)
class Stored:
    """A file of the cache: its key, its size in bytes, and when it was last used (seconds since 1970)."""

    name: str
    size: int
    used: float


class Cache:
    """``get`` and ``put`` bytes by key. Never raises for a file system's sake: at worst, nothing is kept on disk."""

    def __init__(self, folder: Path | None, limit_bytes: int = _LIMIT, memory_bytes: int = _MEMORY_LIMIT) -> None:
        self.folder = _own_folder(folder / f"v{VERSION}") if folder else None
        self.limit_bytes = limit_bytes
        self.written = 0  # entries put since this object was made
        self._memory: OrderedDict[str, bytes] = OrderedDict()
        self._memory_left = memory_bytes
        self._unscanned = limit_bytes  # bytes written since the last look at the folder; look at the first write
        self._lock = threading.Lock()

    def get(self, name: str) -> bytes | None:
        """The payload stored under this key; None if there is none, or if its file is damaged."""
        with self._lock:
            if name in self._memory:
                self._memory.move_to_end(name)
                return self._memory[name]
        payload = self._read(name)
        if payload is not None:
            self._remember(name, payload)
        return payload

    def put(self, name: str, payload: bytes) -> Path | None:
        """Stores the payload; returns its file, None if it is kept in memory only."""
        self.written += 1
        self._remember(name, payload)
        return self._write(name, payload) if self.folder else None

    def file(self, name: str) -> Path | None:
        """The file of a sound entry, for loaders that need one (its last bytes are a checksum); None if there is none."""
        path = self._path(name)
        return path if path and self._read(name) is not None else None

    def drop(self, name: str) -> None:
        """Forgets an entry whose payload turned out to be unusable."""
        with self._lock:
            gone = self._memory.pop(name, None)
            self._memory_left += len(gone) if gone else 0
        _unlink(self._path(name))

    def stored(self) -> list[Stored]:
        """The entries on disk, the one used last first."""
        files = [(used, size, path) for used, size, path in (_files(self.folder) if self.folder else ()) if path.suffix == ".bin"]
        return [Stored(path.stem, size, used) for used, size, path in sorted(files, reverse=True)]

    def peek(self, name: str) -> bytes | None:
        """As ``get``, but it does not count as a use."""
        path = self._path(name)
        return _payload(path) if path else None

    def clear(self) -> tuple[int, int]:
        """Deletes every entry, in memory and on disk, and what interrupted writers left; number of files and bytes freed.

        A process that is writing or reading meanwhile goes on unharmed: it finds, or leaves, whole entries or none.
        """
        with self._lock:
            self._memory_left += sum(map(len, self._memory.values()))
            self._memory.clear()
        gone = [(size, path) for _, size, path in (_files(self.folder) if self.folder else ()) if path.suffix in (".bin", ".tmp")]
        for _, path in gone:
            _unlink(path)
        return len(gone), sum(size for size, _ in gone)

    def _path(self, name: str) -> Path | None:
        return self.folder / f"{name}.bin" if self.folder else None

    def _remember(self, name: str, payload: bytes) -> None:
        with self._lock:
            old = self._memory.pop(name, None)
            self._memory_left += len(old) if old else 0
            self._memory[name] = payload
            self._memory_left -= len(payload)
            while self._memory_left < 0 and len(self._memory) > 1:
                self._memory_left += len(self._memory.popitem(last=False)[1])

    def _read(self, name: str) -> bytes | None:
        path = self._path(name)
        payload = _payload(path) if path else None
        if path and payload is not None:
            _touch(path)
        return payload

    def _write(self, name: str, payload: bytes) -> Path | None:
        path = self._path(name)
        assert self.folder is not None
        assert path is not None
        try:
            handle, temporary = tempfile.mkstemp(prefix="new-", suffix=".tmp", dir=self.folder)
        except OSError:
            return None
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(payload + _MAGIC + hashlib.sha256(payload).digest())
            Path(temporary).replace(path)
        except OSError:  # a full disk
            _unlink(Path(temporary))
            return None
        self._evict(len(payload))
        return path

    def _evict(self, written: int) -> None:
        """Deletes the files used longest ago until the folder is under nine tenths of its limit. Looks only now and then."""
        self._unscanned += written
        if self.folder is None or self._unscanned < self.limit_bytes // 16:
            return
        self._unscanned = 0
        files = sorted(_files(self.folder))
        total = sum(size for _, size, _ in files)
        for used, size, path in files:
            stale = path.suffix == ".tmp" and used < time.time() - _STALE_SECONDS
            if stale or (total > self.limit_bytes * 9 // 10 and path.suffix == ".bin"):
                _unlink(path)
                total -= size


def default_cache() -> Cache:
    """The process's cache for the folder that the environment names now."""
    folder = default_folder()
    with _lock:
        if folder not in _caches:
            _caches[folder] = Cache(folder)
        return _caches[folder]


_caches: dict[Path | None, Cache] = {}
_lock = threading.Lock()


def _own_folder(folder: Path) -> Path | None:
    """The folder, made if need be; None unless it is ours alone to write."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    shared = status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return None if shared or not os.access(folder, os.W_OK | os.X_OK) else folder


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            status = entry.stat()
        except OSError:  # another process was faster
            continue
        yield status.st_mtime, status.st_size, Path(entry.path)


def _payload(path: Path) -> bytes | None:
    """What a file holds; a damaged one is deleted."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    payload, trailer = data[:-_TRAILER], data[-_TRAILER:]
    if trailer != _MAGIC + hashlib.sha256(payload).digest():
        _unlink(path)
        return None
    return payload


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(path)


def _unlink(path: Path | None) -> None:
    try:
        if path is not None:
            path.unlink()
    except OSError:
        pass
