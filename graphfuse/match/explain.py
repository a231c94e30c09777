"""Why a node is, or is not, in a region: for one node, or for the whole model."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir

from graphfuse.ir.errors import GraphfuseError
from graphfuse.match.flow import Flow, node_ids
from graphfuse.match.planfile import Plan, Refusal
from graphfuse.match.rewrite import Prepared, prepare, select
from graphfuse.match.select import Selection
from graphfuse.match.small_ops import Kind

_OTHER = {
    Kind.CONSTANT: ("constant", "a constant; constants are folded or become part of regions"),
    Kind.SHAPE: ("shape-arithmetic", "depends on shapes and constants only; it stays out of regions"),
    Kind.BIG: ("big-op", "a matrix product, convolution or recurrent net; the engine has kernels for it"),
    Kind.OTHER: ("not-small", "not a small op; regions end here"),
}


@dataclass(frozen=True)
class Explanation:
    """What became of one node. ``region`` numbers the regions from 1 in graph order, 0 for none."""

    node: str
    op_type: str
    region: int
    rule: str
    reason: str
    readers: list[str] = field(default_factory=list)
    producers: list[str] = field(default_factory=list)
    together: list[str] = field(default_factory=list)
    apart: list[Refusal] = field(default_factory=list)


def explain_model(
    model: onnx_ir.Model, node: str | None = None, *, policy: str = "auto", skip: Iterable[str] = (), plan: Plan | None = None
) -> list[Explanation]:
    """An explanation for each node of the folded graph, or for ``node`` alone (an id, or the name of a value that it makes).

    Raises GraphfuseError for a node that the graph does not have.
    """
    prepared = prepare(model)
    selection = select(prepared, policy=policy, skip=skip, plan=plan)
    flow = prepared.context.flow
    ids = node_ids(flow.nodes)
    wanted = range(len(flow.nodes)) if node is None else [_find(model, flow, ids, node)]
    home = {i: k for k, region in enumerate(selection.regions) for i in region.members}
    reasons = {name: r for r in reversed(selection.refusals) if not r.is_between for name in r.nodes}
    return [_explain(i, prepared, selection, ids, home, reasons) for i in wanted]


def _find(model: onnx_ir.Model, flow: Flow, ids: list[str], wanted: str) -> int:
    by_id = {name: i for i, name in enumerate(ids)}
    by_value = {v.name: i for i, n in enumerate(flow.nodes) for v in n.outputs if v.name}
    found = by_id.get(wanted, by_value.get(wanted))
    if found is not None:
        return found
    if any(wanted in (n.name, *(v.name for v in n.outputs)) for n in model.graph):
        raise GraphfuseError(f"node {wanted!r} is not in the folded graph: it depends on constants or shapes only, and was computed")
    close = difflib.get_close_matches(wanted, [*by_id, *(str(v) for v in by_value)], n=3, cutoff=0.5)
    raise GraphfuseError(
        f"the graph has no node {wanted!r}" + (f"; did you mean {', '.join(map(repr, close))}?" if close else "; see the plan")
    )


def _explain(
    i: int, prepared: Prepared, selection: Selection, ids: list[str], home: dict[int, int], reasons: dict[str, Refusal]
) -> Explanation:
    flow, kind = prepared.context.flow, prepared.context.classes[i].kind
    rule, reason = _reason(i, kind, prepared, selection, ids, home, reasons)
    region = home.get(i, -1)
    members = selection.regions[region].members if region >= 0 else ()
    return Explanation(
        node=ids[i],
        op_type=flow.nodes[i].op_type,
        region=region + 1,
        rule=rule,
        reason=reason,
        readers=[ids[s] for s in flow.succs[i]],
        producers=[ids[p] for p in flow.preds[i]],
        together=[ids[m] for m in members if m != i],
        apart=[r for r in selection.refusals if r.is_between and {ids[m] for m in members} & set(r.nodes)],
    )


def _reason(
    i: int, kind: Kind, prepared: Prepared, selection: Selection, ids: list[str], home: dict[int, int], reasons: dict[str, Refusal]
) -> tuple[str, str]:
    if i in home:
        return "fused", selection.reasons[home[i]]
    if ids[i] in reasons:
        return reasons[ids[i]].rule, reasons[ids[i]].reason
    return _OTHER.get(kind, ("unknown", "no rule speaks of it"))
