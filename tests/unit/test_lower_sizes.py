"""Sizes that a region sees only as expressions: regions after convolutions over run-time heights and widths."""

from __future__ import annotations

import numpy as np
import pytest

from graphfuse.ir import expr, loads, sym
from graphfuse.ir.dtypes import F32
from graphfuse.lower.sizes import Sizes
from graphfuse.match import rewrite_model
from tests.texts import assert_law, assert_same_results, feeds_of, model, proto, region_errors, regions

H, W, N = sym("h"), sym("w"), sym("n")
HALF = expr.floordiv(H - 1, 2) + 1


def test_equal_sizes_get_one_name_and_others_their_own() -> None:
    sizes = Sizes([(F32, (N, 8, HALF, expr.floordiv(W - 1, 2) + 1)), (F32, (HALF, 1))])
    made = sizes.shape((N, HALF, expr.floordiv(W - 1, 2) + 1))
    assert made[0] == N and len({*made}) == 3
    assert all(expr.symbols(d) <= {"n", *sizes.names} for d in made)
    assert set(sizes.names.values()) == {HALF, expr.floordiv(W - 1, 2) + 1}


def test_what_follows_from_a_named_size_is_told_by_it() -> None:
    """Twice a half is not the whole; a known target shape must be translated with the same names."""
    sizes = Sizes([(F32, (HALF,))])
    (name,) = sizes.names
    assert sizes(HALF) == sym(name) and sizes(2 * HALF + 1) == 2 * sym(name) + 1
    known = np.array([HALF, 2 * HALF, 7], object)
    assert list(sizes.array(known)) == [sym(name), 2 * sym(name), 7]
    assert sizes.array(np.array([1, 2])).tolist() == [1, 2]


def test_a_size_without_a_solution_has_a_name_as_a_whole() -> None:
    flat = HALF * (expr.floordiv(W - 1, 2) + 1)
    sizes = Sizes([(F32, (N, flat))])
    (name,) = sizes.names
    assert sizes(flat) == sym(name)


def test_sizes_that_a_shape_gives_away_stay() -> None:
    sizes = Sizes([(F32, (N, H)), (F32, (HALF,))])
    assert not sizes.names and sizes(HALF) == HALF


def test_one_named_size_in_terms_of_another() -> None:
    quarter = expr.floordiv(HALF - 1, 2) + 1
    sizes = Sizes([(F32, (quarter,)), (F32, (HALF,))])
    made = [sizes(HALF), sizes(quarter)]
    assert {s for d in made for s in expr.symbols(d)} <= set(sizes.names)
    for h in range(1, 40):
        half, quart = (h - 1) // 2 + 1, ((h - 1) // 2) // 2 + 1
        env = {n: expr.evaluate(d, {"h": h}) for n, d in sizes.names.items()}
        assert [expr.evaluate(d, env) for d in made] == [half, quart]


CONV = "c = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, k)\n"
TAIL = {
    "gate": "s = Sigmoid(c)\nm = Mul(s, c)\ny = Add(m, c)",
    "flat": "f = Reshape(c, t)\np = Transpose <perm = [0, 2, 1]> (f)\ny = Softmax <axis = -1> (p)",
    "mean": "m = ReduceMean <axes = [2, 3], keepdims = 1> (c)\nd = Sub(c, m)\ny = Mul(d, d)",
    "slice": "l = Slice(c, a, b, ax)\ns = Sigmoid(l)\ny = Mul(s, l)",
}
WEIGHTS = (
    "float[4,3,3,3] k = {" + ",".join(["0.1", "-0.2", "0.3"] * 36) + "}, int64[3] t = {0, 4, -1}, "
    "int64[1] a = {-2}, int64[1] b = {9223372036854775807}, int64[1] ax = {3}"
)


@pytest.mark.parametrize("name", TAIL)
def test_regions_after_a_convolution_over_run_time_sizes(name: str) -> None:
    outputs = "float[a1,a2,a3,a4] y" if name != "flat" else "float[a1,a2,a3] y"
    original = model(CONV + TAIL[name], "float[N,3,H,W] x", outputs, weights=WEIGHTS)
    found = rewrite_model(original, policy="aggressive")
    assert found.regions and "unbound-size" not in {r.rule for r in found.refusals}
    for sizes in ({"N": 2, "H": 9, "W": 6}, {"N": 1, "H": 12, "W": 13}, {"N": 3, "H": 5, "W": 5}):
        feeds = feeds_of(proto(original), sizes)
        assert_same_results(proto(original), found, feeds)
        assert max(region_errors(found, feeds).values()) < 1e-5
    assert_law(found, "aggressive")


def test_the_cost_is_that_of_the_sizes_that_names_stand_for() -> None:
    original = model(CONV + TAIL["gate"], "float[N,3,H,W] x", "float[a1,a2,a3,a4] y", weights=WEIGHTS)
    found = rewrite_model(original, policy="aggressive", sizes={"N": 1, "H": 64, "W": 64})
    assert regions(found) == ["Sigmoid Mul Add"]
    assert found.regions[0].bytes_after == 2 * 4 * 4 * 32 * 32
    assert set(loads(found.regions[0].spec).symbols) == {"N", "d0", "d1"}
