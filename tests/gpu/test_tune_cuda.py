"""Tuning and calibration on a real GPU."""

from __future__ import annotations

import json

import numpy as np
import pytest

from graphfuse.cli.app import run
from graphfuse.codegen.config import Config
from graphfuse.ir import Builder
from graphfuse.ir.dtypes import F32
from graphfuse.jit import CudaDevice, best_arch
from graphfuse.match import rewrite_model
from graphfuse.session import Session
from graphfuse.tune import copies, database, lookup, search
from graphfuse.tune.calibrate import copy_rate, launch_time
from graphfuse.tune.timing import Timer
from tests.conftest import OWN_MODELS, ROOT


@pytest.fixture(scope="module")
def device():
    return CudaDevice()


def rows():
    b = Builder()
    x = b.param(F32, (512, 1024))
    e = b.map("exp", x - b.reduce("max", x, [1], keepdims=True))
    return b.finish([e / b.reduce("sum", e, [1], keepdims=True)])


def test_an_empty_launch_is_short_and_a_copy_is_fast(device) -> None:
    with device.active(), Timer(device) as timer:
        assert 0.1 < launch_time(device, timer) < 20
        assert copy_rate(device, timer, 1, 1, total=1 << 28).tb_s > 0.05


@pytest.mark.parametrize("shape", copies.SHAPES)
def test_a_copy_copies(device, shape) -> None:
    from graphfuse.jit import DeviceBuffer, to_device

    data = np.random.default_rng(0).integers(0, 1 << 30, 1 << 16).astype(np.int32)
    source, target = to_device(device, data), DeviceBuffer(device, data.shape, np.int32)
    (executable,) = device.load([copies.mix(1, 1, shape)])
    executable.launch([source.pointer, target.pointer], {"n": data.nbytes // copies.VECTOR})
    np.testing.assert_array_equal(target.to_host(), data)


def test_tuning_compares_with_the_default_and_all_candidates_agree(device) -> None:
    tuned = search.tune(rows(), device, most=24)
    assert tuned.wrong == ()
    assert tuned.tried > 4
    assert 0 < tuned.us <= tuned.default_us
    assert tuned.kept == (tuned.us < tuned.default_us * (1 - search.MARGIN))


def test_a_session_uses_what_was_stored(device, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GRAPHFUSE_TUNED", str(tmp_path / "tuned.json"))
    model = _head()
    plain = Session(model, device="cuda")
    (node,), (region,) = plain.fused_regions()
    entry = database.Entry(Config(lanes=1, items=1, threads=64), 1.0, 2.0, 2, "r", (), {}, "", 0, "", "")
    database.store({database.key(node.program, best_arch(*device.capability)): entry}, tmp_path / "tuned.json")
    assert lookup(node.program, best_arch(*device.capability)) == entry.config
    tuned = Session(model, device="cuda")
    assert tuned.fused_regions()[1][0].executable.source.variants[0].block == 64
    assert region.executable.source.variants[0].block != 64
    rng = np.random.default_rng(0)
    inputs = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in plain.inputs}
    for name, value in plain.run(inputs).items():
        np.testing.assert_array_equal(tuned.run(inputs)[name], value)


def _head():
    from graphfuse.graph.load import load_model

    return rewrite_model(load_model(ROOT / "benchmarks" / "models" / "head_1.onnx"), policy="aggressive").model


def test_the_commands_store_what_they_find(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("GRAPHFUSE_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("GRAPHFUSE_TUNED", raising=False)
    fused = tmp_path / "fused.onnx"
    assert run(["rewrite", str(next(p for p in OWN_MODELS if p.stem == "yolo_head")), "-o", str(fused)]) == 0
    assert run(["tune", str(fused), "--most", "6", "--json", str(tmp_path / "t.json")]) == 0
    assert json.loads((tmp_path / "tuned.json").read_text())["entries"]
    assert run(["calibrate", "--json", str(tmp_path / "c.json")]) == 0
    found = json.loads((tmp_path / "c.json").read_text())
    assert all(rate["tb_s"] > 0.05 for rate in found["rates"])
    assert len(list((tmp_path / "calibration").glob("*.json"))) == 1
    assert "Tuned kernels" in capsys.readouterr().out
