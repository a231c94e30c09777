"""Random graphs as kernels on the CPU; the kernels of a batch are compiled together."""

from __future__ import annotations

import pytest

from tests.fuzz.attempt import Account
from tests.fuzz.host import attempt_on_host
from tests.fuzz.strategies import first_cases


@pytest.mark.parametrize("seed", [100, 101, 102])
def test_random_graphs_on_the_host_device(seed: int) -> None:
    account = Account()
    cases = first_cases(seed, 50)
    failed = [f"case {cases.index(case)} of seed {seed}: {finding}" for case, finding in attempt_on_host(cases, account)]
    assert not failed, "\n".join(failed)
    assert account.host > 35
