"""Neighbours of the bug-report cases: the same traps at other ranks, axes, element types and opsets."""

from __future__ import annotations

from tests.families import arithmetic, norms, structure
from tests.families.neighbour import Neighbour


def neighbours() -> list[Neighbour]:
    """All of them."""
    return [n for part in (norms, arithmetic, structure) for family in part.FAMILIES for n in family()]
