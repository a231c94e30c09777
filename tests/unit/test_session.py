"""Sessions in NumPy and ONNX Runtime: stages, captured values, validation, damaged models."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphfuse.ir import Builder, GraphfuseError, Program, sym
from graphfuse.ir.dtypes import BF16, F32, I64
from graphfuse.session import Session
from graphfuse.session.stages import outer_reads, split
from tests.portable import FLOAT, call, function, info, model

node = helper.make_node


N = sym("n")


def scale_relu(shape=(N, 4)) -> Program:
    b = Builder()
    x, s = b.param(F32, shape), b.param(F32, (4,))
    return b.finish([b.map("max", x * s, 0.0)])


def scale_relu_function():
    return function("gf_scale_relu_1", scale_relu(), [node("Mul", ["x", "s"], ["t"]), node("Relu", ["t"], ["y"])], ["x", "s"], ["y"])


def two_layers() -> onnx.ModelProto:
    """MatMul, fused, MatMul, fused; a side branch of ONNX Runtime nodes joins in the last fused node."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal((4, 4)).astype("f"), n) for n in ("w1", "w2")]
    weights.append(numpy_helper.from_array(rng.standard_normal(4).astype("f"), "s1"))
    nodes = [
        node("MatMul", ["x", "w1"], ["a"]),
        call("gf_scale_relu_1", ["a", "s1"], ["b"], "first"),
        node("ReduceMean", ["x"], ["s2"], axes=[0], keepdims=0),
        node("MatMul", ["b", "w2"], ["c"]),
        call("gf_scale_relu_1", ["c", "s2"], ["y"], "second"),
    ]
    return model(
        nodes, [info("x", shape=["n", 4])], [info("y", shape=["n", 4]), info("b", shape=["n", 4])], weights, [scale_relu_function()]
    )


def reference(proto: onnx.ModelProto, feeds):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def test_fused_and_unfused_parts_agree_with_the_whole_in_onnx_runtime():
    proto = two_layers()
    x = np.random.default_rng(1).standard_normal((5, 4)).astype("f")
    got, want = Session(proto, "numpy").run({"x": x}), reference(proto, {"x": x})
    assert list(got) == ["y", "b"]
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6)


def stages_of(proto: onnx.ModelProto):
    graph = onnx_ir.from_proto(proto).graph
    return split(graph, lambda n: outer_reads(n, graph))


def test_stages_are_few_and_in_order():
    stages = stages_of(two_layers())
    kinds = [(s.fused, [n.op_type for n in s.nodes]) for s in stages]
    assert kinds == [
        (False, ["MatMul", "ReduceMean"]),
        (True, ["gf_scale_relu_1"]),
        (False, ["MatMul"]),
        (True, ["gf_scale_relu_1"]),
    ]


def test_long_alternating_chain_is_cut_in_linear_time():
    nodes, last = [], "x"
    for i in range(1000):
        nodes += [node("Neg", [last], [f"a{i}"]), call("gf_scale_relu_1", [f"a{i}", "s"], [f"b{i}"])]
        last = f"b{i}"
    proto = model(nodes, [info("x", shape=["n", 4]), info("s", shape=[4])], [info(last, shape=["n", 4])], functions=[scale_relu_function()])
    stages = stages_of(proto)
    assert len(stages) == 2000
    assert all(len(s.nodes) == 1 for s in stages)


@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_captures_the_output_of_a_fused_node(flag):
    then = helper.make_graph([node("Neg", ["b"], ["t"])], "then", [], [info("t", shape=["m", 4])])
    other = helper.make_graph([node("MatMul", ["b", "w"], ["e"])], "else", [], [info("e", shape=["m", 4])])
    nodes = [
        call("gf_scale_relu_1", ["x", "s"], ["b"]),
        node("If", ["flag"], ["y"], then_branch=then, else_branch=other),
        call("gf_scale_relu_1", ["y", "s"], ["z"]),
    ]
    w = numpy_helper.from_array(np.eye(4, dtype="f") * 2, "w")
    inputs = [info("x", shape=["n", 4]), info("s", shape=[4]), info("flag", TensorProto.BOOL, [])]
    proto = model(nodes, inputs, [info("z", shape=["m", 4])], [w], [scale_relu_function()])
    feeds = {"x": np.random.default_rng(2).standard_normal((3, 4)).astype("f"), "s": np.ones(4, "f"), "flag": np.array(flag)}
    np.testing.assert_allclose(Session(proto, "numpy").run(feeds)["z"], reference(proto, feeds)["z"], rtol=1e-6)


