"""``make engine-test``: every model as engines on this machine's GPU, plain and fused, in one table.

For each model: the fused engine's outputs (of a replayed CUDA graph) against the plain engine's, the number of layers of
both, their times in turns under CUDA graphs; and for a model of dynamic sizes the outputs of engines built for two sizes, at
one after the other. Where no engine can run it says what is missing and ends with exit code 2. ``--json`` keeps
everything, the names of all layers among it.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir

from graphfuse.bench import Bench, bench, engine_opener
from graphfuse.check.compare import compare_outputs
from graphfuse.check.inputs import make_inputs
from graphfuse.check.tolerance import choose
from graphfuse.engine.run import LoadedEngine
from graphfuse.graph.load import load_model
from graphfuse.ir.errors import GraphfuseError
from graphfuse.ir.files import write_text
from graphfuse.match import export_plugin, rewrite_model
from tests.conftest import OWN_MODELS, SHARED_MODELS

Feeds = Mapping[str, np.ndarray]
HEAD = ("model", "regions", "layers", "plain us", "fused us", "share of the time", "values", "at other sizes", "verdict")


@dataclass
class Row:
    """What was found of one model. ``refused``: TensorRT takes not even the plain one. ``error``: anything else that went wrong."""

    name: str
    regions: int = 0
    found: Bench | None = None
    wrong_sizes: list[str] = field(default_factory=list)
    sizes: int = 0
    refused: str = ""
    error: str = ""

    @property
    def passed(self) -> bool:
        return bool(self.refused) or (not self.error and self.found is not None and self.found.passed and not self.wrong_sizes)

    def text(self) -> str:
        """One line of the table."""
        if self.found is None or self.error:
            return f"{self.name:36}  " + (f"not for this TensorRT: {self.refused}" if self.refused else f"failed: {self.error}")
        p = self.found.whole
        wrong = [v.name for v in self.found.outputs if not v.passed]
        sizes = "-" if not self.sizes else f"{len(self.wrong_sizes)} of {self.sizes} wrong" if self.wrong_sizes else f"{self.sizes} right"
        cells = (
            str(self.regions), f"{len(self.found.plain_layers)} to {len(self.found.fused_layers)}", f"{p.first_us:.2f}", f"{p.second_us:.2f}",
            f"{p.low:.3f} to {p.high:.3f}", f"{len(wrong)} wrong" if wrong else "right", sizes, p.verdict,
        )  # fmt: skip
        return f"{self.name:36}" + "".join(f"  {cell:>17}" for cell in cells)

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        rest = {"regions": self.regions, "refused": self.refused, "error": self.error, "sizes": self.sizes, "wrong_sizes": self.wrong_sizes}
        return {"model": self.name, "passed": self.passed, **rest, "bench": self.found.to_json() if self.found else None}


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if every fused engine is right and none is slower."""
    parser = argparse.ArgumentParser("engine-test", description="Fused engines against plain ones, on this machine's GPU.")
    parser.add_argument("models", nargs="*", type=Path, help="ONNX models; the whole collection if left out")
    parser.add_argument("--flavour", choices=("tensorrt", "tensorrt_rtx"), help="which TensorRT; the one that works here if left out")
    parser.add_argument("--pairs", type=int, default=30, help="measurements of each engine, in turns")
    parser.add_argument("--json", type=Path, help="write everything here")
    given = parser.parse_args(arguments)
    try:
        opener = engine_opener(given.flavour)
    except GraphfuseError as error:
        print(f"engine-test: {error}", file=sys.stderr)
        if "--flavour tensorrt" in str(error):
            print("engine-test: `make engine-test TENSORRT=full` installs full TensorRT and takes it", file=sys.stderr)
        return 2
    print(("{:36}" + "  {:>17}" * (len(HEAD) - 1)).format(*HEAD))
    rows = []
    for path in given.models or [*OWN_MODELS, *SHARED_MODELS]:
        rows.append(examine(path, opener, given.flavour, given.pairs))
        print(rows[-1].text(), flush=True)
    failed = [row for row in rows if not row.passed]
    print(f"{len(rows)} models, {sum(bool(r.refused) for r in rows)} not for this TensorRT, {len(failed)} failed")
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        write_text(given.json, json.dumps([row.to_json() for row in rows], indent=1) + "\n")
    return 1 if failed else 0


def examine(path: Path, opener: Any, flavour: str | None, pairs: int) -> Row:
    """One model; whatever goes wrong is in the row."""
    row = Row(path.stem)
    try:
        model = load_model(path)
        fused = rewrite_model(model)
        row.regions = len(fused.regions)
        feeds = make_inputs(model)
        try:
            with opener(model, feeds):
                pass
        except GraphfuseError as error:
            row.refused = str(error)
            return row
        row.found = bench(model, fused.model, feeds, opener, pairs=pairs)
        _other_sizes(row, model, fused.model, feeds, flavour)
    except Exception as error:
        row.error = f"{type(error).__name__}: {error}"
        if not isinstance(error, GraphfuseError):
            traceback.print_exc()
    return row


def _ranges(usual: Feeds, other: Feeds) -> dict[str, Any]:
    """Smallest, usual and largest shape of each input, for an engine that takes both sizes; none where they are the same."""
    if all(usual[name].shape == other[name].shape for name in usual):
        return {}
    pairs = {name: (array.shape, other[name].shape) for name, array in usual.items()}
    return {name: (tuple(map(min, a, b)), a, tuple(map(max, a, b))) for name, (a, b) in pairs.items()}


def _other_sizes(row: Row, model: onnx_ir.Model, fused: onnx_ir.Model, usual: Feeds, flavour: str | None) -> None:
    """Both engines, built once, at one size after the other and back: every change of shapes is one that TensorRT announces."""
    other = make_inputs(model, alt=True)
    shapes = _ranges(usual, other)
    if not shapes:
        return
    with _loaded(model, shapes, flavour) as plain, _loaded(export_plugin(fused).model, shapes, flavour) as quick:
        for feeds in (usual, other, usual):
            row.sizes += 1
            verdicts = compare_outputs(plain.run(feeds), quick.run(feeds), lambda _, dtype: choose(dtype, whole=True))
            size = "the other" if feeds is other else "the usual"
            row.wrong_sizes += [f"{v.name} at {size} sizes: {v.reason}" for v in verdicts if not v.passed]


def _loaded(model: onnx_ir.Model, shapes: dict[str, Any], flavour: str | None) -> LoadedEngine:
    from graphfuse.engine import build

    own = model.clone()
    onnx_ir.external_data.load_to_model(own)
    return LoadedEngine(build.build_engine(onnx_ir.to_proto(own), flavour=flavour, shapes=shapes).bytes, flavour=flavour)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
