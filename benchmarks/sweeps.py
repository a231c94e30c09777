"""Bandwidth by size (1 KB to 1 GB) and by row length (32 to 1,000,000), ours against torch.compile, to find cliffs."""

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks import peers, prewarm
from benchmarks.chains import Chain, Tensor, f32
from benchmarks.cliffs import cliffs, losses
from benchmarks.environment import environment
from benchmarks.measure import Candidate, input_sets, judge, shapes
from benchmarks.run import nearest, roofs
from graphfuse.jit import CudaDevice

ROW_ELEMENTS = 1 << 24  # in all rows together, so that only their length changes
ROW_LENGTHS = (32, 64, 100, 128, 256, 500, 512, 768, 1000, 1024, 2048, 3000, 4096, 5120, 8192, 10000, 11008, 16384, 32768, 65536, 100000,
               131072, 262144, 500000, 1000000)  # fmt: skip


def scale_shift_gate(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x * 1.5 + y) * x


def norm_softmax(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax(F.layer_norm(x, (x.shape[-1],), weight, bias), -1)


def size_chains() -> Iterator[Chain]:
    """An elementwise chain that moves 1 KB to 1 GB in all, in powers of two and sizes between that no vector tiles."""
    for power in range(10, 31):
        for total in (1 << power, (1 << power) * 3 // 2 + 12):
            if total <= 1 << 30:
                count = total // 12
                yield Chain(f"size_{total}", f"{total} bytes", scale_shift_gate, (f32(count), f32(count)), False)


def row_chains() -> Iterator[Chain]:
    """A layer norm and a softmax over rows of each length."""
    for length in ROW_LENGTHS:
        rows = max(1, ROW_ELEMENTS // length)
        specs = (f32(rows, length), f32(length, scale=0.1, offset=1), f32(length, scale=0.1))
        yield Chain(f"row_{length}", f"{rows} rows of {length}", norm_softmax, specs, False)


CHAINS = {chain.name: chain for chain in (*size_chains(), *row_chains())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("size", "row"), help="one of the two sweeps")
    parser.add_argument("--skip-torch", action="store_true", help="ours alone")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="begin no point after so many seconds")
    parser.add_argument("--prewarm", type=int, default=0, metavar="N", help="compile torch's kernels in N processes first")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/sweeps.json"), help="where results go")
    given = parser.parse_args()
    began = time.monotonic()
    prewarm.no_stored_choices()
    names = [name for name in CHAINS if given.only is None or name.startswith(given.only)]
    helpers = prewarm.start(names, ["default"], given.prewarm) if given.prewarm and not given.skip_torch else []
    torch.zeros(1, device="cuda")
    prewarm.finish(helpers, min(240.0, given.budget_s / 2))
    given.json.parent.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"environment": environment(), **roofs(CudaDevice()), "points": []}
    for name in names:
        if time.monotonic() - began > given.budget_s:
            print(f"{name} and what follows: left out, the time is used up")
            break
        document["points"].append(measure_point(CHAINS[name], document, not given.skip_torch))
        given.json.write_text(json.dumps(document, indent=1) + "\n")
        print(line(document["points"][-1]), flush=True)
    for kind in ("size", "row"):
        points = [p for p in document["points"] if p["name"].startswith(kind) and "us" in p["candidates"]["ours"]]
        print(f"{kind}: cliffs: {'; '.join(cliffs(points, document['launch_us'])) or 'none'}")
        print(f"{kind}: more than 10% behind torch: {'; '.join(losses(points)) or 'none'}")
    print(f"{time.monotonic() - began:.0f} s")


def measure_point(chain: Chain, document: dict[str, Any], with_torch: bool) -> dict[str, Any]:
    """Ours and torch.compile at one size, as JSON."""
    sets = input_sets(chain, document["environment"]["l2_bytes"])
    read, written = sum(t.nbytes for t in sets[0]), sum(t.numel() * t.element_size() for t in shapes(chain))
    rate = nearest(document["rates"], read, written)
    point: dict[str, Any] = {
        "name": chain.name, "title": chain.title, "read_bytes": read, "written_bytes": written,
        "roof_us": max((read + written) / rate["tb_s"] / 1e6, document["launch_us"]), "candidates": {},
    }  # fmt: skip
    for name, make in (("ours", lambda: peers.ours(chain, sets)), ("compile default", lambda: peers.compiled(chain, sets, "default")))[
        : 1 + with_torch
    ]:
        try:
            point["candidates"][name] = _measured(chain, sets, make())
        except Exception as error:
            traceback.print_exc()
            point["candidates"][name] = {"failed": f"{type(error).__name__}: {error}"[:200]}
    torch.cuda.empty_cache()
    return point


def _measured(chain: Chain, sets: Any, candidate: Candidate) -> dict[str, Any]:
    candidate.prepare()
    candidate.measure()
    candidate.measure()
    found = {"us": candidate.us, "medians": candidate.medians, **candidate.note, **judge(chain, sets, candidate.again())}
    candidate.close()
    return found


def line(point: dict[str, Any]) -> str:
    """One point for a terminal."""
    moved, text = point["read_bytes"] + point["written_bytes"], f"{point['title']:26} roof {point['roof_us']:9.2f}"
    for name, found in point["candidates"].items():
        shown = (
            f"{found['us']:9.2f} us {moved / found['us'] / 1e6:5.2f} TB/s{'' if found['right'] else ' WRONG'}"
            if "us" in found
            else found["failed"][:60]
        )
        text += f"  {name} {shown}"
    return text


if __name__ == "__main__":
    main()
