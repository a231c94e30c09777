"""The rules of ``auto``: what each leaves alone, that it can be switched off, and that everything left alone has a reason."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from graphfuse.ir.errors import GraphfuseError
from graphfuse.match import rewrite_model
from graphfuse.match.policy import RULES
from tests.texts import assert_law, assert_same_results, feeds_of, model, proto, regions, rules

IMAGE = "float[N,4,6,6] x"
OUT = "float[N,4,6,6] y"
CONV = "c = Conv <pads = [1, 1, 1, 1]> (x, k)\n"
K = "float[4,4,3,3] k = {" + ", ".join(str((i * 5 % 11 - 5) / 16) for i in range(144)) + "}"
BN = ", ".join(f"float[4] {n} = {{1.0, 0.5, 2.0, 1.5}}" for n in ("sc", "bi", "mu", "va"))
W = "float[8,8] w = {" + ", ".join(str((i * 7 % 13 - 6) / 8) for i in range(64)) + "}"
B = "float[8] b = {8, 7, 6, 5, 4, 3, 2, 1}"
GELU = "d = Div(a, r2)\ne = Erf(d)\nf = Add(e, one)\nh = Mul(a, f)\n"
NUMBERS = "float r2 = {1.41421}, float one = {1.0}, float half = {0.5}, float three = {3.0}, float zero = {0.0}, float six = {6.0}, float t = {0.8}"
SCALE = "float qs = {0.05}, int8 qz = {0}, float[144] unused = {" + ", ".join(["0"] * 144) + "}"


class Case(NamedTuple):
    """A graph, the rule that leaves ``left`` alone, and the regions of auto with and without the rule."""

    name: str
    rule: str
    body: str
    auto: list[str]
    skipped: list[str]
    weights: str = ""
    inputs: str = IMAGE
    outputs: str = OUT


ROWS = {"inputs": "float[N,8] x", "outputs": "float[N,8] y"}
CASES = [
    Case("relu after conv", "conv-epilogue", CONV + "r = Relu(c)\nu = Exp(r)\ny = Neg(u)", ["Exp Neg"], ["Relu Exp Neg"], K),
    Case("silu after conv", "conv-epilogue", CONV + "s = Sigmoid(c)\nm = Mul(c, s)\nu = Exp(m)\ny = Neg(u)", ["Exp Neg"],
         ["Sigmoid Mul Exp Neg"], K),
    Case("hard swish after conv", "conv-epilogue", CONV + "a = Add(c, three)\nl = Clip(a, zero, six)\nm = Mul(c, l)\ny = Div(m, six)", [],
         ["Add Clip Mul Div"], f"{K}, {NUMBERS}"),
    Case("normalisation and relu after conv", "conv-epilogue",
         CONV + "n = BatchNormalization(c, sc, bi, mu, va)\nr = Relu(n)\nu = Exp(r)\ny = Neg(u)", ["Exp Neg"],
         ["BatchNormalization Relu Exp Neg"], f"{K}, {BN}"),
    Case("only one activation", "conv-epilogue", CONV + "r = Relu(c)\ns = Tanh(r)\ny = Sigmoid(s)", ["Tanh Sigmoid"], ["Relu Tanh Sigmoid"], K),
    Case("not if the convolution is read twice", "conv-epilogue", CONV + "r = Relu(c)\nu = Mul(c, q)\ny = Add(r, u)", ["Relu Mul Add"],
         ["Relu Mul Add"], K, inputs=IMAGE + ", float[N,4,6,6] q"),
    Case("not if the convolution is an output", "conv-epilogue", CONV + "r = Relu(c)\ny = Neg(r)", ["Relu Neg"], ["Relu Neg"], K,
         outputs="float[N,4,6,6] c, " + OUT),
    Case("bias and relu after a product", "matmul-epilogue", "m = MatMul(x, w)\na = Add(m, b)\nr = Relu(a)\nu = Exp(r)\ny = Neg(u)",
         ["Exp Neg"], ["Add Relu Exp Neg"], f"{W}, {B}", **ROWS),
    Case("gelu after a product", "matmul-epilogue", "m = MatMul(x, w)\na = Add(m, b)\n" + GELU + "g = Mul(h, half)\nu = Neg(g)\ny = Exp(u)",
         ["Neg Exp"], ["Add Div Erf Add Mul Mul Neg Exp"], f"{W}, {B}, {NUMBERS}", **ROWS),
    Case("a residual is no bias", "matmul-epilogue", "m = MatMul(x, w)\na = Add(m, x)\ny = Relu(a)", ["Add Relu"], ["Add Relu"], W, **ROWS),
    Case("a scale is no activation", "matmul-epilogue", "m = MatMul(x, w)\na = Mul(m, half)\ny = Softmax <axis = -1> (a)", ["Mul Softmax"],
         ["Mul Softmax"], f"{W}, {NUMBERS}", **ROWS),
    Case("gemm", "matmul-epilogue", "m = Gemm(x, w, b)\nr = Relu(m)\nu = Exp(r)\ny = Neg(u)", ["Exp Neg"], ["Relu Exp Neg"], f"{W}, {B}", **ROWS),
    Case("attention in float16", "attention-core",
         "hs = Cast <to = 10> (half)\nq = Cast <to = 10> (x)\nk = Transpose <perm = [1, 0]> (q)\nm = MatMul(q, k)\na = Mul(m, hs)\ns = Softmax <axis = -1> (a)\no = MatMul(s, q)\n"
         "y = Cast <to = 1> (o)", ["Cast Transpose"], ["Cast Transpose", "Mul Softmax"], NUMBERS, **ROWS),
    Case("no attention in float32", "attention-core",
         "k = Transpose <perm = [1, 0]> (x)\nm = MatMul(x, k)\na = Mul(m, half)\ns = Softmax <axis = -1> (a)\ny = MatMul(s, x)", ["Mul Softmax"],
         ["Mul Softmax"], NUMBERS, **ROWS),
    Case("dequantise before a product", "quantised-operand",
         "a = Relu(x)\ne = Exp(a)\nq = QuantizeLinear(e, qs, qz)\nd = DequantizeLinear(q, qs, qz)\ny = MatMul(d, w)",
         ["Relu Exp QuantizeLinear"], ["Relu Exp QuantizeLinear DequantizeLinear"], f"{W}, {SCALE}", **ROWS),
    Case("one op alone", "single-op", "m = MatMul(x, w)\na = Exp(m)\nr = Reshape(a, s)\ny = MatMul(r, w)", [], [],
         f"{W}, int64[2] s = {{-1, 8}}", **ROWS),
    Case("views around a product", "matmul-views",
         "p = Transpose <perm = [1, 0]> (x)\nq = Reshape(p, s)\nt = Transpose <perm = [1, 0]> (q)\ny = MatMul(t, w)", [],
         ["Transpose Reshape Transpose"], f"{W}, int64[2] s = {{16, 4}}", inputs="float[8,8] x", outputs="float[4,8] y"),
    Case("a result twice", "doubled-output", "a = Relu(x)\nh = Exp(a)\nr = Reshape(h, s)\nm = MatMul(r, w)\ny = Add(m, h)", ["Relu Exp"],
         ["Relu Exp Reshape"], f"{W}, int64[2] s = {{-1, 8}}", **ROWS),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_rules(case: Case) -> None:
    if case.name == "views around a product":  # so that the shapes fit
        case = case._replace(weights=case.weights.replace("float[8,8] w", "float[16,4] w"), outputs="float[4,4] y")
    given = model(case.body, case.inputs, case.outputs, weights=case.weights)
    found, without = rewrite_model(given), rewrite_model(given, skip=[case.rule])
    assert regions(found) == case.auto
    assert regions(without) == case.skipped
    assert (case.rule in rules(found)) is (case.name not in _UNTOUCHED)
    assert case.rule not in rules(without)
    original = proto(given)
    assert_same_results(original, found, feeds_of(original))
    assert_law(found, "auto")


_UNTOUCHED = {
    "no attention in float32",
    "not if the convolution is read twice",
    "not if the convolution is an output",
    "a residual is no bias",
    "a scale is no activation",
}


def test_every_rule_has_a_case() -> None:
    assert {r.name for r in RULES} - {c.rule for c in CASES} == {"no-gain"}


def test_a_kernel_that_is_not_faster_is_left_out() -> None:
    """Two ops that read 8 numbers of a large table each: the region would read both tables in full."""
    body = "l = Gather <axis = 0> (p, i)\nh = Gather <axis = 0> (q, i)\na = Add(l, h)\ny = Expand(a, s)"
    given = model(body, "float[9,8] p, float[9,8] q, int64[1] i", "float[1,8] y", weights="int64[2] s = {1, 8}")
    assert regions(rewrite_model(given)) == ["Gather Gather Add Expand"]


def test_everything_left_alone_has_a_reason() -> None:
    body = (
        CONV
        + "n = BatchNormalization(c, sc, bi, mu, va)\nr = Relu(n)\nt = ScatterElements <axis = 1> (r, si, sv)\nu = Exp(t)\nv = Conv <pads = [1, 1, 1, 1]> (u, k)\ny = Neg(v)"
    )
    given = model(body, IMAGE, OUT, weights=f"{K}, {BN}, int64[1,1,1,1] si = {{0}}, float[1,1,1,1] sv = {{9}}")
    found = rewrite_model(given)
    assert not found.regions
    assert found.report["small_ops"] == sum(len(r.nodes) for r in found.refusals) == 5
    assert rules(found) == {"conv-epilogue", "unknown-op", "single-op"}
    assert all(r.reason and "\n" not in r.reason for r in found.refusals)


def test_rules_hold_in_bodies() -> None:
    body = """y = If(f) <
  then_branch = t () => (float[N,8] a) { a = Relu(x) },
  else_branch = e () => (float[N,8] b) { c = Neg(x)
    b = Exp(c) }
