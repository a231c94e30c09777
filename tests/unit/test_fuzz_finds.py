"""What the fuzzer found: one test for each kind of fault, on the smallest graph that showed it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphfuse
from graphfuse.graph.facts import Facts
from graphfuse.graph.load import load_model
from graphfuse.ir import expr, sym
from graphfuse.ops.movement import slice_range
from tests.conftest import compiler_absence
from tests.fuzz.attempt import Account, attempt
from tests.fuzz.host import attempt_on_host
from tests.fuzz.maker import Maker, V
from tests.fuzz.oracle import Oracle, Tally, own_session, run_by_name
from tests.fuzz.reference import left_alone
from tests.fuzz.strategies import Case

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def model(nodes, inputs, outputs, constants=None, opset=17) -> onnx.ModelProto:
    """``inputs`` and ``outputs``: name to (type, shape); ``constants``: name to list or array."""
    infos = [[helper.make_tensor_value_info(n, t, s) for n, (t, s) in side.items()] for side in (inputs, outputs)]
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    return helper.make_model(
        helper.make_graph(nodes, "find", *infos, tensors), opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    )


def check(made: onnx.ModelProto, *feeds: dict[str, np.ndarray]) -> None:
    """The model passes everything that a random one must pass."""
    found = attempt(Case(made, feeds), Account())
    assert found is None, found


def check_on_host(made: onnx.ModelProto, *feeds: dict[str, np.ndarray]) -> None:
    """As ``check``, and its kernels on the CPU too, where there is a compiler."""
    check(made, *feeds)
    if compiler_absence() is None:
        found = [finding for _, finding in attempt_on_host([Case(made, feeds)], Account())]
        assert not found, found[0]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


# --- what has no elements needs no rows


def test_an_empty_slice_behind_a_reduction() -> None:
    nodes = [helper.make_node("ReduceMean", ["x"], ["m"], axes=[-1]), helper.make_node("Sub", ["x", "m"], ["c"])]
    nodes += [helper.make_node("Slice", ["c", "s", "e", "a"], ["y"])]
    constants = {"s": np.array([0]), "e": np.array([0]), "a": np.array([1])}
    check(model(nodes, {"x": (FLOAT, [2, 3, 5])}, {"y": (FLOAT, [2, 0, 5])}, constants), {"x": normal(2, 3, 5)})


def test_an_empty_part_of_a_split_behind_argmin_and_softmax() -> None:
    for op, kind in (("ArgMin", INT64), ("Softmax", FLOAT)):
        nodes = [helper.make_node(op, ["x"], ["r"], axis=0), helper.make_node("Split", ["r", "sizes"], ["a", "b"], axis=1)]
        shape = [1 if op == "ArgMin" else 5, 0]
        outputs = {"a": (kind, shape), "b": (kind, [shape[0], 8])}
        check(model(nodes, {"x": (FLOAT, [5, 8])}, outputs, {"sizes": np.array([0, 8])}), {"x": normal(5, 8)})


# --- proofs about maxima do not divide by the case that cannot be


def test_a_proof_by_cases_that_would_divide_by_zero() -> None:
    n = sym("n")
    size = expr.emax(0, n - 2)
    assert not expr.is_nonneg(n % size - 1)
    assert expr.is_nonneg(n % size)
    assert not expr.is_nonneg(expr.emax(0, n - 2) - 1)


def test_a_backward_slice_of_a_mean_over_run_time_sizes() -> None:
    nodes = [helper.make_node("Where", ["c", "x", "k"], ["w"]), helper.make_node("Mean", ["x", "w", "b"], ["m"])]
    nodes += [helper.make_node("Slice", ["m", "s", "e", "a", "t"], ["y"])]
    inputs = {"c": (BOOL, [8, "n", "m"]), "x": (FLOAT, [3]), "b": (FLOAT, ["m"])}
    constants = {
        "k": np.float32([-1]),
        "s": np.array([1, 0, 2]),
        "e": np.array([-2, 1000, -3]),
        "a": np.array([-2, -1, 0]),
        "t": np.array([1, 1, 2]),
    }
    made = model(nodes, inputs, {"y": (FLOAT, ["p", "q", "r"])}, constants, opset=13)
    feeds = [{"c": np.ones((8, n, m), bool), "x": normal(3), "b": normal(m)} for n, m in ((5, 3), (1, 3), (8, 1))]
    check(made, *feeds)


# --- slices


@pytest.mark.parametrize(("start", "end"), [(-5, -5), (-4, -100), (-5, -2), (-3, -100), (-1, -100), (5, -100)])
def test_a_slice_that_begins_before_its_axis_and_goes_back(start: int, end: int) -> None:
    """ONNX holds the start at element 0, where NumPy finds nothing."""
    constants = {"s": np.array([start]), "e": np.array([end]), "a": np.array([0]), "t": np.array([-2])}
    nodes = [helper.make_node("Neg", ["x"], ["z"]), helper.make_node("Slice", ["z", "s", "e", "a", "t"], ["y"])]
    check(model(nodes, {"x": (FLOAT, ["n"])}, {"y": (FLOAT, ["k"])}, constants), {"x": normal(3)}, {"x": normal(8)}, {"x": normal(1)})
    check(model(nodes, {"x": (FLOAT, [3])}, {"y": (FLOAT, ["k"])}, constants), {"x": normal(3)})


def test_the_length_of_a_backward_slice_of_a_run_time_axis_of_any_size() -> None:
    for start in (-5, -3, -1, 0, 2, 5, -(2**31), 2**31 - 1):
        for end in (-5, -3, -1, 0, 2, 5, -(2**31)):
            first, size = slice_range(sym("n"), start, end, -2)
            for n in (0, 1, 2, 3, 4, 9):
                got = expr.evaluate(first, {"n": n}), expr.evaluate(size, {"n": n})
                want = range(*slice(max(start, -n), end, -2).indices(n))
                assert got[1] == len(want), (start, end, n)
                assert not want or got[0] == want[0], (start, end, n)


def test_a_cut_run_time_axis_does_not_keep_its_size_in_old_opsets() -> None:
    """ONNX's own inference says so up to opset 12, of two axes cut with steps."""
    constants = {"s": np.array([6, 1000]), "e": np.array([-(2**31), 0]), "a": np.array([0, -1]), "t": np.array([-7, -2])}
    nodes = [helper.make_node("Slice", ["x", "s", "e", "a", "t"], ["z"]), helper.make_node("Greater", ["z", "x"], ["y"])]
    made = model(nodes, {"x": (FLOAT, ["n", "m"])}, {"y": (BOOL, ["p", "q"])}, constants, opset=10)
    loaded = load_model(made)
    shape = Facts(loaded).shape(next(v for node in loaded.graph for v in node.outputs if v.name == "z"))
    assert shape is not None
    assert [expr.evaluate(d, {"n": 8, "m": 1}) for d in shape] == [1, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(made, {"x": normal(8, 1)}, {"x": normal(1, 3)})


# --- an index below an extent that may be 0


def test_nothing_is_proven_of_an_index_whose_extent_may_be_zero() -> None:
    """A maximum in the extent is not to be replaced by its other side: ``u < 5 * max(0, x)`` is not below ``max(0, x)``."""
    n = sym("n")
    width = expr.emax(0, expr.emin(1000, n) + expr.emin(7, n) - n)
    u = expr.var("u", expr.emin(5, n) * width)
    assert not expr.is_less(u, width)
    assert expr.is_less(u, expr.emin(5, n) * width)
    assert expr.evaluate(expr.floordiv(u, width), {"n": 8, "u": 20}) == 20 // 7


def test_rows_cut_from_run_time_squares_on_the_host_device() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["z"]), helper.make_node("Slice", ["z", "s", "e", "a"], ["y"])]
    constants = {"s": np.array([-7, 0]), "e": np.array([1000, 5]), "a": np.array([1, 0])}
    made = model(nodes, {"x": (FLOAT, ["n", "n", 1])}, {"y": (FLOAT, ["p", "q", 1])}, constants)
    check_on_host(made, {"x": normal(3, 3, 1)}, {"x": normal(16, 16, 1)})


