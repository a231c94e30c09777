"""The host device: blocks, shared memory, barriers and shuffles on the CPU, and what it catches."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from graphfuse.codegen.source import KernelSource, Variant
from graphfuse.ir import GraphfuseError, expr
from graphfuse.jit import Cache, CompileError, HostDevice, HostExecutable, KernelFault, NoCompiler
from graphfuse.jit import host as host_module
from graphfuse.jit.host_build import find_compiler

F32 = NDArray[np.float32]
N = expr.sym("n")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def source(
    text: str, grid: expr.Dim = 1, block: int = 32, inputs: int = 1, symbols: tuple[str, ...] = (), entry: str = "k"
) -> KernelSource:
    return KernelSource(text, (Variant(entry, grid, block, (4,) * (inputs + 1)),), inputs, 1, symbols)


def load(kernel: KernelSource, cache: Cache, **options: bool | int) -> HostExecutable:
    return HostDevice(cache=cache, **options).load([kernel])[0]  # type: ignore[arg-type]


def run(kernel: KernelSource, cache: Cache, x: F32, y: F32, env: dict[str, int] | None = None, **options: bool | int) -> F32:
    load(kernel, cache, **options).launch([x.ctypes.data, y.ctypes.data], env or {})
    return y


def floats(*shape: int) -> F32:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


COPY = """
extern "C" __global__ void __launch_bounds__(256) k(const float* __restrict__ x, float* __restrict__ y, long long n) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  y[i] = x[i] * 2.0f + (float)gridDim.x;
}
"""

BLOCK_SUM = """
extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ y) {
  __shared__ float s[1024];
  s[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (unsigned o = blockDim.x / 2; o; o /= 2) {
    __syncthreads();
    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
  }
  if (threadIdx.x == 0) y[blockIdx.x] = s[0];
}
"""


def pairwise(x: F32) -> F32:
    """What BLOCK_SUM computes, in its order of additions."""
    while x.shape[-1] > 1:
        x = x[..., : x.shape[-1] // 2] + x[..., x.shape[-1] // 2 :]
    return x[..., 0]


@pytest.mark.parametrize("n", [1, 255, 256, 257, 100_000])
def test_elementwise_with_a_symbol(cache: Cache, n: int) -> None:
    x, y = floats(n), np.full(n + 8, -1, np.float32)
    run(source(COPY, (N + 255) // 256, 256, symbols=("n",)), cache, x, y, {"n": n})
    np.testing.assert_array_equal(y[:n], x * 2 + np.float32((n + 255) // 256))
    assert (y[n:] == -1).all()


def test_empty_grid_runs_nothing(cache: Cache) -> None:
    y = np.full(4, -1, np.float32)
    run(source(COPY, (N + 255) // 256, 256, symbols=("n",)), cache, floats(4), y, {"n": 0})
    assert (y == -1).all()


@pytest.mark.parametrize("block", [32, 64, 1024])
@pytest.mark.parametrize("reverse", [False, True])
def test_block_sum_through_shared_memory(cache: Cache, block: int, reverse: bool) -> None:
    x = floats(70, block)
    y = run(source(BLOCK_SUM, 70, block), cache, x, np.zeros(70, np.float32), reverse=reverse, threads=3)
    np.testing.assert_array_equal(y, pairwise(x))


@pytest.mark.parametrize("reverse", [False, True])
def test_warp_sum_by_shuffles(cache: Cache, reverse: bool) -> None:
    kernel = source("""
extern "C" __global__ void k(const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = x[i];
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  y[i] = v;
}""", 5, 96)  # fmt: skip
    x = floats(15, 32)
    y = run(kernel, cache, x, np.zeros((15, 32), np.float32), reverse=reverse)
    want = np.repeat(pairwise(x)[:, None], 32, axis=1)
    np.testing.assert_array_equal(y, want)


SHUFFLES = {
    "__shfl_sync(0xffffffffu, v, 3)": lambda lane: 3,
    "__shfl_sync(0xffffffffu, v, lane + 9, 8)": lambda lane: (lane & ~7) + ((lane + 9) & 7),
    "__shfl_down_sync(0xffffffffu, v, 5)": lambda lane: lane + 5 if lane + 5 < 32 else lane,
    "__shfl_up_sync(0xffffffffu, v, 3, 16)": lambda lane: lane - 3 if lane % 16 >= 3 else lane,
    "__shfl_xor_sync(0xffffffffu, v, 1)": lambda lane: lane ^ 1,
}


@pytest.mark.parametrize("call", SHUFFLES)
@pytest.mark.parametrize("kind", ["float", "int", "double", "long long"])
def test_every_shuffle(cache: Cache, call: str, kind: str) -> None:
    kernel = source(f"""
extern "C" __global__ void k(const float* x, float* y) {{
  const int lane = threadIdx.x;
  const {kind} v = ({kind})x[lane];
  y[lane] = (float){call};
}}""")
    x = np.arange(100, 132, dtype=np.float32)
    y = run(kernel, cache, x, np.zeros(32, np.float32))
    np.testing.assert_array_equal(y, [x[SHUFFLES[call](lane)] for lane in range(32)])


def test_votes_and_masks(cache: Cache) -> None:
    kernel = source("""
extern "C" __global__ void k(const float* x, float* y) {
  const int lane = threadIdx.x;
  const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
  unsigned votes = __ballot_sync(half, lane % 4 == 0);
  __syncwarp();
  y[lane] = (float)(votes >> (lane & 16)) + (__any_sync(half, lane == 17) ? 0.5f : 0.0f) + (__all_sync(half, lane < 16) ? 0.25f : 0.0f);
}""")
    y = run(kernel, cache, floats(32), np.zeros(32, np.float32))
    np.testing.assert_array_equal(y, [0x1111 + 0.25] * 16 + [0x1111 + 0.5] * 16)


def test_threads_that_return_early_do_not_hold_up_a_barrier(cache: Cache) -> None:
    kernel = source("""
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float s[100];
  if (threadIdx.x >= 70) return;
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x % 2) return;
  y[threadIdx.x] = s[69 - threadIdx.x];
  __syncthreads();
  y[threadIdx.x] += s[0];
}""", block=100)  # fmt: skip
    x = floats(100)
    y = run(kernel, cache, x, np.zeros(100, np.float32))
    want = np.zeros(100, np.float32)
    want[0:70:2] = x[:70][::-1][0:70:2] + x[0]
    np.testing.assert_array_equal(y, want)


def test_a_helper_of_the_kernel_may_be_called_like_ours(cache: Cache) -> None:
    kernel = source("""