def test_a_fused_node_inside_a_branch_runs_from_its_function_body():
    then = helper.make_graph([call("gf_scale_relu_1", ["x", "s"], ["t"])], "then", [], [info("t", shape=["m", 4])])
    other = helper.make_graph([node("Identity", ["x"], ["e"])], "else", [], [info("e", shape=["m", 4])])
    nodes = [node("If", ["flag"], ["y"], then_branch=then, else_branch=other)]
    inputs = [info("x", shape=["n", 4]), info("s", shape=[4]), info("flag", TensorProto.BOOL, [])]
    proto = model(nodes, inputs, [info("y", shape=["m", 4])], functions=[scale_relu_function()])
    x = np.array([[-1, 2, 3, 4]], "f")
    got = Session(proto, "numpy").run({"x": x, "s": np.full(4, 2, "f"), "flag": np.array(True)})
    np.testing.assert_array_equal(got["y"], [[0, 4, 6, 8]])


def test_an_initializer_that_is_also_an_input_has_its_default_and_can_be_fed():
    gain = numpy_helper.from_array(np.full(4, 3, "f"), "s")
    nodes = [call("gf_scale_relu_1", ["x", "s"], ["b"]), node("Mul", ["b", "s"], ["y"])]
    proto = model(nodes, [info("x", shape=["n", 4]), info("s", shape=[4])], [info("y", shape=["m", 4])], [gain], [scale_relu_function()])
    session, x = Session(proto, "numpy"), np.ones((1, 4), "f")
    np.testing.assert_array_equal(session.run({"x": x})["y"], np.full((1, 4), 9))
    np.testing.assert_array_equal(session.run({"x": x, "s": np.full(4, 2, "f")})["y"], np.full((1, 4), 4))


def test_bfloat16_passes_between_onnx_runtime_and_fused_nodes():
    b = Builder()
    double = b.finish([b.param(BF16, (N,)) * 2.0])
    body = [node("Add", ["x", "x"], ["y"])]
    nodes = [
        node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16),
        call("gf_double_1", ["h"], ["d"]),
        node("Cast", ["d"], ["y"], to=FLOAT),
    ]
    outputs = [info("y", shape=["n"]), info("d", TensorProto.BFLOAT16, ["n"]), info("h", TensorProto.BFLOAT16, ["n"])]
    proto = model(nodes, [info("x", shape=["n"])], outputs, functions=[function("gf_double_1", double, body, ["x"], ["y"])])
    got = Session(proto, "numpy").run({"x": np.array([1.5, 1.001], "f")})
    assert got["d"].dtype == got["h"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got["y"], np.array([3, 2], "f"))


def test_sequences_cross_the_stages_of_onnx_runtime():
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["q"]),
        node("SequenceAt", ["q", "one"], ["a"]),
        call("gf_scale_relu_1", ["a", "s"], ["b"]),
        node("SequenceInsert", ["q", "b"], ["r"]),
        node("SequenceLength", ["r"], ["y"]),
    ]
    one = numpy_helper.from_array(np.array(1, np.int64), "one")
    sequence = helper.make_tensor_sequence_value_info("r", FLOAT, None)
    inputs = [info("x", shape=["n", 4]), info("s", shape=[4])]
    proto = model(nodes, inputs, [info("y", TensorProto.INT64, []), sequence], [one], [scale_relu_function()])
    got = Session(proto, "numpy").run({"x": np.ones((1, 4), "f"), "s": np.full(4, 2, "f")})
    assert got["y"] == 3
    np.testing.assert_array_equal(got["r"][2], np.full((1, 4), 2))


def test_scalars_and_empty_arrays_keep_their_shape():
    b = Builder()
    scalar = b.finish([b.param(F32, ()) + 1.0])
    body = [node("Identity", ["x"], ["y"])]
    proto = model(
        [call("gf_one_1", ["x"], ["y"])],
        [info("x", shape=[])],
        [info("y", shape=[])],
        functions=[function("gf_one_1", scalar, body, ["x"], ["y"])],
    )
    assert Session(proto, "numpy").run({"x": np.array(1, "f")})["y"].shape == ()
    assert Session(two_layers(), "numpy").run({"x": np.zeros((0, 4), "f")})["b"].shape == (0, 4)


def test_function_inputs_without_a_place_in_the_program_are_skipped():
    made = function("gf_p_1", scale_relu(), [node("Mul", ["x", "s"], ["y"])], ["axes", "x", "s"], ["y"], params=[1, 2])
    inputs = [info("axes", TensorProto.INT64, [1]), info("x", shape=["n", 4]), info("s", shape=[4])]
    proto = model([call("gf_p_1", ["axes", "x", "s"], ["y"])], inputs, [info("y", shape=["m", 4])], functions=[made])
    got = Session(proto, "numpy").run({"axes": np.array([0]), "x": np.ones((1, 4), "f"), "s": np.ones(4, "f")})
    np.testing.assert_array_equal(got["y"], np.ones((1, 4)))


