"""The long run: ``make fuzz``, or ``python -m tests.fuzz [--replay FILE.onnx]``.

FUZZ_SEED (default 1) and FUZZ_COUNT (default 20000) say which graphs; graph number k of a seed is always the same one, and a run
that was cut short goes on with FUZZ_SEED set to the last seed it printed. FUZZ_HOST (default 10) is the share, in percent, of
graphs that also run as kernels on the CPU, FUZZ_JOBS (default: every core) how many processes work. Failures are made small and saved under out/fuzz.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz.attempt import Account
from tests.fuzz.batch import OUT, once, run_batch
from tests.fuzz.reduce import load

DEFAULTS = {"SEED": 1, "COUNT": 20000, "HOST": 10, "JOBS": os.cpu_count() or 1}
BATCH = 50  # graphs of one seed, whose kernels are compiled together


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Random graphs, fused and compared with ONNX Runtime.")
    parser.add_argument("--replay", type=Path, help="run one saved case again")
    given = parser.parse_args()
    if given.replay and not given.replay.is_file():
        parser.error(f"{given.replay} is not there; failures are saved in {OUT}")
    if given.replay:
        found = once(load(given.replay))
        print(f"FAILED {found}" if found else "passed")
        return 1 if found else 0
    number = {name: int(os.environ.get(f"FUZZ_{name}", default)) for name, default in DEFAULTS.items()}
    return _long(number["SEED"], number["COUNT"], number["HOST"], number["JOBS"])


def _long(seed: int, count: int, host_percent: int, jobs: int) -> int:
    account, failures, begun = Account(), 0, time.monotonic()
    sizes = [min(BATCH, count - done) for done in range(0, count, BATCH)]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for number, (found, failed) in enumerate(pool.map(run_batch, range(seed, seed + len(sizes)), sizes, repeat(host_percent))):
            account.add(found)
            failures += failed
            rate = account.graphs / (time.monotonic() - begun)
            print(f"FUZZ_SEED={seed + number}: {failures} failures, {rate:.1f} graphs/s; {account}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
