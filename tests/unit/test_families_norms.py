"""Neighbours of the bug reports about norms, softmax and reductions."""

from __future__ import annotations

import pytest

from tests.families import norms
from tests.families.neighbour import Neighbour, check


@pytest.mark.parametrize("policy", ["auto", "aggressive"])
@pytest.mark.parametrize("case", [n for family in norms.FAMILIES for n in family()], ids=lambda n: n.name)
def test_neighbour(case: Neighbour, policy: str) -> None:
    regions = check(case, policy, "numpy")
    assert regions > 0 or policy == "auto"
