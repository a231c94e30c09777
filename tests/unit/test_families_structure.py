"""Neighbours of the bug reports about slices, concats, outputs, bodies, names, cycles and run-time sizes."""

from __future__ import annotations

import pytest

from graphfuse.match import rewrite_model
from tests.families import structure
from tests.families.neighbour import Neighbour, check, neighbour, rand
from tests.texts import rules


@pytest.mark.parametrize("policy", ["auto", "aggressive"])
@pytest.mark.parametrize("case", [n for family in structure.FAMILIES for n in family()], ids=lambda n: n.name)
def test_neighbour(case: Neighbour, policy: str) -> None:
    check(case, policy, "numpy")


@pytest.mark.parametrize("end", [structure.HIGH, (1 << 31) - 1])
def test_backward_slices_to_int_max_are_refused(end: int) -> None:
    weights = f"int64[1] s = {{4}}, int64[1] e = {{{end}}}, int64[1] a = {{1}}, int64[1] p = {{-1}}"
    case = neighbour("slice", "n = Neg (x); y = Slice (n, s, e, a, p)", {"x": rand(2, 5)}, weights=weights)
    assert "ambiguous" in rules(rewrite_model(case.model, policy="aggressive"))
