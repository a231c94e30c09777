"""``explain``: for each node of a model, where it went, or why it was left alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir

from graphfuse.graph.load import load_model
from graphfuse.ir.errors import GraphfuseError
from graphfuse.match.flow import node_ids
from graphfuse.match.rewrite import Rewritten, prepare, rewrite_model
from graphfuse.match.small_ops import Kind
from graphfuse.session.interface import nearest
from graphfuse.session.session import Model

_WALLS = {
    Kind.CONSTANT: ("constant", "it is known when the model is rewritten"),
    Kind.SHAPE: ("shape", "it computes a shape, which costs next to nothing and stays out of the regions"),
    Kind.BIG: ("big", "it brings its own kernel: a wall between regions"),
    Kind.OTHER: ("other", "it is no small op"),
}


@dataclass(frozen=True)
class Reason:
    """Why a node was left alone, and with which others."""

    rule: str
    reason: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class NodeStory:
    """One node: ``state`` is fused, left, or what kind of node it is; ``region`` is where it went, ``why`` all there is to say."""

    node: str
    op_type: str
    state: str
    region: str = ""
    why: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """The stories of the nodes asked for, in graph order. ``regions`` says of each region why it is one."""

    nodes: tuple[NodeStory, ...]
    regions: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def explain(model: Model, node: str | None = None, *, policy: str = "auto", skip: Iterable[str] = ()) -> Explanation:
    """Explains every node of a model, or the one called ``node`` (by its name, or by a value that it makes).

    Names are those of the model after constant folding. Raises GraphfuseError for a node that the model does not have.
    """
    loaded = load_model(model)
    context = prepare(loaded).context
    made = rewrite_model(loaded, policy=policy, skip=skip)
    ids = node_ids(context.flow.nodes)
    wanted = range(len(ids)) if node is None else [_find(node, ids, context.flow.nodes, loaded)]
    homes = {name: region for region in made.regions for name in region.nodes}
    reasons = _reasons(made)
    stories = []
    for i in wanted:
        op_type = context.flow.nodes[i].op_type
        if ids[i] in homes:
            stories.append(NodeStory(ids[i], op_type, "fused", homes[ids[i]].name, tuple(reasons.get(ids[i], ()))))
        elif context.classes[i].kind is Kind.SMALL:
            stories.append(NodeStory(ids[i], op_type, "left", "", tuple(reasons.get(ids[i], ()))))
        else:
            state, why = _WALLS[context.classes[i].kind]
            stories.append(NodeStory(ids[i], op_type, state, "", (Reason(state, why, (ids[i],)), *reasons.get(ids[i], ()))))
    told = {s.region for s in stories}
    return Explanation(tuple(stories), {r.name: r.reason for r in made.regions if r.name in told})


def _reasons(made: Rewritten) -> dict[str, list[Reason]]:
    found: dict[str, list[Reason]] = {}
    for refusal in made.refusals:
        for name in refusal.nodes:
            found.setdefault(name, []).append(Reason(refusal.rule, refusal.reason, tuple(refusal.nodes)))
    return found


def _find(name: str, ids: list[str], nodes: list[onnx_ir.Node], original: onnx_ir.Model) -> int:
    if name in ids:
        return ids.index(name)
    for i, node in enumerate(nodes):
        if name in (node.name, *(v.name for v in node.outputs)):
            return i
    known = [n for node in nodes for n in (node.name, *(v.name for v in node.outputs)) if n]
    if any(name in (n.name, *(v.name for v in n.outputs)) for n in original.graph):
        raise GraphfuseError(f"node {name!r} is folded away: all that it computes is known when the model is rewritten")
    close = nearest(name, [*ids, *known])
    raise GraphfuseError(
        f"the model has no node {name!r}" + (f"; did you mean {close!r}?" if close else "; graphfuse explain MODEL lists them")
    )
