"""From a graph to the regions that will be fused: by policy, or by a plan that somebody may have edited."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from graphfuse.ir.errors import GraphfuseError
from graphfuse.lower import NodeRefused
from graphfuse.match.convex import Clusters, CycleError
from graphfuse.match.cost import Cost, fused_cost, own_sizes, unfused_cost
from graphfuse.match.flow import node_ids
from graphfuse.match.grow import Growth, Region, grow
from graphfuse.match.planfile import APART, Plan, PlannedRegion, Refusal
from graphfuse.match.policy import Context, Policy
from graphfuse.match.small_ops import Kind

_BY_PLAN = frozenset({"removed-in-plan", "disabled-in-plan"})


@dataclass
class Selection:
    """Regions in graph order with the reason for each, and a refusal for everything else that is a small op."""

    regions: list[Region] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    disabled: list[PlannedRegion] = field(default_factory=list)

    def add(self, region: Region, context: Context) -> None:
        """Takes ``region`` in, with its predicted gain as the reason."""
        before, after = costs(context, region)
        self.regions.append(region)
        self.reasons.append(f"{_plural(before.launches, 'kernel')} and {before.bytes} bytes become 1 kernel and {after.bytes} bytes")


def costs(context: Context, region: Region) -> tuple[Cost, Cost]:
    """Predicted cost of the region's nodes as they are, and of its kernel."""
    nodes = (context.flow.nodes[i] for i in region.members)
    after = fused_cost(region.lowered.program, own_sizes(region.lowered.sizes, context.sizes))
    return unfused_cost(nodes, context.facts, context.sizes), after


def select_by_policy(context: Context, policy: Policy) -> Selection:
    """Grows regions of all that may be fused, and keeps those that the policy finds worth it."""
    selection, ids = Selection(), node_ids(context.flow.nodes)
    left_out = policy.left_out(context)
    candidates = [i for i, c in enumerate(context.classes) if c.fusable and i not in left_out]
    growth = grow(context.flow, candidates, context.legality)
    for grown in growth.regions:
        region, trimmed = policy.trim(context, grown)
        veto = policy.veto(context, region)
        if veto is None:
            selection.add(region, context)
        else:
            selection.refusals.append(Refusal(veto[0], [ids[i] for i in region.members], veto[1]))
        selection.refusals += [
            Refusal("doubled-output", [ids[i]], "a view of a result that the region writes anyway; writing it twice costs more")
            for i in sorted(trimmed)
        ]
    selection.refusals += [Refusal(rule, [ids[i]], reason) for i, (rule, reason) in sorted(left_out.items()) if context.classes[i].fusable]
    selection.refusals += _of_nodes(context, growth, ids)
    selection.refusals += _between(growth, selection, ids)
    return selection


def _of_nodes(context: Context, growth: Growth, ids: list[str]) -> Iterable[Refusal]:
    """Small ops that cannot be in any region."""
    reasons = {i: c.refused for i, c in enumerate(context.classes) if c.kind is Kind.SMALL and c.refused} | growth.refused
    return [Refusal(r.rule, [ids[i]], r.reason) for i, r in sorted(reasons.items())]


def _between(growth: Growth, selection: Selection, ids: list[str]) -> Iterable[Refusal]:
    """Neighbouring regions that were not made one, with the first pair of nodes where it was tried."""
    home = {i: k for k, region in enumerate(selection.regions) for i in region.members}
    seen: set[tuple[int, int]] = set()
    for (a, b), refused in sorted(growth.apart.items()):
        pair = (home.get(a, -1), home.get(b, -1))
        if -1 not in pair and pair[0] != pair[1] and pair not in seen:
            seen.add(pair)
            yield Refusal(refused.rule, [ids[a], ids[b]], f"{APART}{refused.reason}")


def select_by_plan(context: Context, plan: Plan, fingerprint: str) -> Selection:
    """The enabled regions of ``plan``. Raises GraphfuseError, one line, if it is of another graph or not legal."""
    if plan.fingerprint != fingerprint:
        raise GraphfuseError("the plan was made for another graph; make a new one with `graphfuse plan`")
    selection, ids = Selection(), node_ids(context.flow.nodes)
    place = {name: i for i, name in enumerate(ids)}
    taken: dict[int, str] = {}
    for planned in plan.regions:
        members = _members(planned, place, taken)
        if not planned.enabled:
            selection.disabled.append(planned)
            selection.refusals.append(Refusal("disabled-in-plan", list(planned.nodes), "the plan switches this region off"))
        elif members:
            selection.add(_checked(context, planned, members, ids), context)
    try:
        Clusters(context.flow.preds, [r.members for r in selection.regions])
    except CycleError as error:
        raise GraphfuseError(f"the plan's regions are not legal together: {error}; undo the last edit") from error
    selection.refusals += _left_alone(context, plan, taken, ids)
    return selection


def _left_alone(context: Context, plan: Plan, taken: dict[int, str], ids: list[str]) -> list[Refusal]:
    """The plan's own refusals, and small ops that it does not speak of."""
    inside = {ids[i] for i in taken}
    kept = [r for r in plan.refusals if r.rule not in _BY_PLAN and (r.is_between or not inside & set(r.nodes))]
    covered = {name for r in kept if not r.is_between for name in r.nodes}
    unspoken = [i for i, c in enumerate(context.classes) if c.kind is Kind.SMALL and i not in taken and ids[i] not in covered]
    return [*kept, *(Refusal("removed-in-plan", [ids[i]], "no region of the plan holds this node") for i in unspoken)]


def _members(planned: PlannedRegion, place: dict[str, int], taken: dict[int, str]) -> tuple[int, ...]:
    for name in planned.nodes:
        if name not in place:
            raise GraphfuseError(f"the plan's region {planned.name!r} names a node that the graph does not have: {name!r}; remove it")
        if place[name] in taken:
            raise GraphfuseError(f"the plan has node {name!r} in {taken[place[name]]!r} and in {planned.name!r}; remove one")
        taken[place[name]] = planned.name
    return tuple(sorted(place[name] for name in planned.nodes))


def _checked(context: Context, planned: PlannedRegion, members: tuple[int, ...], ids: list[str]) -> Region:
    problem: NodeRefused | None = None
    for i in members:
        if not context.classes[i].fusable:
            problem = context.classes[i].refused or NodeRefused("not-small", f"{context.flow.nodes[i].op_type} is not a small op")
            raise GraphfuseError(f"the plan's region {planned.name!r} cannot hold {ids[i]!r}: {problem.reason}; remove it")
    answer = context.legality.check(members)
    if isinstance(answer, NodeRefused):
        raise GraphfuseError(f"the plan's region {planned.name!r} is not legal: {answer.reason}; undo the last edit")
    return Region(members, answer)


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
