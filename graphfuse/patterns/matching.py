"""Looks for patterns: goals on a stack, and a way back to every choice. What comes nearest is kept when nothing fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Union

import onnx_ir as ir

from graphfuse.patterns.language import Either, Found, Goal, Matcher, Maybe, Offence, Op, Scene, Times
from graphfuse.patterns.pattern import Match, Miss, Pattern, as_match

MAX_STEPS = 4000  # questions at one place; no pattern of ours needs a tenth
_FARTHEST = 24  # nodes on the way down to a further output

_Goals = Union[tuple[Goal, "_Goals"], None]


@dataclass
class Search:
    """A search through one graph, whose facts are ``scene``'s.

    ``nearest`` holds the best near miss of each pattern, ``absent`` op types that it needs and the graph does not have.
    """

    scene: Scene
    nodes: Sequence[ir.Node]
    nearest: dict[str, Miss] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = {node: i for i, node in enumerate(self.nodes)}
        self.by_type: dict[str, list[ir.Node]] = {}
        for node in self.nodes:
            if node.domain in ("", "ai.onnx"):
                self.by_type.setdefault(node.op_type, []).append(node)

    def roots(self, pattern: Pattern) -> list[ir.Node]:
        """Nodes at which the pattern may end, the last ones first, so that the longest form of it is found."""
        missing = sorted(t for m in pattern.roots for t in needed_types(m) if t not in self.by_type)
        if missing:
            self.absent[pattern.name] = " and no ".join(dict.fromkeys(missing))
            return []
        types = root_types(pattern.roots[0])
        found = self.nodes if types is None else [n for t in sorted(types) for n in self.by_type.get(t, ())]
        return sorted(found, key=lambda n: -self.place[n])

    def at(self, pattern: Pattern, root: ir.Node) -> Match | None:
        """The match whose first output ``root`` makes; else None, and the miss is kept if it is the nearest."""
        for value in root.outputs[:4]:
            for found in self._solve(pattern, pattern.roots[0], value, Found(), root):
                match = self._with_outputs(pattern, [value], found, root)
                if match is not None:
                    return match
        return None

    def _with_outputs(self, pattern: Pattern, outputs: list[ir.Value], found: Found, root: ir.Node) -> Match | None:
        """Looks for the further outputs downstream of what is matched, then asks the check."""
        if len(outputs) == len(pattern.roots):
            return self._checked(pattern, outputs, found, root)
        wanted = pattern.roots[len(outputs)]
        for value in self._downstream(found, wanted):
            if value not in outputs:
                for more in self._solve(pattern, wanted, value, found, root):
                    match = self._with_outputs(pattern, [*outputs, value], more, root)
                    if match is not None:
                        return match
        return None

    def _downstream(self, found: Found, wanted: Matcher) -> list[ir.Value]:
        """Outputs of nodes of the wanted kind, a few nodes below what is matched."""
        types = root_types(wanted)
        front = [v for n in found.nodes for v in (*n.outputs, *n.inputs) if v is not None]
        seen: dict[ir.Node, None] = {}
        for _ in range(min(depth(wanted), _FARTHEST)):
            fresh = [u.node for v in front for u in v.uses() if u.node in self.place and u.node not in seen]
            seen.update(dict.fromkeys(fresh))
            front = [v for n in dict.fromkeys(fresh) for v in n.outputs]
        nodes = sorted((n for n in seen if types is None or n.op_type in types), key=lambda n: self.place[n])
        return [v for n in nodes for v in n.outputs]

    def _checked(self, pattern: Pattern, outputs: list[ir.Value], found: Found, root: ir.Node) -> Match | None:
        wrong: Offence | str | None = self._not_private(found, outputs)
        match = as_match(pattern, found, outputs, self.scene.facts, self.place)
        if wrong is None and pattern.check is not None:
            wrong = pattern.check(match)
        if wrong is None:
            return match
        self._missed(pattern, found, Offence(wrong) if isinstance(wrong, str) else wrong, root, MAX_STEPS)
        return None

    def _not_private(self, found: Found, outputs: Sequence[ir.Value]) -> Offence | None:
        inside = set(found.nodes)
        for node in found.nodes:
            for value in node.outputs if node not in found.shared else ():
                if value in outputs:
                    continue
                reader = next((u.node for u in value.uses() if u.node not in inside), None)
                if reader is not None or value.is_graph_output():
                    who = "the model's outputs" if reader is None else reader.name or reader.op_type
                    return Offence(f"{value.name!r}, an inner value, is also read by {who}", node)
        return None

    def _solve(self, pattern: Pattern, matcher: Matcher, value: ir.Value, start: Found, root: ir.Node) -> Iterator[Found]:
        """Every way to match, found on demand."""
        stack: list[tuple[_Goals, Found, int]] = [(((matcher, value), None), start, 0)]
        for _ in range(MAX_STEPS):
            if not stack:
                return
            goals, found, fitted = stack.pop()
            if goals is None:
                yield found
                continue
            (wanted, at), rest = goals
            answer = wanted.steps(at, found, self.scene)
            if isinstance(answer, Offence):
                self._missed(pattern, found, answer, root, fitted)
            else:
                stack += [(_before(new, rest), state, fitted + 1) for new, state in reversed(answer)]

    def _missed(self, pattern: Pattern, found: Found, offence: Offence, root: ir.Node, fitted: int) -> None:
        """Keeps the miss if more nodes matched than in any before, or as many and more questions were answered."""
        best = self.nearest.get(pattern.name)
        if found.nodes and (best is None or (len(found.nodes), fitted) > (best.matched, best.fitted)):
            node = offence.node or found.nodes[-1]
            self.nearest[pattern.name] = Miss(pattern.name, root, node, offence.reason, len(found.nodes), fitted)


def _before(new: Sequence[Goal], rest: _Goals) -> _Goals:
    for goal in reversed(new):
        rest = (goal, rest)
    return rest


def root_types(matcher: Matcher) -> frozenset[str] | None:
    """The op types that a matcher can begin at; None for any."""
    if isinstance(matcher, Op):
        return matcher.op_types
    if isinstance(matcher, Times):
        return frozenset({"Mul", "Div", "Pow"})
    ways = matcher.ways if isinstance(matcher, Either) else (matcher.through, matcher.inner) if isinstance(matcher, Maybe) else None
    if ways is None:
        return None
    types = [root_types(way) for way in ways]
    return None if None in types else frozenset(t for found in types for t in found or ())


@lru_cache(maxsize=4096)
def needed_types(matcher: Matcher) -> frozenset[str]:
    """The op types that every way to match has nodes of."""
    match matcher:
        case Op():
            own = matcher.op_types if len(matcher.op_types) == 1 else frozenset()
            return own.union(*(needed_types(i) for i in matcher.inputs))
        case Either():
            return frozenset.intersection(*(needed_types(way) for way in matcher.ways))
        case Maybe():
            return needed_types(matcher.inner)
        case Times():
            return frozenset().union(*(needed_types(f) for f in matcher.factors))
    return frozenset()


@lru_cache(maxsize=4096)
def depth(matcher: Matcher) -> int:
    """The nodes on the longest path through a matcher, at most."""
    match matcher:
        case Op():
            return 1 + max((depth(i) for i in matcher.inputs), default=0)
        case Either():
            return max(depth(way) for way in matcher.ways)
        case Maybe():
            return 1 + depth(matcher.inner)
        case Times():
            return len(matcher.factors) + 1 + max((depth(f) for f in matcher.factors), default=0)
    return 0
