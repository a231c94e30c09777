"""The table of the collection: what is fused in each model under both policies, what is left and why, and how exact it is.

``make table`` writes ``docs/corpus.md`` and ``out/corpus.json``. Engines are TensorRT-RTX's, built without a GPU; errors are
those of ``check`` on the host device, which runs the kernels' own source.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import graphfuse
from graphfuse.ir import GraphfuseError
from graphfuse.match.policy import POLICIES, RULES
from tests.conftest import SHARED_MODELS
from tests.corpus import engine_shapes, sizes_of

PACKAGES = ("graphfuse", "onnx", "onnx-ir", "onnxruntime", "tensorrt-rtx-cu13-bindings", "numpy")


@dataclass
class Row:
    """One model under one policy. ``error`` is the largest relative one of an output at each size, ``used`` the share of what is allowed."""

    model: str
    policy: str
    nodes_before: int
    nodes_after: int
    shape_nodes: int
    small_ops: int
    small_ops_fused: int
    regions: int
    seconds: float
    layers: int | None = None
    no_engine: str = ""
    error: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)
    passed: bool = True
    left: dict[str, int] = field(default_factory=dict)
    refusals: list[dict[str, Any]] = field(default_factory=list)

    @property
    def unexplained(self) -> int:
        """Small ops that are neither in a region nor in a refusal."""
        return self.small_ops - self.small_ops_fused - sum(self.left.values())


def measure(path: Path, policy: str, *, engines: bool = True) -> Row:
    """Rewrites, checks and builds one model."""
    start = time.process_time()
    found = graphfuse.rewrite(path, policy=policy)
    report = found.report
    fused = {n for r in found.regions for n in r.nodes}
    alone = [r for r in found.refusals if not r.is_between]
    left = Counter(rule for _, rule in {n: r.rule for r in reversed(alone) for n in r.nodes if n not in fused}.items())
    row = Row(
        path.stem, policy, report["nodes_before"], report["nodes_after"], report["shape_nodes"], report["small_ops"],
        report["small_ops_fused"], len(found.regions), time.process_time() - start,
        left=dict(left.most_common()), refusals=[asdict(r) for r in alone],
    )  # fmt: skip
    for alt in sizes_of(path):
        result = graphfuse.check(path, found.model, device="host", alt=alt)
        row.error.append(max(o.max_rel for o in result.outputs))
        row.used.append(max(o.used for o in result.outputs))
        row.passed &= result.passed
    if engines:
        _build(row, found.model, engine_shapes(path))
    return row


def _build(row: Row, model: Any, shapes: Any) -> None:
    try:
        row.layers = len(graphfuse.build_engine(model, flavour="tensorrt_rtx", shapes=shapes, targets=["sm_89"]).plugin_layers)
    except GraphfuseError as error:
        row.no_engine = str(error)


# --- the page -----------------------------------------------------------------------------------------------------------


def page(rows: Sequence[Row]) -> str:
    """``docs/corpus.md``."""
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in PACKAGES if _installed(p))
    parts = [
        "# The model collection",
        "",
        f"Written by `make table` on {date.today().isoformat()} with {versions}.",
        "",
        "Nodes are counted without constants, in bodies too, before folding and after fusing. Small ops are those outside shape arithmetic, "
        "after folding. PLUGIN_V3 layers are those of the TensorRT-RTX engine. The error is the largest relative one of any output of "
        "`check --device host` at each size of the model's recipe; in brackets the share of the tolerance that it takes.",
    ]
    for policy in POLICIES:
        own = [r for r in rows if r.policy == policy]
        parts += ["", f"## Policy {policy}", "", *_table(own), "", *_leftovers(own, policy)]
    return "\n".join(parts) + "\n"


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _table(rows: Sequence[Row]) -> Iterable[str]:
    yield "| model | nodes | after | small ops | fused | | regions | PLUGIN_V3 | error | left: rule (small ops) |"
    yield "|--|--:|--:|--:|--:|--:|--:|--:|--|--|"
    for r in rows:
        share = f"{100 * r.small_ops_fused / r.small_ops:.0f}%" if r.small_ops else ""
        errors = ", ".join(f"{e:.1e} ({u:.0%})" for e, u in zip(r.error, r.used, strict=True)) + ("" if r.passed else " **FAILED**")
        layers = "-" if r.layers is None else str(r.layers)
        left = ", ".join(f"{rule} {count}" for rule, count in r.left.items())
        yield (
            f"| {r.model} | {r.nodes_before} | {r.nodes_after} | {r.small_ops} | {r.small_ops_fused} | {share} | {r.regions} | {layers} "
            f"| {errors} | {left} |"
        )
    small, fused = sum(r.small_ops for r in rows), sum(r.small_ops_fused for r in rows)
    yield (
        f"| **all** | {sum(r.nodes_before for r in rows)} | {sum(r.nodes_after for r in rows)} | {small} | {fused} | {100 * fused / max(1, small):.1f}% "
        f"| {sum(r.regions for r in rows)} | {sum(r.layers or 0 for r in rows)} | | |"
    )


def _leftovers(rows: Sequence[Row], policy: str) -> Iterable[str]:
    total = Counter[str]()
    for row in rows:
        total.update(row.left)
    unexplained = sum(r.unexplained for r in rows)
    yield f"Left out of regions: {total.total()} small ops, each with its reason; without a reason: {unexplained}."
    yield ""
    yield "| rule | small ops | what it says |"
    yield "|--|--:|--|"
    summaries = {r.name: r.summary for r in RULES}
    for rule, count in total.most_common():
        example = next(x["reason"] for r in rows for x in r.refusals if x["rule"] == rule)
        yield f"| {rule} | {count} | {summaries.get(rule) or f'for example: {example}'} |".replace("\n", " ")
    missing = [r for r in rows if r.no_engine]
    if missing:
        yield ""
        yield "No engine:"
        yield from (f"- {r.model}: {r.no_engine}" for r in missing)


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints a line for each model, writes the files. 1 if a check failed, a reason is missing or an engine lacks a layer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus", description=__doc__)
    parser.add_argument("models", nargs="*", help="parts of names; all models by default")
    parser.add_argument("--no-engines", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args(arguments)
    paths = [p for p in SHARED_MODELS if not chosen.models or any(m in p.stem for m in chosen.models)]
    rows: list[Row] = []
    for path in paths:
        for policy in POLICIES:
            rows.append(measure(path, policy, engines=not chosen.no_engines))
            r = rows[-1]
            print(
                f"{r.model:32} {policy:10} {r.nodes_before:5} -> {r.nodes_after:4}  small {r.small_ops:4} fused {r.small_ops_fused:4}  "
                f"regions {r.regions:3}  layers {r.layers}  error {max(r.error):.1e}  {'' if r.passed else 'FAILED '}{r.left or ''} {r.no_engine}",
                flush=True,
            )
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    if chosen.markdown:
        chosen.markdown.write_text(page(rows))
    return int(any(not r.passed or r.unexplained or (r.layers is not None and r.layers != r.regions) for r in rows))


if __name__ == "__main__":
    sys.exit(main())
