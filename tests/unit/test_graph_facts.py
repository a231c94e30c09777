from __future__ import annotations

import time

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphfuse.graph.facts import Depends, Facts
from graphfuse.graph.names import Names, identifier
from graphfuse.ir import dtypes, dumps, expr
from graphfuse.ir.builder import Builder
from graphfuse.ir.errors import Refused
from tests.conftest import run_reference
from tests.portable import call, function

F, I64 = TensorProto.FLOAT, TensorProto.INT64
node, info = helper.make_node, helper.make_tensor_value_info


def model_of(nodes, inputs, weights=None, opset=17, functions=(), outputs=None, value_info=()) -> ir.Model:
    """A model whose outputs are those of the last node, unless stated."""
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    outputs = outputs or [info(n, F, None) for n in nodes[-1].output]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors, value_info=list(value_info))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("graphfuse", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=10, functions=list(functions)))


def value_named(model: ir.Model, name: str) -> ir.Value:
    values = [*model.graph.inputs, *model.graph.initializers.values(), *(v for n in model.graph for v in n.outputs)]
    return next(v for v in values if v.name == name)


def shape_of(model: ir.Model, name: str) -> list[str]:
    shape = Facts(model).shape(value_named(model, name))
    assert shape is not None
    return [str(d) for d in shape]


def known(model: ir.Model, name: str):
    found = Facts(model).value(value_named(model, name))
    return None if found is None else [str(d) for d in found.reshape(-1).tolist()]


def shapes_of(*sizes: str | int) -> list:
    """Nodes that make 1-D ``s``, the shape of ``x``, and the input itself."""
    return [node("Shape", ["x"], ["s"])], [info("x", F, sizes)]


# --- names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("batch size*2", "batch_size_2"),
        ("3d", "d_3d"),
        ("lambda", "d_lambda"),
        ("max", "d_max"),
        ("größe", "gr_e"),
        ("///", "d"),
        ("", "d"),
    ],
)
def test_symbols_are_identifiers(text: str, name: str) -> None:
    assert identifier(text) == name
    assert expr.parse(str(expr.sym(name) + 1)) == expr.sym(name) + 1


def test_symbols_of_different_dimensions_never_meet() -> None:
    names = Names()
    made = [names.named(t) for t in ("a b", "a_b", "a.b", "a b")] + [names.fresh("a b"), names.fresh("a_b_1")]
    assert made[0] == made[3]
    assert len({str(m) for m in made}) == 5


def test_equal_dim_params_are_one_symbol_and_nameless_ones_are_their_own() -> None:
    model = model_of([node("Add", ["x", "y"], ["z"])], [info("x", F, ("b c", None)), info("y", F, ("b c", None))])
    assert shape_of(model, "x") == ["b_c", "x_d1"]
    assert shape_of(model, "y") == ["b_c", "y_d1"]
    assert shape_of(model, "z") == ["b_c", "z_d1"]


# --- shapes


def test_two_symbols_that_may_be_one_give_a_third() -> None:
    model = model_of([node("Add", ["x", "y"], ["z"])], [info("x", F, ("B", "S", 1)), info("y", F, ("C", "S", 7))])
    assert shape_of(model, "z") == ["z_d0", "S", "7"]


def test_a_constant_above_one_wins_over_a_symbol() -> None:
    model = model_of([node("Add", ["x", "y"], ["z"])], [info("x", F, ("B", 4)), info("y", F, (3, "N"))])
    assert shape_of(model, "z") == ["3", "4"]


def test_what_outputs_and_value_info_claim_in_symbols_is_not_believed() -> None:
    claim = [info("z", F, ("B", "same", "same"))]
    model = model_of([node("Relu", ["x"], ["z"])], [info("x", F, ("N", 3, "M"))], outputs=claim)
    assert shape_of(model, "z") == ["N", "3", "M"]


def test_numbers_in_value_info_fill_what_is_unknown() -> None:
    nodes = [node("NonZero", ["x"], ["nz"]), node("Cast", ["nz"], ["y"], to=F)]
    model = model_of(nodes, [info("x", F, ("N",))], value_info=[info("nz", I64, (1, 5))])
    assert shape_of(model, "y") == ["1", "5"]
    assert shape_of(model_of(nodes, [info("x", F, ("N",))]), "y") == ["1", "nz_d1"]


def test_numbers_that_outputs_state_are_those_of_a_traced_run() -> None:
    model = model_of([node("NonZero", ["x"], ["nz"])], [info("x", F, ("N",))], outputs=[info("nz", I64, (1, 5))])
    assert shape_of(model, "nz") == ["1", "nz_d1"]


