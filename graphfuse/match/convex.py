"""Groups of nodes that may be merged without closing a cycle.

A fused region is one node of the rewritten graph, so a set of regions is legal exactly when the graph in which every
region is shrunk to a point has no cycle. ``Clusters`` keeps a topological order of that shrunken graph up to date while
groups merge (the method of Pearce and Kelly): whether a merge closes a cycle, and the repair of the order after it,
look only at the stretch of the order between the two groups. A path between them is looked for from both ends at once,
the longest steps first: a mask that all layers read stands far before the last of them, and the way there is short.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

SEARCH_LIMIT = 20_000  # places in the order between two groups; those that are further apart are not merged


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
        """Whether no path from one cluster to the other leads through a third (False as well if they are very far apart)."""
        low, high = self._sorted(a, b)
        return self._order[high] - self._order[low] <= SEARCH_LIMIT and not self._has_detour(low, high)

    def merge(self, a: int, b: int) -> int:
        """Makes one cluster of two that ``can_merge``; returns it. Raises CycleError otherwise."""
        low, high = self._sorted(a, b)
        if self._has_detour(low, high):
            raise CycleError("a path leads from one group out and into the other")
        before = self._walk(self._preds, high, low, lambda order: order > self._order[low])
        after = self._walk(self._succs, low, high, lambda order: order < self._order[high])
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

    def _has_detour(self, low: int, high: int) -> bool:
        """Whether a path from ``low`` to ``high`` leads through another cluster. The search ends when either side has no way on."""
        start, end = self._order[low], self._order[high]
        found: tuple[set[int], set[int]] = ({low}, {high})
        heaps: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])

        def step(side: int, cluster: int) -> bool:
            """Enters the neighbours of ``cluster`` into one side's search; True if the other side has been at one of them."""
            fresh = self._resolved(self._preds if side else self._succs, cluster) - found[side]
            if cluster in (low, high):
                fresh -= {low, high}
            elif not found[1 - side].isdisjoint(fresh):
                return True
            for other in fresh:
                if start < self._order[other] < end:
                    found[side].add(other)
                    heapq.heappush(heaps[side], (self._order[other] * (1 if side else -1), other))
            return False

        step(0, low)
        step(1, high)
        if found[0] & found[1]:
            return True
        while heaps[0] and heaps[1]:
            if any(heaps[side] and step(side, heapq.heappop(heaps[side])[1]) for side in (0, 1)):
                return True
        return False

    def _walk(self, table: list[set[int]], start: int, skip: int, inside: Callable[[int], bool]) -> list[int]:
        found: set[int] = set()
        stack = [start]
        while stack:
            for cluster in self._resolved(table, stack.pop()):
                if cluster != skip and cluster not in found and inside(self._order[cluster]):
                    found.add(cluster)
                    stack.append(cluster)
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
