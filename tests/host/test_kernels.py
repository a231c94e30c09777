"""Generated kernels on the host device against the NumPy interpreter: the numbers of the real source."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphfuse.codegen import KernelSource
from graphfuse.ir import expr
from graphfuse.jit.host import HostDevice
from tests.programs import CASES, GUARD, Case, check, sources


def alone(source: KernelSource) -> KernelSource:
    """The source as architectures without clusters see it."""
    variants = tuple(replace(v, before=0) for v in source.variants if v.on("sm_80"))
    return replace(source, text="#define GF_CLUSTERS 0\n" + source.text, variants=variants)


@pytest.fixture(scope="module")
def loaded():
    made = sources()
    made |= {f"{name} alone": alone(s) for name, s in made.items() if any(v.before for v in s.variants)}
    return dict(zip(made, HostDevice().load(list(made.values())), strict=True))


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
    others = [f"{case.name} alone"] if f"{case.name} alone" in loaded else []
    check(case, lambda name, program, inputs, env: _run(loaded[name], program, inputs, env, skew), *others)


def test_clusters_are_among_the_cases(loaded) -> None:
    assert sum(name.endswith(" alone") for name in loaded) >= 2
    assert {v.cluster for executable in loaded.values() for v in executable.source.variants} >= {1, 8}