# --- several rows a thread


def test_rows_shorter_than_a_vector_on_the_host_device() -> None:
    """Four rows of one element are one vector, not four rows of a vector: such a segment wrote nothing at all."""
    nodes = [helper.make_node("Max", ["x", "x"], ["a"]), helper.make_node("Slice", ["a", "three", "four"], ["b"])]
    nodes += [helper.make_node("Reshape", ["b", "square"], ["c"]), helper.make_node("Pad", ["c", "pads", "two"], ["y"])]
    nodes += [helper.make_node("Slice", ["a", "zero", "three"], ["z"])]
    constants = {"zero": np.array([0]), "three": np.array([3]), "four": np.array([4]), "square": np.array([1, 1]), "two": np.float32(2)}
    constants["pads"] = np.array([1, 0, 2, 0])
    made = model(nodes, {"x": (FLOAT, [5])}, {"y": (FLOAT, [4, 1]), "z": (FLOAT, [3])}, constants)
    check_on_host(made, {"x": normal(5)})


# --- rows kept in registers


def test_a_row_of_one_vector_read_again_in_a_longer_walk_on_the_host_device() -> None:
    """The first walk's registers hold one vector a row; the second has ten vectors, and read past them."""
    nodes = [helper.make_node("Div", ["x", "y"], ["d"]), helper.make_node("Hardmax", ["y"], ["h"])]
    nodes += [helper.make_node("Where", ["c", "h", "d"], ["z"])]
    made = model(nodes, {"x": (FLOAT, [8, 5, 8]), "y": (FLOAT, [1, 8]), "c": (BOOL, [5, 8])}, {"z": (FLOAT, [8, 5, 8])})
    check_on_host(made, {"x": normal(8, 5, 8), "y": normal(1, 8) + np.float32(4), "c": normal(5, 8) > 0})


