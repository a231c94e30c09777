"""The PTX of engines without Python through the driver: TensorRT's order of arguments, the evaluated grid, any address."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from graphfuse.ir import dtypes, expr, interpret, loads
from graphfuse_plugin.aot_kernel import DRIVERS, compile_aot
from graphfuse_plugin.driver import gpu_arch
from tests import regions
from tests.gpu.test_plugin_protocol import Gpu, array

CASES = {
    "scale": (regions.scale(), [[(1, 8)], [(4096, 8)], [(0, 8)]]), "static": (regions.scale((4, 8)), [[(4, 8)]]),
    "pair": (regions.pair(), [[(100, 8), (8,)]]), "softmax": (regions.softmax(), [[(511, 33)], [(0, 33)]]),
    "long rows": (regions.softmax(5000), [[(65, 5000)]]), "joined": (regions.joined(), [[(50,), (7,), ()], [(0,), (3,), ()]]),
    "scalar": (regions.scale(()), [[()]]), **{f"{t}": (regions.same(t, (3, 32)), [[(3, 32)]]) for t in regions.PLUGIN_TYPES},
}  # fmt: skip


@pytest.fixture(scope="module")
def gpu():
    made = Gpu()
    yield made
    made.close()


def launch(gpu: Any, kernel: Any, grid: int, inputs: list[int], sizes: list[int], outputs: list[int]) -> None:
    values = [*(ctypes.c_uint64(p) for p in inputs), *(ctypes.c_int32(s) for s in sizes), *(ctypes.c_uint64(p) for p in outputs)]
    block = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    module = gpu("cuModuleLoadData", kernel.ptx.encode() + b"\0")
    function = gpu("cuModuleGetFunction", module, kernel.entry.encode())
    gpu("cuLaunchKernel", function, grid, 1, 1, kernel.block, 1, 1, 0, 0, ctypes.addressof(block), 0)
    gpu("cuCtxSynchronize")
    gpu("cuModuleUnload", module)


@pytest.mark.parametrize("case", CASES)
def test_the_driver_takes_and_runs_it(gpu, case) -> None:
    spec, runs = CASES[case]
    program = loads(spec)
    arch = str(gpu_arch())
    oldest = next(d for d in DRIVERS if d >= (570 if int(arch[3:]) >= 100 else 525))
    kernel = compile_aot(program, {}, program.bind(max(runs)), arch, oldest)
    for shapes in runs:
        env = program.bind(shapes)
        arrays = [array(s, t.numpy) for s, (t, _) in zip(shapes, program.params, strict=True)]
        wanted = interpret.run(program, arrays)
        for shift in (0, 1):
            inputs = [gpu.upload(a, shift * a.itemsize) for a in arrays]
            outputs = [gpu.allocate(w.nbytes + 64) + shift * w.itemsize for w in wanted]
            launch(gpu, kernel, expr.evaluate(kernel.grid, env), inputs, [env[s] for s in kernel.symbols], outputs)
            for address, want in zip(outputs, wanted, strict=True):
                got = gpu.read(address, want)
                if want.dtype in (dtypes.F32.numpy, dtypes.F16.numpy, dtypes.BF16.numpy):
                    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=1e-5, atol=1e-6)
                else:
                    np.testing.assert_array_equal(got, want)
