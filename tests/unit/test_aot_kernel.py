"""Kernels for engines without Python: PTX and its version, one entry for every address, grids, argument order."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from graphfuse.codegen.source import KernelSource, Variant
from graphfuse.ir import GraphfuseError, dtypes, expr, interpret, loads, sym
from graphfuse_plugin import aot_kernel
from graphfuse_plugin.aot_kernel import c_text, compile_aot, lowered, ptx_version
from graphfuse_plugin.kernels import generate_hardened
from tests import regions
from tests.conftest import compiler_absence

needs_nvrtc = pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="cuda-bindings is not installed")


def assembler() -> str | None:
    """ptxas, from the system or from a package."""
    places = [Path(p) / "nvidia" for p in sys.path]
    return shutil.which("ptxas") or next((str(f) for p in places for f in p.glob("*/bin/ptxas")), None)


# --- versions


def test_versions_by_driver_and_architecture() -> None:
    assert ptx_version("sm_80", 525) == "8.0"
    assert ptx_version("sm_80", 534) == "8.0"
    assert ptx_version("sm_89", 535) == "8.2"
    assert ptx_version("sm_120", 570) == "8.7"
    assert ptx_version("sm_90", 999) == "9.0"
    with pytest.raises(GraphfuseError, match="sm_120 needs a driver from 570 on, not 535; state it with --min-driver 570"):
        ptx_version("sm_120", 535)
    with pytest.raises(GraphfuseError, match="drivers before 525"):
        ptx_version("sm_80", 470)
    with pytest.raises(GraphfuseError, match="no ahead-of-time kernels for sm_70"):
        ptx_version("sm_70", 580)


def test_lowering_changes_the_version_line_only() -> None:
    ptx = "// made by\n.version 9.5\n.target sm_80\n// .version 9.5 in a remark\n"
    assert lowered(ptx, "8.0") == ptx.replace(".version 9.5\n.target", ".version 8.0\n.target")
    with pytest.raises(GraphfuseError, match="no version line"):
        lowered("nothing", "8.0")


# --- expressions


@pytest.mark.skipif(compiler_absence() is not None, reason=compiler_absence() or "")
def test_expressions_in_c(tmp_path) -> None:
    n, m = sym("n"), sym("m")
    dims = [
        5, n, 3 * n * m + 7, n // 3, (n + 2) // (m + 1), n % 5, (n * m) % (m + 2), expr.emax(n, 2 * m), expr.emin(n, m) * 4, expr.ceildiv(n * m, 128),
        (n - 10) // 3, (n - 10) % 3,
    ]  # fmt: skip
    text = [aot_kernel._SUPPORT, "#include <cstdio>\n#include <cstdlib>\nint main(int, char** a) { int s0 = atoi(a[1]), s1 = atoi(a[2]);"]
    text += [f'printf("%lld\\n", (long long){c_text(d, {"n": "s0", "m": "s1"})});' for d in dims]
    (tmp_path / "t.cpp").write_text("#define __device__\n#define __forceinline__ inline\n" + "\n".join([*text, "}"]))
    subprocess.run(["c++", "-w", "-o", str(tmp_path / "t"), str(tmp_path / "t.cpp")], check=True)
    for values in ({"n": 0, "m": 0}, {"n": 17, "m": 4}, {"n": 70000, "m": 60000}):
        out = subprocess.run([str(tmp_path / "t"), str(values["n"]), str(values["m"])], capture_output=True, text=True, check=True).stdout
        assert [int(line) for line in out.split()] == [expr.evaluate(d, values) for d in dims]


# --- kernels

CASES = {
    "scale": (regions.scale(), {"n": 4096}), "pair": (regions.pair(), {"n": 4096}), "softmax": (regions.softmax(), {"rows": 64}),
    "long rows": (regions.softmax(5000), {"rows": 64}), "joined": (regions.joined(), {"n": 100, "m": 100}), "scalar": (regions.scale(()), {}),
    "half": (regions.same(dtypes.F16, (3, 32)), {}), "bool": (regions.same(dtypes.BOOL, (3, 32)), {}), "static": (regions.scale((4, 8)), {}),
}  # fmt: skip


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("case", CASES)
def test_ptx_states_its_version_target_and_arguments(case, arch) -> None:
    spec, largest = CASES[case]
    program = loads(spec)
    kernel = compile_aot(program, {}, largest, arch, 535)
    assert re.findall(r"^\.version (.*)$", kernel.ptx, re.MULTILINE) == ["8.2"]
    assert re.findall(r"^\.target (\w+)", kernel.ptx, re.MULTILINE) == [arch]
    assert re.findall(r"\.visible \.entry (\w+)\(", kernel.ptx) == [kernel.entry]
    parameters = re.findall(r"\.param \.(\w+)(?: \.ptr[^,)]*)? \w+_param_\d+", kernel.ptx.partition(".entry")[2].partition("{")[0])
    assert parameters == ["u64"] * len(program.params) + ["u32"] * len(kernel.symbols) + ["u64"] * len(program.results)


@needs_nvrtc
@pytest.mark.skipif(assembler() is None, reason="ptxas is not installed (package nvidia-cuda-nvcc)")
@pytest.mark.parametrize("case", CASES)
def test_an_assembler_takes_the_older_version(case, tmp_path) -> None:
    """ptxas judges instructions by the stated version, as a driver of that time would."""
    spec, largest = CASES[case]
    for arch, driver in (("sm_80", 525), ("sm_89", 525), ("sm_90", 525), ("sm_120", 570)):
        (tmp_path / "k.ptx").write_text(compile_aot(loads(spec), {}, largest, arch, driver).ptx)
        found = subprocess.run(
            [str(assembler()), f"-arch={arch}", str(tmp_path / "k.ptx"), "-o", str(tmp_path / "k.cubin")], capture_output=True, text=True
        )
        assert found.returncode == 0, found.stderr


@pytest.mark.skipif(assembler() is None, reason="ptxas is not installed (package nvidia-cuda-nvcc)")
def test_an_assembler_would_notice_a_version_that_is_too_old(tmp_path) -> None:
    kernel = compile_aot(loads(regions.same(dtypes.BF16)), {}, {}, "sm_80", 525)
    (tmp_path / "k.ptx").write_text(lowered(kernel.ptx, "6.4"))
    found = subprocess.run(
        [str(assembler()), "-arch=sm_80", str(tmp_path / "k.ptx"), "-o", str(tmp_path / "k.cubin")], capture_output=True, text=True
    )
    assert found.returncode != 0


def test_sizes_that_need_wide_indices() -> None:
    program = loads(regions.scale())
    source, _ = generate_hardened(program, {})
    narrow, wide = (aot_kernel._usable(source, {"n": n}) for n in (1000, 1 << 29))
    assert all(v.below_2_31 for v in narrow)
    assert not any(v.below_2_31 for v in wide)
    assert narrow[-1].align == wide[-1].align == source.variants[-1].align


def test_a_source_that_looks_otherwise_is_refused() -> None:
    variant = Variant("k", 1, 128, (4, 4))
    with pytest.raises(GraphfuseError, match="not laid out as expected"):
        aot_kernel.aot_text(KernelSource("void k() {}", (variant,), 1, 1, ()), [variant])


# --- the same kernel on the host device


def run_on_host(program, kernel_source, variants, arrays, shifts) -> list[np.ndarray]:
    """One launch with TensorRT's order of arguments: inputs, sizes, outputs."""
    from graphfuse.jit import HostDevice

    env = program.bind([a.shape for a in arrays])
    grid = expr.evaluate(expr.emax(variants[0].grid, 1), env)
    count = len(arrays) + len(program.symbols) + len(program.results)
    text = aot_kernel.aot_text(kernel_source, variants)
    lone = KernelSource(text, (Variant(aot_kernel.ENTRY, grid, variants[0].block, (1,) * count),), count, 0, ())
    (executable,) = HostDevice().load([lone])
    stores, places = [], []
    for array, shift in zip(
        [*arrays, *(np.zeros(s, t.numpy) for (t, _), s in zip(program.outputs, program.output_shapes(env), strict=True))],
        shifts,
        strict=True,
    ):
        store = np.zeros(array.nbytes + 64, np.uint8)
        begin = -store.ctypes.data % 16 + shift * array.itemsize
        store[begin : begin + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        stores.append((store, begin, array))
        places.append(store.ctypes.data + begin)
    executable.launch([*places[: len(arrays)], *(env[s] for s in kernel_source.symbols), *places[len(arrays) :]], {})
    return [s[b : b + a.nbytes].view(a.dtype).reshape(a.shape) for s, b, a in stores[len(arrays) :]]


RUNS = {
    "scale": [((7, 8),), ((512, 8),), ((0, 8),)], "pair": [((7, 8), (8,))], "softmax": [((9, 33),), ((0, 33),)], "long rows": [((3, 5000),)],
    "joined": [((50,), (7,), ()), ((1,), (3,), ())], "scalar": [((),)], "half": [((3, 32),)], "bool": [((3, 32),)], "static": [((4, 8),)],
}  # fmt: skip


@pytest.mark.skipif(compiler_absence() is not None, reason=compiler_absence() or "")
@pytest.mark.parametrize("case", RUNS)
def test_it_computes_the_region_at_any_address(case) -> None:
    spec, largest = CASES[case]
    program = loads(spec)
    source, _ = generate_hardened(program, {})
    variants = aot_kernel._usable(source, largest)
    rng = np.random.default_rng(2)
    for shapes in RUNS[case]:
        kinds = [t.numpy for t, _ in program.params]
        arrays = [rng.random(s) < 0.5 if k == np.bool_ else rng.integers(-9, 9, s).astype(k) for s, k in zip(shapes, kinds, strict=True)]
        total = len(arrays) + len(program.results)
        for shifts in ([0] * total, [1] * total, [1] + [0] * (total - 1), [0] * (total - 1) + [1]):
            got = run_on_host(program, source, variants, arrays, shifts)
            for have, want in zip(got, interpret.run(program, arrays), strict=True):
                np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-7) if want.dtype == np.float32 else np.testing.assert_array_equal(
                    have, want
                )
