"""NVRTC: cubins for each architecture without a GPU, the resource report, errors that show the line, parallel compiles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed: pip install 'graphfuse[cuda]'")

from graphfuse.codegen.source import KernelSource, Variant
from graphfuse.ir import GraphfuseError
from graphfuse.jit import (
    Cache,
    CompileError,
    Cubin,
    Unavailable,
    best_arch,
    check_arch,
    compile_cubin,
    compile_many,
    compile_ptx,
    nvrtc,
    parallel,
)
from graphfuse.jit.parallel import cached_cubin
from graphfuse.jit.ptxas import Resources, resources

SIMPLE = """
extern "C" __global__ void __launch_bounds__(256) add(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ z, long long n) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}
extern "C" __global__ void staged(const float* x, float* y) {
  __shared__ float s[300];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[255 - threadIdx.x] + __shfl_xor_sync(0xffffffffu, x[0], 1);
}
"""

SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) k(const float* x, float* y) {
  float v[96];
#pragma unroll
  for (int i = 0; i < 96; i++) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; i++) y[i * 1024 + threadIdx.x] = v[95 - i] * v[(i * 7) % 96];
}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_120"])
def test_cubin_and_resources(arch: str) -> None:
    cubin = compile_cubin(SIMPLE, arch)
    assert cubin.image.startswith(b"\x7fELF")
    assert cubin.arch == arch
    assert set(cubin.resources) == {"add", "staged"}
    assert 8 <= cubin.resources["add"].registers <= 40
    assert cubin.resources["add"].shared_bytes < 1200
    staged = cubin.resources["staged"]
    assert 1200 <= staged.shared_bytes <= 1200 + 1024  # newer architectures keep 1 KiB for themselves
    assert staged.barriers == 1
    assert staged.spill_stores == staged.spill_loads == staged.stack_bytes == 0


def test_spills_are_reported() -> None:
    used = compile_cubin(SPILLING, "sm_80").resources["k"]
    assert used.registers <= 32
    assert used.spill_stores > 0
    assert used.spill_loads > 0
    assert used.stack_bytes > 0


def test_report_of_a_log() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_80'
ptxas info    : Function properties for a
ptxas         .     704 bytes stack frame, 772 bytes spill stores, 852 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 704 bytes cumulative stack size, 1024 bytes smem, 388 bytes cmem[0]
ptxas info    : Compiling entry function 'b' for 'sm_80'
ptxas info    : Used 7 registers, 388 bytes cmem[0]
"""
    assert resources(log) == {"a": Resources(24, 1024, 704, 772, 852, 1), "b": Resources(7, 0, 0, 0, 0, 0)}
    assert resources("") == {}


def test_no_fused_multiply_add_and_no_flushing() -> None:
    text = 'extern "C" __global__ void k(const float* x, float* y) { y[0] = x[0] * x[1] + x[2]; y[1] = x[0] / x[1]; y[2] = sqrtf(x[3]); }'
    ptx = compile_ptx(text, "compute_80").image.decode()
    assert "mul.f32" in ptx or "mul.rn.f32" in ptx
    assert "fma" not in ptx.split("div.rn")[0]
    assert "div.rn.f32" in ptx
    assert "sqrt.rn.f32" in ptx
    assert ".ftz" not in ptx
    assert "approx" not in ptx
    assert "fma" in compile_ptx(text, "compute_80", options=["--fmad=true"]).image.decode()


def test_report_comes_every_time() -> None:
    """NVRTC has a cache of its own where there is a driver, and code from it has no report."""
    first, second = (compile_cubin(SIMPLE, "sm_80") for _ in range(2))
    assert first == second
    assert second.resources


def test_ptx_has_no_resources() -> None:
    ptx = compile_ptx(SIMPLE, "compute_89")
    assert b".target sm_89" in ptx.image
    assert ptx.resources == {}


def test_compile_error_shows_the_line() -> None:
    with pytest.raises(CompileError) as caught:
        compile_cubin('extern "C" __global__ void k(float* y) {\n  y[0] = 1;\n  y[1] = nonsense(2);\n}\n', "sm_80")
    message = str(caught.value)
    assert message.splitlines()[0] == 'kernel for sm_80, line 3: identifier "nonsense" is undefined'
    assert ">    3 |   y[1] = nonsense(2);" in message
    assert "     2 |   y[0] = 1;" in message
    assert "1 error detected" in caught.value.log


def test_bad_option_is_an_error() -> None:
    with pytest.raises(CompileError, match="--no-such-option"):
        compile_cubin(SIMPLE, "sm_80", options=["--no-such-option"])


@pytest.mark.parametrize("arch", ["sm_70", "sm_999", "compute_80", "sm80", "sm_8", "sm_80 -I/", "sm_80\n", "", "sm_80;", "SM_80"])
def test_bad_architectures(arch: str) -> None:
    with pytest.raises(GraphfuseError) as caught:
        compile_cubin(SIMPLE, arch)
    assert "\n" not in str(caught.value)


def test_check_arch() -> None:
    assert check_arch("sm_90a") == "sm_90a"
    assert check_arch("compute_80") == "compute_80"
    with pytest.raises(GraphfuseError, match=r"sm_70: NVRTC [\d.]+ does not compile for it; use one of sm_ 75 80"):
        check_arch("sm_70")


def test_best_arch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "supported_archs", lambda: (75, 80, 86, 89, 90))
    assert best_arch(9, 0) == "sm_90"
    assert best_arch(12, 0) == "compute_90"
    assert best_arch(8, 7) == "compute_86"
    with pytest.raises(GraphfuseError, match=r"compute capability 7\.0: NVRTC .* starts at 75"):
        best_arch(7, 0)


