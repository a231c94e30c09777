"""Generated kernels on the host device against the NumPy interpreter: the numbers of the real source."""

from __future__ import annotations

import numpy as np
import pytest

from graphfuse.codegen import generate
from graphfuse.ir import expr
from graphfuse.jit.host import HostDevice
from tests.programs import CASES, Case, compare, expected, inputs_for

GUARD = 64  # bytes around an output that must stay as they were


@pytest.fixture(scope="module")
def loaded():
    plain = {c.name: generate(c.program) for c in CASES}
    hard = {f"{c.name}@{k}": generate(c.program.specialise(env)) for c in CASES for k, env in enumerate(c.sizes) if env}
    sources = {**plain, **hard}
    return dict(zip(sources, HostDevice().load(list(sources.values())), strict=True))


def _guarded(shape: tuple[int, ...], dtype: np.dtype, skew: int) -> tuple[np.ndarray, np.ndarray]:
    """An array inside a poisoned buffer, ``skew`` elements off a 16-byte boundary."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.full(size + 2 * GUARD + 32, 0xA5, np.uint8)
    start = GUARD + (-(raw.ctypes.data + GUARD)) % 16 + skew * dtype.itemsize
    view = raw[start : start + size].view(dtype).reshape(shape)
    return raw, view


def _run(executable, program, inputs, env, skew: int) -> list[np.ndarray]:
    held = []
    for a in inputs:
        raw, view = _guarded(a.shape, a.dtype, skew)
        view[...] = a
        held.append((raw, view))
    outs = [_guarded(tuple(expr.evaluate(d, env) for d in s), t.numpy, skew) for t, s in program.outputs]
    executable.launch([v.ctypes.data for _, v in (*held, *outs)], env)
    for raw, view in outs:
        start = view.ctypes.data - raw.ctypes.data
        assert (raw[:start] == 0xA5).all() and (raw[start + view.nbytes :] == 0xA5).all(), "written outside an output"
    return [v.copy() for _, v in outs]


@pytest.mark.parametrize("skew", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_kernel_equals_interpreter(case: Case, loaded, skew: int) -> None:
    for k, env in enumerate(case.sizes):
        inputs = inputs_for(case.program, env, seed=k)
        want = expected(case.program, inputs)
        folded = max((a.size for a in inputs), default=1)
        compare(case.program, _run(loaded[case.name], case.program, inputs, env, skew), want, folded)
        if env:
            hard = case.program.specialise(env)
            compare(hard, _run(loaded[f"{case.name}@{k}"], hard, inputs, {}, skew), want, folded)
