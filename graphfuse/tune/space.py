"""The configurations that are worth trying for a program, each with its source; the first is the one by rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from graphfuse.codegen import KernelSource, generate
from graphfuse.codegen.config import BY_RULE, WARP, Config
from graphfuse.ir import Program
from graphfuse.schedule.kernel import Pointwise, plan

LANES = (None, 1, 2, 4, 8, 16)
THREADS = (128, 256, 512, 1024)
ITEMS = (1, 2, 4)
TEAMS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CLUSTERS = (2, 4, 8)
MOST = 96


@dataclass(frozen=True)
class Candidate:
    """A configuration and the kernel that it makes."""

    config: Config
    source: KernelSource


def candidates(program: Program, most: int = MOST) -> list[Candidate]:
    """At most so many candidates with different kernels. Raises Refused when the program is not one kernel."""
    found = {(default := generate(program)).text: Candidate(BY_RULE, default)}
    for config in _configurations(program):
        if len(found) == most:
            break
        source = generate(program, config)
        found.setdefault(source.text, Candidate(config, source))
    return list(found.values())


def _configurations(program: Program) -> Iterator[Config]:
    """Narrow wishes first: each alone, then together, so that a bound cuts off what is least likely."""
    segments = plan(program).segments
    pointwise, rows = ([s for s in segments if isinstance(s, Pointwise) is wanted] for wanted in (True, False))
    items = ITEMS if pointwise else (None,)
    teams = TEAMS if rows else (None,)
    if rows and len(segments) == 1:
        for cluster, block in product(CLUSTERS, THREADS):
            yield Config(team=block, cluster=cluster)
    for lanes in LANES:
        for count, team, threads in product(items, teams, THREADS):
            if team is None or team <= WARP or threads == THREADS[0] or pointwise:  # a larger team is its own block
                yield Config(lanes, count, threads if team is None or team <= WARP or pointwise else None, team)
