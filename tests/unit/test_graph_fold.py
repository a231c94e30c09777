from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphfuse.graph.fold import fold_constants
from tests.conftest import run_reference

F, I64 = TensorProto.FLOAT, TensorProto.INT64
node, info = helper.make_node, helper.make_tensor_value_info


def model_of(nodes, inputs, outputs, weights=None, opset=17) -> ir.Model:
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))


def folded(model: ir.Model, feeds=None, **limits) -> onnx.ModelProto:
    """Folds, checks, and compares a run before with one after."""
    before = ir.to_proto(model)
    fold_constants(model, **limits)
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    if feeds is not None:
        want, got = run_reference(before, feeds), run_reference(after, feeds)
        assert list(want) == list(got)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])
            assert got[name].dtype == want[name].dtype
    return after


def op_types(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


def test_a_chain_of_constants_becomes_one_initializer() -> None:
    nodes = [node("Transpose", ["w"], ["t"]), node("Sqrt", ["t"], ["s"]), node("Mul", ["x", "s"], ["y"])]
    model = model_of(nodes, [info("x", F, (2, 2))], [info("y", F, (2, 2))], {"w": np.array([[1, 2], [3, 4]], np.float32)})
    after = folded(model, {"x": np.ones((2, 2), np.float32)})
    assert op_types(after) == ["Mul"]
    assert [t.name for t in after.graph.initializer] == ["s"]


@pytest.mark.parametrize("form", [{"value": numpy_helper.from_array(np.float32(2))}, {"value_float": 2.0}, {"value_floats": [2.0, 2.0]}])
def test_constant_nodes_become_initializers(form) -> None:
    model = model_of([node("Constant", [], ["c"], **form), node("Mul", ["x", "c"], ["y"])], [info("x", F, (2,))], [info("y", F, (2,))])
    assert op_types(folded(model, {"x": np.ones(2, np.float32)})) == ["Mul"]


def test_shapes_that_are_static_and_sizes_of_dynamic_tensors_that_are() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["columns"], axis=0),
        node("Unsqueeze", ["columns", "axes"], ["c1"]),
        node("Concat", ["minus", "c1"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    weights = {"one": np.int64(1), "axes": np.array([0]), "minus": np.array([-1])}
    model = model_of(nodes, [info("x", F, ("batch", 6))], [info("y", F, (None, 6))], weights)
    after = folded(model, {"x": np.zeros((4, 6), np.float32)})
    assert op_types(after) == ["Reshape"]
    assert numpy_helper.to_array(after.graph.initializer[0]).tolist() == [-1, 6]


def test_dynamic_shapes_stay() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("Cast", ["s"], ["y"], to=F)]
    after = folded(model_of(nodes, [info("x", F, ("batch", 6))], [info("y", F, (2,))]), {"x": np.zeros((4, 6), np.float32)})
    assert op_types(after) == ["Shape", "Cast"]


def test_an_initializer_that_is_an_input_can_be_fed_and_stays() -> None:
    nodes = [node("Neg", ["w"], ["n"]), node("Mul", ["x", "n"], ["y"])]
    model = model_of(nodes, [info("x", F, (2,)), info("w", F, (2,))], [info("y", F, (2,))], {"w": np.ones(2, np.float32)})
    after = folded(model, {"x": np.ones(2, np.float32), "w": np.array([5, 6], np.float32)})
    assert op_types(after) == ["Neg", "Mul"]
    assert [i.name for i in after.graph.input] == ["x", "w"]


def test_unused_inputs_stay_and_unused_nodes_go() -> None:
    nodes = [node("Relu", ["x"], ["dead"]), node("Neg", ["dead"], ["deader"]), node("Abs", ["x"], ["y"])]
    weights = {"unused": np.zeros(3, np.float32), "fed": np.zeros(2, np.float32)}
    model = model_of(nodes, [info("x", F, (2,)), info("z", F, (1,)), info("fed", F, (2,))], [info("y", F, (2,))], weights)
    after = folded(model, {"x": np.ones(2, np.float32), "z": np.ones(1, np.float32)})
    assert op_types(after) == ["Abs"]
    assert [i.name for i in after.graph.input] == ["x", "z", "fed"]
    assert [t.name for t in after.graph.initializer] == ["fed"]


def test_an_output_that_is_constant_keeps_its_name_and_its_readers() -> None:
    nodes = [node("Neg", ["w"], ["n"], name="negate"), node("Mul", ["x", "n"], ["y"]), node("Shape", ["x"], ["s"])]
    outputs = [info("n", F, (2,)), info("y", F, (2,)), info("s", I64, (1,))]
    model = model_of(nodes, [info("x", F, (2,))], outputs, {"w": np.ones(2, np.float32)})
    after = folded(model, {"x": np.array([3, 4], np.float32)})
    assert [o.name for o in after.graph.output] == ["n", "y", "s"]
    assert sorted(op_types(after)) == ["Constant", "Constant", "Mul"]
    assert fold_constants(ir.from_proto(after)) == 0


def test_an_initializer_or_constant_node_that_is_an_output() -> None:
    nodes = [node("Constant", [], ["c"], value_float=2.0), node("Mul", ["x", "c"], ["y"])]
    model = model_of(nodes, [info("x", F, (2,))], [info("c", F, ()), info("w", F, (2,)), info("y", F, (2,))], {"w": np.ones(2, np.float32)})
    after = folded(model, {"x": np.ones(2, np.float32)})
    assert op_types(after) == ["Constant", "Mul"]
    assert [t.name for t in after.graph.initializer] == ["w"]


def test_what_a_branch_reads_counts_as_used_and_is_folded() -> None:
    then = helper.make_graph([node("Add", ["x", "n"], ["a"])], "then", [], [info("a", F, (2,))])
    other = helper.make_graph([node("Identity", ["n"], ["b"])], "else", [], [info("b", F, (2,))])
    nodes = [node("Neg", ["w"], ["n"]), node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    model = model_of(nodes, [info("x", F, (2,)), info("c", TensorProto.BOOL, ())], [info("y", F, (2,))], {"w": np.ones(2, np.float32)})
    after = folded(model, {"x": np.ones(2, np.float32), "c": np.array(False)})
    assert op_types(after) == ["If"]
    assert [t.name for t in after.graph.initializer] == ["n"]


def test_random_operators_and_quantised_weights_stay() -> None:
    nodes = [
        node("RandomUniformLike", ["w"], ["r"], seed=1.0),
        node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        node("Add", ["r", "d"], ["e"]),
        node("Add", ["x", "e"], ["y"]),
    ]
    weights = {"w": np.zeros(2, np.float32), "q": np.array([1, 2], np.int8), "scale": np.float32(0.5), "zero": np.int8(0)}
    after = folded(model_of(nodes, [info("x", F, (2,))], [info("y", F, (2,))], weights))
    assert op_types(after) == ["RandomUniformLike", "DequantizeLinear", "Add", "Add"]


def test_results_that_would_blow_the_file_up_stay() -> None:
    nodes = [
        node("ConstantOfShape", ["shape"], ["big"], value=numpy_helper.from_array(np.ones(1, np.float32))),
        node("Tile", ["row", "times"], ["tiled"]),
        node("Add", ["big", "tiled"], ["sum"]),
        node("Add", ["x", "sum"], ["y"]),
    ]
    weights = {"shape": np.array([1024, 512]), "row": np.ones((1, 512), np.float32), "times": np.array([1024, 1])}
    feeds = {"x": np.ones((1024, 512), np.float32)}
    kept = folded(model_of(nodes, [info("x", F, (1024, 512))], [info("y", F, (1024, 512))], weights), feeds)
    assert op_types(kept) == ["ConstantOfShape", "Tile", "Add", "Add"]
    small = folded(model_of(nodes, [info("x", F, (1024, 512))], [info("y", F, (1024, 512))], weights), feeds, limit_bytes=4 << 20)
    assert op_types(small) == ["Add"]


def test_a_result_that_nobody_could_hold_is_never_computed() -> None:
    nodes = [
        node("ConstantOfShape", ["shape"], ["big"]),
        node("ReduceSum", ["big"], ["total"], keepdims=0),
        node("Add", ["x", "total"], ["y"]),
    ]
    model = model_of(nodes, [info("x", F, (1,))], [info("y", F, (1,))], {"shape": np.array([1 << 40])})
    assert fold_constants(model) == 0


def test_sizes_that_depend_on_values_are_folded_in_rounds() -> None:
    nodes = [node("NonZero", ["mask"], ["nz"]), node("Squeeze", ["nz", "axes"], ["where"]), node("Gather", ["x", "where"], ["y"], axis=0)]
    weights = {"mask": np.array([0, 1, 0, 1], np.float32), "axes": np.array([0])}
    model = model_of(nodes, [info("x", F, (4,))], [info("y", F, (None,))], weights)
    assert op_types(folded(model, {"x": np.arange(4, dtype=np.float32)})) == ["Gather"]


def test_what_onnx_runtime_cannot_compute_stays_and_the_rest_is_folded() -> None:
    nodes = [node("Abs", ["w"], ["a"]), node("Det", ["h"], ["d"]), node("Neg", ["w"], ["n"]), node("Sum", ["x", "a", "d", "n"], ["y"])]
    weights = {"w": np.ones(2, np.float32), "h": np.eye(2, dtype=np.float64)}
    nodes[1] = node("Det", ["h"], ["d64"])
    nodes.insert(2, node("Cast", ["d64"], ["d"], to=F))
    model = model_of(nodes, [info("x", F, (2,))], [info("y", F, (2,))], weights)
    fold_constants(model)
    assert [n.op_type for n in model.graph] == ["Det", "Cast", "Sum"]


def test_large_weights_are_folded_without_passing_through_the_model() -> None:
    nodes = [node("Transpose", ["w"], ["t"]), node("Mul", ["x", "t"], ["y"])]
    w = np.random.default_rng(0).standard_normal((600, 700)).astype(np.float32)
    model = model_of(nodes, [info("x", F, (700, 1))], [info("y", F, (700, 600))], {"w": w})
    assert op_types(folded(model, {"x": np.ones((700, 1), np.float32)})) == ["Mul"]
    np.testing.assert_array_equal(model.graph.initializers["t"].const_value.numpy(), w.T)


@pytest.mark.parametrize("opset", [9, 10, 11, 13])
def test_old_opsets_with_axes_in_attributes(opset: int) -> None:
    nodes = [node("Shape", ["x"], ["s"])]
    if opset < 10:
        nodes.append(node("Slice", ["s"], ["t"], starts=[1], ends=[3]))
    else:
        nodes.append(node("Slice", ["s", "one", "three"], ["t"]))
    axes = {} if opset >= 13 else {"axes": [0]}
    nodes += [
        node("Unsqueeze", ["t", "zero"] if opset >= 13 else ["t"], ["u"], **axes),
        node("Cast", ["u"], ["f"], to=F),
        node("Mul", ["x", "f"], ["y"]),
    ]
    weights = {"one": np.array([1]), "three": np.array([3]), "zero": np.array([0])}
    model = model_of(nodes, [info("x", F, ("n", 2, 2))], [info("y", F, ("n", 2, 2))], weights, opset)
    assert op_types(folded(model, {"x": np.ones((3, 2, 2), np.float32)})) == ["Mul"]


# --- what no input decides


@pytest.mark.parametrize(
    ("op", "attrs", "shape", "wanted"),
    [
        ("ReduceMax", {"axes": [1]}, (2, 0, 3), np.full((2, 1, 3), -np.inf, np.float32)),
        ("ReduceSum", {"keepdims": 0}, (2, 0), np.float32(0)),
        ("EyeLike", {"k": 1}, (2, 3), np.eye(2, 3, 1, dtype=np.float32)),
        ("Neg", {}, (3, 0), np.zeros((3, 0), np.float32)),
    ],
)
def test_a_result_that_no_input_decides_is_a_constant(
    op: str, attrs: dict[str, object], shape: tuple[int, ...], wanted: np.ndarray
) -> None:
    model = model_of([node(op, ["x"], ["y"], **attrs)], [info("x", F, shape)], [info("y", F, wanted.shape)], opset=12)
    after = folded(model)
    assert op_types(after) == ["Constant"]
    np.testing.assert_array_equal(numpy_helper.to_array(after.graph.node[0].attribute[0].t), wanted)


def test_a_slice_of_nothing_is_a_constant_and_one_of_a_run_time_size_is_not() -> None:
    nodes = [node("Slice", ["x", "far", "far"], ["z"]), node("Concat", ["z", "x"], ["y"], axis=0)]
    given = {"far": np.array([1000])}
    for size, wanted in ((3, ["Concat"]), ("n", ["Slice", "Concat"])):
        model = model_of(nodes, [info("x", F, (size, 2))], [info("y", F, (size, 2))], given)
        assert op_types(folded(model, {"x": np.ones((3, 2), np.float32)})) == wanted


def test_a_large_result_that_no_input_decides_stays() -> None:
    model = model_of([node("EyeLike", ["x"], ["e"]), node("Add", ["e", "x"], ["y"])], [info("x", F, (40, 40))], [info("y", F, (40, 40))])
    assert op_types(folded(model, limit_bytes=1000)) == ["EyeLike", "Add"]
    assert op_types(folded(model)) == ["Add"]