template <class T> struct gf_arg { T value; };
__device__ __forceinline__ float gf_shfl_xor(float v) { return v; }
__device__ __forceinline__ float gf_wait(float v) { return gf_arg<float>{v}.value; }
extern "C" __global__ void k(const float* x, float* y) {
  y[threadIdx.x] = gf_wait(gf_shfl_xor(x[threadIdx.x])) + __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  __syncthreads();
}""")
    x = floats(32)
    np.testing.assert_array_equal(run(kernel, cache, x, np.zeros(32, np.float32)), x + 1)


def test_same_names_in_different_sources(cache: Cache) -> None:
    def text(n: int) -> str:
        return f"""
#define FACTOR {n}.0f
__device__ float f(float x) {{ return x * FACTOR; }}
#undef FACTOR
extern "C" __global__ void k(const float* x, float* y) {{ y[threadIdx.x] = f(x[threadIdx.x]); }}"""

    sources = [source(text(n)) for n in (2, 3, 2, 5)]
    x = floats(32)
    for executable, n in zip(HostDevice(cache=cache).load(sources), (2, 3, 2, 5), strict=True):
        y = np.zeros(32, np.float32)
        executable.launch([x.ctypes.data, y.ctypes.data], {})
        np.testing.assert_array_equal(y, x * np.float32(n))


def test_variant_is_chosen_by_alignment_and_size(cache: Cache) -> None:
    text = "\n".join(
        f'extern "C" __global__ void {e}(const float* x, float* y, long long n) {{ y[0] = {v}.0f; }}' for e, v in (("wide", 1), ("k", 2))
    )
    wide = Variant("wide", 1, 1, (16, 16), below_2_31=(N,))
    kernel = KernelSource(text, (wide, Variant("k", 1, 1, (4, 4))), 1, 1, ("n",))
    executable = HostDevice(cache=cache).load([kernel])[0]
    y = np.zeros(16, np.float32)
    at = -(-y.ctypes.data // 16) * 16

    def chosen(x: int, n: int) -> float:
        executable.launch([x, at], {"n": n})
        return float(y[(at - y.ctypes.data) // 4])

    assert chosen(at, 5) == 1
    assert chosen(at + 4, 5) == 2
    assert chosen(at, 2**31) == 2
    with pytest.raises(GraphfuseError, match="not a multiple of its element size"):
        chosen(at + 2, 5)


def test_symbols_are_64_bits_wide(cache: Cache) -> None:
    kernel = source("""
