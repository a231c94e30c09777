"""``rewrite_model``: fold, find, choose, fuse, and say what was done and what was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import onnx_ir
from onnx_ir.passes.common import InlinePass

from graphfuse.graph.facts import Facts
from graphfuse.ir import expr
from graphfuse.ir.errors import GraphfuseError
from graphfuse.match.cost import Cost
from graphfuse.match.flow import Flow, node_ids
from graphfuse.match.grow import Region
from graphfuse.match.legal import Legality
from graphfuse.match.normalise import normalise
from graphfuse.match.open_functions import NAME as FUNCTION_BODY
from graphfuse.match.planfile import VERSION, Plan, PlannedRegion, Refusal, fingerprint
from graphfuse.match.policy import Context, Policy
from graphfuse.match.portable import Call, fuse
from graphfuse.match.restore import is_fused, restore_model
from graphfuse.match.select import Selection, costs, select_by_plan, select_by_policy
from graphfuse.match.small_ops import Kind, classify, longest_chain
from graphfuse.patterns.apply import Recognised, recognise, words
from graphfuse.patterns.load import Source, all_patterns
from graphfuse.patterns.pattern import Pattern


@dataclass(frozen=True)
class FusedRegion:
    """One fused region. ``nodes`` are ids of the folded graph, ``inputs`` and ``outputs`` names of its values.

    ``patterns`` are those that lie wholly in it.
    """

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
    patterns: list[str] = field(default_factory=list)


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
    """A folded model with all that is known about it; ``nodes_before`` counts the given model's nodes without constants.

    ``patterns`` are those in force, ``pattern_names`` are of those that are not, too; ``repaired`` says how often each was
    rewritten, ``recognised`` where they are now.
    """

    model: onnx_ir.Model
    context: Context
    nodes_before: int
    fingerprint: str
    patterns: tuple[Pattern, ...] = ()
    pattern_names: tuple[str, ...] = ()
    repaired: Mapping[str, int] = field(default_factory=dict)
    recognised: Recognised = field(default_factory=Recognised)


def _check_sizes(sizes: Mapping[str, int], model: onnx_ir.Model, flow: Flow, facts: Facts) -> None:
    """Raises GraphfuseError for a size that belongs to no dimension: it would change no prediction."""
    own = {str(d.value): 0 for v in model.graph.inputs for d in v.shape or () if isinstance(d, onnx_ir.SymbolicDim) and d.value}
    for name in sizes:
        if name not in own and name not in facts.input_symbols and name not in _inner_symbols(flow, facts):
            known = f"the inputs have {', '.join(own)}" if own else "no input has a dynamic one"
            raise GraphfuseError(f"size {name}={sizes[name]}: the model has no dimension of that name; {known}")


def _inner_symbols(flow: Flow, facts: Facts) -> set[str]:
    shapes = [facts.shape(v) or () for n in flow.nodes for v in n.outputs]
    return {name for shape in shapes for dim in shape for name in expr.symbols(dim)}


def prepare(
    model: onnx_ir.Model,
    *,
    exact_rounding: bool = False,
    sizes: Mapping[str, int] | None = None,
    skip: Iterable[str] = (),
    patterns: Iterable[Source] = (),
) -> Prepared:
    """Restores (if fused) and folds a copy of ``model``, rewrites patterns in it, and looks at every node of it."""
    own = restore_model(model) if is_fused(model) else model.clone()
    nodes_before = _count_nodes(own)
    _inline_functions(own)
    known = all_patterns(patterns)
    skipped = {skip} if isinstance(skip, str) else set(skip)
    in_force = tuple(p for p in known if p.name not in skipped)
    normal = normalise(own, () if exact_rounding else in_force, functions=not exact_rounding and FUNCTION_BODY not in skipped)
    facts = normal.facts
    flow = Flow(own.graph)
    _check_sizes(sizes or {}, model, flow, facts)
    legality = Legality(flow, facts, exact_rounding=exact_rounding)
    context = Context(flow, facts, classify(flow, facts), legality, dict(sizes or {}))
    return Prepared(
        model=own,
        context=context,
        nodes_before=nodes_before,
        fingerprint=fingerprint(own.graph, flow),
        patterns=in_force,
        pattern_names=(*(p.name for p in known), FUNCTION_BODY),
        repaired=Counter(r.pattern.name for r in normal.repairs) + Counter({FUNCTION_BODY: normal.opened}),
        recognised=recognise(flow.nodes, facts, in_force),
    )


def _inline_functions(model: onnx_ir.Model) -> None:
    """Opens the model's own functions, as engines do, where they speak of the same opsets as the model."""
    same = {i for i, f in model.functions.items() if all(model.opset_imports.get(d, v) == v for d, v in f.opset_imports.items())}
    if same:
        InlinePass(criteria=lambda f: f.identifier() in same)(model)


