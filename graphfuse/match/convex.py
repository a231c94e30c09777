"""Groups of nodes that may be merged without closing a cycle.

A fused region is one node of the rewritten graph, so a set of regions is legal exactly when the graph in which every
region is shrunk to a point has no cycle. ``Clusters`` keeps a topological order of that shrunken graph up to date while
groups merge (the method of Pearce and Kelly): whether a merge closes a cycle, and the repair of the order after it,
look only at the stretch of the order between the two groups.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

SEARCH_LIMIT = 20_000  # clusters looked at for one merge before it is given up


class CycleError(ValueError):
    """The groups cannot each become one node: they need each other."""


class Clusters:
    """A partition of the nodes ``0..n-1`` of a graph without cycles; a cluster goes by any of its nodes."""

    def __init__(self, preds: Sequence[Iterable[int]], groups: Iterable[Iterable[int]] = ()) -> None:
        """``preds[i]`` are the nodes that node ``i`` needs. Raises CycleError if the ``groups`` to start with need each other."""
        self._parent = list(range(len(preds)))
        self.members: list[list[int]] = [[i] for i in range(len(preds))]
        for group in groups:
            first, *rest = sorted(set(group))
            for other in rest:
                self._parent[other] = first
                self.members[first].append(other)
        self._preds: list[set[int]] = [set() for _ in preds]
        self._succs: list[set[int]] = [set() for _ in preds]
        for node, needed in enumerate(preds):
            for p in needed:
                a, b = self.find(p), self.find(node)
                if a != b:
                    self._preds[b].add(a)
                    self._succs[a].add(b)
        self._order = self._topological_order()

    def find(self, node: int) -> int:
        """The cluster of ``node``, as its representative."""
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def roots(self) -> list[int]:
        """All clusters, in topological order."""
        return sorted((i for i in range(len(self._parent)) if self._parent[i] == i), key=lambda r: self._order[r])

    def preds(self, cluster: int) -> set[int]:
        """The clusters that ``cluster`` needs."""
        return self._resolved(self._preds, cluster)

    def succs(self, cluster: int) -> set[int]:
        """The clusters that need ``cluster``."""
        return self._resolved(self._succs, cluster)

    def can_merge(self, a: int, b: int) -> bool:
        """Whether no path from one cluster to the other leads through a third (False as well if the search takes too long)."""
        return self._between(*self._sorted(a, b)) is not None

    def merge(self, a: int, b: int) -> int:
        """Makes one cluster of two that ``can_merge``; returns it. Raises CycleError otherwise."""
        low, high = self._sorted(a, b)
        before = self._between(low, high)
        if before is None:
            raise CycleError("a path leads from one group out and into the other")
        after = self._walk(self._succs, low, high, lambda order: order < self._order[high])
        assert after is not None
        slots = sorted(self._order[c] for c in (*before, low, high, *after))
        by_order = lambda c: self._order[c]  # noqa: E731
        arranged = [*sorted(before, key=by_order), low, *sorted(after, key=by_order)]
        for cluster, slot in zip(arranged, [*slots[: len(before)], slots[len(before)], *slots[len(before) + 2 :]], strict=True):
            self._order[cluster] = slot
        self._join(low, high)
        return low

    def _join(self, kept: int, gone: int) -> None:
        for table in (self._preds, self._succs):
            table[kept], table[gone] = table[kept] | table[gone], set()
        self._parent[gone] = kept
        self.members[kept] = sorted(self.members[kept] + self.members[gone])
        self.members[gone] = []

    def _sorted(self, a: int, b: int) -> tuple[int, int]:
        a, b = self.find(a), self.find(b)
        return (a, b) if self._order[a] < self._order[b] else (b, a)

    def _resolved(self, table: list[set[int]], cluster: int) -> set[int]:
        cluster = self.find(cluster)
        fresh = {self.find(c) for c in table[cluster]} - {cluster}
        table[cluster] = fresh
        return fresh

    def _between(self, low: int, high: int) -> list[int] | None:
        """Ancestors of ``high`` that stand after ``low``; None if one of them needs ``low``."""
        found = self._walk(self._preds, high, low, lambda order: order > self._order[low])
        if found is None or any(low in self.preds(c) for c in found):
            return None
        return found

    def _walk(self, table: list[set[int]], start: int, skip: int, inside: Callable[[int], bool]) -> list[int] | None:
        found: set[int] = set()
        stack = [start]
        while stack:
            for cluster in self._resolved(table, stack.pop()):
                if cluster != skip and cluster not in found and inside(self._order[cluster]):
                    found.add(cluster)
                    stack.append(cluster)
            if len(found) > SEARCH_LIMIT:
                return None
        return list(found)

    def _topological_order(self) -> list[int]:
        roots = [i for i in range(len(self._parent)) if self._parent[i] == i]
        waiting = {r: len(self._preds[r]) for r in roots}
        ready = [r for r in roots if not waiting[r]]
        order = [0] * len(self._parent)
        heapq.heapify(ready)
        for place in range(len(roots)):
            if not ready:
                raise CycleError("the groups need each other")
            cluster = heapq.heappop(ready)
            order[cluster] = place
            for follower in self._succs[cluster]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    heapq.heappush(ready, follower)
        return order