def test_a_table_cut_to_the_length_of_the_input_has_that_length() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["n"], axis=0),
        node("Slice", ["table", "zero", "n", "axis"], ["cut"]),
        node("Add", ["x", "cut"], ["y"]),
    ]
    weights = {"one": np.array([1]), "zero": np.array([0]), "axis": np.array([1]), "table": np.zeros((1, 512, 8), np.float32)}
    model = model_of(nodes, [info("x", F, ("b", "seq", 8))], weights)
    assert shape_of(model, "cut") == ["1", "seq", "8"]
    assert shape_of(model, "y") == ["b", "seq", "8"]
    alone = model_of(nodes[:3], [info("x", F, ("b", "seq", 8))], weights)
    assert shape_of(alone, "cut") == ["1", "min(512, seq)", "8"]


WINDOWS = [
    ("Conv", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, (4, 2, 3, 3)),
    ("Conv", {"strides": [2, 3], "dilations": [2, 1]}, (4, 2, 3, 2)),
    ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (4, 2, 3, 3)),
    ("Conv", {"auto_pad": "VALID"}, (4, 2, 5, 1)),
    ("Conv", {"group": 2}, (4, 1, 2, 2)),
    ("ConvTranspose", {"strides": [2, 2], "output_padding": [1, 0]}, (2, 5, 3, 3)),
    ("ConvTranspose", {"pads": [1, 0, 1, 0], "dilations": [2, 1]}, (2, 5, 3, 3)),
    ("ConvTranspose", {"group": 2, "auto_pad": "SAME_LOWER", "strides": [2, 2]}, (2, 5, 3, 3)),
    ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, None),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 1]}, None),
    ("GlobalAveragePool", {}, None),
]


@pytest.mark.parametrize(("op_type", "attrs", "weights"), WINDOWS)
@pytest.mark.parametrize("size", [(9, 12), (10, 7)])
def test_windows_over_run_time_sizes(op_type, attrs, weights, size) -> None:
    kernels = {} if weights is None else {"w": np.zeros(weights, np.float32)}
    model = model_of([node(op_type, ["x", *kernels], ["y"], **attrs)], [info("x", F, ("n", 2, "h", "w"))], kernels)
    shape = Facts(model).shape(value_named(model, "y"))
    x = np.zeros((3, 2, *size), np.float32)
    want = run_reference(ir.to_proto(model), {"x": x})["y"].shape
    assert tuple(expr.evaluate(d, {"n": 3, "h": size[0], "w": size[1]}) for d in shape) == want


@pytest.mark.parametrize("size", range(3, 12))
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_pools_that_round_up(size: int, stride: int) -> None:
    nodes = [node("MaxPool", ["x"], ["y"], kernel_shape=[3], strides=[stride], pads=[1, 1], ceil_mode=1)]
    model = model_of(nodes, [info("x", F, (1, 1, size))])
    want = run_reference(ir.to_proto(model), {"x": np.zeros((1, 1, size), np.float32)})["y"].shape
    assert Facts(model).shape(value_named(model, "y")) == want
    unknown = model_of(nodes, [info("x", F, (1, 1, "n"))])
    assert shape_of(unknown, "y") == ["1", "1", "y_d2"]


MORE_SHAPES = [
    ([node("MatMul", ["x", "w"], ["y"])], {"w": np.zeros((5, 4, 6), np.float32)}, ["5", "N", "6"]),
    ([node("MatMul", ["x", "v"], ["y"])], {"v": np.zeros(4, np.float32)}, ["N"]),
    ([node("Gemm", ["x", "w"], ["y"], transA=1, transB=0)], {"w": np.zeros((8, 3), np.float32)}, ["4", "3"]),
    ([node("Einsum", ["x", "w"], ["y"], equation="ij,jk->ki")], {"w": np.zeros((4, 7), np.float32)}, ["7", "N"]),
    ([node("TopK", ["x", "k"], ["y", "i"], axis=0)], {"k": np.array([2])}, ["2", "4"]),
    ([node("Resize", ["x", "", "scales"], ["y"])], {"scales": np.array([2.0, 0.5], np.float32)}, ["2*N", "2"]),
    ([node("Resize", ["x", "", "", "sizes"], ["y"])], {"sizes": np.array([6, 8])}, ["6", "8"]),
    ([node("Tile", ["x", "r"], ["y"])], {"r": np.array([2, 3])}, ["2*N", "12"]),
    ([node("OneHot", ["x", "depth", "v"], ["y"], axis=0)], {"depth": np.array([9]), "v": np.zeros(2, np.float32)}, ["9", "N", "4"]),
    ([node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["y"])], {}, ["N", "4"]),
    ([node("Shape", ["x"], ["s"]), node("Expand", ["one", "s"], ["y"])], {"one": np.ones((3, 1, 1), np.float32)}, ["3", "N", "4"]),
]


