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


class Cache:
    """``get`` and ``put`` bytes by key. Never raises for a file system's sake: at worst, nothing is kept on disk."""

    def __init__(self, folder: Path | None, limit_bytes: int = _LIMIT, memory_bytes: int = _MEMORY_LIMIT) -> None:
        self.folder = _own_folder(folder / f"v{VERSION}") if folder else None
        self.limit_bytes = limit_bytes
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
        if path is None:
            return None
        try:
            data = path.read_bytes()
        except OSError:
            return None
        payload, trailer = data[:-_TRAILER], data[-_TRAILER:]
        if trailer != _MAGIC + hashlib.sha256(payload).digest():
            _unlink(path)
            return None
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


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(path)


def _unlink(path: Path | None) -> None:
    try:
        if path is not None:
            path.unlink()
    except OSError:
        pass
