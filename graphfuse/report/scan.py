"""``scan``: what a model is made of, and what fusing it would gain; nothing is written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir

from graphfuse.graph.load import load_model
from graphfuse.match.cost import NOMINAL_SIZE, Cost, unfused_cost
from graphfuse.match.rewrite import FusedRegion, prepare, rewrite_model
from graphfuse.match.small_ops import Kind
from graphfuse.patterns.load import Source, user_patterns
from graphfuse.session.session import Model


@dataclass(frozen=True)
class Scan:
    """Figures of a model before and after fusion.

    Launches and bytes are predictions: one kernel for each node that is no shape arithmetic and no pure view, reading its
    inputs and writing its outputs once. Run-time dimensions count as ``sizes`` says.
    """

    model: str
    nodes: int
    nodes_after: int
    shape_nodes: int
    small_ops: int
    small_ops_fused: int
    longest_chain: int
    launches_before: int
    launches_after: int
    bytes_before: int
    bytes_after: int
    sizes: dict[str, int]
    by_kind: dict[str, int]
    ops: dict[str, int]
    regions: list[FusedRegion]
    refused: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it; the regions without their specs."""
        found = asdict(self)
        for region in found["regions"]:
            region.pop("spec")
        return found


def scan(
    model: Model,
    *,
    policy: str = "auto",
    skip: Iterable[str] = (),
    exact_rounding: bool = False,
    sizes: Mapping[str, int] | None = None,
    patterns: Iterable[Source] = (),
) -> Scan:
    """Looks at a model as ``rewrite`` with these options would. Raises what it raises."""
    loaded = load_model(model)
    skip, patterns = (skip,) if isinstance(skip, str) else tuple(skip), user_patterns(patterns)
    made = rewrite_model(loaded, policy=policy, skip=skip, exact_rounding=exact_rounding, sizes=sizes, patterns=patterns)
    context = prepare(loaded, exact_rounding=exact_rounding, sizes=sizes, skip=skip, patterns=patterns).context
    kinds = Counter(c.kind.value for c in context.classes)
    nodes = [n for n, c in zip(context.flow.nodes, context.classes, strict=True) if c.kind not in (Kind.CONSTANT, Kind.SHAPE)]
    small = [n.op_type for n, c in zip(context.flow.nodes, context.classes, strict=True) if c.kind is Kind.SMALL]
    before = unfused_cost(nodes, context.facts, context.sizes)
    report = made.report
    after = Cost(
        before.launches - report["launches_before"] + report["launches_after"],
        before.bytes - report["bytes_before"] + report["bytes_after"],
    )
    return Scan(
        model=os.fspath(model) if isinstance(model, str | os.PathLike) else loaded.graph.name or "model",
        nodes=report["nodes_before"],
        nodes_after=report["nodes_after"],
        shape_nodes=report["shape_nodes"],
        small_ops=report["small_ops"],
        small_ops_fused=report["small_ops_fused"],
        longest_chain=report["longest_chain"],
        launches_before=before.launches,
        launches_after=after.launches,
        bytes_before=before.bytes,
        bytes_after=after.bytes,
        sizes=_sizes(loaded, sizes or {}),
        by_kind=dict(kinds.most_common()),
        ops=dict(Counter(small).most_common()),
        regions=made.regions,
        refused=dict(_count_refused(made.refusals).most_common()),
    )


def _sizes(model: onnx_ir.Model, given: Mapping[str, int]) -> dict[str, int]:
    """The run-time dimensions of the inputs, with the values that the predictions take for them."""
    names = [d.value for v in model.graph.inputs for d in v.shape or () if isinstance(d, onnx_ir.SymbolicDim) and d.value]
    return {name: given.get(name, NOMINAL_SIZE) for name in dict.fromkeys(names)}


def _count_refused(refusals: Iterable[Any]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for refusal in refusals:
        counts[refusal.rule] += len(refusal.nodes)
    return counts
