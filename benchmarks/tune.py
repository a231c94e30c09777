"""Tunes the kernels of the benchmark's chains on this GPU; what it writes can ship as ``graphfuse/tune/tuned.json``."""

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
from pathlib import Path

from benchmarks.export import fuse
from graphfuse.tune.model import tune_model

MODELS = Path(__file__).parent / "models"


def main() -> None:
    names = sorted(path.stem for path in MODELS.glob("*.onnx"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chains", nargs="*", metavar="CHAIN", help="which (default: all)")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="begin no chain after so many seconds")
    parser.add_argument("--most", type=int, default=64, help="candidates for a kernel at most")
    parser.add_argument("--database", type=Path, default=Path("benchmarks/results/tuned.json"), help="where decisions go")
    given = parser.parse_args()
    began, rows = time.monotonic(), []
    given.database.parent.mkdir(parents=True, exist_ok=True)
    for name in given.chains or names:
        if time.monotonic() - began > given.budget_s:
            rows.append(f"{name}: left out, the time is used up")
            continue
        at = time.monotonic()
        try:
            found = tune_model(fuse(MODELS / f"{name}.onnx"), given.database, most=given.most)
        except Exception as error:
            traceback.print_exc()
            rows.append(f"{name}: {type(error).__name__}: {error}")
            continue
        for region in found:
            best = region.tuned
            wrong = f"  WRONG {[c.to_json() for c in best.wrong]}" if best.wrong else ""
            rows.append(
                f"{name:20} {best.default_us:9.2f} {best.us:9.2f} {best.default_us / best.us:6.3f}  {best.tried:3} tried, {best.spilled} spilled"
                f"  {best.config}{wrong}  ({time.monotonic() - at:.1f} s)"
            )
        print(rows[-1], flush=True)
    print("\n".join([f"{'chain':20} {'by rule':>9} {'best':>9} {'gain':>6}", *rows]))
    print(json.dumps({"seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