@pytest.mark.parametrize("table", [(64,), (64, 64)], ids=["a number a row", "a row a row"])
@pytest.mark.parametrize("rows", [3, 700])
def test_what_a_reduction_finds_is_not_loaded_before_it_on_the_host_device(rows: int, table: tuple[int, ...]) -> None:
    """Loads of later passes go ahead of the first; one at a position that a reduction finds cannot."""
    nodes = [helper.make_node("ArgMax", ["x"], ["a"], axis=-1, keepdims=0), helper.make_node("Gather", ["t", "a"], ["g"])]
    nodes += [helper.make_node("Unsqueeze", ["g", "last"], ["u"])] if len(table) == 1 else [helper.make_node("Neg", ["g"], ["u"])]
    nodes += [helper.make_node("Softmax", ["x"], ["s"]), helper.make_node("Add", ["s", "u"], ["y"])]
    made = model(nodes, {"x": (FLOAT, [rows, 64]), "t": (FLOAT, list(table))}, {"y": (FLOAT, [rows, 64])}, {"last": np.array([1])})
    check_on_host(made, {"x": normal(rows, 64), "t": normal(*table)})


def test_a_kept_value_that_all_lanes_share_on_the_host_device() -> None:
    """A divisor for each channel: one number a vector, and so is its reciprocal."""
    nodes = [helper.make_node("Hardmax", ["x"], ["h"], axis=-4), helper.make_node("Sigmoid", ["x"], ["s"])]
    nodes += [helper.make_node("Div", ["s", "y"], ["d"])]
    outputs = {"h": (FLOAT, [1, 3, 8, 7]), "d": (FLOAT, [1, 3, 8, 7])}
    made = model(nodes, {"x": (FLOAT, [1, 3, 8, 7]), "y": (FLOAT, [3, 1, 1])}, outputs, opset=12)
    check_on_host(made, {"x": normal(1, 3, 8, 7), "y": normal(3, 1, 1) + np.float32(4)})


