"""``rewrite_model``: fold, find, choose, fuse, and say what was done and what was not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir
from onnx_ir.passes.common import InlinePass

from graphfuse.graph.facts import Facts
from graphfuse.graph.fold import fold_constants
from graphfuse.match.cost import Cost
from graphfuse.match.flow import Flow, node_ids
from graphfuse.match.grow import Region
from graphfuse.match.hoist import hoist_shapes
from graphfuse.match.legal import Legality
from graphfuse.match.planfile import VERSION, Plan, PlannedRegion, Refusal, fingerprint
from graphfuse.match.policy import Context, Policy
from graphfuse.match.portable import Call, fuse
from graphfuse.match.restore import is_fused, restore_model
from graphfuse.match.select import Selection, costs, select_by_plan, select_by_policy
from graphfuse.match.small_ops import Kind, classify, longest_chain


@dataclass(frozen=True)
class FusedRegion:
    """One fused region. ``nodes`` are ids of the folded graph, ``inputs`` and ``outputs`` names of its values."""

    name: str
    function: str
    op_types: list[str]
    nodes: list[str]
    inputs: list[str]
    outputs: list[str]
    kernels: int
    launches_before: int
    bytes_before: int
    bytes_after: int
    reason: str
    spec: str


@dataclass(frozen=True)
class Rewritten:
    """A fused model in portable form, and the account of it. ``report`` can be written as JSON."""

    model: onnx_ir.Model
    plan: Plan
    regions: list[FusedRegion]
    refusals: list[Refusal]
    report: dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """A folded model with all that is known about it; ``nodes_before`` counts the given model's nodes without constants."""

    model: onnx_ir.Model
    context: Context
    nodes_before: int
    fingerprint: str


def prepare(model: onnx_ir.Model, *, exact_rounding: bool = False, sizes: Mapping[str, int] | None = None) -> Prepared:
    """Restores (if fused) and folds a copy of ``model``, and looks at every node of it."""
    own = restore_model(model) if is_fused(model) else model.clone()
    nodes_before = _count_nodes(own)
    _inline_functions(own)
    fold_constants(own)
    facts = Facts(own)
    if hoist_shapes(own, facts):
        facts = Facts(own)
    flow = Flow(own.graph)
    legality = Legality(flow, facts, exact_rounding=exact_rounding)
    context = Context(flow, facts, classify(flow, facts), legality, dict(sizes or {}))
    return Prepared(own, context, nodes_before, fingerprint(own.graph, flow))


def _inline_functions(model: onnx_ir.Model) -> None:
    """Opens the model's own functions, as engines do, where they speak of the same opsets as the model."""
    same = {i for i, f in model.functions.items() if all(model.opset_imports.get(d, v) == v for d, v in f.opset_imports.items())}
    if same:
        InlinePass(criteria=lambda f: f.identifier() in same)(model)


def select(prepared: Prepared, *, policy: str = "auto", skip: Iterable[str] = (), plan: Plan | None = None) -> Selection:
    """The regions to fuse, by ``plan`` if there is one, else by policy. Raises GraphfuseError for an unknown rule or a wrong plan."""
    if plan is not None:
        return select_by_plan(prepared.context, plan, prepared.fingerprint)
    return select_by_policy(prepared.context, Policy(policy, skip))


def rewrite_model(
    model: onnx_ir.Model,
    *,
    policy: str = "auto",
    skip: Iterable[str] = (),
    plan: Plan | None = None,
    exact_rounding: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> Rewritten:
    """The model with its regions fused, in portable form; ``model`` is not changed.

    ``plan`` is applied instead of the policy. ``sizes`` are values of run-time dimensions at which costs are predicted
    (by name; others count as 64). Raises GraphfuseError for an unknown policy or rule, and for a plan of another graph.
    """
    prepared = prepare(model, exact_rounding=exact_rounding, sizes=sizes)
    selection = select(prepared, policy=policy, skip=skip, plan=plan)
    context = prepared.context
    ids = node_ids(context.flow.nodes)
    counts = _counts(context)
    predicted = [costs(context, region) for region in selection.regions]
    op_types = {i: context.flow.nodes[i].op_type for region in selection.regions for i in region.members}
    calls = fuse(prepared.model, context.flow, context.facts, selection.regions)
    regions = [
        _account(call, before, after, reason, op_types, ids)
        for call, (before, after), reason in zip(calls, predicted, selection.reasons, strict=True)
    ]
    made = Plan(VERSION, prepared.fingerprint, plan.policy if plan else policy, _planned(regions, selection), selection.refusals)
    report = _report(prepared, counts, regions, selection.refusals)
    return Rewritten(prepared.model, made, regions, selection.refusals, report)


def _counts(context: Context) -> dict[str, int]:
    kinds = [c.kind for c in context.classes]
    return {
        "small_ops": kinds.count(Kind.SMALL),
        "shape_nodes": kinds.count(Kind.SHAPE),
        "longest_chain": longest_chain(context.flow, context.classes),
    }


def _count_nodes(model: onnx_ir.Model) -> int:
    return sum(not (n.op_type == "Constant" and n.domain in ("", "ai.onnx")) for n in model.graph)


def _account(call: Call, before: Cost, after: Cost, reason: str, op_types: dict[int, str], ids: list[str]) -> FusedRegion:
    return FusedRegion(
        name=call.name,
        function=call.function,
        op_types=[op_types[i] for i in call.region.members],
        nodes=[ids[i] for i in call.region.members],
        inputs=[v.name or "" for v in call.body.inputs],
        outputs=[v.name or "" for v in call.body.outputs],
        kernels=after.launches,
        launches_before=before.launches,
        bytes_before=before.bytes,
        bytes_after=after.bytes,
        reason=reason,
        spec=call.body.spec,
    )


def _planned(regions: list[FusedRegion], selection: Selection) -> list[PlannedRegion]:
    """The plan's regions in graph order; those that a plan had switched off stay in it, at the end."""
    made = [
        PlannedRegion(r.name, list(r.nodes), True, list(r.op_types), r.reason, r.launches_before, r.kernels, r.bytes_before, r.bytes_after)
        for r in regions
    ]
    return made + selection.disabled


def _report(prepared: Prepared, counts: dict[str, int], regions: list[FusedRegion], refusals: list[Refusal]) -> dict[str, Any]:
    rows = [{k: v for k, v in asdict(r).items() if k != "spec"} for r in regions]
    return {
        "nodes_before": prepared.nodes_before,
        "nodes_after": _count_nodes(prepared.model),
        **counts,
        "small_ops_fused": sum(len(r.nodes) for r in regions),
        "launches_before": sum(r.launches_before for r in regions),
        "launches_after": sum(r.kernels for r in regions),
        "bytes_before": sum(r.bytes_before for r in regions),
        "bytes_after": sum(r.bytes_after for r in regions),
        "regions": rows,
        "refusals": [asdict(r) for r in refusals],
    }


__all__ = ["FusedRegion", "Plan", "Prepared", "Refusal", "Region", "Rewritten", "prepare", "rewrite_model", "select"]
