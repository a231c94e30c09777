"""Region growing: which nodes become one kernel together.

Nodes are taken in topological order, and each joins the groups of its producers, the latest one first, wherever no cycle
closes. A first sweep merges all that could go together and checks whole groups; the groups that cannot be one
kernel are grown again with a check at each step, so that they fall apart where the reason is. Layers that repeat
cost one check each, and nothing is looked at pair by pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from graphfuse.lower import Lowered, NodeRefused
from graphfuse.match.convex import Clusters
from graphfuse.match.flow import Flow
from graphfuse.match.legal import MAX_NODES, Legality
from graphfuse.match.small_ops import costs_a_kernel


@dataclass(frozen=True)
class Region:
    """Nodes (positions, sorted) that become one kernel, and their program."""

    members: tuple[int, ...]
    lowered: Lowered


@dataclass
class Growth:
    """What growing found. ``apart`` holds, for pairs of neighbouring nodes, why their groups were not merged."""

    regions: list[Region] = field(default_factory=list)
    refused: dict[int, NodeRefused] = field(default_factory=dict)
    apart: dict[tuple[int, int], NodeRefused] = field(default_factory=dict)


def grow(flow: Flow, candidates: Iterable[int], legality: Legality) -> Growth:
    """Regions of the ``candidates`` (positions), in graph order; legal together: shrunk to points they leave no cycle."""
    growth = Growth()
    wanted = set(candidates)
    groups = _Merger(flow, wanted, growth, [], None).run()
    good = [g for g in groups if isinstance(legality.check(g), Lowered)]
    kept = {i for g in good for i in g}
    home = {i: k for k, g in enumerate(groups) for i in g if i not in kept}
    stepwise = _Merger(flow, set(home), growth, good, legality, home)
    stepwise.run()
    groups = _Merger(flow, wanted, growth, [g for g in [*good, *stepwise.groups()] if len(g) > 1], legality).settle()
    for members in groups:
        answer = legality.check(members)
        if isinstance(answer, Lowered):
            growth.regions.append(Region(members, answer))
        else:
            growth.refused.update(dict.fromkeys(members, answer))
    growth.regions.sort(key=lambda r: r.members)
    return growth


class _Merger:
    """Merges groups; with a ``legality`` every merge is checked, with ``home`` only nodes of one home merge."""

    def __init__(
        self,
        flow: Flow,
        wanted: set[int],
        growth: Growth,
        groups: Sequence[Sequence[int]],
        legality: Legality | None,
        home: dict[int, int] | None = None,
    ) -> None:
        self.flow = flow
        self.wanted = wanted
        self.growth = growth
        self.legality = legality
        self.home = home
        self.clusters = Clusters(flow.preds, groups)

    def run(self) -> list[tuple[int, ...]]:
        """One sweep in topological order; returns the groups."""
        for node in sorted(self.wanted):
            for producer in sorted((p for p in self.flow.preds[node] if p in self.wanted), reverse=True):
                self.try_merge(producer, node)
        return self.groups()

    def settle(self) -> list[tuple[int, ...]]:
        """Merges neighbouring groups, then groups that read one value, until nothing more goes together."""
        while self._sweep(self._neighbours) or self._sweep(self._siblings):
            pass
        return self.groups()

    def groups(self) -> list[tuple[int, ...]]:
        """The groups of wanted nodes, in graph order."""
        roots = dict.fromkeys(self.clusters.find(i) for i in sorted(self.wanted))
        return [tuple(self.clusters.members[r]) for r in roots]

    def _sweep(self, pairs: Callable[[], list[tuple[int, int]]]) -> bool:
        merged = [self.try_merge(a, b) for a, b in pairs()]
        return any(merged)

    def _neighbours(self) -> list[tuple[int, int]]:
        return [(p, i) for i in sorted(self.wanted) for p in sorted(self.flow.preds[i], reverse=True) if p in self.wanted]

    def _siblings(self) -> list[tuple[int, int]]:
        pairs: list[tuple[int, int]] = []
        for readers in self.flow.shared_readers():
            inside = [r for r in readers if r in self.wanted and self._costs(r)]
            pairs += pairwise(inside)
        return pairs

    def _costs(self, node: int) -> bool:
        """Whether the node's group has a kernel to save; views alone would only add a result to write."""
        return any(costs_a_kernel(self.flow.nodes[i]) for i in self.clusters.members[self.clusters.find(node)])

    def try_merge(self, a: int, b: int) -> bool:
        """Merges the groups of two nodes if that is legal; the reason is kept if not."""
        x, y = self.clusters.find(a), self.clusters.find(b)
        if x == y or (self.home is not None and self.home[a] != self.home[b]) or self.flow.scope[a] != self.flow.scope[b]:
            return False
        members = tuple(sorted(self.clusters.members[x] + self.clusters.members[y]))
        refused = self._refusal(x, y, members)
        if refused is None:
            self.clusters.merge(x, y)
            self.growth.apart.pop((a, b), None)
            return True
        self.growth.apart[a, b] = refused
        return False

    def _refusal(self, x: int, y: int, members: tuple[int, ...]) -> NodeRefused | None:
        if len(members) > MAX_NODES:
            return NodeRefused("too-large", f"together they have {len(members)} nodes, more than the {MAX_NODES} of one region")
        if not self.clusters.can_merge(x, y):
            return NodeRefused("not-convex", "a path from one to the other leads through nodes that are not fused")
        if self.legality is None:
            return None
        answer = self.legality.check(members)
        return answer if isinstance(answer, NodeRefused) else None
