"""The long run: ``make fuzz``, or ``python -m tests.fuzz [--replay FILE.onnx]``.

FUZZ_SEED (default 1) and FUZZ_COUNT (default 20000) say which graphs; graph number k of a seed is always the same one, and a run
that was cut short goes on with FUZZ_SEED set to the last seed it printed. FUZZ_HOST (default 10) is the share, in percent, of
graphs that also run as kernels on the CPU. Failures are made small and saved under out/fuzz.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.attempt import Account, Finding, attempt
from tests.fuzz.host import attempt_on_host
from tests.fuzz.reduce import described, load, reduced, save
from tests.fuzz.strategies import Case, first_cases

BATCH = 50  # graphs of one seed, whose kernels are compiled together
OUT = Path("out/fuzz")


def run_seed(seed: int, count: int, on_host: int, account: Account) -> Iterator[tuple[Case, Finding]]:
    """The cases of a seed that fail; the first ``on_host`` of them also run on the host device."""
    cases = first_cases(seed, count)
    sound = []
    for case in cases:
        found = attempt(case, account)
        if found is None:
            sound.append(case)
        else:
            yield case, found
    yield from attempt_on_host(sound[:on_host], account)


def tell(case: Case, finding: Finding, name: str) -> None:
    """Makes a failing case small, saves it and prints how to run it again."""
    small = reduced(case, lambda c: _stage(c) == finding.stage)
    path = save(small, OUT, name)
    print(
        f"\nFAILED {_once(small) or finding}\n{described(small)}\nagain: {Path(sys.executable).name} -m tests.fuzz --replay {path}",
        flush=True,
    )


def _once(case: Case) -> Finding | None:
    return attempt(case, Account()) or next((f for _, f in attempt_on_host([case], Account())), None)


def _stage(case: Case) -> str:
    found = _once(case)
    return found.stage if found else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Random graphs, fused and compared with ONNX Runtime.")
    parser.add_argument("--replay", type=Path, help="run one saved case again")
    given = parser.parse_args()
    if given.replay and not given.replay.is_file():
        parser.error(f"{given.replay} is not there; failures are saved in {OUT}")
    if given.replay:
        found = _once(load(given.replay))
        print(f"FAILED {found}" if found else "passed")
        return 1 if found else 0
    return _long(int(os.environ.get("FUZZ_SEED", "1")), int(os.environ.get("FUZZ_COUNT", "20000")), int(os.environ.get("FUZZ_HOST", "10")))


def _long(seed: int, count: int, host_percent: int) -> int:
    account, failures, begun = Account(), 0, time.monotonic()
    while account.graphs < count:
        size = min(BATCH, count - account.graphs)
        for number, (case, finding) in enumerate(run_seed(seed, size, -(-size * host_percent // 100), account)):
            failures += 1
            tell(case, finding, f"seed{seed}_{number}")
        rate = account.graphs / (time.monotonic() - begun)
        print(f"FUZZ_SEED={seed}: {failures} failures, {rate:.1f} graphs/s; {account}", flush=True)
        seed += 1
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
