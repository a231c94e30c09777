"""The timing cache of full TensorRT: what is read, what is begun anew, what is written. The builder's config is a stand-in."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from graphfuse.engine import timing_cache
from graphfuse.engine.flavour import Capture, Flavour
from graphfuse.ir import GraphfuseError

FULL = Flavour("tensorrt", ModuleType("tensorrt"), None, builds_without_gpu=False)


class Config:
    """Takes caches that begin with this machine's header; gives None for what is no cache, as TensorRT does."""

    def __init__(self, refusing: bool = False) -> None:
        self.used: bytes | None = None
        self._refusing = refusing

    def create_timing_cache(self, data: bytes) -> Any:
        return None if data and not data.startswith(b"timings ") else Cache(data or b"timings here:")

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        assert ignore_mismatch is False
        if self._refusing or not cache.data.startswith(b"timings here:"):
            return False
        self.used = cache.data
        return True


class Cache:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def serialize(self) -> bytearray:
        return bytearray(self.data + b" one more")


def test_from_build_to_build(tmp_path: Path) -> None:
    file, log = tmp_path / "t.cache", Capture(0)
    for before in (b"timings here:", b"timings here: one more"):
        config = Config()
        cache = timing_cache.attach(FULL, config, file, log)
        assert config.used == before
        timing_cache.save(cache, file)
    assert file.read_bytes() == b"timings here: one more one more"
    assert [p.name for p in tmp_path.iterdir()] == ["t.cache"]
    assert log.lines == []


@pytest.mark.parametrize("content", [b"garbage", b"timings of another GPU"])
def test_what_tensorrt_does_not_take_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    file, config, log = tmp_path / "t.cache", Config(), Capture(0)
    file.write_bytes(content)
    timing_cache.attach(FULL, config, file, log)
    assert config.used == b"timings here:"
    assert [severity for severity, _ in log.lines] == ["WARNING"]


def test_errors_name_the_file_or_the_flavour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GraphfuseError, match="did not accept a timing cache"):
        timing_cache.attach(FULL, Config(refusing=True), tmp_path / "t", Capture(0))
    with pytest.raises(GraphfuseError, match="cannot be read"):
        timing_cache.attach(FULL, Config(), tmp_path, Capture(0))
    monkeypatch.setattr(timing_cache, "MAX_BYTES", 3)
    (tmp_path / "large").write_bytes(b"timings here:")
    with pytest.raises(GraphfuseError, match="too large"):
        timing_cache.attach(FULL, Config(), tmp_path / "large", Capture(0))
    with pytest.raises(GraphfuseError, match="TensorRT for RTX has no timing cache"):
        timing_cache.check_flavour(Flavour("tensorrt_rtx", ModuleType("tensorrt_rtx"), None, builds_without_gpu=True))


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(GraphfuseError, match="it is no file"):
            timing_cache.attach(FULL, Config(), path, Capture(0))
