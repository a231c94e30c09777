"""Proofs about run-time sizes: what is proven holds for every size, and what slices need is proven."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfuse.ir import Builder, Dim, ProgramError, expr, interpret, sym
from graphfuse.ir.dtypes import F16, F32, I8, U8
from graphfuse.ir.program import identity

N, M = sym("n"), sym("m")

dims = st.recursive(
    st.one_of(st.integers(-4, 9), st.sampled_from([N, M])),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
        st.tuples(inner, st.integers(-3, 3)).map(lambda p: p[0] * p[1]),
        st.tuples(inner, inner).map(lambda p: expr.emax(*p)),
        st.tuples(inner, inner).map(lambda p: expr.emin(*p)),
        st.tuples(inner, st.integers(1, 4)).map(lambda p: expr.floordiv(*p)),
    ),
    max_leaves=8,
)


@given(dims)
@settings(max_examples=400)
def test_what_is_proven_holds(dim: Dim) -> None:
    if expr.is_nonneg(dim):
        values = [expr.evaluate(dim, {"n": n, "m": m}) for n, m in itertools.product((0, 1, 2, 3, 5, 8, 13), repeat=2)]
        assert min(values) >= 0, str(dim)


@pytest.mark.parametrize(
    "dim",
    [
        N - expr.emin(4, N),
        expr.emin(4, N) - expr.emin(2, N),
        N - expr.emax(N - 1, 0),
        expr.emax(N - 1, 0),
        expr.emax(N, M) - N,
        N * M - N * expr.emin(M, 3),
    ],
    ids=str,
)
def test_extrema_are_proven_by_cases(dim: Dim) -> None:
    assert expr.is_nonneg(dim)
    assert not expr.is_nonneg(-1 - dim)


@pytest.mark.parametrize(
    ("start", "size", "step"),
    [
        (0, expr.emin(4, N), 1),
        (0, expr.ceildiv(N, 2), 2),
        (1, expr.floordiv(N, 2), 2),
        (N - 1, N, -1),
        (expr.emin(2, N), N - expr.emin(2, N), 1),
    ],
)
def test_slices_of_run_time_axes(start: Dim, size: Dim, step: int) -> None:
    b = Builder()
    program = b.finish([b.slice(b.param(F32, [N]), [start], [size], [step])])
    for n in range(7):
        x = np.arange(n, dtype=np.float32)
        first, count = expr.evaluate(start, {"n": n}), expr.evaluate(size, {"n": n})
        np.testing.assert_array_equal(interpret.run(program, [x])[0], [first + step * i for i in range(count)])


@pytest.mark.parametrize(("start", "size", "step"), [(0, 4, 1), (1, N, 1), (N, N, -1), (0, N, 2), (-1, 1, 1), (N - 1, 1, 1), (M, 1, 1)])
def test_slices_that_may_leave_are_refused(start: Dim, size: Dim, step: int) -> None:
    b = Builder()
    with pytest.raises(ProgramError, match="may leave"):
        b.slice(b.param(F32, [N]), [start], [size], [step])


@pytest.mark.parametrize(("fn", "want"), [("sum", 0), ("prod", 1), ("max", -np.inf), ("min", np.inf)])
def test_reductions_of_nothing(fn: str, want: float) -> None:
    for shape in ([N, 2], [0, 2]):
        b = Builder()
        program = b.finish([b.reduce(fn, b.param(F32, shape), [0])])
        np.testing.assert_array_equal(interpret.run(program, [np.zeros((0, 2), np.float32)])[0], [want, want])


def test_identities_of_integers() -> None:
    assert [identity(fn, t) for t in (I8, U8) for fn in ("max", "min")] == [-128, 127, 0, 255]


@pytest.mark.parametrize("size", [2049, 100_000])
def test_an_extent_keeps_its_precision_in_a_small_float(size: int) -> None:
    b = Builder()
    x = b.param(F16, [size])
    program = b.finish([b.reduce("sum", x, [0]) / b.extent(size, F16)])
    assert interpret.run(program, [np.full(size, 0.5, np.float16)])[0] == 0.5
