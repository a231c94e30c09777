"""Models made from public bug reports, and all of their neighbours, on CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphfuse.codegen import generate
from graphfuse.ir import loads
from graphfuse.jit import CudaDevice
from graphfuse.match import rewrite_model
from tests.conftest import shared_cases
from tests.families import neighbours
from tests.families.neighbour import check
from tests.reports import check_case


@pytest.mark.parametrize("policy", ["auto", "aggressive"])
@pytest.mark.parametrize("path", shared_cases())
def test_case(path: Path, policy: str) -> None:
    check_case(path, policy, "cuda")


def test_neighbours() -> None:
    """Their kernels are compiled side by side first; each case then finds its own."""
    cases = neighbours()
    specs = dict.fromkeys(r.spec for n in cases for r in rewrite_model(n.model, policy="aggressive").regions)
    CudaDevice().load([generate(loads(s)) for s in specs])
    wrong = {}
    for case in cases:
        try:
            check(case, "aggressive", "cuda")
        except Exception as error:  # all of them are wanted, not the first
            wrong[case.name] = f"{type(error).__name__}: {error}"[:300]
    assert not wrong
