"""Neighbours of the bug reports about arithmetic, extrema, selection, casts and quantisation."""

from __future__ import annotations

import pytest

from tests.families import arithmetic
from tests.families.neighbour import Neighbour, check


@pytest.mark.parametrize("policy", ["auto", "aggressive"])
@pytest.mark.parametrize("case", [n for family in arithmetic.FAMILIES for n in family()], ids=lambda n: n.name)
def test_neighbour(case: Neighbour, policy: str) -> None:
    regions = check(case, policy, "numpy")
    empty = all(x.size == 0 for x in case.runs[0].values())  # no input is read for a result without elements
    assert regions > 0 or policy == "auto" or empty