extern "C" __global__ void k(const float* x, float* y, long long a, long long b) {
  y[0] = (float)(a >> 32) + (b < 0 ? 0.5f : 0.0f);
}""", block=1, symbols=("a", "b"))  # fmt: skip
    y = run(kernel, cache, floats(1), np.zeros(1, np.float32), {"a": 5 << 32, "b": -1, "other": 3})
    assert y[0] == 5.5


def test_products_are_rounded_before_they_are_added(cache: Cache) -> None:
    kernel = source('extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = x[0] * x[1] + x[2]; }', block=1)
    x = np.array([1 + 2**-12, 1 + 2**-12, -1], np.float32)
    assert run(kernel, cache, x, np.zeros(1, np.float32))[0] == x[0] * x[1] + x[2] != np.float32(2**-11 + 2**-24)


def test_saturating_conversions(cache: Cache) -> None:
    calls = ("__float2int_rn", "__float2int_rz", "__float2uint_rz", "__float2ll_rz")
    values = np.array([2.5, -2.5, 3e9, -3e9, 1e30, np.inf, -np.inf, np.nan], np.float32)
    wants = (
        (2, -2, 2**31 - 1, -(2**31), 2**31 - 1, 2**31 - 1, -(2**31), 0),
        (2, -2, 2**31 - 1, -(2**31), 2**31 - 1, 2**31 - 1, -(2**31), 0),
        (2, 0, 3 * 10**9, 0, 2**32 - 1, 2**32 - 1, 0, 0),
        (2, -2, 3 * 10**9, -3 * 10**9, 2**63 - 1, 2**63 - 1, -(2**63), 0),
    )
    for call, want in zip(calls, wants, strict=True):
        y = np.zeros(8, np.int64)
        text = f'extern "C" __global__ void k(const float* x, long long* y) {{ y[threadIdx.x] = {call}(x[threadIdx.x]); }}'
        load(source(text, block=8), cache).launch([values.ctypes.data, y.ctypes.data], {})
        assert y.tolist() == list(want), call


# --- what it catches --------------------------------------------------------------------------------------------------

FAULTS = {
    "barrier some threads wait at another": (
        'if (threadIdx.x < 32) {\n__syncthreads();\n} else {\n__syncthreads();\n}',
        r"thread 31 at __syncthreads of line 3 meets thread 32 at __syncthreads of line 5",
    ),
    "shuffle that half of a warp does not reach": (
        "float v = 1;\nif (threadIdx.x < 16) v = __shfl_xor_sync(0xffffffffu, v, 1);\n__syncthreads();",
        r"thread 0 at a shuffle of line 3 waits for thread 16 at __syncthreads of line 4",
    ),
    "shuffle from a lane that returned": (
        "if (threadIdx.x == 5) return;\nx += (long long)__shfl_xor_sync(0xffffffffu, 0.0f, 1);",
        r"line 3: thread 4 shuffles from lane 5, which takes no part",
    ),
    "different shuffles meet": (
        "float v = 1;\nif (threadIdx.x < 16) v = __shfl_xor_sync(~0u, v, 1);\nelse v = __shfl_xor_sync(~0u, v, 1);\nx += (long long)v;",
        r"thread 0 at a shuffle of line 3 meets thread 16 at a shuffle of line 4",
    ),
    "lane not in its mask": ("__syncwarp(7u);", r"not in its own mask"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_wrong_kernels_are_errors_not_hangs(cache: Cache, case: str) -> None:
    body, message = FAULTS[case]
    device = HostDevice(cache=cache)
    bad, good = device.load([
        source(f'extern "C" __global__ void k(const float* x, float* y) {{\n{body}\ny[threadIdx.x] = *x; }}', block=64),
        source(BLOCK_SUM, 2, 64),
    ])  # fmt: skip
    x, y = floats(2, 64), np.zeros(64, np.float32)
    for _ in range(2):
        with pytest.raises(KernelFault, match=message):
            bad.launch([x.ctypes.data, y.ctypes.data], {})
        good.launch([x.ctypes.data, y.ctypes.data], {})  # the stacks of the threads that hung are usable again
        np.testing.assert_array_equal(y[:2], pairwise(x))


CLUSTER = """
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const float* __restrict__ x, float* __restrict__ y) {
  static thread_local float parts[4];
  const int rank = blockIdx.x % 4;
  FIRST
  if (threadIdx.x == 33) parts[rank] = x[blockIdx.x];
  __syncthreads();
  (void)::gf_wait(::GF_CLUSTER, __LINE__, 0, 0, 0);
  if (threadIdx.x == 0) y[blockIdx.x] = parts[0] + parts[1] * 2 + parts[2] * 4 + parts[3] * 8;
}
"""


def _cluster(first: str = "", blocks: int = 8) -> KernelSource:
    return KernelSource(CLUSTER.replace("FIRST", first), (Variant("k", blocks, 64, (4, 4), cluster=4),), 1, 1, ())


@pytest.mark.parametrize("reverse", [False, True])
def test_the_blocks_of_a_cluster_run_together(cache: Cache, reverse: bool) -> None:
    x = floats(8)
    want = (x.reshape(2, 4) * np.array([1, 2, 4, 8], np.float32)).sum(1)
    np.testing.assert_allclose(run(_cluster(), cache, x, np.zeros(8, np.float32), reverse=reverse), np.repeat(want, 4), rtol=1e-6)


@pytest.mark.parametrize(
    ("first", "message"),
    [("if (rank == 2) return;", "block 2 is not at the cluster's barrier"),
     ("if (threadIdx.x == 5) __syncthreads();", "at __syncthreads of line 7 meets thread 5 at __syncthreads of line 5"),
     ("if (rank == 1 && threadIdx.x < 32) (void)::gf_wait(::GF_CLUSTER, 1, 0, 0, 0);", "the barrier of a cluster of line 1")],
)  # fmt: skip
def test_wrong_clusters_are_errors_not_hangs(cache: Cache, first: str, message: str) -> None:
    with pytest.raises(KernelFault, match=message):
        run(_cluster(first), cache, floats(8), np.zeros(8, np.float32))


def test_a_grid_is_made_of_whole_clusters(cache: Cache) -> None:
    with pytest.raises(GraphfuseError, match="6 blocks are no whole clusters of 4"):
        run(_cluster(blocks=6), cache, floats(8), np.zeros(8, np.float32))


def test_reverse_order_shows_a_missing_barrier(cache: Cache) -> None:
    kernel = source("""
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = threadIdx.x ? s[threadIdx.x - 1] : 0.0f;
}""", block=64)  # fmt: skip
    x = floats(64)
    forward = run(kernel, cache, x, np.zeros(64, np.float32))
    np.testing.assert_array_equal(forward[1:], x[:-1])
    backward = run(kernel, cache, x + 1, np.zeros(64, np.float32), reverse=True)
    assert not np.array_equal(backward[1:], x[:-1] + 1)


def test_a_frame_that_no_stack_holds_is_a_compile_error(cache: Cache) -> None:
    kernel = source("""