@pytest.mark.parametrize(
    ("nodes", "weights", "want"), MORE_SHAPES, ids=lambda v: v[-1].op_type if isinstance(v, list) and hasattr(v[-1], "op_type") else ""
)
def test_shapes_of_other_operators(nodes, weights, want) -> None:
    model = model_of(nodes, [info("x", F, ("N", 4))], weights)
    assert shape_of(model, "y") == want


def test_a_range_has_a_run_time_length() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("Squeeze", ["s"], ["n"]), node("Range", ["two", "n", "three"], ["y"])]
    model = model_of(nodes, [info("x", F, ("N",))], {"two": np.int64(2), "three": np.int64(3)})
    (length,) = Facts(model).shape(value_named(model, "y"))
    for n in range(12):
        assert expr.evaluate(length, {"N": n}) == len(range(2, n, 3))


def test_a_reshape_whose_sizes_are_not_provably_equal_still_has_its_shape() -> None:
    model = model_of([node("Reshape", ["x", "to"], ["y"])], [info("x", F, ("N", 3))], {"to": np.array([-1, 2])})
    shape = Facts(model).shape(value_named(model, "y"))
    assert [expr.evaluate(d, {"N": 8}) for d in shape] == [12, 2]


def test_types_that_programs_cannot_hold_have_no_dtype() -> None:
    model = model_of([node("Cast", ["x"], ["t"], to=TensorProto.STRING), node("Cast", ["t"], ["y"], to=F)], [info("x", F, ("N", 4))])
    facts = Facts(model)
    assert facts.dtype(value_named(model, "t")) is None
    assert facts.dtype(value_named(model, "y")) is dtypes.F32
    assert shape_of(model, "y") == ["N", "4"]


# --- fused nodes


def fused_model(plugin: bool) -> ir.Model:
    b = Builder()
    x, w = b.param(dtypes.F32, [expr.sym("p"), expr.sym("q")]), b.param(dtypes.F32, [expr.sym("q")])
    program = b.finish([b.transpose(x * w, [1, 0]), b.reduce("max", x, [1])])
    inputs, outputs = ["x", "w"], ["y", "m"]
    x_and_w = [info("x", F, ("rows", 8)), info("w", F, (8,))]
    if plugin:
        nodes = [node("FusedRegion", inputs, outputs, domain="graphfuse", spec=dumps(program))]
        return model_of(nodes, x_and_w)
    body = [node("Mul", inputs, ["h"]), node("Transpose", ["h"], ["y"], perm=[1, 0]), node("ReduceMax", ["x"], ["m"], axes=[1], keepdims=0)]
    return model_of([call("gf_a", inputs, outputs)], x_and_w, functions=[function("gf_a", program, body, inputs, outputs)])


@pytest.mark.parametrize("plugin", [False, True], ids=["portable", "plugin"])
def test_fused_nodes_are_understood_by_their_program(plugin: bool) -> None:
    model = fused_model(plugin)
    assert shape_of(model, "y") == ["8", "rows"]
    assert shape_of(model, "m") == ["rows"]
    assert Facts(model).dtype(value_named(model, "y")) is dtypes.F32


def test_a_damaged_spec_is_no_crash() -> None:
    model = fused_model(True)
    model.graph[0].attributes["spec"] = ir.AttrString("spec", '{"version": 1, "params": 7}')
    assert Facts(model).shape(value_named(model, "y")) is None


def test_calls_of_other_functions_are_inferred_through_their_body() -> None:
    body = [node("Concat", ["a", "a"], ["b"], axis=0)]
    own = helper.make_function("graphfuse", "twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    model = model_of([node("twice", ["x"], ["h"], domain="graphfuse"), node("Relu", ["h"], ["y"])], [info("x", F, (3, 4))], functions=[own])
    assert shape_of(model, "y") == ["6", "4"]


# --- values

ARITHMETIC = [
    ("Add", 2, "n + 2"), ("Sub", 2, "n - 2"), ("Mul", 2, "2*n"), ("Div", 2, "((n) // (2))"), ("Mod", 2, "((n) % (2))"), ("Max", 0, "n"),
    ("Min", 3, "min(3, n)"), ("Equal", -1, "False"), ("Less", -1, "False"), ("GreaterOrEqual", 0, "True"), ("Pow", 2, "n*n"),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "operand", "want"), ARITHMETIC)