def select(prepared: Prepared, *, policy: str = "auto", skip: Iterable[str] = (), plan: Plan | None = None) -> Selection:
    """The regions to fuse, by ``plan`` if there is one, else by policy. Raises GraphfuseError for an unknown rule or a wrong plan."""
    if plan is not None:
        return select_by_plan(prepared.context, plan, prepared.fingerprint)
    return select_by_policy(prepared.context, Policy(policy, skip, prepared.pattern_names))


def rewrite_model(
    model: onnx_ir.Model,
    *,
    policy: str = "auto",
    skip: Iterable[str] = (),
    plan: Plan | None = None,
    exact_rounding: bool = False,
    sizes: Mapping[str, int] | None = None,
    patterns: Iterable[Source] = (),
) -> Rewritten:
    """The model with its regions fused, in portable form; ``model`` is not changed.

    ``plan`` is applied instead of the policy. ``sizes`` are values of run-time dimensions at which costs are predicted
    (by name; others count as 64). ``patterns`` are patterns, or files of them, beside those that come with graphfuse; ``skip`` names
    rules of the policy and patterns to do without; with ``exact_rounding`` no pattern is rewritten. Raises GraphfuseError for an
    unknown policy or rule, and for a plan of another graph.
    """
    skip = (skip,) if isinstance(skip, str) else tuple(skip)
    prepared = prepare(model, exact_rounding=exact_rounding, sizes=sizes, skip=skip, patterns=patterns)
    selection = select(prepared, policy=policy, skip=skip, plan=plan)
    context = prepared.context
    ids = node_ids(context.flow.nodes)
    counts = _counts(context)
    predicted = [costs(context, region) for region in selection.regions]
    op_types = {i: context.flow.nodes[i].op_type for region in selection.regions for i in region.members}
    within = [_patterns_in(context.flow, r, prepared.recognised) for r in selection.regions]
    calls = fuse(prepared.model, context.flow, context.facts, selection.regions, partial(words, recognised=prepared.recognised))
    regions = [
        _account(call, before, after, reason, op_types, ids, names)
        for call, (before, after), reason, names in zip(calls, predicted, selection.reasons, within, strict=True)
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
    return sum(not (n.op_type == "Constant" and n.domain in ("", "ai.onnx")) for n in model.graph.all_nodes())


def _patterns_in(flow: Flow, region: Region, recognised: Recognised) -> list[str]:
    nodes = {flow.nodes[i] for i in region.members}
    near = {id(m): m for m in map(recognised.of, nodes) if m is not None and nodes.issuperset(m.nodes)}
    return [m.pattern.name for m in sorted(near.values(), key=lambda m: flow.place[m.nodes[-1]])]


def _account(
    call: Call, before: Cost, after: Cost, reason: str, op_types: dict[int, str], ids: list[str], patterns: list[str]
) -> FusedRegion:
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
        patterns=patterns,
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
        "patterns": {
            "rewritten": dict(prepared.repaired),
            "recognised": dict(Counter(m.pattern.name for m in prepared.recognised.matches)),
        },
        "regions": rows,
        "refusals": [asdict(r) for r in refusals],
    }


__all__ = ["FusedRegion", "Plan", "Prepared", "Refusal", "Region", "Rewritten", "prepare", "rewrite_model", "select"]