# --- what ONNX Runtime makes of functions, and of small numbers


@pytest.mark.parametrize("opset", [13, 18])
def test_the_default_axes_of_a_norm_inside_a_region(opset: int) -> None:
    """ONNX Runtime does not find the default of an attribute that a function body refers to, inside another function."""
    nodes = [helper.make_node("MeanVarianceNormalization", ["x"], ["m"]), helper.make_node("Clip", ["m", "low"], ["y"])]
    shape = [2, 3, 4, 5]
    check(model(nodes, {"x": (FLOAT, shape)}, {"y": (FLOAT, shape)}, {"low": np.float32(-1)}, opset), {"x": normal(*shape)})


def test_what_is_small_beside_1_is_not_lost() -> None:
    check(
        model([helper.make_node("Mish", ["x"], ["y"])], {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])}, opset=22),
        {"x": np.float32([-95, -60, 0, 90])},
    )


# --- windows as wide as a row


@pytest.mark.parametrize(("width", "offsets"), [(5, (0, 1, 3)), (3, (0, 1)), (6, (0, 2)), (10, (0, 2)), (7, (0, 3))])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_a_window_as_wide_as_a_row_on_the_host_device(width: int, offsets: tuple[int, ...], dtype: type) -> None:
    """Its rows stand at multiples of its width, but not at multiples of 16 bytes: it is no vector. Such kernels crashed."""
    size = width - max(offsets)
    starts = [np.array([o]) for o in offsets]
    constants = {f"s{k}": s for k, s in enumerate(starts)} | {f"e{k}": s + size for k, s in enumerate(starts)} | {"a": np.array([2])}
    nodes = [helper.make_node("Slice", ["x", f"s{k}", f"e{k}", "a"], [f"t{k}"]) for k in range(len(offsets))]
    nodes += [helper.make_node("Add", [f"r{k - 1}" if k else "z", f"t{k}"], [f"r{k}"]) for k in range(len(offsets))]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = model(nodes, {"x": (kind, [12, 4, width]), "z": (kind, [12, 4, size])}, {nodes[-1].output[0]: (kind, [12, 4, size])}, constants)
    check_on_host(made, {"x": (4 * normal(12, 4, width)).astype(dtype), "z": (4 * normal(12, 4, size)).astype(dtype)})


# --- what ONNX Runtime makes of the nodes that are left to it


def test_a_slice_whose_steps_are_fed_beside_a_folded_one() -> None:
    """ONNX takes fed steps to be 1. The model hides the other size from it, what we fold does not: our session must run all the same."""
    start = helper.make_node("Constant", [], ["s"], value=numpy_helper.from_array(np.array([0])))
    nodes = [
        start,
        helper.make_node("Slice", ["w", "s", "e", "a", "t"], ["p"]),
        helper.make_node("Slice", ["w", "o", "f", "a", "u"], ["q"]),
    ]
    nodes += [helper.make_node("Min", ["p", "q"], ["m"]), helper.make_node("Add", ["m", "x"], ["z"]), helper.make_node("Abs", ["z"], ["y"])]
    constants = {"w": normal(7, 4), "o": np.array([1]), "e": np.array([5]), "f": np.array([6]), "a": np.array([0]), "t": np.array([2])}
    made = model(nodes, {"x": (FLOAT, [3, 4]), "u": (INT64, [1])}, {"y": (FLOAT, [3, 4])}, {**constants, "u": np.array([2])})
    feeds = {"x": normal(3, 4)}
    check(made, feeds)
    fused = graphfuse.rewrite(made, policy="aggressive").model
    np.testing.assert_array_equal(graphfuse.Session(fused, "numpy").run(feeds)["y"], run_by_name(own_session(made), feeds)["y"])