def test_arithmetic_on_sizes(op_type: str, operand: int, want: str) -> None:
    nodes, inputs = shapes_of("n")
    model = model_of([*nodes, node(op_type, ["s", "k"], ["y"])], inputs, {"k": np.array([operand])})
    assert known(model, "y") == [want]


@pytest.mark.parametrize(("op_type", "operand"), [("Equal", 1), ("Less", 3), ("Greater", 0), ("Div", -2), ("Equal", 0)])
def test_what_may_go_either_way_stays_unknown(op_type: str, operand: int) -> None:
    nodes, inputs = shapes_of("n")
    assert known(model_of([*nodes, node(op_type, ["s", "k"], ["y"])], inputs, {"k": np.array([operand])}), "y") is None


MOVES = [
    ([node("Gather", ["s", "i"], ["y"])], {"i": np.array([[-1, 0]])}, ["w", "n"]),
    ([node("Slice", ["s", "a", "b"], ["y"])], {"a": np.array([1]), "b": np.array([1 << 62])}, ["3", "w"]),
    ([node("Slice", ["s", "a", "b", "x0", "step"], ["y"])],
     {"a": np.array([-1]), "b": np.array([-(1 << 62)]), "x0": np.array([0]), "step": np.array([-1])}, ["w", "3", "n"]),
    ([node("Concat", ["s", "k"], ["y"], axis=0)], {"k": np.array([7])}, ["n", "3", "w", "7"]),
    ([node("Split", ["s", "k"], ["a", "y"])], {"k": np.array([1, 2])}, ["3", "w"]),
    ([node("ReduceProd", ["s"], ["y"], keepdims=0)], {}, ["3*n*w"]),
    ([node("ReduceSum", ["s"], ["y"])], {}, ["n + w + 3"]),
    ([node("ReduceMax", ["s"], ["y"])], {}, ["max(max(3, n), w)"]),
    ([node("Size", ["x"], ["y"])], {}, ["3*n*w"]),
    ([node("Shape", ["x"], ["y"], start=-2)], {}, ["3", "w"]),
    ([node("Equal", ["s", "m"], ["e"]), node("Where", ["e", "k", "s"], ["y"])], {"m": np.array([-1, -1, -1]), "k": np.array([1, 1, 1])}, ["n", "3", "w"]),
    ([node("Unsqueeze", ["s", "a"], ["u"]), node("Expand", ["u", "to"], ["e"]), node("Reshape", ["e", "flat"], ["y"])],
     {"a": np.array([1]), "to": np.array([3, 2]), "flat": np.array([-1])}, ["n", "n", "3", "3", "w", "w"]),
    ([node("Cast", ["s"], ["c"], to=TensorProto.INT32), node("Cast", ["c"], ["y"], to=I64)], {}, ["n", "3", "w"]),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "weights", "want"), MOVES)
def test_movement_of_sizes(nodes, weights, want) -> None:
    before, inputs = shapes_of("n", 3, "w")
    assert known(model_of([*before, *nodes], inputs, weights), "y") == want


def through_floats(*steps) -> ir.Model:
    nodes, inputs = shapes_of("n")
    nodes.append(node("Cast", ["s"], ["f0"], to=F))
    weights = {}
    for i, (op_type, *operand) in enumerate(steps):
        names = [f"k{i}"] if operand else []
        weights.update({f"k{i}": np.array(o, np.float32) for o in operand})
        nodes.append(node(op_type, [f"f{i}", *names], [f"f{i + 1}"]))
    return model_of([*nodes, node("Cast", [f"f{len(steps)}"], ["y"], to=I64)], inputs, weights, outputs=[info("y", I64, None)])


FLOATS = [
    [("Mul", 2.0)], [("Mul", 0.5)], [("Div", 3.0), ("Floor",)], [("Div", 4.0), ("Ceil",)], [("Mul", 0.75), ("Floor",)], [("Add", 0.5), ("Floor",)],
    [("Add", 5.0), ("Div", 2.0), ("Floor",)],
]  # fmt: skip


@pytest.mark.parametrize("steps", FLOATS)
def test_sizes_that_pass_through_floats_exactly(steps) -> None:
    model = through_floats(*steps)
    (size,) = Facts(model).value(value_named(model, "y")).tolist()
    for n in (0, 1, 2, 3, 7, 10, 4097):
        want = run_reference(ir.to_proto(model), {"x": np.zeros(n, np.float32)})["y"].tolist()
        assert [expr.evaluate(size, {"n": n})] == want
    inner = Facts(model).value(value_named(model, "f1"))
    assert inner is None  # on the way it is no integer that anybody could use


