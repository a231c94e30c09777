"""What it costs to make each kernel of the chains: generation and NVRTC, in processor time of one core. Needs no GPU."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

from graphfuse.codegen import generate
from graphfuse.graph.load import load_model
from graphfuse.jit import compile_cubin
from graphfuse.match import rewrite_model
from graphfuse.report.show import shown_regions

MODELS = Path(__file__).parent / "models"
LIMIT_MS = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="sm_90", metavar="sm_XX", help="architecture to compile for")
    arch: str = parser.parse_args().target
    compile_cubin('extern "C" __global__ void k() {}', arch)  # loading the compiler is not part of it
    totals = []
    print(f"{'kernel':28} {'generate':>9} {'compile':>9} {'total':>7} ms")
    for path in sorted(MODELS.glob("*.onnx")):
        for number, region in enumerate(shown_regions(rewrite_model(load_model(path), policy="aggressive").model)):
            source, generated = timed(lambda region=region: generate(region.program))
            _, compiled = timed(lambda source=source: compile_cubin(source.text, arch))
            totals.append(generated + compiled)
            mark = "  over the limit" if totals[-1] > LIMIT_MS else ""
            print(f"{path.stem + (f' {number}' if number else ''):28} {generated:9.0f} {compiled:9.0f} {totals[-1]:7.0f}{mark}")
    over = sum(t > LIMIT_MS for t in totals)
    print(
        f"{len(totals)} kernels: median {median(totals):.0f}, mean {mean(totals):.0f}, worst {max(totals):.0f} ms; {over} over {LIMIT_MS} ms"
    )


def timed(do: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and milliseconds of processor time."""
    before = time.process_time()
    result = do()
    return result, 1000 * (time.process_time() - before)


if __name__ == "__main__":
    main()
