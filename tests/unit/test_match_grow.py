"""Which regions come of which little graph: before and after, under both policies."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir
import pytest

from graphfuse.match import rewrite_model
from tests.texts import assert_law, assert_same_results, feeds_of, model, proto, region_errors, regions

W = "float[8,8] w = {" + ", ".join(str((i * 7 % 13 - 6) / 8) for i in range(64)) + "}"
G = "float[8] g = {1, 2, 3, 4, 5, 6, 7, 8}, float[8] b = {8, 7, 6, 5, 4, 3, 2, 1}"
TWO = "float two = {2.0}"


class Case(NamedTuple):
    """A graph, the regions that ``aggressive`` makes of it, and those of ``auto`` (None: the same)."""

    name: str
    body: str
    aggressive: list[str]
    auto: list[str] | None = None
    weights: str = ""
    inputs: str = "float[N,8] x"
    outputs: str = "float[N,8] y"
    opset: int = 17


LN = """m = ReduceMean <axes = [-1]> (x)
d = Sub(x, m)
s = Mul(d, d)
v = ReduceMean <axes = [-1]> (s)
r = Sqrt(v)
n = Div(d, r)
"""
LN_TYPES = "ReduceMean Sub Mul ReduceMean Sqrt Div"

CASES = [
    # chains and diamonds
    Case("chain", "a = Relu(x)\nb = Tanh(a)\ny = Neg(b)", ["Relu Tanh Neg"]),
    Case("one op", "y = Relu(x)", ["Relu"], []),
    Case("a value used twice", "s = Sigmoid(x)\ny = Mul(x, s)", ["Sigmoid Mul"]),
    Case("diamond", "a = Relu(x)\nb = Exp(a)\nc = Neg(a)\ny = Add(b, c)", ["Relu Exp Neg Add"]),
    Case("two outputs", "y = Relu(x)\nz = Neg(y)", ["Relu Neg"], outputs="float[N,8] y, float[N,8] z"),
    Case("three outputs of one input", "y = Relu(x)\nz = Neg(x)\nu = Exp(x)", ["Relu Neg Exp"],
         outputs="float[N,8] y, float[N,8] z, float[N,8] u"),
    Case("two chains that share nothing", "a = Relu(x)\ny = Exp(a)\nb = Relu(q)\nz = Neg(b)", ["Relu Exp", "Relu Neg"],
         inputs="float[N,8] x, float[N,8] q", outputs="float[N,8] y, float[N,8] z"),
    Case("interleaved chains", "a = Relu(x)\nb = Relu(q)\ny = Exp(a)\nz = Neg(b)", ["Relu Exp", "Relu Neg"],
         inputs="float[N,8] x, float[N,8] q", outputs="float[N,8] y, float[N,8] z"),
    Case("a broadcast row", "a = Mul(x, g)\ny = Add(a, b)", ["Mul Add"], weights=G),
    Case("a number", "a = Mul(x, two)\ny = Add(a, two)", ["Mul Add"], weights=TWO),
    # walls
    Case("a wall between", "a = Relu(x)\nc = Neg(a)\nm = MatMul(c, w)\nd = Exp(m)\ny = Sqrt(d)", ["Relu Neg", "Exp Sqrt"], weights=W),
    Case("a path around the wall", "a = Relu(x)\nc = Neg(a)\nm = MatMul(c, w)\nd = Add(m, a)\ny = Exp(d)", ["Relu Neg", "Add Exp"], weights=W),
    Case("both sides of the wall are read below", "a = Relu(x)\nm = MatMul(a, w)\nd = Exp(a)\ny = Add(m, d)",
         ["Relu Exp", "Add"], ["Relu Exp"], weights=W),
    Case("bias and activation of a product", "m = MatMul(x, w)\na = Add(m, b)\ny = Relu(a)", ["Add Relu"], [], weights=f"{W}, {G}"),
    Case("one op between two walls", "m = MatMul(x, w)\na = Exp(m)\ny = MatMul(a, w)", ["Exp"], [], weights=W),
    # views
    Case("a view in the middle", "a = Relu(x)\nt = Transpose <perm = [1, 0]> (a)\nc = Exp(t)\ny = Transpose <perm = [1, 0]> (c)",
         ["Relu Transpose Exp Transpose"]),
    Case("a reshape in the middle", "a = Relu(x)\nr = Reshape(a, s)\nc = Exp(r)\ny = Reshape(c, q)", ["Relu Reshape Exp Reshape"],
         weights="int64[3] s = {-1, 2, 4}, int64[2] q = {-1, 8}"),
    Case("slices and a concat", "a = Sigmoid(x)\nl = Slice(a, s0, s4, ax)\nh = Slice(a, s4, s8, ax)\nm = Mul(l, two)\nk = Neg(h)\n"
         "y = Concat <axis = 1> (k, m)", ["Sigmoid Slice Slice Mul Neg Concat"],
         weights=f"{TWO}, int64[1] s0 = {{0}}, int64[1] s4 = {{4}}, int64[1] s8 = {{8}}, int64[1] ax = {{1}}"),
    Case("a split", "l, h = Split <axis = 1> (x, p)\na = Relu(l)\nc = Mul(a, h)\ny = Concat <axis = 1> (c, l)", ["Split Relu Mul Concat"],
         weights="int64[2] p = {4, 4}"),
    Case("a concat of what walls make", "m = MatMul(x, w)\nn = MatMul(x, w)\nc = Concat <axis = 0> (m, n)\ny = Relu(c)", ["Concat Relu"],
         outputs="float[M,8] y", weights=W),
    Case("views alone", "r = Reshape(x, s)\ny = Squeeze(r, z)", ["Reshape Squeeze"], [], weights="int64[3] s = {-1, 1, 8}, int64[1] z = {1}"),
    Case("transposes before a product", "t = Transpose <perm = [1, 0]> (x)\nr = Reshape(t, s)\ny = MatMul(r, w)", ["Transpose Reshape"], [],
         inputs="float[8,8] x", outputs="float[8,8] y", weights=f"{W}, int64[2] s = {{8, 8}}"),
    Case("a view of a result that is read anyway", "a = Relu(x)\nh = Exp(a)\nr = Reshape(h, s)\nm = MatMul(r, w)\ny = Add(m, h)",
         ["Relu Exp Reshape", "Add"], ["Relu Exp"], weights=f"{W}, int64[2] s = {{-1, 8}}"),
    Case("a view of an input beside a chain", "r = Reshape(x, s)\nm = MatMul(r, w)\na = Relu(x)\nc = Exp(a)\ny = Add(m, c)",
         ["Reshape", "Relu Exp Add"], ["Relu Exp Add"], weights=f"{W}, int64[2] s = {{-1, 8}}"),
    # reductions and norms
    Case("layer norm in pieces", LN + "y = Mul(n, g)", [LN_TYPES + " Mul"], weights=G),
    Case("layer norm whole", "n = LayerNormalization(x, g, b)\ny = Relu(n)", ["LayerNormalization Relu"], weights=G),
    Case("softmax with scale and mask", "a = Mul(x, two)\nc = Add(a, b)\ny = Softmax <axis = -1> (c)", ["Mul Add Softmax"], weights=f"{TWO}, {G}"),
    Case("a reduction of other rows", LN + "t = ReduceMax <axes = [0]> (n)\ny = Sub(n, t)", [LN_TYPES, "ReduceMax Sub"]),
    Case("a mean that is an output", "y = ReduceMean <axes = [-1], keepdims = 1> (x)\nd = Sub(x, y)\nz = Abs(d)", ["ReduceMean Sub Abs"],
         outputs="float[N,1] y, float[N,8] z"),
    # types
    Case("casts", "a = Cast <to = 10> (x)\nc = Mul(a, a)\ny = Cast <to = 1> (c)", ["Cast Mul Cast"]),
    Case("comparison and select", "c = Greater(x, two)\na = Neg(x)\ny = Where(c, x, a)", ["Greater Neg Where"], weights=TWO),
    Case("quantise and back", "q = QuantizeLinear(x, sc, zp)\nd = DequantizeLinear(q, sc, zp)\ny = Relu(d)",
         ["QuantizeLinear DequantizeLinear Relu"], weights="float sc = {0.1}, int8 zp = {3}"),
    # what cannot be
    Case("an op that is not in the table", "a = Relu(x)\nc = ScatterElements <axis = 1> (a, si, sv)\ny = Exp(c)", ["Relu", "Exp"], [], weights="int64[1,1] si = {0}, float[1,1] sv = {9}"),
    Case("sizes that may differ", "a = Relu(x)\nc = Add(a, q)\ny = Exp(c)", ["Relu", "Exp"], [], inputs="float[N,8] x, float[M,8] q",
         outputs="float[K,8] y"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("policy", ["aggressive", "auto"])
def test_regions_of_little_graphs(case: Case, policy: str) -> None:
    given = model(case.body, case.inputs, case.outputs, opset=case.opset, weights=case.weights)
    found = rewrite_model(given, policy=policy)
    expected = case.auto if policy == "auto" and case.auto is not None else case.aggressive
    assert regions(found) == expected
    original = proto(given)
    feeds = feeds_of(original, {"N": 5, "M": 5})
    assert_same_results(original, found, feeds)
    assert_law(found, policy)
    assert max(region_errors(found, feeds).values(), default=0.0) < 2e-3 if "Cast" in case.body else 2e-6
    assert text_of(given) == text_of(model(case.body, case.inputs, case.outputs, opset=case.opset, weights=case.weights)), (
        "the input was changed"
    )


def text_of(given: ir.Model) -> bytes:
    return bytes(ir.to_proto(given).SerializeToString(deterministic=True))


def test_shape_arithmetic_is_no_wall() -> None:
    body = """a = Relu(x)
