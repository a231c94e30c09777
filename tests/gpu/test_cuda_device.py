"""The CUDA device: launches, streams, captures, buffers and other libraries' arrays, on a real GPU."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphfuse.codegen.source import KernelSource, Variant
from graphfuse.ir import GraphfuseError, expr
from graphfuse.jit import (
    Cache,
    CudaDevice,
    CudaError,
    CudaExecutable,
    DeviceBuffer,
    HostDevice,
    compile_ptx,
    driver,
    find_compiler,
    nvrtc,
    to_device,
    view,
)
from graphfuse.jit import cuda as cuda_module

N = expr.sym("n")
F32 = np.dtype(np.float32)

SCALE = """
extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ y, long long n) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * 2.0f + 1.0f;
}
"""
EXACT = """
extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ y) {
  __shared__ float s[32];
  const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
  float a = x[i], v = a * a + x[i ^ 1] * 0.3f;
  for (int o = 16; o; o >>= 1) v = v + a * __shfl_xor_sync(0xffffffffu, v, o);
  if (lane == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0.0f;
  for (int w = 0; w < (int)(blockDim.x / 32); ++w) sum += s[w] / (1.5f + w);
  if (threadIdx.x >= 1000) return;
  y[i] = sqrtf(fabsf(sum)) + a / (1.0f + fabsf(v)) + 1e-40f * a;
}
"""
SLOW = """
extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ y, long long n) {
  float v = x[0];
  for (long long i = 0; i < n; ++i) v = v * 0.999999f + 1.0f;
  y[0] = v; y[1] = 5.0f;
}
"""


def source(text: str, grid: expr.Dim = 1, block: int = 32, symbols: tuple[str, ...] = ()) -> KernelSource:
    return KernelSource(text, (Variant("k", grid, block, (4, 4)),), 1, 1, symbols)


SCALING = source(SCALE, (N + 255) // 256, 256, ("n",))


@pytest.fixture
def device() -> CudaDevice:
    return CudaDevice(0)


@pytest.fixture
def stream(device: CudaDevice) -> Iterator[int]:
    handle = driver.call("cuStreamCreate", 1)  # does not wait for the default stream
    yield int(handle)
    driver.call("cuStreamSynchronize", handle)
    driver.call("cuStreamDestroy", handle)


def floats(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def poisoned(device: CudaDevice, *shape: int, stream: int = 0) -> DeviceBuffer:
    return to_device(device, np.full(shape, -7, np.float32), stream)


def load(device: CudaDevice, kernel: KernelSource) -> CudaExecutable:
    return device.load([kernel])[0]


@pytest.mark.parametrize("n", [1, 255, 256, 257, 1_000_003])
def test_elementwise(device: CudaDevice, stream: int, n: int) -> None:
    x, y = to_device(device, floats(n), stream), poisoned(device, n + 8, stream=stream)
    load(device, SCALING).launch([x.pointer, y.pointer], {"n": n}, stream)
    got = y.to_host()
    np.testing.assert_array_equal(got[:n], floats(n) * np.float32(2) + np.float32(1))
    assert (got[n:] == -7).all()


def test_empty_grid_launches_nothing(device: CudaDevice) -> None:
    y = poisoned(device, 4)
    load(device, SCALING).launch([y.pointer, y.pointer], {"n": 0})
    assert (y.to_host() == -7).all()


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler for the host device")
def test_host_device_gives_the_same_bits(device: CudaDevice) -> None:
    kernel = source(EXACT, 50, 1024)
    x = floats(50 * 1024)
    on_gpu, on_cpu = poisoned(device, x.size), np.full_like(x, -7)
    buffer = to_device(device, x)
    load(device, kernel).launch([buffer.pointer, on_gpu.pointer], {})
    HostDevice().load([kernel])[0].launch([x.ctypes.data, on_cpu.ctypes.data], {})
    np.testing.assert_array_equal(on_gpu.to_host().view(np.uint32), on_cpu.view(np.uint32))


def test_variant_is_chosen_by_alignment(device: CudaDevice) -> None:
    text = "\n".join(f'extern "C" __global__ void {e}(const float* x, float* y) {{ y[0] = {v}.0f; }}' for e, v in (("wide", 1), ("k", 2)))
    kernel = KernelSource(text, (Variant("wide", 1, 1, (16, 4)), Variant("k", 1, 1, (4, 4))), 1, 1, ())
    executable, y = load(device, kernel), poisoned(device, 4)
    prepared = executable.prepare([y.pointer, y.pointer], {})
    for offset, want in ((0, 1), (4, 2), (16, 1)):
        executable.launch([y.pointer + offset, y.pointer], {})
        assert y.to_host()[0] == want
        prepared.rebind([y.pointer + offset, y.pointer + 4])
        prepared.launch()
        assert y.to_host()[1] == want
    with pytest.raises(GraphfuseError, match="not a multiple"):
        executable.launch([y.pointer + 1, y.pointer], {})


def test_prepared_launch_is_captured_into_a_graph(device: CudaDevice, stream: int) -> None:
    """Capture in global mode fails on any allocation or synchronisation, so this proves that a launch does neither."""
    n = 1000
    x, y = to_device(device, floats(n), stream), poisoned(device, n, stream=stream)
    text = SCALE.replace("1.0f", "3.0f")  # never launched before: loading must not happen inside the capture
    prepared = load(device, source(text, (N + 255) // 256, 256, ("n",))).prepare([x.pointer, y.pointer], {"n": n})
    driver.call("cuStreamBeginCapture", stream, driver.api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    prepared.launch(stream)
    graph = driver.call("cuStreamEndCapture", stream)
    assert (y.to_host() == -7).all()
    runnable = driver.call("cuGraphInstantiate", graph, 0)
    for turn in (0.0, 1.0):
        x.copy_from(floats(n) + np.float32(turn))
        driver.call("cuGraphLaunch", runnable, stream)
        np.testing.assert_array_equal(y.to_host(), (floats(n) + np.float32(turn)) * np.float32(2) + np.float32(3))
    driver.call("cuGraphExecDestroy", runnable)
    driver.call("cuGraphDestroy", graph)


def test_code_outlives_every_python_reference(device: CudaDevice, stream: int) -> None:
    x, y = to_device(device, floats(4), stream), poisoned(device, 4, stream=stream)
    gc.collect()  # so that the next one is short
    load(CudaDevice(0), source(SLOW, block=1, symbols=("n",))).launch([x.pointer, y.pointer], {"n": 400_000_000}, stream)
    gc.collect()
    assert int(driver.api().cuStreamQuery(stream)[0]) == 600  # still running: nothing waited for it
    assert y.to_host()[1] == 5


def test_launch_from_a_thread_without_a_context(device: CudaDevice) -> None:
    x, y = to_device(device, floats(100)), poisoned(device, 100)
    prepared = load(device, SCALING).prepare([x.pointer, y.pointer], {"n": 100})
    problems: list[BaseException] = []

    def work() -> None:
        try:
            prepared.launch()
            device.synchronize()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not problems
    np.testing.assert_array_equal(y.to_host(), floats(100) * np.float32(2) + np.float32(1))


def test_equal_code_is_loaded_once(device: CudaDevice) -> None:
    load(device, SCALING)
    before = len(cuda_module._modules)
    load(CudaDevice(0), SCALING)
    assert len(cuda_module._modules) == before


def test_load_uses_the_cache(device: CudaDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CudaDevice(0, cache=Cache(tmp_path)).load([SCALING])
    monkeypatch.setattr(nvrtc, "compile_image", lambda *a, **k: pytest.fail("compiled again"))
    assert len(CudaDevice(0, cache=Cache(tmp_path)).load([SCALING, SCALING])) == 2


def test_ptx_of_an_older_architecture_runs(device: CudaDevice) -> None:
    older = max(a for a in nvrtc.supported_archs() if a < device.capability[0] * 10 + device.capability[1])
    executable = device.load_image(SCALING, compile_ptx(SCALE, f"compute_{older}").image)
    x, y = to_device(device, floats(10)), poisoned(device, 10)
    executable.launch([x.pointer, y.pointer], {"n": 10})
    np.testing.assert_array_equal(y.to_host(), floats(10) * np.float32(2) + np.float32(1))


def test_errors(device: CudaDevice) -> None:
    with pytest.raises(CudaError, match="cuDeviceGet: CUDA_ERROR_INVALID_DEVICE: "):
        CudaDevice(4096)
    with pytest.raises(CudaError, match="cuModuleLoadData"):
        device.load_image(SCALING, b"\x7fELF rubbish")
    image = nvrtc.compile_image(SCALE, nvrtc.best_arch(*device.capability)).image
    with pytest.raises(GraphfuseError, match="kernel other: .*the code does not hold this entry"):
        device.load_image(KernelSource(SCALE, (Variant("other", 1, 1, (4, 4)),), 1, 1, ()), image)
    with pytest.raises(CudaError, match="cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"):
        DeviceBuffer(device, (1 << 50,), F32)


# --- buffers ----------------------------------------------------------------------------------------------------------

DTYPES = ["f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3, 5), (0, 4)])
def test_round_trip(device: CudaDevice, dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.asarray(np.random.default_rng(2).random(shape) * 9).astype(dtype))
    got = to_device(device, array).to_host()
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert got.tobytes() == array.tobytes()


def test_wrong_array_for_a_buffer(device: CudaDevice) -> None:
    with pytest.raises(GraphfuseError, match="does not fit a buffer"):
        DeviceBuffer(device, (2, 3), F32).copy_from(np.zeros((3, 2), np.float32))


def test_memory_is_given_back(device: CudaDevice) -> None:
    size = 1 << 28
    DeviceBuffer(device, (size,), np.dtype(np.uint8))
    free = driver.call("cuMemGetInfo")[0]
    for _ in range(3):
        buffer = DeviceBuffer(device, (size,), np.dtype(np.uint8))
        capsule = buffer.__dlpack__(stream=-1)
        del buffer
        gc.collect()
        assert driver.call("cuMemGetInfo")[0] <= free - size // 2  # the capsule holds it
        del capsule
        gc.collect()
    assert driver.call("cuMemGetInfo")[0] >= free - size // 2


def test_our_own_buffer_by_both_protocols(device: CudaDevice) -> None:
    class Only:
        def __init__(self, **names: object) -> None:
            self.__dict__.update(names)

    buffer = poisoned(device, 2, 3)
    seen = view(Only(__cuda_array_interface__=buffer.__cuda_array_interface__))
    assert (seen.pointer, seen.shape, seen.dtype) == (buffer.pointer, (2, 3), F32)
    assert view(buffer).pointer == buffer.pointer
    half = DeviceBuffer(device, (4,), np.dtype(ml_dtypes.bfloat16))
    assert not hasattr(half, "__cuda_array_interface__")
    with pytest.raises(BufferError):
        buffer.__dlpack__(copy=True)


def test_torch_takes_and_gives(device: CudaDevice, stream: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for dtype in (np.float32, np.int64, np.bool_, ml_dtypes.bfloat16):
        array = (np.arange(12).reshape(3, 4) % 5).astype(dtype)
        tensor = torch.from_dlpack(to_device(device, array, stream))
        assert tensor.device.type == "cuda"
        np.testing.assert_array_equal(tensor.float().cpu().numpy(), array.astype(np.float32))
    given = torch.arange(12, device="cuda", dtype=torch.bfloat16).reshape(3, 4)
    seen = view(given, stream)
    assert (seen.pointer, seen.shape, seen.dtype) == (given.data_ptr(), (3, 4), np.dtype(ml_dtypes.bfloat16))
    with pytest.raises(GraphfuseError, match="C-contiguous"):
        view(given.t(), stream)
    with pytest.raises(GraphfuseError, match="CPU's memory"):
        view(given.cpu())
    with pytest.raises(GraphfuseError, match="Tensor is not handed over"):
        view(torch.zeros(3, device="cuda", requires_grad=True))


def test_torch_waits_for_our_stream(device: CudaDevice, stream: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, y = to_device(device, floats(4), stream), poisoned(device, 2, stream=stream)
    executable = load(device, source(SLOW, block=1, symbols=("n",)))
    for take in (torch.from_dlpack, lambda b: torch.as_tensor(b, device="cuda")):
        y.copy_from(np.zeros(2, np.float32))
        executable.launch([x.pointer, y.pointer], {"n": 200_000_000}, stream)
        if take is torch.from_dlpack:
            assert float(take(y)[1]) == 5.0
        else:
            assert take(y).data_ptr() == y.pointer
            driver.call("cuStreamSynchronize", stream)


def test_ours_waits_for_the_stream_of_torch(device: CudaDevice, stream: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    side = torch.cuda.Stream()
    y = poisoned(device, 1000, stream=stream)
    executable = load(device, SCALING)
    with torch.cuda.stream(side):
        given = torch.zeros(1000, device="cuda")
        torch.cuda._sleep(200_000_000)
        given += 4
        seen = view(given, stream)
    executable.launch([seen.pointer, y.pointer], {"n": 1000}, stream)
    assert (y.to_host() == 9).all()
