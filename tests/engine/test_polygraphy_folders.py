"""Our patterns as a --plugin-dir: the real Polygraphy command line on it, and a real engine of what it writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml

from graphfuse.api import build_engine
from graphfuse.cli import main
from graphfuse.ir import interpret, loads
from graphfuse.patterns.library import LIBRARY
from tests.conftest import ROOT, SHARED_MODELS, run_reference
from tests.texts import feeds_of, model, proto

LN = "m = ReduceMean<axes = [-1]>(x)\nd = Sub(x, m)\nq = Pow(d, two)\nv = ReduceMean<axes = [-1]>(q)\na = Add(v, eps)\nr = Sqrt(a)\nn = Div(d, r)\nk = Mul(n, g)\nl = Add(k, g)\n"
GELU = "z = MatMul(l, w)\ni = Div(z, r2)\ne = Erf(i)\no = Add(e, one)\np = Mul(z, o)\nh = Mul(p, half)\n"
SOFT = "f = Exp(h)\ns = ReduceSum(f, last)\nt = Div(f, s)\ny = MatMul(t, w)"
WEIGHTS = "float two = {2}, float eps = {1e-5}, float one = {1}, float half = {0.5}, float r2 = {1.4142135}, int64[1] last = {-1}"
EIGHT = "float[8] g = {1,2,3,4,5,6,7,8}, float[8,8] w = {" + ", ".join(str(i % 7 / 8 - 0.3) for i in range(64)) + "}"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with our patterns and a model of a norm, a GELU and a softmax without its maximum, products between."""
    monkeypatch.chdir(tmp_path)
    onnx.save(proto(model(LN + GELU + SOFT, weights=f"{WEIGHTS}, {EIGHT}")), "m.onnx")
    assert main(["polygraphy-plugins", "-o", "folders"]) == 0
    return tmp_path


def polygraphy(*words: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins")])}
    done = subprocess.run(
        [sys.executable, "-c", "from polygraphy.tools import main; main()", "plugin", *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def matched(path: str) -> dict[str, list[dict[str, object]]]:
    return {plugin["name"]: plugin["instances"] for plugin in yaml.safe_load_all(Path(path).read_text())}


def test_there_is_a_folder_for_each_pattern(place: Path) -> None:
    assert {p.parent.name for p in place.glob("folders/*/pattern.py")} == {p.name for p in LIBRARY}
    text = polygraphy("list", "m.onnx", "--plugin-dir", "folders")
    assert "'layer-norm': 1" in text
    assert "'gelu-tanh': 0" in text


def test_match_and_replace_and_the_engine_of_it(place: Path) -> None:
    polygraphy("match", "m.onnx", "--plugin-dir", "folders", "-o", "found.yaml")
    found = matched("found.yaml")
    assert {name: len(instances) for name, instances in found.items()} == {"layer-norm": 1, "gelu-erf": 1, "softmax": 1}
    assert [found["gelu-erf"][0][side] for side in ("inputs", "outputs")] == [["z"], ["h"]]
    polygraphy("replace", "m.onnx", "--plugin-dir", "folders", "--config", "found.yaml", "-o", "out.onnx")
    replaced = onnx.load("out.onnx")
    assert [n.op_type for n in replaced.graph.node] == ["FusedRegion", "MatMul", "FusedRegion", "FusedRegion", "MatMul"]
    engine = build_engine("out.onnx", shapes={"x": ((1, 8), (4, 8), (9, 8))}, flavour="tensorrt_rtx", targets=["sm_89"])
    assert len(engine.plugin_layers) == 3


def test_the_plugins_compute_what_they_replace(place: Path) -> None:
    """Every node of the replaced model, run in NumPy: fused ones by their programs."""
    polygraphy("match", "m.onnx", "--plugin-dir", "folders", "-o", "found.yaml")
    polygraphy("replace", "m.onnx", "--plugin-dir", "folders", "--config", "found.yaml", "-o", "out.onnx")
    original, replaced = onnx.load("m.onnx"), onnx.load("out.onnx")
    feeds = feeds_of(original)
    values = {t.name: onnx.numpy_helper.to_array(t) for t in replaced.graph.initializer} | feeds
    for node in replaced.graph.node:
        inputs = [values[name] for name in node.input]
        specs = [a.s.decode() for a in node.attribute if a.name == "spec"]
        made = interpret.run(loads(specs[0]), inputs) if specs else [inputs[0] @ inputs[1]]
        values.update(zip(node.output, made, strict=True))
    np.testing.assert_allclose(values["y"], run_reference(original, feeds)["y"], rtol=1e-5, atol=1e-6)


def test_one_pattern_alone(place: Path) -> None:
    polygraphy("match", "m.onnx", "--plugin-dir", "folders", "--include", "softmax", "-o", "found.yaml")
    assert list(matched("found.yaml")) == ["softmax"]
    polygraphy("replace", "m.onnx", "--plugin-dir", "folders", "--config", "found.yaml", "-o", "out.onnx")
    assert [n.op_type for n in onnx.load("out.onnx").graph.node].count("FusedRegion") == 1


def test_autotune_takes_the_folder(place: Path) -> None:
    """Its timing needs a GPU; its matching, and the replacement that it tries, do not."""
    polygraphy("autotune", "m.onnx", "--plugin-dir", "folders", "--skip-autotuning", "--save-config-yaml", "found.yaml", "-o", "out.onnx")
    assert set(matched("found.yaml")) == {"layer-norm", "gelu-erf", "softmax"}
    from polygraphy.tools.plugin.subtool.autotuner.replacement_engine import ReplacementEngine

    engine = ReplacementEngine()
    engine.load_plugins("folders")
    engine.match_subgraphs("m.onnx", "again.yaml")
    chosen = [row for name, rows in engine.get_all_subgraphs().items() if name != "softmax" for row in rows]
    engine.generate_config_for_subgraphs(chosen, "chosen.yaml")
    engine.replace_subgraphs("m.onnx", "chosen.yaml", "tried.onnx")
    assert [n.op_type for n in onnx.load("tried.onnx").graph.node].count("FusedRegion") == 2


@pytest.mark.parametrize("stem", ["mlp_ln_gelu_erf_ts13", "llama_fp16_dynamo", "unet_resblock_dynamo"])
def test_models_of_the_collection(place: Path, stem: str) -> None:
    path = next((p for p in SHARED_MODELS if p.stem == stem), None)
    if path is None:
        pytest.skip("the model collection is not beside the checkout")
    polygraphy("match", str(path), "--plugin-dir", "folders", "-o", "found.yaml")
    count = sum(map(len, matched("found.yaml").values()))
    polygraphy("replace", str(path), "--plugin-dir", "folders", "--config", "found.yaml", "-o", "out.onnx")
    assert [n.op_type for n in onnx.load("out.onnx").graph.node].count("FusedRegion") == count >= 2


def test_files_of_others_are_not_replaced(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["polygraphy-plugins", "-o", "folders"]) == 0
    Path("folders/rope/pattern.py").write_text("# mine\n")
    assert main(["polygraphy-plugins", "-o", "folders"]) == 2
    assert "was written by somebody else; choose another folder" in capsys.readouterr().err
    assert Path("folders/rope/pattern.py").read_text() == "# mine\n"
