"""What needs a GPU that runs engines, read through with a stand-in for TensorRT's runtime and for the driver."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from graphfuse.bench import bench, engine_opener
from graphfuse.check.inputs import make_inputs
from graphfuse.cli import main
from graphfuse.engine import LoadedEngine, build
from graphfuse.engine.timed import TimedEngine
from graphfuse.graph.load import load_model
from graphfuse.ir import ShapeError
from graphfuse.match import export_plugin, rewrite_model
from tests import engine_test, fake_runtime
from tests.conftest import MODELS, ROOT, rtx_absence
from tests.fake_runtime import FakeEngine
from tests.portable import info, model

node = onnx.helper.make_node


def dynamic() -> onnx.ModelProto:
    nodes = [node("Sigmoid", ["x"], ["a"]), node("Mul", ["a", "x"], ["b"]), node("Add", ["b", "x"], ["y"]), node("Not", ["p"], ["q"])]
    return model(nodes, [info("x", shape=["n", 4]), info("p", 9, ["n"])], [info("y", shape=["n", 4]), info("q", 9, ["n"])])


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch):
    made = fake_runtime.install(monkeypatch)
    yield made
    assert (made.memory, made.live) == ({}, set())  # everything was given back


def engine(shapes=None) -> bytes:
    return build.build_engine(export_plugin(rewrite_model(load_model(dynamic())).model).proto, shapes=shapes).bytes


def feeds(rows: int, start: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.arange(start, start + rows * 4, dtype=np.float32).reshape(rows, 4), "p": np.arange(rows) % 2 == 1}


def test_an_engine_runs_at_one_size_after_the_other(cuda) -> None:
    with LoadedEngine(engine({"x": ((1, 4), (3, 4), (8, 4)), "p": ((1,), (3,), (8,))})) as loaded:
        for rows in (3, 8, 1, 3):
            given = feeds(rows, rows)
            found = loaded.run(given)
            x = given["x"]
            np.testing.assert_allclose(found["y"], x / (1 + np.exp(-x)) * x / x.clip(1e-30) + x, rtol=1e-5)
            np.testing.assert_array_equal(found["q"], ~given["p"])
        with pytest.raises(ShapeError, match="does not take the shape"):
            loaded.run(feeds(9))
        with pytest.raises(ShapeError, match="the array given is float64"):
            loaded.run({**feeds(3), "x": np.zeros((3, 4))})
        with pytest.raises(ShapeError, match="inputs are p, x; given are x"):
            loaded.run({"x": feeds(3)["x"]})
        assert len(loaded.layers()) == 2


def test_an_engine_on_the_command_line(cuda, monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.engine").write_bytes(b"ftrt" + engine())
    monkeypatch.setattr(fake_runtime, "FakeEngine", lambda plan, *more: FakeEngine(plan[4:], *more))
    np.savez("in.npz", **feeds(3))
    assert main(["run", "e.engine", "--inputs", "in.npz", "--output", "out.npz", "--json", "o.json"]) == 0
    np.testing.assert_array_equal(np.load("out.npz")["q"], ~feeds(3)["p"])
    assert json.loads(Path("o.json").read_text())["device"] == "TensorRT"
    capsys.readouterr()
    np.savez("bad.npz", x=feeds(3)["x"])
    for options, said in (([], "give them by --inputs"), (["--inputs", "bad.npz"], "inputs are p, x; given are x")):
        assert main(["run", "e.engine", *options]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1


def test_a_timed_engine_tells_what_a_replay_computes(cuda) -> None:
    with TimedEngine(engine(), feeds(3)) as timed:
        assert timed.measure() > 0
        np.testing.assert_array_equal(timed.outputs()["q"], ~feeds(3)["p"])
        cuda.graphs = {number: [] for number in cuda.graphs}  # replays that do nothing must not pass for right
        assert not np.array_equal(timed.outputs()["y"], feeds(3)["x"])
        assert timed.outputs()["y"].tobytes() == b"\xa5" * 48


def test_a_bench_of_two_engines(cuda) -> None:
    plain = load_model(dynamic())
    found = bench(plain, rewrite_model(plain).model, make_inputs(plain), engine_opener(), pairs=6)
    assert all(v.passed for v in found.outputs)
    assert (len(found.plain_layers), len(found.fused_layers)) == (4, 2)


# --- make engine-test


def run_test(capsys, *arguments: str) -> tuple[int, list[str]]:
    code = engine_test.main([*arguments, "--pairs", "6"])
    return code, capsys.readouterr().out.splitlines()


def test_engine_test_of_own_models(cuda, tmp_path: Path, capsys) -> None:
    onnx.save(dynamic(), tmp_path / "dynamic.onnx")
    code, lines = run_test(
        capsys, str(tmp_path / "dynamic.onnx"), str(MODELS / "yolo_head.onnx"), "--json", str(tmp_path / "out" / "e.json")
    )
    found = json.loads((tmp_path / "out" / "e.json").read_text())
    assert [r["model"] for r in found] == ["dynamic", "yolo_head"]
    assert found[0]["sizes"] == 3
    assert all(r["bench"]["fused_layers"] and not r["wrong_sizes"] for r in found)
    assert all("right" in line for line in lines[1:3])
    assert "3 right" in lines[1]
    assert lines[3] == "2 models, 0 not for this TensorRT, " + f"{sum(not r['passed'] for r in found)} failed"
    assert code == (not all(r["passed"] for r in found))  # times of this machine are not the test's business


def test_engine_test_finds_wrong_values(monkeypatch, tmp_path: Path, capsys) -> None:
    fake_runtime.install(monkeypatch, spoil=lambda name: name == "y")
    onnx.save(dynamic(), tmp_path / "dynamic.onnx")
    code, lines = run_test(capsys, str(tmp_path / "dynamic.onnx"), "--json", str(tmp_path / "e.json"))
    (found,) = json.loads((tmp_path / "e.json").read_text())
    assert code == 1
    assert "1 wrong" in lines[1]
    assert "3 of 3 wrong" in lines[1]
    assert found["bench"]["outputs"] == {"y": False, "q": True}


def test_engine_test_goes_on_after_a_failure(cuda, monkeypatch, tmp_path: Path, capsys) -> None:
    onnx.save(dynamic(), tmp_path / "dynamic.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    original = fake_runtime.FakeEngine.create_execution_context

    def failing(self):
        if self.fused:
            raise ZeroDivisionError("in the plugin")
        return original(self)

    monkeypatch.setattr(fake_runtime.FakeEngine, "create_execution_context", failing)
    code, lines = run_test(capsys, str(tmp_path / "broken.onnx"), str(tmp_path / "dynamic.onnx"))
    assert code == 1
    assert "failed: GraphfuseError" in lines[1]
    assert "failed: ZeroDivisionError: in the plugin" in lines[2]
    assert lines[3] == "2 models, 0 not for this TensorRT, 2 failed"


def test_a_model_that_tensorrt_does_not_take_at_all_is_no_failure(cuda, monkeypatch, tmp_path: Path, capsys) -> None:
    from graphfuse.ir import GraphfuseError

    def refuse(*args, **options):
        raise GraphfuseError("no importer for this op")

    monkeypatch.setattr(build, "build_engine", refuse)
    onnx.save(dynamic(), tmp_path / "dynamic.onnx")
    code, lines = run_test(capsys, str(tmp_path / "dynamic.onnx"))
    assert (code, lines[2]) == (0, "1 models, 1 not for this TensorRT, 0 failed")
    assert "not for this TensorRT: no importer" in lines[1]


@pytest.mark.skipif(rtx_absence() is not None, reason=rtx_absence() or "")
def test_where_no_engine_runs_it_says_what_to_do(monkeypatch, capsys) -> None:
    monkeypatch.setattr("graphfuse_plugin.driver.gpu_arch", lambda: "sm_90")
    assert engine_test.main(["--flavour", "tensorrt_rtx"]) == 2
    err = capsys.readouterr().err
    assert "does not run on this GPU (compute capability 9.0)" in err
    assert "make engine-test TENSORRT=full" in err
    assert "TENSORRT" in (ROOT / "Makefile").read_text()
