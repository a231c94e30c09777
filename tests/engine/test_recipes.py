"""docs/recipes.md does what it says, as far as a machine without a GPU can tell."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

import graphfuse
from graphfuse.engine import build
from graphfuse_plugin.driver import gpu_arch
from tests import fake_runtime
from tests.conftest import ROOT
from tests.portable import info, model

TEXT = (ROOT / "docs" / "recipes.md").read_text()
node = onnx.helper.make_node
# Lines that need what is not here, and the first words of what is said instead.
ELSEWHERE = {
    "--trt --load-inputs": "",
    "--flavour tensorrt --": "graphfuse: TensorRT",  # not installed, or no GPU
}


def commands() -> Iterator[str]:
    """The lines of graphfuse in the page, continued ones joined."""
    for line in TEXT.replace("\\\n", " ").splitlines():
        if line.startswith("    graphfuse "):
            yield re.sub(r"\s#.*", "", line).strip()


def example() -> onnx.ModelProto:
    nodes = [node("Sigmoid", ["x"], ["a"]), node("Mul", ["a", "x"], ["b"]), node("Add", ["b", "x"], ["c"]), node("Tanh", ["c"], ["y"])]
    return model(nodes, [info("x", shape=["n", 8])], [info("y", shape=["n", 8])])


def test_commands_run_in_order(tmp_path: Path) -> None:
    onnx.save(example(), tmp_path / "model.onnx")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins")]), "GRAPHFUSE_CACHE_DIR": str(tmp_path / "cache")}
    ran = 0
    for line in commands():
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(line)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200
        )  # fmt: skip
        elsewhere = [said for part, said in ELSEWHERE.items() if part in line] if gpu_arch() is None else []
        if elsewhere:
            assert done.returncode != 0, line
            assert done.stderr.startswith(elsewhere[0]), f"{line}\n{done.stderr}"
        else:
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran >= 11
    for name in ("fused.onnx", "plugin.onnx", "model.engine", "build.log", "report.json", "original.json"):
        assert (tmp_path / name).stat().st_size > 0


def test_onnx_runtime_runs_the_portable_form(tmp_path: Path) -> None:
    assert 'onnxruntime.InferenceSession("fused.onnx")' in TEXT
    graphfuse.rewrite(example(), policy="aggressive").save(tmp_path / "fused.onnx")
    x = np.linspace(-3, 3, 32, dtype=np.float32).reshape(4, 8)
    found = [
        ort.InferenceSession(m, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for m in (example().SerializeToString(), tmp_path / "fused.onnx")
    ]
    np.testing.assert_allclose(*found, rtol=1e-6)


class Tensor:
    """Of Triton's Python backend."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


def test_the_triton_model_answers(monkeypatch, tmp_path: Path) -> None:
    """Its code as it stands in the page, with stand-ins for Triton and for a GPU."""
    cuda = fake_runtime.install(monkeypatch)
    fields = lambda **values: types.SimpleNamespace(**values)  # noqa: E731
    triton = fields(
        Tensor=Tensor, InferenceResponse=lambda output_tensors=(), error=None: fields(tensors=output_tensors, error=error), TritonError=str
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton)
    (tmp_path / "1").mkdir()
    made = build.build_engine(graphfuse.export_plugin(graphfuse.rewrite(example(), policy="aggressive").model))
    made.save(tmp_path / "1" / "model.engine")
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
    scope: dict[str, object] = {}
    exec(compile(code, "model.py", "exec"), scope)
    served = scope["TritonPythonModel"]()  # type: ignore[operator]
    served.initialize({"model_repository": str(tmp_path), "model_version": "1"})
    x = np.ones((4, 8), np.float32)
    good, bad = (fields(inputs=lambda array=array: [Tensor("x", array)]) for array in (x, x.astype(np.float64)))
    answers = served.execute([good, bad])
    assert [t.name() for t in answers[0].tensors] == ["y"]
    np.testing.assert_allclose(answers[0].tensors[0].as_numpy(), np.tanh(x / (1 + np.exp(-x)) + x), rtol=1e-5)
    assert "is float32, the array given is float64" in answers[1].error
    served.finalize()
    assert cuda.memory == {}
