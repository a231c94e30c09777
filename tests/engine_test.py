"""``make engine-test``: every model as two engines on this machine's GPU, plain and fused, in one table.

For each model: the fused engine's outputs against the plain engine's, the number of layers of both, and their times in
turns under CUDA graphs. Where no engine can run it says what is missing and ends with exit code 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from graphfuse.bench import Bench, bench, engine_opener
from graphfuse.check.inputs import make_inputs
from graphfuse.graph.load import load_model
from graphfuse.ir.errors import GraphfuseError
from graphfuse.match import rewrite_model
from tests.conftest import OWN_MODELS, SHARED_MODELS

HEAD = ("model", "regions", "layers", "plain us", "fused us", "share of the time", "values", "verdict")


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if every fused engine is right and none is slower."""
    try:
        opener = engine_opener(None)
    except GraphfuseError as error:
        print(f"engine-test: {error}", file=sys.stderr)
        return 2
    models = [Path(a) for a in arguments] or [*OWN_MODELS, *SHARED_MODELS]
    print(("{:36}" + "  {:>16}" * (len(HEAD) - 1)).format(*HEAD))
    failed = 0
    for path in models:
        try:
            model = load_model(path)
            fused = rewrite_model(model)
            found = bench(model, fused.model, make_inputs(model), opener)
        except GraphfuseError as error:
            failed += 1
            print(f"{path.stem:36}  failed: {error}")
            continue
        failed += not found.passed
        print(row(path.stem, len(fused.regions), found), flush=True)
    print(f"{len(models)} models, {failed} failed")
    return 1 if failed else 0


def row(name: str, regions: int, found: Bench) -> str:
    """One line of the table."""
    p = found.whole
    wrong = [v.name for v in found.outputs if not v.passed]
    cells = (
        str(regions), f"{len(found.plain_layers)} to {len(found.fused_layers)}", f"{p.first_us:.2f}", f"{p.second_us:.2f}",
        f"{p.low:.3f} to {p.high:.3f}", f"{len(wrong)} wrong" if wrong else "right", p.verdict,
    )  # fmt: skip
    return f"{name:36}" + "".join(f"  {cell:>16}" for cell in cells)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
