"""Generated kernels on a real GPU against the NumPy interpreter: every program of the zoo, general and for exact sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphfuse.ir import expr
from graphfuse.jit import CudaDevice, CudaExecutable, DeviceBuffer, to_device
from tests.programs import CASES, GUARD, Case, check, sources


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return CudaDevice()


@pytest.fixture(scope="module")
def loaded(device: CudaDevice) -> dict[str, CudaExecutable]:
    made = sources()
    return dict(zip(made, device.load(list(made.values())), strict=True))


class Placed:
    """An array inside a poisoned device buffer, ``skew`` elements off a 16-byte boundary."""

    def __init__(self, device: CudaDevice, array: np.ndarray[Any, Any], skew: int) -> None:
        self.like, self.start = array, GUARD + skew * array.itemsize
        raw = np.full(array.nbytes + 2 * GUARD + 32, 0xA5, np.uint8)
        raw[self.start : self.start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        self.buffer: DeviceBuffer = to_device(device, raw)
        self.pointer = self.buffer.pointer + self.start

    def read(self) -> np.ndarray[Any, Any]:
        """The array, once nothing around it has been touched."""
        raw = self.buffer.to_host()
        end = self.start + self.like.nbytes
        assert (raw[: self.start] == 0xA5).all() and (raw[end:] == 0xA5).all(), "written outside an output"
        return np.frombuffer(raw[self.start : end].tobytes(), self.like.dtype).reshape(self.like.shape)


def _run(device, executable, program, inputs, env, skew: int) -> list[np.ndarray]:
    outs = [np.full(tuple(expr.evaluate(d, env) for d in s), 0, t.numpy) for t, s in program.outputs]
    placed = [Placed(device, a, skew) for a in (*inputs, *outs)]
    executable.launch([p.pointer for p in placed], env)
    return [p.read() for p in placed][len(inputs) :]


@pytest.mark.parametrize("skew", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_kernel_equals_interpreter(case: Case, device, loaded, skew: int) -> None:
    check(case, lambda name, program, inputs, env: _run(device, loaded[name], program, inputs, env, skew))