extern "C" __global__ void k(const float* x, float* y) {
  float local[20000];
  for (int i = 0; i < 20000; i++) local[i] = x[i % 7];
  __syncthreads();
  for (int i = 0; i < 20000; i++) y[i] = local[19999 - i];
}""")
    with pytest.raises(CompileError, match="frame size"):
        HostDevice(cache=cache).load([kernel])


def test_compile_error_shows_the_line(cache: Cache) -> None:
    kernel = source('extern "C" __global__ void k(const float* x, float* y) {\n  y[0] = nonsense(x[0]);\n}')
    with pytest.raises(CompileError) as caught:
        HostDevice(cache=cache).load([source(COPY, symbols=("n",)), kernel])
    assert "line 2" in str(caught.value)
    assert "nonsense" in str(caught.value)
    assert ">    2 |   y[0] = nonsense(x[0]);" in str(caught.value)


@pytest.mark.parametrize(("pointers", "env", "message"), [([0], {"n": 1}, "1 pointers given"), ([0, 0], {}, "no value for dimension n")])
def test_wrong_arguments(cache: Cache, pointers: list[int], env: dict[str, int], message: str) -> None:
    executable = load(source(COPY, 1, 256, symbols=("n",)), cache)
    with pytest.raises(GraphfuseError, match=message):
        executable.launch(pointers, env)


def test_description_that_does_not_match_the_text(cache: Cache) -> None:
    with pytest.raises(GraphfuseError, match="takes 3 arguments, its description says 2"):
        load(source(COPY), cache)


def test_grid_too_large(cache: Cache) -> None:
    executable = load(source(COPY, N, 256, symbols=("n",)), cache)
    with pytest.raises(GraphfuseError, match="2147483648 blocks"):
        executable.launch([0, 0], {"n": 2**31})


# --- compilers and cache ----------------------------------------------------------------------------------------------


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler() is None
    with pytest.raises(NoCompiler, match="no C\\+\\+ compiler on PATH; install g\\+\\+, or set CXX"):
        HostDevice(cache=Cache(tmp_path / "cache")).load([source(COPY, symbols=("n",))])


def test_cxx_is_used_and_checked(monkeypatch: pytest.MonkeyPatch, cache: Cache) -> None:
    real = find_compiler()
    monkeypatch.setenv("CXX", f"{real} -DEXTRA=4.0f")
    kernel = source('extern "C" __global__ void k(const float* x, float* y) { y[0] = EXTRA; }', block=1)
    assert run(kernel, cache, floats(1), np.zeros(1, np.float32))[0] == 4
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert find_compiler() is None
    with pytest.raises(NoCompiler, match="CXX=no-such-compiler is not a program"):
        load(kernel, cache)


def test_fallback_for_other_processors(monkeypatch: pytest.MonkeyPatch, cache: Cache) -> None:
    monkeypatch.setenv("CXX", f"{find_compiler()} -DGF_UCONTEXT")
    x = floats(3, 128)
    for reverse in (False, True):
        y = run(source(BLOCK_SUM, 3, 128), cache, x, np.zeros(3, np.float32), reverse=reverse)
        np.testing.assert_array_equal(y, pairwise(x))


def test_second_load_compiles_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = [source(BLOCK_SUM.replace("s[0];", f"s[0] + {n};"), 1, 64) for n in range(8)]
    monkeypatch.setattr(host_module, "_loaded", {})
    HostDevice(cache=Cache(tmp_path), threads=2).load(sources)
    monkeypatch.setattr(host_module, "_loaded", {})
    monkeypatch.setattr("subprocess.run", lambda *a, **k: pytest.fail("a compiler was started"))
    executables = HostDevice(cache=Cache(tmp_path), threads=2).load(sources[::-1])
    x, y = floats(64), np.zeros(1, np.float32)
    executables[0].launch([x.ctypes.data, y.ctypes.data], {})
    assert y[0] == pairwise(x) + 7


def test_memory_only_cache_works(tmp_path: Path) -> None:
    x = floats(1, 64)
    np.testing.assert_array_equal(run(source(BLOCK_SUM, 1, 64), Cache(None), x, np.zeros(1, np.float32)), pairwise(x))


def test_cache_folder_that_may_not_hold_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = ctypes.CDLL

    def refusing(name: str) -> ctypes.CDLL:
        if name.startswith(str(tmp_path)):
            raise OSError("failed to map segment from shared object")
        return real(name)

    monkeypatch.setattr(host_module, "_loaded", {})
    monkeypatch.setattr(ctypes, "CDLL", refusing)
    x = floats(1, 64)
    np.testing.assert_array_equal(run(source(BLOCK_SUM, 1, 64), Cache(tmp_path), x, np.zeros(1, np.float32)), pairwise(x))


def test_library_of_another_machine_is_built_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_module, "_loaded", {})
    kernel = source(BLOCK_SUM, 1, 64)
    load(kernel, Cache(tmp_path))
    for path in list(tmp_path.rglob("*.bin")):
        if path.stat().st_size > 1000:
            Cache(tmp_path).put(path.stem, b"\x7fELF of something else")
    monkeypatch.setattr(host_module, "_loaded", {})
    x = floats(1, 64)
    np.testing.assert_array_equal(run(kernel, Cache(tmp_path), x, np.zeros(1, np.float32)), pairwise(x))


def test_a_forked_process_may_launch(cache: Cache) -> None:
    executable = load(source(BLOCK_SUM, 200, 256), cache, threads=2)
    x, y = floats(200, 256), np.zeros(200, np.float32)
    executable.launch([x.ctypes.data, y.ctypes.data], {})
    child = os.fork()
    if child == 0:
        y[:] = 0
        try:
            executable.launch([x.ctypes.data, y.ctypes.data], {})
        finally:
            os._exit(0 if np.array_equal(y, pairwise(x)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_damaged_library_is_built_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kernel = source(COPY.replace("2.0f", "3.5f"), 1, 256, symbols=("n",))
    load(kernel, Cache(tmp_path))
    for path in tmp_path.rglob("*.bin"):
        if path.stat().st_size > 1000:
            damaged = path.read_bytes()[:-1000]
            path.unlink()  # the library is mapped into this process: the old file must stay whole
            path.write_bytes(damaged)
    monkeypatch.setattr(host_module, "_loaded", {})
    x = floats(256)
    y = run(kernel, Cache(tmp_path), x, np.zeros(256, np.float32), {"n": 256})
    np.testing.assert_array_equal(y, x * np.float32(3.5) + 1)


def test_launches_from_several_threads(cache: Cache) -> None:
    executable = load(source(BLOCK_SUM, 40, 256), cache, threads=2)
    x = floats(8, 40, 256)
    y = np.zeros((8, 40), np.float32)

    def work(i: int) -> None:
        executable.launch([x[i].ctypes.data, y[i].ctypes.data], {})

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(y, pairwise(x))
