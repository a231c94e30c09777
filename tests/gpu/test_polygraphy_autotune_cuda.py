"""`polygraphy plugin autotune` on our folders: it builds engines with our plugins, times them on the GPU, and writes the best model.

It needs a TensorRT that runs engines on this GPU. Everything but its timing is tested without one (tests/engine/test_polygraphy_folders.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from graphfuse.engine.flavour import load_flavour
from graphfuse.ir.errors import GraphfuseError
from graphfuse.jit import CudaDevice
from graphfuse.match.plugin_folders import write_folders
from tests.conftest import ROOT
from tests.texts import model, proto

WEIGHTS = "float two = {2}, float eps = {1e-5}, float one = {1}, float half = {0.5}, float r2 = {1.4142135}"
EIGHT = "float[8] g = {1,2,3,4,5,6,7,8}, float[8,8] w = {" + ", ".join(str(i % 7 / 8 - 0.3) for i in range(64)) + "}"
NORM = "m = ReduceMean<axes = [-1]>(x)\nd = Sub(x, m)\nq = Pow(d, two)\nv = ReduceMean<axes = [-1]>(q)\na = Add(v, eps)\nr = Sqrt(a)\nn = Div(d, r)\n"
GELU = "k = Mul(n, g)\nl = Add(k, g)\nz = MatMul(l, w)\ni = Div(z, r2)\ne = Erf(i)\no = Add(e, one)\np = Mul(z, o)\ny = Mul(p, half)"


def tensorrt_absence() -> str | None:
    """Why no TensorRT can run an engine here; None if one can."""
    try:
        load_flavour().check_run(CudaDevice().capability)
    except GraphfuseError as error:
        return str(error)
    return None


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with our patterns and a model, of fixed sizes as the autotuner wants it, of a norm and a GELU with a product between."""
    if reason := tensorrt_absence():
        pytest.skip(reason)
    monkeypatch.chdir(tmp_path)
    onnx.save(proto(model(NORM + GELU, "float[4096,8] x", "float[4096,8] y", weights=f"{WEIGHTS}, {EIGHT}")), "m.onnx")
    write_folders(Path("folders"))
    return tmp_path


@pytest.mark.parametrize(("mode", "engines"), [("greedy", 3), ("exhaustive", 4)])  # one pattern, the other, both; and the plain model
def test_autotune_builds_and_times_every_choice(place: Path, mode: str, engines: int) -> None:
    words = ["autotune", "m.onnx", "--plugin-dir", "folders", "--include", "layer-norm", "gelu-erf", "--autotune-mode", mode]
    done = subprocess.run(
        [sys.executable, "-m", "graphfuse", "polygraphy", "plugin", *words, "--threshold", "9", "--report", "report.txt", "-o", "out.onnx"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins"), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=500,
    )
    said = done.stdout + done.stderr
    assert "Failed to test replacement" not in said, said
    assert "Baseline Performance" in said
    if "No optimization strategy found" in said:  # no plugin won, and then Polygraphy writes nothing
        return
    assert done.returncode == 0, said
    assert re.search(rf"Number of Engine Builds: {engines}\b", Path("report.txt").read_text())
    assert "FusedRegion" in {n.op_type for n in onnx.load("out.onnx").graph.node}