def test_newer_device_gets_ptx_that_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    real = nvrtc.supported_archs()
    monkeypatch.setattr(nvrtc, "supported_archs", lambda: tuple(a for a in real if a < 90))
    assert nvrtc.compile_image(SIMPLE, best_arch(9, 0)).image.lstrip().startswith(b"//")


@pytest.mark.parametrize("hide", ["cuda.bindings.nvrtc", "cuda.bindings"])
def test_missing_package_names_the_extra(hide: str) -> None:
    code = f"""
import sys
sys.modules[{hide!r}] = None
from graphfuse.jit import Unavailable, compile_cubin
try:
    compile_cubin("", "sm_80")
except Unavailable as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'graphfuse[cuda]'" in out
    assert out.count("\n") == 1


def test_library_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def nvrtcVersion() -> None:
            raise RuntimeError("Failure finding libnvrtc.so\nmore")

    nvrtc._api.cache_clear()
    monkeypatch.setattr(nvrtc.importlib, "import_module", lambda name: Broken)
    try:
        with pytest.raises(Unavailable, match=r"its library does not load \(Failure finding libnvrtc.so\); install it with: pip"):
            compile_ptx("", "compute_80")
    finally:
        nvrtc._api.cache_clear()
        nvrtc.version.cache_clear()
        nvrtc.supported_archs.cache_clear()


def test_cubin_survives_its_stored_form() -> None:
    cubin = compile_cubin(SIMPLE, "sm_80")
    assert Cubin.from_bytes(cubin.to_bytes()) == cubin


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"{}\n", b'{"arch":"a","log":"","resources":{}}\n', b"[1]\nx", b'{"arch":"a","log":"","resources":{"k":{"r":1}}}\nx'],
)
def test_foreign_bytes_are_not_a_cubin(data: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        Cubin.from_bytes(data)


# --- through the cache, in many processes -------------------------------------------------------------------------------


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process for few kernels already."""
    monkeypatch.setattr(parallel, "_WORTH_A_PROCESS", 4)


def kernel(n: int) -> KernelSource:
    text = f'extern "C" __global__ void k(const float* x, float* y) {{ y[threadIdx.x] = x[threadIdx.x] * {n}.5f; }}'
    return KernelSource(text, (Variant("k", 1, 32, (4, 4)),), 1, 1, ())


def test_cached_cubin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached_cubin(SIMPLE, "sm_80", cache=Cache(tmp_path))
    monkeypatch.setattr(nvrtc, "compile_image", lambda *a, **k: pytest.fail("compiled again"))
    assert cached_cubin(SIMPLE, "sm_80", cache=Cache(tmp_path)) == first


def test_option_arch_and_version_miss_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    compiled: list[str] = []
    real = nvrtc.compile_image
    monkeypatch.setattr(nvrtc, "compile_image", lambda text, arch, options=(): compiled.append(arch) or real(text, arch, options=options))
    for _ in range(2):
        cached_cubin(SIMPLE, "sm_80", cache=cache)
        cached_cubin(SIMPLE, "sm_80", options=["-lineinfo"], cache=cache)
        cached_cubin(SIMPLE, "sm_90", cache=cache)
    assert compiled == ["sm_80", "sm_80", "sm_90"]
    monkeypatch.setattr(nvrtc, "version", lambda: "99.9")
    cached_cubin(SIMPLE, "sm_80", cache=cache)
    assert len(compiled) == 4


@pytest.mark.usefixtures("eager")
def test_compile_many(tmp_path: Path) -> None:
    sources = [kernel(n) for n in (1, 2, 3, 4, 5, 1)]
    steps: list[tuple[int, int]] = []
    found = compile_many(
        sources, ["sm_80", "sm_90"], jobs=2, cache=Cache(tmp_path), progress=lambda done, total: steps.append((done, total))
    )
    assert sorted(steps) == [(i, 10) for i in range(1, 11)]
    assert [sorted(f) for f in found] == [["sm_80", "sm_90"]] * 6
    assert found[0] == found[5]
    for f in found:
        assert all(c.arch == a and c.image.startswith(b"\x7fELF") and c.resources["k"].registers for a, c in f.items())
    assert compile_cubin(sources[1].text, "sm_90").image == found[1]["sm_90"].image  # a child compiles as this process does


def test_compile_many_uses_the_cache_and_repairs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [kernel(n) for n in range(3)]
    first = compile_many(sources, ["sm_80"], cache=Cache(tmp_path))
    sound = sorted(tmp_path.rglob("*.bin"))
    sound[0].write_bytes(b"rubbish")
    compiled: list[str] = []
    real = nvrtc.compile_image
    monkeypatch.setattr(nvrtc, "compile_image", lambda text, arch: compiled.append(arch) or real(text, arch))
    assert compile_many(sources, ["sm_80"], cache=Cache(tmp_path)) == first
    assert compiled == ["sm_80"]


@pytest.mark.usefixtures("eager")
def test_compile_many_reports_the_error_of_a_child(tmp_path: Path) -> None:
    bad = KernelSource('extern "C" __global__ void k() { nonsense(); }', (Variant("k", 1, 1, ()),), 0, 0, ())
    sources = [kernel(n) for n in range(7)]
    for at in (0, 1, 7):  # in this process's share and in a child's
        with pytest.raises(CompileError, match="nonsense"):
            compile_many([*sources[:at], bad, *sources[at:]], ["sm_80"], jobs=2, cache=Cache(None))


@pytest.mark.usefixtures("eager")
def test_child_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel.sys, "executable", "/no/such/python")
    assert len(compile_many([kernel(n) for n in range(8)], ["sm_80"], jobs=2, cache=Cache(None))) == 8
