"""Merging groups of nodes without closing a cycle."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfuse.match.convex import Clusters, CycleError


def shrunken_edges(preds: list[list[int]], groups: list[list[int]]) -> tuple[dict[int, int], set[tuple[int, int]]]:
    home = {n: k for k, g in enumerate(groups) for n in g}
    return home, {(home[p], home[n]) for n, needed in enumerate(preds) for p in needed if home[p] != home[n]}


def has_cycle(edges: set[tuple[int, int]]) -> bool:
    left = set(edges)
    while left:
        targets = {b for _, b in left}
        smaller = {(a, b) for a, b in left if a in targets}
        if smaller == left:
            return True
        left = smaller
    return False


@st.composite
def dags(draw: st.DrawFn) -> list[list[int]]:
    size = draw(st.integers(2, 14))
    return [sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(size)]


@settings(max_examples=300)
@given(dags(), st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13)), max_size=25))
def test_merges_are_taken_exactly_when_they_close_no_cycle(preds: list[list[int]], pairs: list[tuple[int, int]]) -> None:
    clusters = Clusters(preds)
    groups = [[i] for i in range(len(preds))]
    for a, b in ((a % len(preds), b % len(preds)) for a, b in pairs):
        if clusters.find(a) == clusters.find(b):
            continue
        mine = next(g for g in groups if a in g)
        other = next(g for g in groups if b in g)
        trial = [g for g in groups if g not in (mine, other)] + [sorted(mine + other)]
        legal = not has_cycle(shrunken_edges(preds, trial)[1])
        assert clusters.can_merge(a, b) is legal
        if legal:
            clusters.merge(a, b)
            groups = trial
        else:
            with pytest.raises(CycleError):
                clusters.merge(a, b)
        roots = clusters.roots()
        assert sorted(map(tuple, groups)) == sorted(tuple(clusters.members[r]) for r in roots)
        place = {r: k for k, r in enumerate(roots)}
        assert all(place[clusters.find(p)] <= place[clusters.find(n)] for n, needed in enumerate(preds) for p in needed)


@settings(max_examples=100)
@given(dags(), st.data())
def test_groups_to_start_with_are_checked(preds: list[list[int]], data: st.DataObject) -> None:
    labels = [data.draw(st.integers(0, 4)) for _ in preds]
    groups = [[i for i, own in enumerate(labels) if own == label] for label in range(5)]
    groups = [g for g in groups if g]
    if has_cycle(shrunken_edges(preds, groups)[1]):
        with pytest.raises(CycleError):
            Clusters(preds, groups)
    else:
        assert sorted(tuple(Clusters(preds, groups).members[r]) for r in Clusters(preds, groups).roots()) == sorted(map(tuple, groups))


def test_a_long_chain_merges_in_linear_work() -> None:
    size = 20_000
    clusters = Clusters([[i - 1] if i else [] for i in range(size)])
    for i in itertools.islice(range(1, size), 0, None, 2):
        clusters.merge(i - 1, i)
    assert len(clusters.roots()) == size // 2


def test_the_diamond_with_a_wall_stays_open() -> None:
    #   0 -> wall 1 -> 2,  0 -> 2
    clusters = Clusters([[], [0], [0, 1]])
    assert not clusters.can_merge(0, 2)
    assert clusters.can_merge(0, 1)
