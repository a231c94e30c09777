"""``make conformance``: every node case through the rewriter and the devices; a table by op, one line at the end, JSON in ``out/``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.attempt import FAILED, FOLDED, PASSED, REFUSED
from tests.conformance.cases import load_cases
from tests.conformance.suite import Result, run_all
from tests.conftest import compiler_absence, gpu_absence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--devices", nargs="+", choices=("numpy", "host", "cuda"), help="default: those that work here")
    parser.add_argument("--tenth", action="store_true", help="one case in ten, always the same")
    parser.add_argument("--only", default="", help="cases whose name or op contains this")
    parser.add_argument("--json", type=Path, default=Path("out/conformance.json"))
    options = parser.parse_args(arguments)
    cases = [c for c in load_cases() if options.only.lower() in f"{c.name} {c.op}".lower() and (not options.tenth or c.part == 0)]
    started = time.monotonic()
    results = run_all(cases, options.devices or _devices(), _progress if sys.stderr.isatty() else None)
    print(table(results))
    _write(results, options.json)
    counts = Counter(r.state for r in results)
    print(f"{len(results)} cases in {time.monotonic() - started:.0f} s; details in {options.json}")
    print(f"{counts[FOLDED]} folded to constants, {counts[REFUSED]} refused")
    print(f"{counts[PASSED]} passed, {counts[FAILED]} failed")
    return 1 if counts[FAILED] else 0


def _devices() -> list[str]:
    return ["numpy", *([] if compiler_absence() else ["host"]), *([] if gpu_absence() else ["cuda"])]


def _progress(what: str, done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{what:<18}{done:>5} of {total}", end=end, file=sys.stderr, flush=True)


def table(results: Sequence[Result]) -> str:
    """One line for each op: how many cases passed, were folded, refused and failed, and the reasons."""
    by_op: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_op[result.op].append(result)
    lines = [f"{'op':<28}{'passed':>8}{'folded':>8}{'refused':>8}{'failed':>8}  why not"]
    for op, listed in sorted(by_op.items()):
        counts = Counter(r.state for r in listed)
        reasons = Counter(r.reason.partition(":")[0] if r.state == REFUSED else f"{r.name}: {r.reason}" for r in listed if r.reason)
        why = ", ".join(f"{n} {text}" if n > 1 else text for text, n in reasons.most_common(4))
        cells = "".join(f"{counts[s] or '':>8}" for s in (PASSED, FOLDED, REFUSED, FAILED))
        lines.append(f"{op:<28}{cells}  {why[:120]}")
    return "\n".join(lines)


def _write(results: Sequence[Result], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([vars(r) for r in results], indent=1))


if __name__ == "__main__":
    sys.exit(main())
