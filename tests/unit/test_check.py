"""``check`` on hand-made fused models: right ones pass, wrong ones fail and the guilty region is named."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, inliner, numpy_helper

from graphfuse.check import check
from graphfuse.ir import Builder, GraphfuseError, sym
from graphfuse.ir.dtypes import BF16, F16, F32, I64
from tests.portable import call, function, info, model

node = helper.make_node
N = sym("n")


def relu_program(scale: float = 1.0):
    b = Builder()
    x = b.param(F32, (N, 4))
    return b.finish([b.map("max", x * scale, 0.0)])


def tanh_program(wrong: bool = False):
    b = Builder()
    x = b.param(F32, (N, 4))
    return b.finish([b.map("tanh", x + 0.01 if wrong else x)])


def chain(relu=None, tanh=None) -> onnx.ModelProto:
    """x -> Relu (fused) -> MatMul -> Tanh (fused); the function bodies are right whatever the programs are."""
    functions = [
        function("gf_relu_1", relu or relu_program(), [node("Relu", ["x"], ["y"])], ["x"], ["y"]),
        function("gf_tanh_1", tanh or tanh_program(), [node("Tanh", ["x"], ["y"])], ["x"], ["y"]),
    ]
    w = numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 4)).astype("f"), "w")
    nodes = [call("gf_relu_1", ["x"], ["a"], "relu"), node("MatMul", ["a", "w"], ["b"]), call("gf_tanh_1", ["b"], ["y"], "tanh")]
    return model(nodes, [info("x", shape=["n", 4])], [info("y", shape=["n", 4])], [w], functions)


def plain(proto: onnx.ModelProto) -> onnx.ModelProto:
    return inliner.inline_local_functions(proto)


def run(original, fused, **options):
    return check(original, fused, device="numpy", **options)


def test_a_right_model_passes():
    result = run(plain(chain()), chain())
    assert result.passed
    assert [(o.name, o.verdict) for o in result.outputs] == [("y", "pass")]
    assert [(r.name, r.verdict) for r in result.regions] == [("relu", "pass"), ("tanh", "pass")]
    assert result.device == "numpy"
    assert result.outputs[0].used < 1


@pytest.mark.parametrize(("fault", "guilty"), [({"relu": relu_program(1.001)}, "relu"), ({"tanh": tanh_program(True)}, "tanh")])
def test_the_guilty_region_is_named_and_no_other(fault, guilty):
    result = run(plain(chain()), chain(**fault))
    assert not result.passed
    assert result.guilty == (guilty,)
    assert not result.outputs[0].passed
    assert f"guilty: {guilty}" in result.notes


def test_a_fault_that_the_output_hides_is_still_found():
    """An error before a saturated tanh does not reach the output."""
    big = {"x": np.full((2, 4), 1e4, "f")}
    result = run(plain(chain()), chain(relu=relu_program(1.001)), inputs=big)
    assert result.outputs[0].passed
    assert result.guilty == ("relu",)
    assert not result.passed


def test_json_is_plain():
    found = run(plain(chain()), chain(tanh=tanh_program(True))).to_json()
    text = json.loads(json.dumps(found, allow_nan=False))
    assert text["guilty"] == ["tanh"]
    assert text["outputs"][0]["verdict"] == "FAIL"
    assert {"name", "dtype", "shape", "max_abs", "max_rel", "rtol", "atol", "nans", "infs", "reason"} <= set(text["outputs"][0])


def _renamed(proto: onnx.ModelProto, old: str, new: str) -> onnx.ModelProto:
    for n in proto.graph.node:
        n.output[:] = [new if o == old else o for o in n.output]
        n.input[:] = [new if i == old else i for i in n.input]
    for value in (*proto.graph.output, *proto.graph.input):
        value.name = new if value.name == old else value.name
    return proto


def test_a_renamed_output_fails():
    result = run(plain(chain()), _renamed(chain(), "y", "z"))
    assert not result.passed
    assert [o.name for o in result.outputs if not o.passed] == ["y", "z"]


def test_models_of_different_inputs_are_bad_input():
    with pytest.raises(GraphfuseError, match="no rewrite of the original: only the original has the input 'x' of float32"):
        run(plain(chain()), _renamed(chain(), "x", "q"))


def test_an_inner_value_that_the_original_lacks_is_not_compared():
    result = run(plain(chain()), _renamed(chain(), "a", "other"))
    assert result.passed
    assert result.regions[0].verdict == "not compared"
    assert "no value 'other'" in result.regions[0].reason
    assert result.notes == ("1 of 2 regions were not compared by themselves; the outputs cover them",)


def test_integer_outputs_are_exact():
    nodes = [node("Cast", ["x"], ["y"], to=TensorProto.INT64)]
    inputs, outputs = [info("x", shape=["n"])], [info("y", TensorProto.INT64, ["n"])]
    b = Builder()
    x = b.param(F32, (N,))
    wrong = b.finish([b.cast(b.cast(x, F16), I64)])
    fused = model([call("gf_c_1", ["x"], ["y"], "c")], inputs, outputs, functions=[function("gf_c_1", wrong, nodes, ["x"], ["y"])])
    result = run(model(nodes, inputs, outputs), fused, inputs={"x": np.array([2049.0, 3.0], "f")})
    assert result.guilty == ("c",)
    assert result.outputs[0].wrong == 1
    assert "compared exactly" in result.outputs[0].reason


def test_bfloat16_outputs_are_compared_without_polygraphy():
    b = Builder()
    program = b.finish([b.cast(b.param(F32, (N,)) * 2.0, BF16)])
    nodes = [node("Add", ["x", "x"], ["t"]), node("Cast", ["t"], ["y"], to=TensorProto.BFLOAT16)]
    inputs, outputs = [info("x", shape=["n"])], [info("y", TensorProto.BFLOAT16, ["n"])]
    fused = model([call("gf_b_1", ["x"], ["y"])], inputs, outputs, functions=[function("gf_b_1", program, nodes, ["x"], ["y"])])
    result = run(model(nodes, inputs, outputs), fused)
    assert result.passed
    assert "graphfuse alone compared" in result.notes[0]


@pytest.mark.parametrize("fed", [False, True])
def test_an_initializer_that_is_an_input_may_be_fed_or_not(fed):
    gain = numpy_helper.from_array(np.full(4, 3, "f"), "gain")
    inputs = [info("x", shape=["n", 4]), info("gain", shape=[4])]
    b = Builder()
    program = b.finish([b.param(F32, (N, 4)) * b.param(F32, (4,))])
    nodes = [node("Mul", ["x", "gain"], ["y"])]
    outputs = [info("y", shape=["n", 4])]
    made = function("gf_m_1", program, nodes, ["x", "gain"], ["y"])
    fused = model([call("gf_m_1", ["x", "gain"], ["y"])], inputs, outputs, [gain], [made])
    feeds = {"x": np.ones((2, 4), "f"), **({"gain": np.full(4, 7, "f")} if fed else {})}
    result = run(model(nodes, inputs, outputs, [gain]), fused, inputs=feeds)
    assert result.passed
    assert result.notes == ()
    stale = model(nodes, inputs, outputs, [numpy_helper.from_array(np.full(4, 2, "f"), "gain")])
    assert run(stale, fused, inputs=feeds).passed == fed


@pytest.mark.parametrize("outside", [False, True])
def test_models_of_the_newest_ir_version_are_checked_whatever_onnx_runtime_reads(outside, tmp_path):
    original, fused = plain(chain()), chain()
    original.ir_version = fused.ir_version = onnx.IR_VERSION
    assert run(original, fused).passed
    onnx.save(original, tmp_path / "model.onnx", save_as_external_data=outside, size_threshold=0)
    assert run(tmp_path / "model.onnx", fused).passed


def test_without_polygraphy_the_check_is_made_and_says_so(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "polygraphy" else find(name, *more))
    result = run(plain(chain()), chain(tanh=tanh_program(True)))
    assert result.guilty == ("tanh",)
    assert not result.outputs[0].passed
    assert result.notes[0] == "Polygraphy is not installed: graphfuse alone compared"


def test_host_without_a_compiler_falls_back_and_says_so(monkeypatch):
    from graphfuse.session import devices

    def absent():
        raise GraphfuseError("no C++ compiler was found; install g++")

    monkeypatch.setattr(devices, "_open_host", absent)
    result = check(plain(chain()), chain(), device="host")
    assert result.passed
    assert result.device == "numpy"
    assert "no C++ compiler" in result.notes[0]
    assert "NumPy interpreter" in result.notes[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "no device 'tpu' to check on"),
        ({"rtol": -1.0}, "rtol=-1.0 is no tolerance"),
        ({"atol": float("nan")}, "atol=nan is no tolerance"),
        ({"inputs": {"x": np.ones((2, 5), "f")}}, "shape"),
        ({"inputs": {"z": np.ones((2, 4), "f")}}, "no such input"),
        ({"sizes": {"m": 3}}, "size m=3"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(GraphfuseError, match=message) as caught:
        check(plain(chain()), chain(), **{"device": "numpy", **options})
    assert "\n" not in str(caught.value)