@pytest.mark.parametrize("steps", [[("Mul", 0.3)], [("Sub", 3.0)], [("Sqrt",)], [("Div", -2.0)], [("Mul", 1e9)]])
def test_sizes_that_floats_may_change_stay_unknown(steps) -> None:
    assert known(through_floats(*steps), "y") is None


def test_text_is_no_value() -> None:
    model = model_of([node("Identity", ["t"], ["y"])], [info("x", F, (1,))], {"t": np.array(["a"], dtype=object)})
    assert known(model, "t") is None
    assert known(model, "y") is None


def test_values_of_weights_are_read_only_when_asked_for() -> None:
    class Unread(ir.Tensor):
        def numpy(self):
            raise AssertionError("read")

    model = model_of(
        [node("Add", ["x", "w"], ["y"]), node("Relu", ["y"], ["z"])], [info("x", F, (64, 100))], {"w": np.zeros((64, 100), np.float32)}
    )
    model.graph.initializers["w"].const_value = Unread(np.zeros((64, 100), np.float32), name="w")
    facts = Facts(model)
    assert facts.shape(value_named(model, "z")) == (64, 100)
    with pytest.raises(AssertionError, match="read"):
        facts.value(value_named(model, "w"))


def test_constants_and_what_can_be_fed() -> None:
    weights = {"c": np.array([1.5], np.float32), "w": np.array([2], np.float32)}
    model = model_of([node("Add", ["w", "c"], ["y"])], [info("w", F, (1,))], weights)
    facts = Facts(model)
    assert facts.value(value_named(model, "c")).tolist() == [1.5]
    assert facts.value(model.graph.inputs[0]) is None


# --- dependence


def test_shape_arithmetic_is_what_reads_no_data() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Range", ["zero", "n", "one"], ["positions"]),
        node("Cast", ["positions"], ["p"], to=F),
        node("Neg", ["w"], ["constant"]),
        node("RandomUniformLike", ["w"], ["random"]),
        node("Add", ["p", "random"], ["noise"]),
        node("Mul", ["p", "constant"], ["q"]),
        node("Add", ["x", "q"], ["y"]),
    ]
    model = model_of(nodes, [info("x", F, ("N",))], {"zero": np.int64(0), "one": np.int64(1), "w": np.ones(1, np.float32)})
    facts = Facts(model)
    yes = {n.outputs[0].name for n in model.graph if facts.is_shape_arithmetic(n)}
    assert yes == {"s", "n", "positions", "p", "q"}
    assert facts.depends(value_named(model, "constant")) is Depends.CONSTANT
    assert facts.depends(value_named(model, "noise")) is Depends.DATA


def test_a_branch_that_reads_data_depends_on_data() -> None:
    branches = {
        key: helper.make_graph([node("Identity", [name], [key])], key, [], [info(key, F, None)])
        for key, name in (("then_branch", "x"), ("else_branch", "w"))
    }
    nodes = [node("If", ["c"], ["y"], **branches)]
    model = model_of(nodes, [info("x", F, (1,))], {"w": np.ones(1, np.float32), "c": np.array(True)})
    assert Facts(model).depends(value_named(model, "y")) is Depends.DATA


# --- calls


def test_calls_have_attributes_and_known_values_and_refuse_unknown_ones() -> None:
    nodes = [node("Reshape", ["x", "to"], ["y"], allowzero=1), node("Concat", ["y", "y"], ["z"], axis=-1)]
    model = model_of(nodes, [info("x", F, (2, 3))], {"to": np.array([3, 2])})
    facts, builder = Facts(model), Builder()
    made = facts.call(model.graph[0], builder, [builder.param(dtypes.F32, (2, 3)), None])
    assert (made.attrs, made.opset, made.n_outputs) == ({"allowzero": 1}, 17, 1)
    assert made.value(1).tolist() == [3, 2]
    assert made.value(0) is None
    run_time = model_of(nodes, [info("x", F, (2, 3)), info("to", I64, (2,))])
    with pytest.raises(Refused, match="unknown-value"):
        Facts(run_time).call(run_time.graph[0], builder, [builder.param(dtypes.F32, (2, 3)), None])


def test_a_long_model_takes_little_time() -> None:
    nodes = []
    for i in range(400):
        nodes += [node("Mul", [f"x{i}", "w"], [f"h{i}"]), node("Sigmoid", [f"h{i}"], [f"x{i + 1}"])]
    model = model_of(nodes, [info("x0", F, ("N", 64))], {"w": np.ones(64, np.float32)})
    took = []
    for _ in range(3):
        start = time.perf_counter()
        Facts(model)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.5
