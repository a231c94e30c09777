"""Output files: replaced in one step; links and devices stay what they are; where nothing can be written is told beforehand."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from graphfuse.cli.common import check_outputs
from graphfuse.engine import build
from graphfuse.engine.flavour import Capture
from graphfuse.ir import GraphfuseError
from graphfuse.ir.files import write_bytes


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (pipe, link):
        write_bytes(path, b"text")
        assert os.read(reader, 99) == b"text"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and link.is_symlink() and len(list(tmp_path.iterdir())) == 2


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for text in (b"new", b"newer"):
        write_bytes(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == text


def test_one_file_by_two_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "x")
    for other in (tmp_path / "a" / ".." / "x", tmp_path / "link"):
        with pytest.raises(GraphfuseError, match="two outputs"):
            check_outputs([tmp_path / "x", other])


def test_a_folder_that_takes_no_file_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(GraphfuseError, match="cannot be written"):
        check_outputs([tmp_path / "x"])
    check_outputs([Path(os.devnull)])


def test_a_log_that_cannot_be_written_hides_no_failure(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the reason"), _logged(tmp_path / "none" / "log"):
        raise ValueError("the reason")
    with pytest.raises(GraphfuseError, match="cannot be written"), _logged(tmp_path / "none" / "log"):
        pass


def _logged(path: Path):  # type: ignore[no-untyped-def]
    class Logger:
        capture = staticmethod(lambda verbose: contextlib.nullcontext(Capture(0)))

    return build._logged(SimpleNamespace(logger=Logger), False, path)  # type: ignore[arg-type]
