"""Kernels touch nothing outside their tensors: buffers stand between pages that nobody may read or write."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys

import numpy as np
import pytest

from graphfuse.codegen.generate import generate
from graphfuse.ir import Program, interpret, loads
from graphfuse.ir.expr import evaluate
from graphfuse.jit.host import HostDevice
from graphfuse.match import rewrite_model
from tests.conftest import ROOT
from tests.texts import model

WEIGHTS = (
    "float[300,2] a = {" + ",".join(["1"] * 600) + "}, float[300,2] c = {" + ",".join(["2"] * 600) + "}, int64[1] zero = {0}, "
    "int64[1] two = {2}, int64[1] four = {4}, int64[1] last = {2}, int64[1] one = {1}, int64[1] end = {9}"
)
BOXES = """l = Slice(x, zero, two, last)
s = Slice(x, two, four, last)
m = Mul(l, a)
p = Add(m, c)
e = Exp(s)
w = Mul(e, a)
lo = Sub(p, w)
hi = Add(p, w)
y = Concat <axis = 2> (lo, hi)"""
ROLLED = """h = Slice(x, one, end, one)
t = Slice(x, zero, one, one)
r = Concat <axis = 1> (h, t)
d = Sub(r, x)
y = Tanh(d)"""
CASES = {
    "boxes": (BOXES, "float[N,300,4] x", "float[N,300,4] y"),
    "boxes-fixed": (BOXES, "float[3,300,4] x", "float[3,300,4] y"),
    "rolled": (ROLLED, "float[N,8] x", "float[N,8] y"),
}
PAGE = mmap.PAGESIZE


def program_of(name: str) -> Program:
    body, inputs, outputs = CASES[name]
    (region,) = rewrite_model(model(body, inputs, outputs, weights=WEIGHTS), policy="aggressive").regions
    return loads(region.spec)


class Fenced:
    """Memory for an array that begins or ends where readable memory does."""

    def __init__(self, array: np.ndarray, *, at_end: bool) -> None:
        inner = -(-max(array.nbytes, 1) // PAGE) * PAGE
        self.memory = mmap.mmap(-1, inner + 2 * PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        assert protect(base, PAGE, 0) == 0 and protect(base + PAGE + inner, PAGE, 0) == 0
        self.address = base + PAGE + (inner - array.nbytes if at_end else 0)
        self.array = (
            np.ctypeslib.as_array((ctypes.c_uint8 * array.nbytes).from_address(self.address)).view(array.dtype).reshape(array.shape)
        )
        self.array[...] = array


def run(name: str) -> None:
    """All batches from 1 to 6, buffers against either fence."""
    program = program_of(name)
    (kernel,) = HostDevice().load([generate(program)])
    for batch in range(1, 7):
        env = dict.fromkeys(program.symbols, batch)
        rng = np.random.default_rng(batch)
        inputs = [rng.standard_normal([evaluate(d, env) for d in s]).astype(t.numpy) for t, s in program.params]
        want = interpret.run(program, inputs)
        for at_end in (False, True):
            buffers = [Fenced(a, at_end=at_end) for a in (*inputs, *(np.full_like(w, 7) for w in want))]
            kernel.launch([b.address for b in buffers], env)
            for w, b in zip(want, buffers[len(inputs) :], strict=True):
                np.testing.assert_allclose(b.array, w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_nothing_outside_is_touched(name: str) -> None:
    """In a process of its own: what a wrong kernel gets is a segmentation fault."""
    script = f"from tests.host.test_bounds import run; run({name!r})"
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-800:]
