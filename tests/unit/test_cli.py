"""The command line: what each command writes and returns, and one clear line for every kind of bad input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from graphfuse.cli import main
from tests.conftest import ROOT, run_reference
from tests.portable import info, model

node = helper.make_node
COMMANDS = ("scan", "plan", "rewrite", "restore", "export-plugin", "explain", "build", "check", "run", "show", "doctor")


def chain(op_type: str = "Tanh", width: int | str = 4) -> onnx.ModelProto:
    """x -> Sigmoid -> Mul -> Add -> MatMul -> one more op."""
    nodes = [
        node("Sigmoid", ["x"], ["a"], name="gate"),
        node("Mul", ["a", "x"], ["b"], name="silu"),
        node("Add", ["b", "x"], ["c"], name="residual"),
        node(op_type, ["c"], ["y"], name="last"),
    ]
    return model(nodes, [info("x", shape=["n", width])], [info("y", shape=["n", width])])


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the prepared folder; commands run in it."""
    made = tmp_path / "place"
    shutil.copytree(prepared, made)
    monkeypatch.chdir(made)
    return made


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its fused form, its plan, and things that are none of these."""
    folder = tmp_path_factory.mktemp("cli")
    before = Path.cwd()
    os.chdir(folder)
    try:
        _fill()
    finally:
        os.chdir(before)
    return folder


def _fill() -> None:
    onnx.save(chain(), "m.onnx")
    onnx.save(chain("Relu"), "other.onnx")
    Path("text.onnx").write_text("this is no model")
    Path("empty.onnx").write_bytes(b"")
    onnx.save(model([node("Foo", ["x"], ["y"], domain="zork", name="odd")], [info("x", shape=[4])], [info("y", shape=[4])]), "domain.onnx")
    onnx.save(model([node("Add", ["x", "nowhere"], ["y"])], [info("x", shape=[4])], [info("y", shape=[4])]), "invalid.onnx")
    np.savez("wrong.npz", x=np.ones((2, 5), "f"))
    np.savez("named.npz", z=np.ones((2, 4), "f"))
    Path("bad.npz").write_bytes(b"PK nonsense")
    Path("plan.txt").write_text("a: [")
    Path("folder").mkdir()
    assert main(["rewrite", "m.onnx", "-o", "f.onnx"]) == 0
    assert main(["plan", "m.onnx", "-o", "p.yaml"]) == 0


# --- what commands do -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command, capsys):
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"graphfuse {command}" in out
    assert "--help" in out
    assert command in ("run",) or "--json" in out


def test_no_command_shows_the_commands(capsys):
    assert main([]) in (0, 2)  # releases of typer differ
    out = "".join(capsys.readouterr())
    assert {*COMMANDS} <= {line.split()[0] for line in out.splitlines() if line.strip()}


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("graphfuse ")


def test_scan(place, capsys):
    capsys.readouterr()
    assert main(["scan", "m.onnx", "--json", "s.json"]) == 0
    found = json.loads(Path("s.json").read_text())
    assert found["small_ops"] == found["small_ops_fused"] == found["longest_chain"] == 4
    assert (found["launches_before"], found["launches_after"]) == (4, 1)
    assert found["bytes_after"] < found["bytes_before"]
    assert found["ops"] == {"Sigmoid": 1, "Mul": 1, "Add": 1, "Tanh": 1}
    out = capsys.readouterr().out
    assert "launches" in out
    assert found["regions"][0]["name"] in out


def test_plan_can_be_edited_and_applied(place):
    text = Path("p.yaml").read_text()
    assert "enabled: true" in text
    Path("p.yaml").write_text(text.replace("enabled: true", "enabled: false"))
    assert main(["rewrite", "m.onnx", "-o", "none.onnx", "--plan", "p.yaml", "--json", "r.json"]) == 0
    found = json.loads(Path("r.json").read_text())
    assert found["regions"] == []
    assert {r["rule"] for r in found["refusals"]} == {"disabled-in-plan"}


def test_rewrite(place):
    assert main(["rewrite", "m.onnx", "-o", "again.onnx", "--json", "r.json"]) == 0
    assert Path("again.onnx").read_bytes() == Path("f.onnx").read_bytes()
    found = json.loads(Path("r.json").read_text())
    assert {"nodes_before", "nodes_after", "small_ops", "small_ops_fused", "regions", "refusals"} <= set(found)
    region = {"name", "op_types", "nodes", "inputs", "outputs", "kernels", "bytes_before", "bytes_after"}
    assert region <= set(found["regions"][0])
    assert (found["nodes_before"], found["nodes_after"]) == (4, 1)
    onnx.checker.check_model("again.onnx", full_check=True)
    x = np.linspace(-3, 3, 8, dtype="f").reshape(2, 4)
    np.testing.assert_allclose(run_reference("again.onnx", {"x": x})["y"], run_reference("m.onnx", {"x": x})["y"], rtol=1e-6)


def test_restore_gives_the_plain_model_back(place):
    assert main(["restore", "f.onnx", "-o", "plain.onnx"]) == 0
    back = onnx.load("plain.onnx")
    assert [n.op_type for n in back.graph.node] == ["Sigmoid", "Mul", "Add", "Tanh"]
    assert [n.name for n in back.graph.node] == ["gate", "silu", "residual", "last"]


def test_restore_says_that_nothing_was_fused(place, capsys):
    assert main(["restore", "m.onnx", "-o", "plain.onnx"]) == 0
    assert "nothing in it was fused" in capsys.readouterr().out


def test_export_plugin(place):
    assert main(["export-plugin", "f.onnx", "-o", "plugin.onnx", "--json", "e.json"]) == 0
    nodes = onnx.load("plugin.onnx").graph.node
    assert [(n.op_type, n.domain) for n in nodes] == [("FusedRegion", "graphfuse")]
    assert json.loads(Path("e.json").read_text())["plugin_nodes"] == [nodes[0].name]


def test_explain(place, capsys):
    capsys.readouterr()
    assert main(["explain", "m.onnx", "silu", "--json", "x.json"]) == 0
    (story,) = json.loads(Path("x.json").read_text())["nodes"]
    assert (story["node"], story["op_type"], story["rule"]) == ("silu", "Mul", "fused")
    assert story["region"].startswith("gf_")
    out = capsys.readouterr().out
    assert "silu (Mul)" in out
    assert story["region"] in out
    assert main(["explain", "m.onnx", "b", "--json", "x.json"]) == 0
    assert json.loads(Path("x.json").read_text())["nodes"] == [story]


def test_explain_all(place, capsys):
    capsys.readouterr()
    assert main(["explain", "m.onnx", "--skip", "no-gain", "--json", "x.json"]) == 0
    assert [n["node"] for n in json.loads(Path("x.json").read_text())["nodes"]] == ["gate", "silu", "residual", "last"]
    assert main(["explain", "m.onnx", "--policy", "greedy"]) == 2


@pytest.mark.parametrize("device", ["numpy", "host"])
def test_check(place, device, capsys):
    assert main(["check", "m.onnx", "f.onnx", "--device", device, "--json", "c.json", "--size", "n=3"]) == 0
    found = json.loads(Path("c.json").read_text())
    assert found["passed"]
    assert found["inputs"] == {"x": "float32[3, 4]"}
    assert [r["verdict"] for r in found["regions"]] == ["pass"]
    assert "passed" in capsys.readouterr().out


def test_a_failed_check_is_exit_code_1_and_named(place, capsys):
    assert main(["rewrite", "other.onnx", "-o", "g.onnx"]) == 0
    assert main(["check", "m.onnx", "g.onnx", "--device", "numpy", "--json", "c.json"]) == 1
    found = json.loads(Path("c.json").read_text())
    assert not found["passed"]
    assert len(found["guilty"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_run(place, capsys):
    np.savez("in.npz", x=np.ones((2, 4), "f"))
    capsys.readouterr()
    assert main(["run", "f.onnx", "--device", "numpy", "--inputs", "in.npz", "--output", "out.npz", "--json", "o.json"]) == 0
    want = run_reference("m.onnx", {"x": np.ones((2, 4), "f")})["y"]
    np.testing.assert_allclose(np.load("out.npz")["y"], want, rtol=1e-6)
    (row,) = json.loads(Path("o.json").read_text())["outputs"]
    assert (row["name"], row["dtype"], row["shape"]) == ("y", "float32", [2, 4])
    assert row["mean_abs"] == pytest.approx(np.abs(want).mean())
    assert "mean |x|" in capsys.readouterr().out


def test_run_takes_unfused_models_and_the_plugin_form(place):
    assert main(["run", "m.onnx", "--device", "numpy"]) == 0
    assert main(["export-plugin", "f.onnx", "-o", "plugin.onnx"]) == 0
    assert main(["run", "plugin.onnx", "--device", "numpy"]) == 0


def test_show(place, capsys):
    capsys.readouterr()
    assert main(["show", "f.onnx"]) == 0
    name = onnx.load("f.onnx").graph.node[0].name
    assert name in capsys.readouterr().out
    assert main(["show", "f.onnx", name[:8], "--program", "--cuda", "--json", "s.json"]) == 0
    out = capsys.readouterr().out
    assert "tanh" in out
    assert "__global__" in out
    (region,) = json.loads(Path("s.json").read_text())["regions"]
    assert set(region) == {"name", "function", "inputs", "outputs", "program", "cuda"}


def test_show_resources(place, capsys):
    pytest.importorskip("cuda.bindings.nvrtc")
    assert main(["show", "f.onnx", "--resources", "--target", "sm_89", "--json", "s.json"]) == 0
    (region,) = json.loads(Path("s.json").read_text())["regions"]
    assert set(region["resources"]) == {"sm_89"}
    assert all(used["registers"] > 0 and used["spill_stores"] == 0 for used in region["resources"]["sm_89"].values())
    assert "registers" in capsys.readouterr().out


def test_doctor(capsys, tmp_path):
    assert main(["doctor", "--json", str(tmp_path / "d.json")]) == 0
    found = json.loads((tmp_path / "d.json").read_text())
    assert found["usable"]
    rows = {f["name"]: f for f in found["findings"]}
    assert {"Python", "onnx", "onnxruntime", "polygraphy", "C++ compiler", "NVRTC", "NVIDIA GPU", "TensorRT", "TensorRT for RTX"} <= set(
        rows
    )
    assert all(f["state"] == "ok" or f["mend"] for f in rows.values())
    assert "mend" in capsys.readouterr().out or all(f["state"] == "ok" for f in rows.values())


# --- bad input --------------------------------------------------------------------------------------------------------

BAD = {
    "no such file": (["scan", "none.onnx"], "none.onnx: no such file"),
    "a folder": (["scan", "folder"], "folder"),
    "no model": (["scan", "text.onnx"], "not an ONNX model"),
    "an empty file": (["scan", "empty.onnx"], "not an ONNX model"),
    "an invalid model": (["rewrite", "invalid.onnx", "-o", "o.onnx"], "nowhere"),
    "an unknown domain": (["rewrite", "domain.onnx", "-o", "o.onnx"], "zork"),
    "a plan of another model": (["rewrite", "other.onnx", "-o", "o.onnx", "--plan", "p.yaml"], "another graph"),
    "no plan": (["rewrite", "m.onnx", "-o", "o.onnx", "--plan", "plan.txt"], "not a plan"),
    "no such plan": (["rewrite", "m.onnx", "-o", "o.onnx", "--plan", "none.yaml"], "none.yaml"),
    "an unknown policy": (["rewrite", "m.onnx", "-o", "o.onnx", "--policy", "greedy"], "policy 'greedy'"),
    "an unknown policy to plan": (["plan", "m.onnx", "-o", "o.yaml", "--policy", "greedy"], "policy 'greedy'"),
    "an unknown rule": (["rewrite", "m.onnx", "-o", "o.onnx", "--skip", "nonsense"], "rule 'nonsense'"),
    "the output's folder is missing": (["rewrite", "m.onnx", "-o", "nowhere/o.onnx"], "no folder nowhere"),
    "the output is a folder": (["rewrite", "m.onnx", "-o", "folder"], "folder: is a folder"),
    "the output is the input": (["rewrite", "m.onnx", "-o", "./m.onnx"], "is an input of this command"),
    "the report is the output": (["rewrite", "m.onnx", "-o", "o.onnx", "--json", "o.onnx"], "two outputs"),
    "the report's folder is missing": (["scan", "m.onnx", "--json", "nowhere/s.json"], "no folder nowhere"),
    "the plan is the model": (["plan", "m.onnx", "-o", "m.onnx"], "is an input"),
    "restore to the input": (["restore", "f.onnx", "-o", "f.onnx"], "is an input"),
    "an unknown region": (["show", "f.onnx", "gf_nothing"], "no region 'gf_nothing'"),
    "nothing fused to show": (["show", "m.onnx"], "no fused region"),
    "an unknown target to show": (["show", "f.onnx", "--resources", "--target", "sm_1"], "sm_1"),
    "an unknown node": (["explain", "m.onnx", "silus"], "'silu'"),
    "an unknown device": (["check", "m.onnx", "f.onnx", "--device", "tpu"], "no device 'tpu'"),
    "an unknown device to run": (["run", "m.onnx", "--device", "tpu"], "no device 'tpu'"),
    "an unknown flavour": (["build", "f.onnx", "-o", "e", "--flavour", "rtx"], "flavour 'rtx'"),
    "an unknown target": (["build", "f.onnx", "-o", "e", "--flavour", "tensorrt_rtx", "--target", "turing"], "turing"),
    "shapes that do not parse": (["build", "f.onnx", "-o", "e", "--shapes", "x:1x4,2x4"], "not understood"),
    "shapes without sense": (["build", "f.onnx", "-o", "e", "--shapes", "x=4"], "not understood"),
    "wrong shapes in a file": (["check", "m.onnx", "f.onnx", "--inputs", "wrong.npz"], "shape [2, 5]"),
    "wrong names in a file": (["check", "m.onnx", "f.onnx", "--inputs", "named.npz"], "no such input"),
    "no arrays": (["run", "m.onnx", "--inputs", "bad.npz"], "bad.npz"),
    "no such arrays": (["run", "m.onnx", "--inputs", "none.npz"], "none.npz"),
    "a size without a name": (["check", "m.onnx", "f.onnx", "--size", "4"], "size '4' is not understood"),
    "a size of no dimension": (["check", "m.onnx", "f.onnx", "--size", "m=4"], "m=4"),
    "a size of no dimension to predict at": (["scan", "m.onnx", "--size", "m=4"], "m=4"),
    "a size of no dimension to rewrite at": (["rewrite", "m.onnx", "-o", "o.onnx", "--size", "m=4"], "m=4"),
    "a negative tolerance": (["check", "m.onnx", "f.onnx", "--rtol", "-1"], "rtol=-1.0"),
    "a tolerance that is no number": (["check", "m.onnx", "f.onnx", "--rtol", "much"], "--rtol"),
    "no output": (["rewrite", "m.onnx"], "output"),
    "no model at all": (["scan"], "MODEL"),
    "an unknown option": (["scan", "m.onnx", "--fast"], "--fast"),
    "an unknown command": (["fuse", "m.onnx"], "fuse"),
    "no such original": (["check", "none.onnx", "f.onnx"], "none.onnx: no such file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(place, case, capsys):
    arguments, message = BAD[case]
    before = {p: p.read_bytes() for p in sorted(place.iterdir()) if p.is_file()}
    capsys.readouterr()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("graphfuse: ")
    assert err.count("\n") == 1
    assert "internal error" not in err
    assert {p: p.read_bytes() for p in sorted(place.iterdir()) if p.is_file()} == before


def test_models_of_different_inputs(place, capsys):
    onnx.save(chain().__class__.FromString(chain().SerializeToString().replace(b"\n\x01x", b"\n\x01q")), "q.onnx")
    assert main(["check", "m.onnx", "q.onnx", "--device", "numpy"]) == 2
    assert "no rewrite of the original" in capsys.readouterr().err


@pytest.mark.skipif("__import__('tests.conftest').conftest.gpu_absence() is None", reason="there is a GPU here")
@pytest.mark.parametrize("device", ["cuda", "engine"])
def test_devices_that_are_not_here(place, device, capsys):
    assert main(["check", "m.onnx", "f.onnx", "--device", device]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_bug_of_ours_is_one_line_too(place, monkeypatch, capsys):
    from graphfuse.report import scan

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("this\nwas not foreseen")

    monkeypatch.setattr(scan, "scan", broken)
    monkeypatch.setenv("GRAPHFUSE_DEBUG", "0")
    assert main(["scan", "m.onnx"]) == 2
    err = capsys.readouterr().err
    assert err == "graphfuse: internal error, please report it with --debug: RuntimeError: this was not foreseen\n"
    monkeypatch.setenv("GRAPHFUSE_DEBUG", "1")
    assert main(["scan", "m.onnx"]) == 2
    assert "Traceback" in capsys.readouterr().err


# --- as a process -----------------------------------------------------------------------------------------------------


def process(*words: str, **options):
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}", "HOME": str(Path.home())}
    return subprocess.run([sys.executable, "-m", "graphfuse", *words], capture_output=True, text=True, env=env, timeout=120, **options)


def test_exit_codes_of_the_process(place):
    assert process("scan", "m.onnx").returncode == 0
    done = process("scan", "none.onnx")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_help_is_quick_and_imports_nothing_heavy():
    times = []
    for _ in range(3):
        began = time.perf_counter()
        assert process("--help").returncode == 0
        times.append(time.perf_counter() - began)
    assert min(times) < 2.0  # 0.25 s on a machine of its own; tests share theirs
    code = "import sys; from graphfuse.cli import main; main(['--help']); print(*sorted({'onnx', 'onnx_ir', 'onnxruntime', 'rich', 'yaml'} & set(sys.modules)))"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    assert done.stdout.splitlines()[-1] == "", done.stdout.splitlines()[-1] + done.stderr


def test_a_reader_that_leaves_early(place):
    command = f"{sys.executable} -m graphfuse show f.onnx --cuda --program | head -1"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}", "HOME": str(Path.home())}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env, timeout=60)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
