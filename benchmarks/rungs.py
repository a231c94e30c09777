"""The rungs of the ladder: a layer norm and an element-wise chain, from one kernel an operation to the row in registers.

    PYTHONPATH=.:plugins python3 -m benchmarks.rungs --json benchmarks/results/rungs.json      (on a GPU, with torch)
    PYTHONPATH=. python3 -m benchmarks.rungs --report benchmarks/results/rungs.json            (anywhere: docs/rungs.md)

Each rung is a list of fused programs that are launched one after another; all of them are our own kernels, so that nothing but
the rung differs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphfuse.codegen import generate
from graphfuse.codegen.config import Config
from graphfuse.codegen.source import KernelSource
from graphfuse.ir import Builder, Program, Val, sym
from graphfuse.ir.dtypes import F32
from graphfuse.ir.expr import Dim

PAGE = Path(__file__).resolve().parent.parent / "docs" / "rungs.md"
MARKS = ("<!-- rungs: begin -->", "<!-- rungs: end -->")
EPS = 1e-5


@dataclass(frozen=True)
class Step:
    """One launch: a kernel, the buffers it reads and those it writes, and the sizes that it takes as arguments."""

    source: KernelSource
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sizes: dict[str, int]


def _program(params: Sequence[tuple[Dim, ...]], build: Callable[..., Val]) -> Program:
    b = Builder()
    return b.finish([build(b, *(b.param(F32, shape) for shape in params))])


def _mean(b: Builder, x: Val, columns: Dim) -> Val:
    return b.reduce("sum", x, [1], keepdims=True) / b.cast(b.extent(columns), F32)


def _normalised(b: Builder, x: Val, mean: Val, variance: Val, g: Val, t: Val) -> Val:
    return (x - mean) / b.map("sqrt", variance + EPS) * g + t


def _variance(b: Builder, x: Val, mean: Val, columns: Dim) -> Val:
    return _mean(b, (x - mean) * (x - mean), columns)


def norm_rungs(rows: int, columns: int) -> dict[str, list[Step]]:
    """Layer norm of float32 [rows, columns], three ways; inputs x, g, t, output y."""

    def whole(b: Builder, x: Val, g: Val, t: Val, n: Dim) -> Val:
        mean = _mean(b, x, n)
        return _normalised(b, x, mean, _variance(b, x, mean, n), g, t)

    wide, one, n = (rows, columns), (rows, 1), sym("n")
    mean = _program([wide], lambda b, x: _mean(b, x, columns))
    variance = _program([wide, one], lambda b, x, m: _variance(b, x, m, columns))
    last = _program([wide, one, one, (columns,), (columns,)], _normalised)
    general = _program([(rows, n), (n,), (n,)], lambda b, x, g, t: whole(b, x, g, t, n))
    hardened = _program([wide, (columns,), (columns,)], lambda b, x, g, t: whole(b, x, g, t, columns))
    return {
        "three kernels": [
            Step(generate(mean), ("x",), ("mean",), {}),
            Step(generate(variance), ("x", "mean"), ("variance",), {}),
            Step(generate(last), ("x", "mean", "variance", "g", "t"), ("y",), {}),
        ],
        "fused, the row read again for each pass": [Step(generate(general), ("x", "g", "t"), ("y",), {"n": columns})],
        "fused, vectors, the row in registers": [Step(generate(hardened), ("x", "g", "t"), ("y",), {})],
    }


def chain_rungs(size: int) -> dict[str, list[Step]]:
    """``max(x + r, 0) * 1.5 + s`` on float32 [size], three ways; inputs x, r, s, output y."""
    flat = (size,)
    add = generate(_program([flat, flat], lambda b, a, c: a + c))
    relu = generate(_program([flat], lambda b, a: b.map("max", a, 0.0)))
    scale = generate(_program([flat], lambda b, a: a * 1.5))
    whole = _program([flat, flat, flat], lambda b, x, r, s: b.map("max", x + r, 0.0) * 1.5 + s)
    return {
        "four kernels": [
            Step(add, ("x", "r"), ("u",), {}),
            Step(relu, ("u",), ("v",), {}),
            Step(scale, ("v",), ("u",), {}),
            Step(add, ("u", "s"), ("y",), {}),
        ],
        "fused, one element a thread": [Step(generate(whole, Config(lanes=1, items=1)), ("x", "r", "s"), ("y",), {})],
        "fused, vectors of 16 bytes": [Step(generate(whole), ("x", "r", "s"), ("y",), {})],
    }


LADDERS: dict[str, tuple[dict[str, tuple[int, ...]], Callable[[], dict[str, list[Step]]]]] = {
    "layer norm, 16384 rows of 4096": (_shapes := {"x": (16384, 4096), "g": (4096,), "t": (4096,)}, lambda: norm_rungs(16384, 4096)),
    "layer norm, 8 rows of 4096": ({**_shapes, "x": (8, 4096)}, lambda: norm_rungs(8, 4096)),
    "element-wise chain, 64 Mi elements": (dict.fromkeys(("x", "r", "s"), (1 << 26,)), lambda: chain_rungs(1 << 26)),
}


def measure() -> list[dict[str, Any]]:
    """Microseconds of each rung: CUDA-graph replay over rotated inputs, outputs against float64. Needs torch and a GPU."""
    import torch

    from benchmarks.measure import CACHES, MOST_SETS, Candidate
    from graphfuse.jit import CudaDevice

    device, rows = CudaDevice(), []
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    for title, (shapes, make) in LADDERS.items():
        rungs = make()
        bytes_moved = 4 * (sum(_size(s) for s in shapes.values()) + _size(shapes["x"]))
        sets = [_buffers(torch, shapes, seed) for seed in range(min(MOST_SETS, max(2, CACHES * l2 // bytes_moved + 1)))]
        wanted = _reference(torch, title, sets[0])
        for name, steps in rungs.items():
            kernels = device.load([s.source for s in steps])
            candidate = Candidate(name, [_call(torch, kernels, steps, buffers) for buffers in sets])
            candidate.prepare()
            candidate.measure()
            candidate.measure()
            error = float((sets[0]["y"].double() - wanted).norm() / wanted.norm())
            assert error < 1e-5, f"{title}, {name}: relative error {error}"
            rows.append({"ladder": title, "rung": name, "launches": len(steps), "us": candidate.us, "bytes": bytes_moved, "error": error})
            print(f"{title:38s} {name:42s} {candidate.us:9.2f} us  {bytes_moved / candidate.us / 1e6:5.2f} TB/s", flush=True)
            candidate.close()
    return rows


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for dim in shape:
        total *= dim
    return total


def _buffers(torch: Any, shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Any]:
    draw = torch.Generator(device="cuda").manual_seed(seed)
    made = {name: torch.randn(shape, device="cuda", generator=draw) for name, shape in shapes.items()}
    row = (shapes["x"][0], 1)
    between = {"mean": row, "variance": row} if "g" in shapes else {"u": shapes["x"], "v": shapes["x"]}
    return {**made, **{n: torch.empty(s, device="cuda") for n, s in {**between, "y": shapes["x"]}.items()}}


def _call(torch: Any, kernels: Sequence[Any], steps: Sequence[Step], buffers: dict[str, Any]) -> Callable[[], Sequence[Any]]:
    launches = [
        kernel.prepare([buffers[n].data_ptr() for n in (*step.reads, *step.writes)], step.sizes)
        for kernel, step in zip(kernels, steps, strict=True)
    ]

    def run() -> Sequence[Any]:
        for launch in launches:
            launch.launch(torch.cuda.current_stream().cuda_stream)
        return [buffers["y"]]

    return run


def _reference(torch: Any, title: str, buffers: dict[str, Any]) -> Any:
    wide = {name: t.double() for name, t in buffers.items() if name in ("x", "g", "t", "r", "s")}
    if title.startswith("layer norm"):
        return torch.nn.functional.layer_norm(wide["x"], wide["x"].shape[1:], wide["g"], wide["t"], EPS)
    return torch.relu(wide["x"] + wide["r"]) * 1.5 + wide["s"]


def report(document: dict[str, Any]) -> str:
    """The measured table in Markdown."""
    lines = [f"Measured on one {document['environment'].get('gpu', 'GPU')}, {document['environment'].get('date', '')}:", ""]
    lines += ["| what | rung | launches | us | TB/s |", "|--|--|--|--|--|"]
    for row in document["rungs"]:
        rate = row["bytes"] / row["us"] / 1e6
        lines.append(f"| {row['ladder']} | {row['rung']} | {row['launches']} | {row['us']:.2f} | {rate:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--report", type=Path, help="figures to write into docs/rungs.md")
    given = parser.parse_args()
    if given.report:
        before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
        table = report(json.loads(given.report.read_text(encoding="utf-8")))
        PAGE.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{rest.split(MARKS[1])[1]}", encoding="utf-8")
        return
    from benchmarks.environment import environment

    document = {"environment": environment(), "rungs": measure()}
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
