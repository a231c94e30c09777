"""The cache of compiled artefacts: hits, damage, limits, processes at once, folders that cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphfuse.jit import cache as caches
from graphfuse.jit.cache import Cache, default_cache, default_folder, key

NAME = key("test", "text", "sm_80", (), "1.0")


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.bin"))


def test_key_covers_every_part() -> None:
    base = ("cubin", "text", "sm_80", ("-a", "-b"), "nvrtc 13.5")
    others = [
        ("so", *base[1:]), (base[0], "text ", *base[2:]), (*base[:2], "sm_90", *base[3:]), (*base[:3], ("-a",), base[4]),
        (*base[:3], ("-a-b",), base[4]), (*base[:3], ("-b", "-a"), base[4]), (*base[:4], "nvrtc 13.6"), ("cubintext", "", *base[2:]),
    ]  # fmt: skip
    keys = {key(*parts) for parts in [base, *others]}  # type: ignore[arg-type]
    assert len(keys) == len(others) + 1
    assert key(*base) == key(*base)  # type: ignore[arg-type]


def test_stored_in_one_object_found_in_another(tmp_path: Path) -> None:
    assert Cache(tmp_path).get(NAME) is None
    Cache(tmp_path).put(NAME, b"payload" * 100)
    fresh = Cache(tmp_path)
    assert fresh.get(NAME) == b"payload" * 100
    file = fresh.file(NAME)
    assert file is not None
    assert file.read_bytes().startswith(b"payload")


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:10], lambda b: b"", lambda b: b"P" + b[1:], lambda b: b + b"x"])
def test_damaged_file_counts_as_missing(tmp_path: Path, damage: object) -> None:
    Cache(tmp_path).put(NAME, b"payload" * 100)
    (path,) = files(tmp_path)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    cache = Cache(tmp_path)
    assert cache.get(NAME) is None
    assert cache.file(NAME) is None
    assert not files(tmp_path)
    cache.put(NAME, b"again")
    assert Cache(tmp_path).get(NAME) == b"again"


def test_drop(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put(NAME, b"payload")
    cache.drop(NAME)
    cache.drop(NAME)
    assert cache.get(NAME) is None
    assert not files(tmp_path)


def test_limit_removes_what_was_used_longest_ago(tmp_path: Path) -> None:
    for i in range(10):
        Cache(tmp_path, limit_bytes=1 << 20).put(f"entry{i}", bytes(1000))
        path = tmp_path / f"v{caches.VERSION}" / f"entry{i}.bin"
        os.utime(path, (time.time() - 1000 + i,) * 2)
    assert Cache(tmp_path).get("entry0") is not None  # used now: no longer the oldest
    Cache(tmp_path, limit_bytes=6000).put("last", bytes(1000))
    left = {p.stem for p in files(tmp_path)}
    assert {"entry0", "last", "entry9"} <= left
    assert "entry1" not in left
    assert sum(p.stat().st_size for p in files(tmp_path)) <= 6000


def test_stale_temporary_files_are_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.folder is not None
    old, new = cache.folder / "new-old.tmp", cache.folder / "new-new.tmp"
    for path, age in ((old, 9999), (new, 0)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    cache.put(NAME, b"payload")
    assert not old.exists()
    assert new.exists()


def test_memory_limit() -> None:
    cache = Cache(None, memory_bytes=2500)
    for i in range(4):
        cache.put(f"entry{i}", bytes(1000))
    cache.put("entry3", bytes(1000))
    assert [cache.get(f"entry{i}") is not None for i in range(4)] == [False, False, True, True]


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = Cache(tmp_path / "file" / "cache")
    assert cache.folder is None
    assert cache.put(NAME, b"payload") is None
    assert cache.get(NAME) == b"payload"
    assert cache.file(NAME) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    cache = Cache(tmp_path)
    cache.put(NAME, b"payload")
    assert cache.folder is None
    assert cache.get(NAME) == b"payload"


def test_folder_that_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    folder = tmp_path / f"v{caches.VERSION}"
    Cache(tmp_path).put(NAME, b"payload")
    folder.chmod(0o777)
    assert Cache(tmp_path).folder is None
    folder.chmod(0o700)
    assert Cache(tmp_path).get(NAME) == b"payload"


def test_full_disk_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    cache = Cache(tmp_path)
    assert cache.put(NAME, b"payload") is None
    assert cache.get(NAME) == b"payload"
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


WRITER = """
import sys
from pathlib import Path
from graphfuse.jit.cache import Cache
for turn in range(60):
    cache = Cache(Path(sys.argv[1]), limit_bytes=400_000)
    for i in range(6):
        found = cache._read(f"entry{i}")
        assert found is None or (len(found) == 50_000 and len(set(found)) == 1), "a torn file was taken for whole"
        cache.put(f"entry{i}", bytes([int(sys.argv[2])]) * 50_000)
"""


def test_processes_writing_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    children = [subprocess.Popen([*command, str(i)], stderr=subprocess.PIPE, text=True) for i in range(3)]
    for child in children:
        _, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors
    payloads = [Cache(tmp_path).get(f"entry{i}") for i in range(6)]
    assert all(p and len(p) == 50_000 and len(set(p)) == 1 for p in payloads)
    assert not list(tmp_path.rglob("*.tmp"))


def test_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHFUSE_CACHE_DIR", str(tmp_path / "here"))
    default_cache().put(NAME, b"payload")
    assert files(tmp_path / "here")
    assert default_cache() is default_cache()
    monkeypatch.setenv("GRAPHFUSE_CACHE_DIR", "")
    assert default_folder() is None
    assert default_cache().folder is None


def test_folder_without_platformdirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GRAPHFUSE_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with_it = default_folder()
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert default_folder() == with_it == tmp_path / ".cache" / "graphfuse"
