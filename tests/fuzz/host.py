"""Cases on the host device: the kernels of a whole batch are compiled together, then run and compared."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np

import graphfuse
from graphfuse.codegen import generate
from graphfuse.ir import loads
from graphfuse.jit import HostDevice
from graphfuse.match.rewrite import FusedRegion
from tests.fuzz.attempt import Account, Finding, rewritten, run_session
from tests.fuzz.oracle import Oracle
from tests.fuzz.reference import Unsupported
from tests.fuzz.strategies import Case


def attempt_on_host(cases: Sequence[Case], account: Account) -> Iterator[tuple[Case, Finding]]:
    """Those of the cases whose kernels are wrong. All regions are fused that may be (policy aggressive)."""
    tried = [(case, rewritten(case.model, "aggressive")) for case in cases]
    made = [(case, result) for case, result in tried if not isinstance(result, Finding)]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            _compile([r for _, result in made for r in result.regions])
        except Exception as error:  # one that does not compile spoils the batch: each by itself
            if len(cases) == 1:
                yield cases[0], Finding("compile", str(error)[:1500])
                return
            for case in cases:
                yield from attempt_on_host([case], account)
            return
        for case, result in made:
            yield from ((case, finding) for finding in _run(case, result, account))


def _compile(regions: Sequence[FusedRegion]) -> None:
    """All kernels, each program once, into the cache that sessions look in."""
    programs = [loads(spec) for spec in dict.fromkeys(r.spec for r in regions)]
    HostDevice().load([generate(p) for p in programs])


def _run(case: Case, result: graphfuse.Result, account: Account) -> Iterator[Finding]:
    try:
        oracle = Oracle(case.model)
    except Unsupported:
        return
    wanted = [oracle.expect(feeds, exact=False) for feeds in case.feeds]
    account.host += 1
    found = next(run_session("host", result.model, case.feeds, wanted, account), None)
    if found:
        yield found
