"""The strict comparison: what Polygraphy's defaults let pass must fail, equal specials must pass."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphfuse.check.compare import compare_output, compare_outputs
from graphfuse.check.runners import polygraphy_verdicts
from graphfuse.check.tolerance import Limits, Tolerance, choose, scale
from graphfuse.ir.errors import GraphfuseError


def pick(name: str, dtype: np.dtype) -> Tolerance:
    return choose(dtype, whole=True)


def one(want, got, **limits):
    def own(name: str, dtype: np.dtype) -> Tolerance:
        return choose(dtype, whole=True, limits=Limits(**limits))

    return compare_output("y", np.asarray(want), np.asarray(got), own)


F = np.float32
NAN, INF = np.nan, np.inf

EQUAL = {
    "integers": (np.array([1, 2**40]), np.array([1, 2**40])),
    "bools": (np.array([True, False]), np.array([True, False])),
    "nan": (np.array([1, NAN], F), np.array([1, NAN], F)),
    "nan of another sign": (np.array([NAN], F), np.array([-NAN], F)),
    "infinities": (np.array([INF, -INF], F), np.array([INF, -INF], F)),
    "empty": (np.zeros((0, 3), F), np.zeros((0, 3), F)),
    "scalar": (np.array(1, F), np.array(1, F)),
    "minus zero": (np.array([0.0], F), np.array([-0.0], F)),
    "one ulp": (np.array([1.0, 5.0], F), np.nextafter(np.array([1.0, 5.0], F), F(9))),
    "huge": (np.array([1e308, 1.0]), np.array([1e308, 1.0])),
}
DIFFERENT = {
    "int64 beyond float": (np.array([2**40]), np.array([2**40 + 1]), "compared exactly"),
    "int64 beyond double": (np.array([2**62]), np.array([2**62 + 1]), "compared exactly"),
    "uint8": (np.array([255], np.uint8), np.array([254], np.uint8), "254 instead of 255"),
    "bool": (np.array([True]), np.array([False]), "compared exactly"),
    "float16 for float32": (np.array([1], F), np.array([1], np.float16), "it is float16, the original's is float32"),
    "int32 for int64": (np.array([1]), np.array([1], np.int32), "it is int32"),
    "rank 1 for rank 0": (np.array(1, F), np.array([1], F), r"its shape is \[1\], the original's is \[\]"),
    "empty of another shape": (np.zeros((0, 3), F), np.zeros((3, 0), F), "shape"),
    "nan for a number": (np.array([1, 2], F), np.array([1, NAN], F), r"one side only, first at \[1\]: nan instead of 2.0"),
    "number for nan": (np.array([NAN, 2], F), np.array([1, 2], F), "1.0 instead of nan"),
    "infinity of another sign": (np.array([INF], F), np.array([-INF], F), "-inf instead of inf"),
    "infinity for a number": (np.array([1e38], F), np.array([INF], F), "inf instead of"),
    "far": (np.array([1, 2, 3], F), np.array([1, 2.001, 3], F), r"worst at \[1\]: 2.00\d+ instead of 2.0"),
    "overflow of float16": (np.array([INF], np.float16), np.array([60000], np.float16), "exact_rounding"),
}


@pytest.mark.parametrize("case", EQUAL)
def test_equal(case):
    verdict = one(*EQUAL[case])
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("case", DIFFERENT)
def test_different(case):
    want, got, reason = DIFFERENT[case]
    verdict = one(want, got)
    assert not verdict.passed
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(verdict.reason)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_tolerance_follows_the_type(dtype):
    """A few units in the last place pass in every type; half as much again passes in none."""
    dtype = np.dtype(dtype)
    want = np.array([1.0, -2.0, 4.0]).astype(dtype)
    u = float(ml_dtypes.finfo(dtype).eps)
    assert one(want, (want.astype("d") * (1 + u)).astype(dtype)).passed
    assert not one(want, (want.astype("d") * 1.5).astype(dtype)).passed


def test_precision_lost_on_the_way_widens_a_float32_output():
    assert choose(np.dtype("f4"), {"float16"}, whole=True).rtol == choose(np.dtype("f2"), whole=True).rtol
    assert choose(np.dtype("f4"), {"float64"}, whole=True).rtol == choose(np.dtype("f4"), whole=True).rtol
    assert choose(np.dtype("f4"), whole=False).rtol < choose(np.dtype("f4"), whole=True).rtol


def test_near_zero_elements_are_measured_by_their_neighbours():
    want = np.array([100.0, -80.0, 1e-9, 60.0], F)
    assert one(want, want + np.array([0, 0, 1e-5, 0], F)).passed
    assert not one(want / 1e5, want / 1e5 + np.array([0, 0, 1e-5, 0], F)).passed


def test_small_columns_are_not_hidden_by_large_ones():
    """Boxes in pixels beside scores: an error of 0.001 in a score is an error."""
    rng = np.random.default_rng(0)
    want = np.concatenate([rng.uniform(0, 640, (100, 4)), rng.uniform(0, 1, (100, 6))], axis=1).astype(F)
    got = want.copy()
    got[7, 5] += 1e-3
    verdict = one(want, got)
    assert not verdict.passed
    assert verdict.wrong == 1
    assert "[7, 5]" in verdict.reason


def test_given_limits_go_first():
    want, got = np.array([1.0, 0.0], F), np.array([1.05, 0.01], F)
    assert one(want, got, rtol=0.1, atol=0.02).passed
    assert not one(want, got, rtol=0.1, atol=0.0).passed
    assert not one(np.array([3]), np.array([4]), rtol=1.0, atol=1.0).passed


def test_outputs_missing_extra_renamed_reordered():
    a, b = np.ones(2, F), np.zeros(2, F)
    assert all(v.passed for v in compare_outputs({"a": a, "b": b}, {"a": a, "b": b}, pick))
    missing = compare_outputs({"a": a, "b": b}, {"a": a}, pick)
    assert [(v.name, v.passed) for v in missing] == [("a", True), ("b", False)]
    extra = compare_outputs({"a": a}, {"a": a, "b": b}, pick)
    assert [(v.name, v.passed) for v in extra] == [("a", True), ("b", False)]
    renamed = compare_outputs({"a": a}, {"c": a}, pick)
    assert [v.passed for v in renamed] == [False, False]
    assert "'c' instead" in renamed[0].reason
    assert not any(v.passed for v in compare_outputs({"a": a, "b": b}, {"b": b, "a": a}, pick))


def test_sequences():
    a = [np.ones(2, F), np.zeros(3, F)]
    assert compare_output("s", a, [x.copy() for x in a], pick).passed
    assert not compare_output("s", a, a[:1], pick).passed
    assert not compare_output("s", a, [a[0], a[1] + 1], pick).passed
    assert not compare_output("s", a, a[0], pick).passed


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30), st.integers(0, 29), st.floats(-1, 1))
def test_polygraphy_never_passes_less_than_we_do(values, place, change):
    """Our limits are the tighter ones, so its opinion can only confirm ours."""
    want = np.array(values, F).reshape(-1, 1)
    got = want.copy()
    got[place % len(values)] += F(change)
    verdict = compare_output("y", want, got, pick)
    said = polygraphy_verdicts({"y": want}, {"y": got}, [verdict])
    assert said["y"] or not verdict.passed


def test_polygraphy_takes_nan_infinities_integers_and_small_floats():
    want = {
        "f": np.array([NAN, INF, 1], F),
        "h": np.array([1, 2], np.float16),
        "i": np.array([2**40]),
        "b": np.array([True]),
        "e": np.zeros((0, 2), F),
    }
    verdicts = compare_outputs(want, want, pick)
    assert polygraphy_verdicts(want, want, verdicts) == dict.fromkeys(want, True)
    off = {**want, "f": np.array([NAN, INF, 2], F), "b": np.array([False])}
    said = polygraphy_verdicts(want, off, compare_outputs(want, off, pick))
    assert said == {"f": False, "h": True, "i": True, "b": False, "e": True}


def test_scale_never_overflows():
    assert np.all(np.isfinite(scale(np.array([1e308, 1e308]))))
    assert scale(np.zeros(0)) == 0
    assert scale(np.zeros((2, 2))) == 0


def test_types_without_a_tolerance():
    with pytest.raises(GraphfuseError, match="no tolerance for arrays of int64"):
        choose(np.dtype("i8"), whole=True)
