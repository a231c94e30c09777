"""The graphs of one seed: run, and told about where they fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.attempt import Account, Finding, attempt
from tests.fuzz.host import attempt_on_host
from tests.fuzz.reduce import described, reduced, save
from tests.fuzz.strategies import Case, first_cases

OUT = Path("out/fuzz")


def run_batch(seed: int, size: int, host_percent: int) -> tuple[Account, int]:
    """The graphs of one seed: what they were, and how many failed."""
    account, failures = Account(), 0
    for case, finding in run_seed(seed, size, -(-size * host_percent // 100), account):
        tell(case, finding, f"seed{seed}_{failures}")
        failures += 1
    return account, failures


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
        f"\nFAILED {once(small) or finding}\n{described(small)}\nagain: {Path(sys.executable).name} -m tests.fuzz --replay {path}",
        flush=True,
    )


def once(case: Case) -> Finding | None:
    return attempt(case, Account()) or next((f for _, f in attempt_on_host([case], Account())), None)


def _stage(case: Case) -> str:
    found = once(case)
    return found.stage if found else ""
