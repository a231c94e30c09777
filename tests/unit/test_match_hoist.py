"""Shape arithmetic on inner tensors becomes arithmetic on the inputs' sizes."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from graphfuse.graph.facts import Facts
from graphfuse.graph.fold import fold_constants
from graphfuse.match import rewrite_model
from graphfuse.match.hoist import hoist_shapes
from tests.texts import assert_law, assert_same_results, feeds_of, model, proto, region_errors, regions, text


class Case(NamedTuple):
    name: str
    body: str
    fused: list[str]
    outputs: str
    inputs: str = "float[N,M,8] x"
    opset: int = 17


C = "i0 = Constant <value = int64[1] {0}> ()\ni1 = Constant <value = int64[1] {1}> ()\ni2 = Constant <value = int64[1] {2}> ()\n"
C += "z = Constant <value = int64 {0}> ()\none = Constant <value = int64 {1}> ()\n"
CASES = [
    Case("heads", C + "a = Relu(x)\ns = Shape(a)\nn = Gather <axis = 0> (s, i0)\nm = Gather <axis = 0> (s, i1)\n"
         "k = Constant <value = int64[2] {2, 4}> ()\nt = Concat <axis = 0> (n, m, k)\nr = Reshape(a, t)\ny = Transpose <perm = [0, 2, 1, 3]> (r)",
         ["Relu Reshape Transpose"], "float[N,2,M,4] y"),
    Case("product of sizes", C + "a = Relu(x)\ns = Shape(a)\nn = Gather <axis = 0> (s, i0)\nm = Gather <axis = 0> (s, i1)\np = Mul(n, m)\n"
         "k = Constant <value = int64[1] {8}> ()\nt = Concat <axis = 0> (p, k)\nr = Reshape(a, t)\ny = Exp(r)", ["Relu Reshape Exp"], "float[P,8] y"),
    Case("half of a size", C + "a = Relu(x)\ns = Shape(a)\nm = Gather <axis = 0> (s, i1)\nh = Div(m, i2)\nl = Slice(a, i0, h, i1)\ny = Neg(l)",
         ["Relu Slice Neg"], "float[N,H,8] y"),
    Case("a scalar size", C + "a = Relu(x)\ns = Shape(a)\nn = Gather <axis = 0> (s, z)\nu = Unsqueeze(n, i0)\nk = Constant <value = int64[1] {-1}> ()\n"
         "t = Concat <axis = 0> (u, k)\nr = Reshape(a, t)\ny = Exp(r)", ["Relu Reshape Exp"], "float[N,Q] y"),
    Case("sum and difference", C + "a = Relu(x)\ns = Shape(a)\nn = Gather <axis = 0> (s, i0)\nm = Gather <axis = 0> (s, i1)\nd = Add(m, i2)\n"
         "e = Sub(d, i2)\nk = Constant <value = int64[2] {2, 4}> ()\nt = Concat <axis = 0> (n, e, k)\nr = Reshape(a, t)\ny = Neg(r)",
         ["Relu Reshape Neg"], "float[N,M,2,4] y"),
    Case("the shape of another tensor", "a = Relu(x)\nb = Exp(q)\ns = Shape(a)\ne = Expand(b, s)\ny = Add(a, e)", ["Relu Exp Expand Add"],
         "float[N,M,8] y", "float[N,M,8] x, float[1,1,8] q"),
    Case("a constant of a shape", "a = Relu(x)\ns = Shape(a)\nf = ConstantOfShape <value = float[1] {2}> (s)\ny = Mul(a, f)", ["Relu Mul"],
         "float[N,M,8] y"),
    Case("older than the rules", "a = Relu(x)\ns = Shape(a)\nr = Reshape(a, s)\ny = Exp(r)", [], "float[N,M,8] y", opset=11),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_nothing_stands_between(case: Case) -> None:
    given = model(case.body, case.inputs, case.outputs, opset=case.opset)
    found = rewrite_model(given)
    if case.fused:
        assert regions(found) == case.fused
        for node in found.model.graph:
            if node.op_type == "Shape":
                assert node.inputs[0] is not None
                assert node.inputs[0].is_graph_input()
    for sizes in ({"N": 2, "M": 6}, {"N": 1, "M": 1}, {"N": 3, "M": 5}):
        feeds = feeds_of(proto(given), sizes)
        assert_same_results(proto(given), found, feeds)
        assert max(region_errors(found, feeds).values(), default=0.0) < 2e-6
    assert_law(found, "auto")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_twice_is_once(case: Case) -> None:
    given = model(case.body, case.inputs, case.outputs, opset=case.opset)
    fold_constants(given)
    hoist_shapes(given, Facts(given))
    once = text(given)
    assert hoist_shapes(given, Facts(given)) == 0
    assert text(given) == once


def test_sizes_that_no_input_tells_stay_where_they_are() -> None:
    body = (
        "f = NonZero(x)\nt = Transpose <perm = [1, 0]> (f)\nc = Cast <to = 1> (t)\ne = Exp(c)\ns = Shape(e)\nr = Reshape(e, s)\ny = Neg(r)"
    )
    given = model(body, outputs="float[K,2] y")
    found = rewrite_model(given)
    feeds = feeds_of(proto(given), {"N": 4})
    assert_same_results(proto(given), found, feeds)
    assert_law(found, "auto")


def test_arithmetic_on_inputs_is_left_as_it_is() -> None:
    body = "s = Shape(q)\ne = Expand(x, s)\ny = Exp(e)"
    given = model(body, "float[1,8] x, float[N,8] q")
    before = text(given)
    assert hoist_shapes(given, Facts(given)) == 0
    assert text(given) == before


def test_names_in_use_are_not_taken() -> None:
    body = C + "gf_sizes = Relu(x)\ns = Shape(gf_sizes)\ngf_gather = Gather <axis = 0> (s, i0)\nk = Constant <value = int64[1] {-1}> ()\n"
    body += "gf_concat = Concat <axis = 0> (gf_gather, k)\nr = Reshape(gf_sizes, gf_concat)\ny = Exp(r)"
    given = model(body, "float[N,8] x", "float[N,8] y")
    found = rewrite_model(given)
    assert_same_results(proto(given), found, feeds_of(proto(given)))
    assert_law(found, "auto")
