"""Float8 in generated kernels against ``ml_dtypes``: every code upwards; downwards every neighbourhood of a code, and every special value."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from graphfuse.codegen import generate
from graphfuse.ir import Builder, DType, Program, dtypes, interpret
from graphfuse.jit import HostDevice


def run(program: Program, x: np.ndarray) -> np.ndarray:
    ((dtype, shape),) = program.outputs
    out = np.empty(shape, dtype.numpy)
    HostDevice().load([generate(program)])[0].launch([x.ctypes.data, out.ctypes.data], {})
    return out


def cast(source: DType, target: DType, size: int) -> Program:
    b = Builder()
    return b.finish([b.cast(b.param(source, [size]), target)])


def all_codes(dtype: DType) -> np.ndarray:
    return np.arange(256, dtype=np.uint8).view(dtype.numpy)


def around_codes(dtype: DType, wide: np.dtype) -> np.ndarray:
    """The values of all codes, the ties between them, what lies one step beside both, and everything at the ends of the wide type."""
    values = np.unique(all_codes(dtype).astype(wide)[np.isfinite(all_codes(dtype).astype(wide))])
    ties = (values[1:] + values[:-1]) / 2
    spots = np.concatenate([values, ties, values * 1.01, values[-3:] * 1.2, values[-1:] * 16])
    near = np.concatenate([np.nextafter(spots, wide.type(s)) for s in (-np.inf, np.inf)])
    limits = np.finfo(wide)
    ends = [np.nan, np.inf, -np.inf, 0.0, -0.0, limits.max, limits.min, limits.tiny, limits.smallest_subnormal]
    return np.concatenate([spots, near, np.array(ends, wide)]).astype(wide)


def nearest(x: np.ndarray, dtype: DType) -> np.ndarray:
    """``x`` rounded once, by looking for the nearest code; of two as near the even one, and past the last what comes after it."""
    codes = np.arange(128, dtype=np.uint8).view(dtype.numpy).astype(np.float64)
    finite = codes[np.isfinite(codes)]
    ladder = np.append(finite, 2 * finite[-1] - finite[-2])
    size = np.minimum(np.abs(x.astype(np.float64)), ladder[-1])
    above = np.clip(np.searchsorted(ladder, size), 1, len(ladder) - 1)
    low, high = size - ladder[above - 1], ladder[above] - size
    place = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    over = np.array(np.inf, np.float32).astype(dtype.numpy).astype(np.float64)  # infinity, or NaN where there is none
    wide = np.copysign(np.where(place == len(finite), over, np.append(finite, 0)[place]), x)
    return np.where(np.isnan(x), np.nan, wide).astype(np.float32).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", dtypes.FLOAT8, ids=str)
def test_every_code_upwards(dtype: DType) -> None:
    codes = all_codes(dtype)
    got = run(cast(dtype, dtypes.F32, 256), codes)
    np.testing.assert_array_equal(got, codes.astype(np.float32))
    assert np.array_equal(np.signbit(got[got == 0]), np.signbit(codes.astype(np.float32)[got == 0]))


@pytest.mark.parametrize(("dtype", "source"), list(itertools.product(dtypes.FLOAT8, (dtypes.F32, dtypes.F64))), ids=str)
def test_rounding_downwards(dtype: DType, source: DType) -> None:
    x = around_codes(dtype, source.numpy)
    program = cast(source, dtype, x.size)
    got, want = run(program, x), nearest(x, dtype)
    np.testing.assert_array_equal(interpret.run(program, [x])[0].astype(np.float32), want.astype(np.float32))
    assert np.array_equal(np.isnan(got.astype(np.float32)), np.isnan(want.astype(np.float32)))
    real = ~np.isnan(want.astype(np.float32))
    np.testing.assert_array_equal(got.view(np.uint8)[real], want.view(np.uint8)[real])


@pytest.mark.parametrize("dtype", dtypes.FLOAT8, ids=str)
@pytest.mark.parametrize("source", [dtypes.F16, dtypes.BF16, dtypes.I32, dtypes.U8, dtypes.BOOL, *dtypes.FLOAT8], ids=str)
def test_from_other_types(dtype: DType, source: DType) -> None:
    x = np.arange(-300, 300).astype(source.numpy)
    program = cast(source, dtype, x.size)
    (want,) = interpret.run(program, [x])
    np.testing.assert_array_equal(run(program, x).astype(np.float32), want.astype(np.float32))


def test_many_elements_move_as_vectors() -> None:
    x = np.arange(4099, dtype=np.uint32).astype(np.uint8).view(dtypes.F8E5M2.numpy)
    b = Builder()
    p = b.param(dtypes.F8E5M2, [4099])
    program = b.finish([b.map("where", b.map("lt", b.iota([4099], 0), 17), p, b.slice(p, [4098], [4099], [-1]))])
    (want,) = interpret.run(program, [x])
    np.testing.assert_array_equal(run(program, x).astype(np.float32), want.astype(np.float32))