s = Shape(a)
z = Constant <value = int64[1] {0}> ()
n = Gather <axis = 0> (s, z)
k = Constant <value = int64[2] {2, 4}> ()
t = Concat <axis = 0> (n, k)
r = Reshape(a, t)
y = Exp(r)"""
    found = rewrite_model(model(body, outputs="float[N,2,4] y"))
    assert regions(found) == ["Relu Reshape Exp"]
    shape = [n for n in found.model.graph if n.op_type == "Shape"]
    assert [n.inputs[0].name for n in shape if n.inputs[0] is not None] == ["x"], (
        "sizes are read off the input, so `a` need not be in memory"
    )
    feeds = feeds_of(proto(model(body, outputs="float[N,2,4] y")))
    assert_same_results(proto(model(body, outputs="float[N,2,4] y")), found, feeds)
    assert_law(found, "auto")


def test_a_graph_of_many_nodes_takes_seconds() -> None:
    import time

    lines, last = [], "x"
    for i in range(750):
        lines += [f"a{i} = Relu({last})", f"b{i} = Mul(a{i}, two)", f"m{i} = MatMul(b{i}, w)", f"c{i} = Add(m{i}, {last})"]
        last = f"c{i}"
    given = model("\n".join([*lines, f"y = Exp({last})"]), weights=f"{W}, {TWO}")
    start = time.perf_counter()
    found = rewrite_model(given)
    assert len(found.regions) == 751
    assert len(found.model.functions) <= 3
    assert time.perf_counter() - start < 30  # about 3 s; what this looks for is quadratic growth