>"""
    found = rewrite_model(model(body, "float[N,8] x, bool f"))
    assert [(r.rule, r.nodes) for r in found.refusals] == [("single-op", ["##0 If/then_branch/#0 Relu"])]
    assert regions(found) == ["Neg Exp"]


@pytest.mark.parametrize(("keywords", "message"), [({"policy": "fast"}, "auto, aggressive"), ({"skip": ["epilogues"]}, "conv-epilogue")])
def test_unknown_names_list_the_known_ones(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(GraphfuseError, match=message) as caught:
        rewrite_model(model("y = Relu(x)"), **keywords)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_report_holds_what_the_command_line_writes() -> None:
    import json

    found = rewrite_model(model("a = Relu(x)\nc = Tanh(a)\ny = Neg(c)"))
    report = json.loads(json.dumps(found.report))
    assert {"nodes_before", "nodes_after", "small_ops", "small_ops_fused", "regions", "refusals"} <= set(report)
    assert (report["nodes_before"], report["nodes_after"], report["small_ops"], report["small_ops_fused"]) == (3, 1, 3, 3)
    (region,) = report["regions"]
    assert {"name", "op_types", "nodes", "inputs", "outputs", "kernels", "bytes_before", "bytes_after"} <= set(region)
    size = 64 * 8 * 4  # N counts as 64
    assert (region["launches_before"], region["kernels"], region["bytes_before"], region["bytes_after"]) == (3, 1, 6 * size, 2 * size)
    assert rewrite_model(model("a = Relu(x)\ny = Neg(a)"), sizes={"N": 2}).regions[0].bytes_after == 2 * 2 * 8 * 4
