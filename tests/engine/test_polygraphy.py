"""``graphfuse polygraphy``: Polygraphy's own tools build engines with our layers, and fail as Polygraphy fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import graphfuse_plugin
from tests import regions
from tests.conftest import ROOT

SHAPES = ["--trt-min-shapes", "x:[1,8]", "--trt-opt-shapes", "x:[4,8]", "--trt-max-shapes", "x:[8,8]", "--compute-capabilities", "8.9"]


def polygraphy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "POLYGRAPHY_USE_TENSORRT_RTX")}
    return subprocess.run(
        [sys.executable, "-m", "graphfuse", "polygraphy", *arguments],
        cwd=folder,
        env={**clean, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    onnx.save(regions.lone(regions.scale()), tmp_path / "p.onnx")
    return tmp_path


def test_convert_builds_an_engine_with_our_layer(place) -> None:
    found = polygraphy(place, "convert", "p.onnx", "--convert-to", "trt", "-o", "e.engine", *SHAPES)
    assert found.returncode == 0, found.stdout + found.stderr
    plan = (place / "e.engine").read_bytes()
    assert graphfuse_plugin.marker(regions.scale()) in plan
    assert regions.scale().encode() in plan


def test_other_tools_go_through_as_they_are(place) -> None:
    found = polygraphy(place, "inspect", "model", "p.onnx", "--show", "layers")
    assert found.returncode == 0, found.stderr
    assert "FusedRegion" in found.stdout
    assert "usage: polygraphy" in polygraphy(place, "--help").stdout


def test_its_failures_are_failures(place) -> None:
    assert polygraphy(place, "nonsense").returncode == 2
    without = polygraphy(place, "convert", "none.onnx", "--convert-to", "trt", "-o", "e.engine")
    assert without.returncode != 0
    assert not (place / "e.engine").exists()


def test_what_the_plugin_met_is_told(place) -> None:
    onnx.save(regions.lone(regions.scale((4, 8)), (4, 9)), place / "p.onnx")
    found = polygraphy(place, "convert", "p.onnx", "--convert-to", "trt", "-o", "e.engine", "--compute-capabilities", "8.9")
    assert found.returncode != 0
    assert "[4, 9] in the network" in found.stderr
    assert not (place / "e.engine").exists()