def test_large_weights_are_given_to_onnx_runtime_in_memory():
    w = np.random.default_rng(0).standard_normal((256, 256)).astype("f")
    proto = model(
        [node("MatMul", ["x", "w"], ["y"])], [info("x", shape=[1, 256])], [info("y", shape=[1, 256])], [numpy_helper.from_array(w, "w")]
    )
    session = Session(proto, "numpy")
    assert list(session._steps[0]._shared) == ["w"]
    x = np.ones((1, 256), "f")
    np.testing.assert_array_equal(session.run({"x": x})["y"], reference(proto, {"x": x})["y"])


GOOD = np.ones((2, 4), "f")


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, r"needs the input 'x' float32\[n, 4\]"),
        ({"X": GOOD}, "no input 'X'; did you mean 'x'"),
        ({"x": GOOD, "other": GOOD}, "no input 'other'"),
        ({"x": GOOD.astype("d")}, r"is float64; the model wants float32"),
        ({"x": GOOD[0]}, r"has the shape \[4\]; the model wants \[n, 4\]"),
        ({"x": np.ones((2, 5), "f")}, r"has the shape \[2, 5\]"),
        ({"x": np.array(["a"])}, "the model wants float32"),
    ],
)
def test_wrong_inputs_are_one_clear_line(feeds, message):
    with pytest.raises(GraphfuseError, match=message) as caught:
        Session(two_layers(), "numpy").run(feeds)
    assert "\n" not in str(caught.value)


def test_sizes_that_no_kernel_was_made_for_name_the_region():
    made = function("gf_s_1", scale_relu((2, 4)), [node("Mul", ["x", "s"], ["y"])], ["x", "s"], ["y"])
    proto = model(
        [call("gf_s_1", ["x", "s"], ["y"], "here")],
        [info("x", shape=["n", 4]), info("s", shape=[4])],
        [info("y", shape=["m", 4])],
        functions=[made],
    )
    with pytest.raises(GraphfuseError, match="fused node here"):
        Session(proto, "numpy").run({"x": np.ones((3, 4), "f"), "s": np.ones(4, "f")})


def _broken(change) -> onnx.ModelProto:
    proto = two_layers()
    change(proto)
    return proto


def _set_spec(proto, text):
    proto.functions[0].metadata_props[0].value = text


def _set_params(proto, text):
    proto.functions[0].metadata_props[1].value = text


@pytest.mark.parametrize(
    "change",
    [
        lambda p: _set_spec(p, "{}"),
        lambda p: _set_spec(p, "[" * 100_000),
        lambda p: _set_params(p, "[0]"),
        lambda p: _set_params(p, "[0, 7]"),
        lambda p: _set_params(p, "[0, true]"),
        lambda p: _set_params(p, "nonsense"),
        lambda p: p.functions[0].metadata_props.pop(0),
        lambda p: p.functions.pop(0),
    ],
)
def test_a_damaged_model_is_refused(change):
    with pytest.raises(GraphfuseError) as caught:
        Session(_broken(change), "numpy")
    assert "\n" not in str(caught.value)


def test_a_program_of_another_type_is_refused():
    b = Builder()
    integer = b.finish([b.param(I64, (4,)) + 1])
    proto = model(
        [call("gf_i_1", ["x"], ["y"])],
        [info("x", shape=[4])],
        [info("y", shape=[4])],
        functions=[function("gf_i_1", integer, [node("Neg", ["x"], ["y"])], ["x"], ["y"])],
    )
    with pytest.raises(GraphfuseError, match="damaged|invalid"):
        Session(proto, "numpy").run({"x": np.ones(4, "f")})


def test_unknown_device():
    with pytest.raises(GraphfuseError, match="no device 'gpu'; choose one of auto, cuda, host, numpy"):
        Session(two_layers(), "gpu")


def test_bind_needs_cuda():
    with pytest.raises(GraphfuseError, match="bind needs a session on device 'cuda'; this one runs on 'numpy'"):
        Session(two_layers(), "numpy").bind({})


def test_nodes_that_only_function_bodies_read_are_not_run():
    made = function("gf_p_1", scale_relu(), [node("Mul", ["x", "s"], ["y"])], ["x", "s", "shape"], ["y"], params=[0, 1])
    nodes = [node("Shape", ["x"], ["shape"]), call("gf_p_1", ["x", "s", "shape"], ["y"])]
    inputs = [info("x", shape=["n", 4]), info("s", shape=[4])]
    proto = model(nodes, inputs, [info("y", shape=["n", 4])], functions=[made])
    session = Session(proto, "numpy")
    assert session.unfused == []
    np.testing.assert_array_equal(session.run({"x": GOOD, "s": np.ones(4, "f")})["y"], GOOD)
