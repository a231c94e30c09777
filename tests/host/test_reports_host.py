"""Models made from public bug reports, and a fixed tenth of their neighbours, on the host device."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphfuse.codegen import generate
from graphfuse.ir import loads
from graphfuse.jit import HostDevice
from graphfuse.match import rewrite_model
from tests.conftest import shared_cases
from tests.families import neighbours
from tests.families.neighbour import check
from tests.reports import check_case


@pytest.mark.parametrize("policy", ["auto", "aggressive"])
@pytest.mark.parametrize("path", shared_cases())
def test_case(path: Path, policy: str) -> None:
    check_case(path, policy, "host")


def test_a_tenth_of_the_neighbours() -> None:
    """Their kernels are compiled together first; each case then finds its own."""
    sample = [n for n in neighbours() if n.part == 0]
    assert len(sample) > 50
    specs = dict.fromkeys(r.spec for n in sample for r in rewrite_model(n.model, policy="aggressive").regions)
    HostDevice().load([generate(loads(s)) for s in specs])
    for case in sample:
        check(case, "aggressive", "host")
