"""Every node of a graph has an explanation."""

from __future__ import annotations

import pytest

from graphfuse.ir import GraphfuseError
from graphfuse.match.explain import explain_model
from tests.texts import model

W = "float[8,8] w = {" + ", ".join(["0.5"] * 64) + "}, float[8] b = {1,2,3,4,5,6,7,8}, int64[1,1] si = {0}, float[1,1] sv = {9}"
BODY = """a = Neg(x)
b1 = Exp(a)
m = MatMul(b1, w)
h = Add(m, b)
r = Relu(h)
c = ScatterElements <axis = 1> (r, si, sv)
d = Sqrt(c)
e = Abs(d)
s = Shape(q)
z = ConstantOfShape(s)
p = MaxPool <kernel_shape = [1]> (z)
y = Tanh(e)"""


def explained() -> dict[str, object]:
    given = model(BODY, "float[N,8] x, float[N,3,4] q", "float[N,8] y, float[N,3,4] p", weights=W)
    for node in given.graph:
        node.name = f"n_{node.outputs[0].name}"
    return {e.node: e for e in explain_model(given)}


@pytest.mark.parametrize(
    ("node", "region", "rule", "reason"),
    [
        ("n_a", 1, "fused", "2 kernels"),
        ("n_m", 0, "big-op", "matrix product"),
        ("n_h", 0, "matmul-epilogue", "end of the matrix product"),
        ("n_r", 0, "matmul-epilogue", "end of the matrix product"),
        ("n_c", 0, "unknown-op", "ScatterElements is not in the op table"),
        ("n_d", 2, "fused", "3 kernels"),
        ("n_s", 0, "shape-arithmetic", "shapes and constants"),
        ("n_z", 0, "shape-arithmetic", "shapes and constants"),
    ],
)
def test_each_kind_of_node(node: str, region: int, rule: str, reason: str) -> None:
    found = explained()[node]
    assert (found.region, found.rule) == (region, rule)  # type: ignore[attr-defined]
    assert reason in found.reason  # type: ignore[attr-defined]


def test_neighbours_and_companions() -> None:
    found = explained()["n_b1"]
    assert (found.producers, found.readers, found.together) == (["n_a"], ["n_m"], ["n_a"])  # type: ignore[attr-defined]


def test_one_node_by_its_value() -> None:
    given = model("a = Neg(x)\ny = Exp(a)")
    (found,) = explain_model(given, "a")
    assert (found.op_type, found.region) == ("Neg", 1)


def test_a_node_that_is_not_there_brings_suggestions() -> None:
    given = model("a = Neg(x)\ny = Exp(a)")
    next(iter(given.graph)).name = "encoder/Neg"
    with pytest.raises(GraphfuseError, match="did you mean 'encoder/Neg'"):
        explain_model(given, "encoder/Ne")


def test_a_folded_node_is_said_to_be_folded() -> None:
    given = model("k = Add(two, two)\na = Mul(x, k)\ny = Exp(a)", weights="float two = {2.0}")
    with pytest.raises(GraphfuseError, match="was computed"):
        explain_model(given, "k")


def test_regions_that_stay_apart_name_the_place() -> None:
    body = "a = Neg(x)\ns = ReduceMean <axes = [-1]> (a)\nd = Sub(a, s)\nt = ReduceMax <axes = [0]> (d)\ny = Sub(d, t)"
    found = {e.op_type + str(e.region): e for e in explain_model(model(body))}
    (apart,) = found["Neg1"].apart
    assert apart.rule in ("reduction-nesting", "reduction-rows", "recompute")
    assert len(apart.nodes) == 2
