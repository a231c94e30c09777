"""The kernels of the benchmark's chains: nothing spills, compiling is cheap, equal layers share a kernel."""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed: pip install 'graphfuse[cuda]'")

from graphfuse.codegen import generate
from graphfuse.graph.load import load_model
from graphfuse.jit import Cache, compile_cubin, compile_many, nvrtc
from graphfuse.match import rewrite_model
from graphfuse.report.show import measure, shown_regions
from tests.conftest import ROOT

CHAINS = sorted((ROOT / "benchmarks" / "models").glob("*.onnx"))
ARCHS = ("sm_80", "sm_90")
COST = 0.8  # of a plain kernel of 60 lines, PLAIN
PLAIN = "\n".join(  # 56 gates of SiLU with loads, stores and tests of bounds: what a person would write, unrolled
    [
        'extern "C" __global__ void plain(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ z, int n) {',
        "  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * 56;",
        *(f"  if (i + {k} < n) {{ const float a = x[i + {k}]; z[i + {k}] = a / (1.0f + expf(-a)) * y[i + {k}]; }}" for k in range(56)),
        "}",
    ]
)


@pytest.fixture(scope="module")
def shown():
    return {path.stem: shown_regions(rewrite_model(load_model(path), policy="aggressive").model) for path in CHAINS}


def test_there_are_chains() -> None:
    assert len(CHAINS) >= 22


@pytest.mark.parametrize("path", CHAINS, ids=lambda p: p.stem)
def test_a_chain_is_wholly_fused(path) -> None:
    made = rewrite_model(load_model(path), policy="aggressive").model
    assert [n.op_type for n in made.graph if n.domain != "graphfuse"] == []


def test_no_kernel_spills_or_uses_local_memory(shown) -> None:
    regions = [region for found in shown.values() for region in found]
    measure(regions, ARCHS)
    bad = [
        f"{region.name} on {arch}, {entry}: {used}"
        for region in regions
        for arch, entries in region.resources.items()
        for entry, used in entries.items()
        if used["stack_bytes"] or used["spill_stores"] or used["spill_loads"]
    ]
    assert all(set(region.resources) == set(ARCHS) for region in regions)
    assert not bad, "\n".join(bad)


def _milliseconds(text: str) -> float:
    """Processor time of one compilation, so that what else the machine does is not counted."""
    before = time.process_time()
    compile_cubin(text, "sm_90")
    return 1000 * (time.process_time() - before)


def test_compiling_a_kernel_is_cheap(shown) -> None:
    """In units of a plain kernel, compiled in between: milliseconds differ by machine, load and NVRTC.

    ``python -m benchmarks.compile_cost`` tells the milliseconds.
    """
    _milliseconds(PLAIN)  # loading the compiler is not part of it
    costs = [_milliseconds(generate(found[0].program).text) / _milliseconds(PLAIN) for found in shown.values()]
    assert median(costs) <= COST, sorted(round(c, 1) for c in costs)


def _layers(count: int) -> onnx.ModelProto:
    """MatMul, then add, layer norm and gelu by hand, ``count`` times over with weights of their own."""
    nodes, weights, value = [], [numpy_helper.from_array(np.array([2.0, 0.5, 1.0, 1.4142135], "f")[k], f"c{k}") for k in range(4)], "x"
    rng = np.random.default_rng(0)
    for k in range(count):
        weights.append(numpy_helper.from_array(rng.standard_normal((64, 64)).astype("f") / 8, f"w{k}"))
        weights += [numpy_helper.from_array(rng.standard_normal(64).astype("f"), f"{name}{k}") for name in ("b", "g", "s")]
        node = lambda op, *inputs, out, **attributes: nodes.append(helper.make_node(op, inputs, [f"{out}{k}"], **attributes))  # noqa: B023, E731
        node("MatMul", value, f"w{k}", out="m")
        node("Add", f"m{k}", value, out="a")
        node("ReduceMean", f"a{k}", out="mean", axes=[-1])
        node("Sub", f"a{k}", f"mean{k}", out="d")
        node("Pow", f"d{k}", "c0", out="p")
        node("ReduceMean", f"p{k}", out="var", axes=[-1])
        node("Add", f"var{k}", "c2", out="ve")
        node("Sqrt", f"ve{k}", out="sd")
        node("Div", f"d{k}", f"sd{k}", out="n")
        node("Mul", f"n{k}", f"g{k}", out="ng")
        node("Add", f"ng{k}", f"s{k}", out="z")
        node("Div", f"z{k}", "c3", out="zs")
        node("Erf", f"zs{k}", out="e")
        node("Add", f"e{k}", "c2", out="f")
        node("Mul", f"z{k}", f"f{k}", out="ze")
        node("Mul", f"ze{k}", "c1", out="y")
        value = f"y{k}"
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 64])  # noqa: E731
    graph = helper.make_graph(nodes, "layers", [info("x")], [info(value)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_equal_layers_compile_once(monkeypatch) -> None:
    regions = shown_regions(rewrite_model(load_model(_layers(24)), policy="auto").model)
    assert len(regions) == 24
    compiled = []
    real = nvrtc.compile_image
    monkeypatch.setattr(nvrtc, "compile_image", lambda text, arch, **options: compiled.append(text) or real(text, arch, **options))
    compile_many([r.source for r in regions], ["sm_90"], cache=Cache(None))
    assert len(compiled) == len({r.program for r in regions}) == 1
