"""Progress of a build, and stopping one: TensorRT's phases arrive nested, Ctrl-C ends the build without harm to the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import onnx
import pytest

import graphfuse_plugin
from graphfuse.cli import main
from graphfuse.engine import build_engine
from graphfuse.jit import cache as caches
from tests.conftest import ROOT
from tests.engine.test_synthetic import chain

SHAPES = {"x": ((1, 8), (4, 8), (16, 8))}


class Told:
    """Keeps what it is told; ``at`` is called before each step."""

    def __init__(self, at: Any = None) -> None:
        self.open: list[str] = []
        self.phases: dict[str, int] = {}
        self.steps = 0
        self._at = at or (lambda steps: None)

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        assert parent is None or parent in self.open
        assert steps > 0
        self.open.append(phase)
        self.phases[phase] = steps

    def step(self, phase: str, done: int) -> None:
        assert phase in self.open
        assert 1 <= done <= self.phases[phase]
        self.steps += 1
        self._at(self.steps)

    def finish(self, phase: str) -> None:
        self.open.remove(phase)


def build(told: Any) -> Any:
    return build_engine(chain(4), shapes=SHAPES, targets=["sm_89"], progress=told)


def test_phases_are_told_and_all_end(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GRAPHFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(caches, "_caches", {})
    told = Told()
    engine = build(told)
    assert told.open == []
    assert told.phases["Compiling kernels"] == 8  # four regions, each for its usual size and for any
    assert "Building engine" in told.phases
    assert told.steps > 20
    again = Told()
    assert build(again).bytes == engine.bytes  # with or without: the same engine
    assert "Compiling kernels" not in again.phases


def test_a_display_that_fails_does_not_end_the_build(capfd, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GRAPHFUSE_CACHE_DIR", str(tmp_path))  # so that kernels are compiled, which is shown, too
    monkeypatch.setattr(caches, "_caches", {})

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise OSError("the terminal is gone")

    assert len(build(Broken()).plugin_layers) == 4
    assert capfd.readouterr().err == ""


def test_ctrl_c_stops_the_build_at_the_next_step() -> None:
    told = Told(lambda steps: signal.raise_signal(signal.SIGINT) if steps == 30 else None)
    with pytest.raises(KeyboardInterrupt):
        build(told)
    assert told.steps == 30
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not graphfuse_plugin.guard._active
    assert len(build(Told()).plugin_layers) == 4


def test_ctrl_c_while_kernels_are_compiled(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GRAPHFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(caches, "_caches", {})
    told = Told(lambda steps: signal.raise_signal(signal.SIGINT) if steps == 2 else None)
    with pytest.raises(KeyboardInterrupt):
        build(told)
    assert set(told.phases) == {"Compiling kernels"}
    assert told.open == []


def test_ctrl_c_on_the_command_line(tmp_path, monkeypatch, capfd) -> None:
    """One line, exit code 130, the log that there is, and no engine."""
    onnx.save(chain(4), tmp_path / "f.onnx")
    monkeypatch.chdir(tmp_path)
    told = Told(lambda steps: signal.raise_signal(signal.SIGINT) if steps == 30 else None)
    monkeypatch.setattr("graphfuse.cli.build.phases", lambda text: nullcontext(told))
    options = ["--shapes", "x:1x8,4x8,16x8", "--target", "sm_89", "--flavour", "tensorrt_rtx", "--log", "build.log"]
    assert main(["build", "f.onnx", "-o", "e.engine", *options]) == 130
    assert capfd.readouterr().err == "graphfuse: interrupted\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["build.log", "f.onnx"]
    assert "Build canceled by user" in (tmp_path / "build.log").read_text()


STOPPED = """
import signal, sys
from tests.engine.test_progress import Told, build
for stop in map(int, sys.argv[1:]):
    try:
        build(Told(lambda steps: signal.raise_signal(signal.SIGINT) if steps == stop else None))
    except KeyboardInterrupt:
        print(stop)
"""


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_stopped_build_leaves_the_process_sound(first) -> None:
    """TensorRT frees a plugin of a stopped build twice; glibc is told to look closely. Stopped in every phase that there is."""
    steps = [str(k) for k in range(first, 60, 3)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}", "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}
    found = subprocess.run([sys.executable, "-c", STOPPED, *steps], cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.split() == steps
