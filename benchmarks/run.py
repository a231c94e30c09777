"""``make bench``: every chain, ours and the peers, in one run on one GPU. Results are written as they come."""

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import peers, prewarm
from benchmarks.chains import CHAINS, Chain
from benchmarks.environment import environment
from benchmarks.measure import Candidate, input_sets, judge, shapes
from benchmarks.table import lines
from graphfuse.jit import CudaDevice
from graphfuse.tune.calibrate import MIXES, copy_rate, launch_time
from graphfuse.tune.timing import Timer


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chains", nargs="*", metavar="CHAIN", help=f"which: {', '.join(CHAINS)} (default: all)")
    parser.add_argument("--table", action="store_true", help="only the twelve chains of the table")
    parser.add_argument("--skip-max-autotune", action="store_true", help="torch.compile in its default mode only")
    parser.add_argument("--skip-torch", action="store_true", help="no peers, only our kernels and the roofs")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="begin no chain after so many seconds")
    parser.add_argument("--prewarm", type=int, default=0, metavar="N", help="compile torch's kernels in N processes first")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/bench.json"), help="where results go")
    given = parser.parse_args()
    unknown = [name for name in given.chains if name not in CHAINS]
    if unknown:
        parser.error(f"there is no chain {unknown[0]!r}")
    given.modes = [] if given.skip_torch else ["default"] if given.skip_max_autotune else list(prewarm.MODES)
    given.names = given.chains or [n for n, c in CHAINS.items() if c.table or not given.table]
    return given


def main() -> None:
    given = arguments()
    began = time.monotonic()
    if not torch.cuda.is_available():
        raise SystemExit("bench: no GPU that torch can use; run it on a machine with one")
    prewarm.no_stored_choices()
    helpers = prewarm.start(given.names, given.modes, given.prewarm) if given.prewarm and given.modes else []
    torch.zeros(1, device="cuda")
    prewarm.finish(helpers, min(240.0, given.budget_s / 2))
    device = CudaDevice()
    given.json.parent.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"environment": environment(), **roofs(device), "chains": []}
    print(f"ready after {time.monotonic() - began:.0f} s; an empty launch takes {document['launch_us']:.2f} us", flush=True)
    for name in given.names:
        if time.monotonic() - began > given.budget_s:
            print(f"{name}: left out, the time is used up")
            continue
        at = time.monotonic()
        try:
            document["chains"].append(measure_chain(CHAINS[name], given, device, document))
        except Exception:  # what was measured before is worth its table
            traceback.print_exc()
        document["seconds"] = time.monotonic() - began
        given.json.write_text(json.dumps(document, indent=1) + "\n")
        print(f"{name}: {time.monotonic() - at:.1f} s", flush=True)
    print("\n".join(lines(document)))


def roofs(device: CudaDevice) -> dict[str, Any]:
    """The floor and the ceilings, from plain kernels."""
    with Timer(device) as timer:
        return {"launch_us": launch_time(device, timer), "rates": [asdict(copy_rate(device, timer, r, w)) for r, w in MIXES]}


def nearest(rates: Sequence[dict[str, Any]], read: int, written: int) -> dict[str, Any]:
    """The measured mix that is nearest to this one."""
    return min(rates, key=lambda rate: abs(math.log(rate["reads"] / rate["writes"]) - math.log(read / written)))


def measure_chain(chain: Chain, given: argparse.Namespace, device: CudaDevice, document: dict[str, Any]) -> dict[str, Any]:
    """Everything about one chain, as JSON; a candidate that fails is reported with its reason and does not stop the rest."""
    sets = input_sets(chain, document["environment"]["l2_bytes"])
    read = sum(t.nbytes for t in sets[0])
    written = sum(t.numel() * t.element_size() for t in shapes(chain))
    rate = nearest(document["rates"], read, written)
    result: dict[str, Any] = {
        "name": chain.name, "title": chain.title, "table": chain.table, "read_bytes": read, "written_bytes": written, "sets": len(sets),
        "roof_us": max((read + written) / rate["tb_s"] / 1e6, document["launch_us"]), "mix": f"{rate['reads']}:{rate['writes']}",
        "candidates": {},
    }  # fmt: skip
    ready: list[Candidate] = []
    makers: list[tuple[str, Any]] = [("ours", lambda: peers.ours(chain, sets))]
    if not given.skip_torch:
        makers += [("eager", lambda: peers.eager(chain, sets, False)), ("eager graph", lambda: peers.eager(chain, sets, True))]
    makers += [(f"compile {mode}", lambda mode=mode: peers.compiled(chain, sets, mode)) for mode in given.modes]
    for name, make in makers:
        _attempt(result, name, lambda make=make: _prepare(make, ready))
    if ready and ready[0].name == "ours":
        kernels = ready[0].note["kernels"]
        _attempt(
            result, "same grid", lambda: _prepare(lambda: peers.same_grid(sets, ready[0].outputs[: len(sets)], kernels, device), ready)
        )
    for _ in range(2):
        for candidate in ready:
            candidate.measure()
    for candidate in ready:
        result["candidates"][candidate.name] = {"us": candidate.us, "medians": candidate.medians, **candidate.note}
        if candidate.graph and candidate.name != "same grid":
            _attempt(result, candidate.name, lambda c=candidate: result["candidates"][c.name].update(judge(chain, sets, c.again())))
    for candidate in ready:
        candidate.close()
    torch.cuda.empty_cache()
    return result


def _prepare(make: Any, ready: list[Candidate]) -> None:
    candidate = make()
    candidate.prepare()
    ready.append(candidate)


def _attempt(result: dict[str, Any], name: str, do: Any) -> None:
    try:
        do()
    except Exception as error:
        traceback.print_exc()
        result["candidates"].setdefault(name, {})["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


if __name__ == "__main__":
    main()
