"""Float64 as the judge between a region and an original that loses digits itself."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphfuse.check.exact import Distance, distance, in_float64
from graphfuse.check.run import check
from graphfuse.check.tolerance import Tolerance
from graphfuse.match import rewrite_model
from graphfuse.session.values import Value
from tests.texts import model, proto

VARIANCE = """m = ReduceMean <axes = [1], keepdims = 1> (x)
q = Mul(x, x)
e = ReduceMean <axes = [1], keepdims = 1> (q)
p = Mul(m, m)
v = Sub(e, p)
y = Sqrt(v)"""
OUT = "float[N,1] y"


@pytest.mark.parametrize(
    ("kernel", "original", "right"), [(0.9, 0.1, True), (1.1, 0.9, False), (3.0, 1.6, True), (3.0, 1.4, False), (50.0, 2.0, False)]
)
def test_who_is_right(kernel: float, original: float, right: bool) -> None:
    assert Distance(kernel, original).excuses is right


def test_distances_count_in_tolerances() -> None:
    exact, want, got = np.array([1.0, 2.0]), np.array([1.0, 2.5], np.float32), np.array([1.25, 2.0], np.float32)
    assert distance([exact], [want], [got], lambda _: Tolerance(0.0, 0.25)) == Distance(1.0, 2.0)
    assert distance([np.array([1])], [np.array([1])], [np.array([2])], lambda _: Tolerance(0.0, 9.0)) is None
    assert distance([exact], [want], [np.array([1.0, np.nan], np.float32)], lambda _: Tolerance(0.0, 9.0)) is None


def test_the_original_in_float64() -> None:
    original = model(VARIANCE, "float[N,16] x", OUT)
    x = (np.random.default_rng(0).standard_normal((3, 16)) + 300).astype(np.float32)
    (found,) = in_float64(original, {"x": Value(array=x)}, ["y"]) or []
    np.testing.assert_allclose(found, x.astype(np.float64).std(axis=1, keepdims=True), rtol=1e-9)


def test_weights_keep_their_own_types() -> None:
    original = model("s = Unsqueeze(x, a)\ny = Mul(s, f)", "float[N] x", OUT, weights="int64[1] a = {1}, float f = {0.5}")
    (found,) = in_float64(original, {"x": Value(array=np.float32([1, 3]))}, ["y"]) or []
    assert found.dtype == np.float64
    assert found.tolist() == [[0.5], [1.5]]


@pytest.mark.parametrize(
    "body",
    [
        "h = Cast <to = 10> (x)\ng = Cast <to = 1> (h)\ny = Neg(g)",
        "y = If(c) <then_branch = t () => (float[N] a) { a = Neg(x) }, else_branch = e () => (float[N] b) { b = Exp(x) }>",
    ],
)
def test_what_float64_does_not_say(body: str) -> None:
    original = model(body, "float[N] x, bool c", "float[N] y")
    given = {"x": Value(array=np.ones(3, np.float32)), "c": Value(array=np.array(True))}
    assert in_float64(original, given, ["y"]) is None


def test_a_sound_kernel_passes_where_the_original_loses_its_digits_and_a_wrong_one_does_not() -> None:
    original = model(VARIANCE, "float[N,64] x", OUT)
    found = rewrite_model(original, skip=["variance"])
    x = (np.random.default_rng(1).standard_normal((40, 64)) + 100).astype(np.float32)
    result = check(proto(original), found.model, device="numpy", inputs={"x": x})
    (region,) = result.regions
    assert region.passed, region.reason
    wrong = ir.from_proto(proto(found.model))
    (function,) = wrong.functions.values()
    function.metadata_props["graphfuse.spec"] = function.metadata_props["graphfuse.spec"].replace('"sqrt"', '"exp"')
    (bad,) = check(proto(original), wrong, device="numpy", inputs={"x": x}).regions
    assert not bad.passed
