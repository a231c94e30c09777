"""Mean and variance of one walk: as exact as two, whatever the row holds."""

from __future__ import annotations

import numpy as np
import pytest

from graphfuse.codegen import generate
from graphfuse.codegen.config import Config
from graphfuse.ir import Builder, Program
from graphfuse.ir.dtypes import F32
from graphfuse.jit.host import HostDevice

WIDTH = 8192
TEAMS = (Config(team=32), Config(team=64), Config(team=64, cluster=2))  # in a loop and unrolled


def _variance() -> Program:
    b = Builder()
    x = b.param(F32, (len(_rows()), WIDTH))
    away = x - b.reduce("sum", x, [1], keepdims=True) / float(WIDTH)
    return b.finish([b.reduce("sum", away * away, [1]), b.reduce("sum", x, [1])])


def _rows() -> dict[str, np.ndarray]:
    noise = np.random.default_rng(3).standard_normal((8, WIDTH)).astype(np.float32)
    first, last, step = noise[3].copy(), noise[4].copy(), noise[5].copy()
    first[0] += 1e6
    last[-1] -= 1e6
    step[: WIDTH // 2] += 1e5
    return {
        "noise": noise[0], "far from zero": noise[1] + 10000, "constant": np.full(WIDTH, 1234.567, np.float32), "tiny": noise[2] * 1e-18,
        "outlier first": first, "outlier last": last, "two levels": step, "slope": np.arange(WIDTH, dtype=np.float32) + noise[6],
    }  # fmt: skip


def _run(config: Config, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    squares, total = np.empty(len(x), np.float32), np.empty(len(x), np.float32)
    source = generate(_variance(), config)
    assert ".squares_about(" in source.text.split('extern "C"', 1)[1]
    HostDevice().load([source])[0].launch([x.ctypes.data, squares.ctypes.data, total.ctypes.data], {})
    return squares, total


@pytest.mark.parametrize("config", TEAMS, ids=str)
def test_as_exact_as_two_walks(config: Config) -> None:
    x = np.stack(list(_rows().values()))
    squares, total = _run(config, x)
    wide = x.astype(np.float64)
    want = ((wide - wide.mean(1, keepdims=True)) ** 2).sum(1)
    room = WIDTH * (np.abs(wide.mean(1)) * 2.0**-23) ** 2  # what rounding the mean to float32 costs two walks as well
    assert (np.abs(squares - want) <= 2e-6 * want + 4 * room).all(), dict(zip(_rows(), squares - want, strict=True))
    np.testing.assert_allclose(total, wide.sum(1), rtol=1e-6, atol=1e-6 * np.abs(wide).sum(1).max())


@pytest.mark.parametrize("config", TEAMS, ids=str)
@pytest.mark.parametrize("at", [0, 3, WIDTH - 1])
def test_what_is_not_finite_stays_so(config: Config, at: int) -> None:
    x = np.stack(list(_rows().values()))
    x[0, at], x[1, at], x[2, at] = np.inf, -np.inf, np.nan
    squares, total = _run(config, x)
    assert np.isnan(squares[:3]).all() and np.isfinite(squares[3:]).all()
    assert total[0] == np.inf and total[1] == -np.inf and np.isnan(total[2]) and np.isfinite(total[3:]).all()
