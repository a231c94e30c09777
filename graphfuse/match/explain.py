"""Why a node is, or is not, in a region: for one node, or for the whole model."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx_ir

from graphfuse.ir.errors import GraphfuseError
from graphfuse.match.flow import Flow, node_ids
from graphfuse.match.planfile import Plan, Refusal
from graphfuse.match.rewrite import Prepared, prepare, select
from graphfuse.match.select import Selection
from graphfuse.match.small_ops import Kind
from graphfuse.patterns.load import Source
from graphfuse.patterns.pattern import Pattern

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
    pattern: str = ""


@dataclass(frozen=True)
class PatternReport:
    """What became of one pattern: how often it was rewritten, how many matches are there, else the nearest miss.

    ``node`` is the offending node of the miss, ``near`` the node where the pattern would have ended, ``matched`` how many nodes fitted.
    """

    name: str
    summary: str
    rewritten: int
    recognised: int
    node: str = ""
    near: str = ""
    reason: str = ""
    matched: int = 0


def explain_model(
    model: onnx_ir.Model,
    node: str | None = None,
    *,
    policy: str = "auto",
    skip: Iterable[str] = (),
    plan: Plan | None = None,
    patterns: Iterable[Source] = (),
) -> list[Explanation]:
    """An explanation for each node of the folded graph, or for ``node`` alone (an id, or the name of a value that it makes).

    Raises GraphfuseError for a node that the graph does not have.
    """
    skip = (skip,) if isinstance(skip, str) else tuple(skip)
    prepared = prepare(model, skip=skip, patterns=patterns)
    selection = select(prepared, policy=policy, skip=skip, plan=plan)
    flow = prepared.context.flow
    ids = node_ids(flow.nodes)
    wanted = range(len(flow.nodes)) if node is None else [_find(model, flow, ids, node)]
    home = {i: k for k, region in enumerate(selection.regions) for i in region.members}
    reasons = {name: r for r in reversed(selection.refusals) if not r.is_between for name in r.nodes}
    return [_explain(i, prepared, selection, ids, home, reasons) for i in wanted]


def explain_patterns(model: onnx_ir.Model, *, skip: Iterable[str] = (), patterns: Iterable[Source] = ()) -> list[PatternReport]:
    """A report on each pattern in force, in their order."""
    prepared = prepare(model, skip=skip, patterns=patterns)
    nodes = prepared.context.flow.nodes
    names = dict(zip(nodes, node_ids(nodes), strict=True))
    counts = Counter(m.pattern.name for m in prepared.recognised.matches)
    return [_pattern_report(p, prepared, counts[p.name], names) for p in prepared.patterns]


def _pattern_report(pattern: Pattern, prepared: Prepared, count: int, names: Mapping[onnx_ir.Node, str]) -> PatternReport:
    rewritten, miss = prepared.repaired.get(pattern.name, 0), prepared.recognised.nearest.get(pattern.name)
    absent = prepared.recognised.absent.get(pattern.name)
    if miss is None or rewritten or count:
        reason = f"the graph has no {absent}" if absent and not rewritten else ""
        return PatternReport(pattern.name, pattern.summary, rewritten, count, reason=reason)
    node, near = (names.get(n, n.name or n.op_type) for n in (miss.node, miss.root))
    return PatternReport(pattern.name, pattern.summary, 0, 0, node, near, miss.reason, miss.matched)


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
        f"the graph has no node {wanted!r}"
        + (f"; did you mean {', '.join(map(repr, close))}?" if close else "; `graphfuse explain MODEL` lists them")
    )


def _explain(
    i: int, prepared: Prepared, selection: Selection, ids: list[str], home: dict[int, int], reasons: dict[str, Refusal]
) -> Explanation:
    flow, kind = prepared.context.flow, prepared.context.classes[i].kind
    rule, reason = _reason(i, kind, prepared, selection, ids, home, reasons)
    region = home.get(i, -1)
    match = prepared.recognised.of(flow.nodes[i])
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
        pattern=match.pattern.name if match else "",
    )


def _reason(
    i: int, kind: Kind, prepared: Prepared, selection: Selection, ids: list[str], home: dict[int, int], reasons: dict[str, Refusal]
) -> tuple[str, str]:
    if i in home:
        return "fused", selection.reasons[home[i]]
    if ids[i] in reasons:
        return reasons[ids[i]].rule, reasons[ids[i]].reason
    return _OTHER.get(kind, ("unknown", "no rule speaks of it"))
