"""``graphfuse build`` and ``build_engine`` with a real TensorRT for RTX."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphfuse
from graphfuse.cli import main
from graphfuse.ir import dtypes
from graphfuse_plugin.driver import gpu_arch
from tests import regions
from tests.conftest import ROOT
from tests.portable import info, model
from tests.regions import lone

node = helper.make_node


def layers() -> onnx.ModelProto:
    """Two chains around a matrix product whose weights are large enough to be stored beside the model."""
    w = np.random.default_rng(0).standard_normal((64, 64)).astype("f")
    nodes = [
        node("Sigmoid", ["x"], ["a"]), node("Mul", ["a", "x"], ["b"]), node("Add", ["b", "x"], ["c"]),
        node("MatMul", ["c", "w"], ["d"]),
        node("Relu", ["d"], ["e"]), node("Tanh", ["e"], ["f"]), node("Mul", ["f", "e"], ["g"]), node("Sub", ["g", "c"], ["y"]),
    ]  # fmt: skip
    return model(nodes, [info("x", shape=["n", 64])], [info("y", shape=["n", 64])], [numpy_helper.from_array(w, "w")])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build")
    onnx.save(layers(), folder / "m.onnx")
    assert main(["rewrite", str(folder / "m.onnx"), "-o", str(folder / "f.onnx")]) == 0
    return folder


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(prepared, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


RTX = ["--flavour", "tensorrt_rtx"]


def test_build_writes_an_engine_with_a_layer_for_each_region(place, capsys):
    capsys.readouterr()
    shapes, targets = ["--shapes", "x:1x64,4x64,8x64"], ["--target", "sm_89", "sm_120"]
    assert main(["build", "f.onnx", "-o", "e.engine", *RTX, *shapes, *targets, "--json", "b.json"]) == 0
    found = json.loads(Path("b.json").read_text())
    names = [n.name for n in onnx.load("f.onnx").graph.node if n.domain == "graphfuse"]
    assert sorted(found["plugin_layers"]) == sorted(names)
    assert len(names) == 2
    assert found["targets"] == ["sm_89", "sm_120"]
    assert Path("e.engine").stat().st_size == found["bytes"]
    assert "2 plugin layers" in capsys.readouterr().out


def test_the_plugin_form_builds_the_same(place):
    assert main(["export-plugin", "f.onnx", "-o", "p.onnx"]) == 0
    assert main(["build", "p.onnx", "-o", "e.engine", *RTX, "--shapes", "x:4x64", "--target", "sm_89"]) == 0
    assert Path("e.engine").stat().st_size > 0


@pytest.mark.parametrize("shapes", [{"x": ((1, 64), (4, 64), (8, 64))}, {"x": "1x64,4x64,8x64"}, {"x": (4, 64)}])
def test_build_engine(place, shapes):
    engine = graphfuse.build_engine(graphfuse.rewrite("m.onnx").model, shapes=shapes, flavour="tensorrt_rtx", targets=["sm_89"])
    assert len(engine.plugin_layers) == 2
    engine.save("e.engine")
    assert Path("e.engine").read_bytes() == engine.bytes


BAD = {
    "no shapes": ([], "input 'x' has dynamic sizes"),
    "another rank": (["--shapes", "x:64"], "rank"),
    "another size": (["--shapes", "x:1x65"], "does not fit"),
    "an unknown input": (["--shapes", "q:1x64"], "'q'"),
    "shapes that shrink": (["--shapes", "x:8x64,4x64,1x64"], "do not grow"),
    "an unknown target": (["--shapes", "x:1x64", "--target", "sm_1"], "sm_1"),
    "a stray word": (["--shapes", "x:1x64", "fast"], "argument 'fast' is not understood"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_shapes_and_targets_are_one_line_and_write_nothing(place, case, capsys):
    options, message = BAD[case]
    before = sorted(Path().iterdir())
    capsys.readouterr()
    assert main(["build", "f.onnx", "-o", "e.engine", *RTX, *options]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert sorted(Path().iterdir()) == before


def build_on_a_terminal(*options: str) -> tuple[int, str]:
    """Exit code and what a person sees on stderr."""
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (40, 120))
    command = [sys.executable, "-m", "graphfuse", "build", "f.onnx", "-o", "e.engine", *RTX, *options]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}", "TERM": "xterm"}
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=end) as process:
        os.close(end)
        seen = b""
        with suppress(OSError):  # the end of a terminal is an error
            while part := os.read(terminal, 65536):
                seen += part
    os.close(terminal)
    return process.returncode, seen.decode()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="sizes of terminals came with Python 3.11")
def test_bars_on_a_terminal_and_silence_in_a_pipe(place, capfd) -> None:
    code, seen = build_on_a_terminal("--shapes", "x:4x64", "--target", "sm_89")
    assert code == 0
    assert "building e.engine" in seen
    assert "Building engine" in seen
    capfd.readouterr()
    assert main(["build", "f.onnx", "-o", "e.engine", *RTX, "--shapes", "x:4x64", "--target", "sm_89"]) == 0
    assert capfd.readouterr().err == ""


def test_the_log_holds_everything_also_of_a_build_that_fails(place, capsys) -> None:
    good = ["--shapes", "x:4x64", "--target", "sm_89"]
    assert main(["build", "f.onnx", "-o", "e.engine", *RTX, *good, "--log", "build.log"]) == 0
    said = Path("build.log").read_text()
    assert "[VERBOSE] " in said
    assert "[INFO] " in said
    assert "VERBOSE" not in capsys.readouterr().out  # that is what --verbose is for
    made = lone(regions.same(dtypes.F8E4M3), (4, 6), dtypes.F8E4M3.onnx)
    onnx.save(made, "f8.onnx")
    assert main(["build", "f8.onnx", "-o", "f8.engine", *RTX, "--target", "sm_80", "--log", "f8.log"]) == 2
    assert re.search(r"^\[ERROR\] .*fp8_e4m3", Path("f8.log").read_text(), re.M)
    err = capsys.readouterr().err
    assert "Cannot compile for target(s) sm80" in err
    assert "build for other targets" in err
    assert not Path("f8.engine").exists()


def test_the_layers_or_why_they_are_not_told(place) -> None:
    assert main(["build", "f.onnx", "-o", "e.engine", *RTX, "--shapes", "x:4x64", "--target", "sm_89", "--json", "b.json"]) == 0
    found = json.loads(Path("b.json").read_text())
    assert (found["layers"] is None) == bool(found["layers_not_told"])
    if gpu_arch() is None:
        assert "needs an NVIDIA GPU" in found["layers_not_told"]


def test_tensorrt_for_rtx_has_no_timing_cache(place, capsys) -> None:
    assert main(["build", "f.onnx", "-o", "e.engine", *RTX, "--shapes", "x:4x64", "--timing-cache", "t.cache"]) == 2
    assert "TensorRT for RTX has no timing cache" in capsys.readouterr().err
    assert not Path("t.cache").exists()


def test_weights_beside_the_model(place, capsys):
    """Found relative to the input, written relative to the output, from any folder (report R92)."""
    Path("in").mkdir()
    Path("out").mkdir()
    onnx.save(layers(), "in/big.onnx", save_as_external_data=True, location="big.bin", size_threshold=64)
    assert main(["rewrite", "in/big.onnx", "-o", "out/big.onnx"]) == 0
    assert sorted(p.name for p in Path("out").iterdir()) == ["big.onnx", "big.onnx.data"]
    assert Path("out/big.onnx").stat().st_size < Path("out/big.onnx.data").stat().st_size
    assert main(["check", "in/big.onnx", "out/big.onnx", "--device", "numpy"]) == 0
    assert main(["build", "out/big.onnx", "-o", "e.engine", *RTX, "--shapes", "x:4x64", "--target", "sm_89"]) == 0
    assert main(["restore", "out/big.onnx", "-o", "back.onnx"]) == 0
    assert main(["check", "in/big.onnx", "back.onnx", "--device", "numpy"]) == 0
    assert graphfuse.check("in/big.onnx", graphfuse.rewrite("in/big.onnx").model, device="numpy").passed