def test_small_floats_between_nodes_that_are_left_alone_need_not_be_rounded() -> None:
    """ONNX Runtime leaves out the pair of casts between a product and a sum, also where exact rounding is asked for."""
    nodes = [
        helper.make_node("Mul", ["x", "c"], ["a"]),
        helper.make_node("Mul", ["z", "s"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    half = {name: (TensorProto.FLOAT16, [40, 64]) for name in "xzcsy"}
    made = model(nodes, {n: half[n] for n in "xzcs"}, {"y": half["y"]})
    feeds = {n: (3 * part).astype(np.float16) for n, part in zip("xzcs", normal(4, 40, 64), strict=True)}
    left = left_alone(made, exact=True)
    assert left == {"a", "b"}
    got = run_by_name(own_session(made), feeds)
    strict, kept = (Oracle(made).expect(feeds, exact=True, left=names) for names in (frozenset(), left))
    assert replace(strict, own=None).judge(got, Tally()) != ""
    assert replace(kept, own=None).judge(got, Tally()) == ""


def test_the_epsilon_that_a_norm_left_alone_lacks() -> None:
    """ONNX Runtime's own MeanVarianceNormalization divides by the root alone: infinite where the squares underflow."""
    nodes = [helper.make_node("Softmax", ["x"], ["s"], axis=1), helper.make_node("Max", ["s", "low"], ["m"])]
    nodes += [helper.make_node("Min", ["m", "high"], ["c"]), helper.make_node("MeanVarianceNormalization", ["c"], ["y"])]
    shape = [1, 2, 3, 4]
    x = np.linspace(0, 9, 24, dtype=np.float32).reshape(shape)
    x[0, 1, 2, 3] = 103
    constants = {"low": np.float32(-100), "high": np.float32(100)}
    check(model(nodes, {"x": (FLOAT, shape)}, {"c": (FLOAT, shape), "y": (FLOAT, shape)}, constants, opset=9), {"x": x})


# --- numbers that no kernel owes


def test_a_product_whose_parts_leave_the_range() -> None:
    """Infinity times 0 in one order, 0 in another."""
    x = np.full((7, 99), 90, np.float32)
    x[3, 50] = 0
    for axes, opset in ((None, 9), (None, 17), ([0], 17)):
        node = helper.make_node("ReduceProd", ["x"], ["y"], keepdims=0, **({"axes": axes} if axes else {}))
        made = model([node], {"x": (FLOAT, [7, 99])}, {"y": (FLOAT, [99] if axes else [])}, opset=opset)
        expectation = Oracle(made).expect({"x": x}, exact=False)
        assert expectation.overflows() is (axes is None)  # 90 ** 7 is a float32, and is judged
        check(made, {"x": x})


@pytest.mark.parametrize("op", ["Sin", "Cos"])
def test_waves_in_float64_near_their_zeros(op: str) -> None:
    """ONNX Runtime's kernel errs by the size of 1 there, NumPy by that of the result."""
    x = np.float64([1.5638233721366013, *np.pi / 2 * np.arange(-20, 21)])
    double = TensorProto.DOUBLE
    check(model([helper.make_node(op, ["x"], ["y"])], {"x": (double, [42])}, {"y": (double, [42])}), {"x": x})


def test_the_loss_of_a_class_that_is_all_but_certain() -> None:
    """The logarithm of a number near 1: it errs by the size of 1."""
    x = normal(64, 5)
    x[:, 2] = np.linspace(10, 16, 64)
    constants = {"t": np.full(64, 2, np.int32), "w": np.full(5, 0.27, np.float32)}
    node = helper.make_node("SoftmaxCrossEntropyLoss", ["x", "t", "w"], ["y"], reduction="none")
    check(model([node], {"x": (FLOAT, [64, 5])}, {"y": (FLOAT, [64])}, constants), {"x": x})


def test_where_a_nan_may_be_an_infinity_may_be() -> None:
    """The logarithm of 0, quantized over its own range: infinity over infinity as an integer."""
    maker = Maker(Random(0), 17, 1, ["f32"])
    maker.has_nan = True
    bounded = maker.without_infinities(V("x", "f32", ((3,),)))
    assert [n.op_type for n in maker.nodes][-2:] == ["Max", "Min"]
    assert bounded.name == maker.nodes[-1].output[0]
