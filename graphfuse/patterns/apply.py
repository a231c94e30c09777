"""Patterns at work on a graph: what they rewrite, what they recognise, and what comes nearest where they find nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from graphfuse.graph.facts import Facts
from graphfuse.graph.fold import remove_unused
from graphfuse.ir.dtypes import DType
from graphfuse.ir.errors import GraphfuseError
from graphfuse.ir.expr import Shape
from graphfuse.patterns.language import Scene
from graphfuse.patterns.matching import Search
from graphfuse.patterns.pattern import Match, Miss, Pattern, Tape

MAX_ROUNDS = 8


@dataclass
class Recognised:
    """What is where in a graph that stays as it is. No node is in two matches.

    ``nearest`` has the nearest miss of patterns without any, ``absent`` op types that they need and the graph does not have.
    """

    matches: list[Match] = field(default_factory=list)
    nearest: dict[str, Miss] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def of(self, node: ir.Node) -> Match | None:
        """The match that a node is part of."""
        return self._homes.get(node)

    def __post_init__(self) -> None:
        self._homes = {n: m for m in self.matches for n in m.nodes}


def recognise(nodes: Sequence[ir.Node], facts: Facts, patterns: Sequence[Pattern]) -> Recognised:
    """Finds the patterns, in their order, in a graph whose nodes stand in order; every node goes to the first that takes it."""
    search = Search(Scene(facts), nodes)
    matches: list[Match] = []
    claimed: set[ir.Node] = set()
    for pattern in patterns:
        for root in search.roots(pattern):
            match = None if root in claimed else search.at(pattern, root)
            if match is not None and claimed.isdisjoint(match.nodes):
                matches.append(match)
                claimed.update(match.nodes)
    matches.sort(key=lambda m: search.place[m.nodes[-1]])
    found = {m.pattern.name for m in matches}
    return Recognised(matches, {name: miss for name, miss in search.nearest.items() if name not in found}, search.absent)


@dataclass(frozen=True)
class Repair:
    """A place that was rewritten. ``nodes`` are those that make its results now; they may have been rewritten again since."""

    pattern: Pattern
    nodes: tuple[ir.Node, ...]


def rewrite_patterns(model: ir.Model, facts: Facts, patterns: Sequence[Pattern]) -> list[Repair]:
    """Rewrites ``model`` in place, once at each place that patterns with a rewrite fit.

    ``facts`` are out of date afterwards if the result is not empty. What new nodes make is looked at by the next call only.
    Raises GraphfuseError for a rewrite that does not keep its outputs' types and shapes.
    """
    wanted = [p for p in patterns if p.rewrite is not None]
    repairs: list[Repair] = []
    editor = _Editor(model, facts)
    search = Search(Scene(facts), list(model.graph))
    for pattern in wanted:
        for root in search.roots(pattern):
            match = search.at(pattern, root) if root.graph is model.graph and editor.is_known(root) else None
            if match is not None and all(n.graph is model.graph for n in match.nodes):
                repairs += editor.replace(match)
    if repairs:
        remove_unused(model)
        editor.verify()
    return repairs


class _Editor:
    """Puts rewrites in the place of matches."""

    def __init__(self, model: ir.Model, facts: Facts) -> None:
        self.model, self.graph, self.facts = model, model.graph, facts
        self.promised: list[tuple[str, str, DType | None, Shape | None]] = []

    def is_known(self, node: ir.Node) -> bool:
        """Whether the facts speak of the node: it was there before."""
        return all(self.facts.shape(v) is not None for v in node.outputs if v.name)

    def replace(self, match: Match) -> list[Repair]:
        """Builds the rewrite; nothing comes of it where it cannot stand in the graph."""
        if not self._is_acyclic(match):
            return []
        tape = Tape(match.outputs[0].name or "gf", self._value_names, self._node_names)
        assert match.pattern.rewrite is not None
        made = match.pattern.rewrite(match, tape)
        results = [made] if isinstance(made, ir.Value) else list(made)
        if len(results) != len(match.outputs):
            raise GraphfuseError(
                f"pattern {match.pattern.name!r}: its rewrite makes {len(results)} outputs, not {len(match.outputs)}; mend the pattern"
            )
        own = {n.outputs[0] for n in tape.nodes if n not in tape.moved}
        results = [v if v in own and results.index(v) == k else tape.op("Identity", v) for k, v in enumerate(results)]
        for value in tape.constants:
            self.graph.register_initializer(value)
        self._insert(tape, max((n for v in match.outputs if (n := v.producer()) is not None), key=self._place.__getitem__))
        for old, new in zip(match.outputs, results, strict=True):
            self._take_over(match.pattern.name, old, new)
        self._drop(match)
        if len(match.outputs) > 1:
            self.graph.sort()
        return [Repair(match.pattern, tuple(tape.nodes))]

    def _insert(self, tape: Tape, end: ir.Node) -> None:
        """Puts the new nodes before ``end``; nodes that the rewrite wants there and that come earlier stay where they are."""
        before = self._place[end]
        early = {n for n in tape.moved if self._place[n] < before}
        self.graph.remove([n for n in tape.moved if n not in early])
        self.graph.insert_before(end, [n for n in tape.nodes if n not in early])
        self._place.update((n, before - 0.5) for n in tape.nodes if n not in early)

    def _take_over(self, pattern: str, old: ir.Value, new: ir.Value) -> None:
        """Gives the new value the old one's name and readers."""
        self.promised.append((pattern, old.name or "", self.facts.dtype(old), self.facts.shape(old)))
        name, old.name = old.name, None
        new.name, new.type, new.shape = name, old.type, old.shape
        ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)

    def _drop(self, match: Match) -> None:
        """Removes the matched nodes that nothing reads any more, the last ones first."""
        for node in reversed(match.nodes):
            if not any(v.uses() or v.is_graph_output() for v in node.outputs):
                self.graph.remove(node, safe=True)

    def _is_acyclic(self, match: Match) -> bool:
        """Whether no input of a match with several outputs depends on one of these."""
        if len(match.outputs) == 1:
            return True
        inside, ends = set(match.nodes), {v.producer() for v in match.outputs}
        first = min(self._place[n] for n in match.nodes)
        pending = [v.producer() for n in inside for v in n.inputs if v is not None and v.producer() not in inside]
        seen: set[ir.Node] = set()
        while pending:
            node = pending.pop()
            if node is None or node in seen or self._place.get(node, first) < first:
                continue
            if node in ends:
                return False
            seen.add(node)
            pending += [v.producer() for v in node.inputs if v is not None]
        return True

    def verify(self) -> None:
        """Raises GraphfuseError unless the outputs of all rewrites have the types and shapes of what they replaced."""
        facts = Facts(self.model)
        values = {v.name: v for node in self.graph for v in node.outputs}
        for pattern, name, dtype, shape in self.promised:
            value = values.get(name)
            now = (dtype, shape) if value is None else (facts.dtype(value), facts.shape(value))
            if now[0] != dtype or not _may_equal(now[1], shape):
                texts = [f"{d}{list(s or ())}" for d, s in (now, (dtype, shape))]
                raise GraphfuseError(f"pattern {pattern!r}: its rewrite makes {name!r} {texts[0]}, not {texts[1]}; mend the pattern")

    @property
    def _place(self) -> dict[ir.Node, float]:
        if not hasattr(self, "_places"):
            self._places = {node: float(i) for i, node in enumerate(self.graph)}
        return self._places

    @property
    def _value_names(self) -> set[str]:
        if not hasattr(self, "_values"):
            self._values = {v.name or "" for n in self.graph.all_nodes() for v in n.outputs}
            self._values |= {v.name or "" for v in self.graph.inputs} | set(self.graph.initializers)
        return self._values

    @property
    def _node_names(self) -> set[str]:
        if not hasattr(self, "_nodes"):
            self._nodes = {n.name or "" for n in self.graph.all_nodes()}
        return self._nodes


def _may_equal(now: Shape | None, before: Shape | None) -> bool:
    """Whether two shapes agree as far as they are numbers."""
    if now is None or before is None:
        return now is before
    pairs = zip(now, before, strict=False)
    return len(now) == len(before) and all(a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in pairs)


def words(nodes: Sequence[ir.Node], recognised: Recognised | None) -> list[str]:
    """What a set of nodes is made of: the labels of the patterns that are wholly in it, op types of what else there is."""
    inside = set(nodes)
    said: set[int] = set()
    made: list[str] = []
    for node in nodes:
        match = recognised.of(node) if recognised else None
        if match is None or not inside.issuperset(match.nodes):
            made.append(node.op_type)
        elif id(match) not in said:
            said.add(id(match))
            made.append(match.pattern.label or match.pattern.name)
    return made
