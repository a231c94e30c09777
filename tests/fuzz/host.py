"""Cases on the host device: the kernels of a whole batch are compiled together, then run and compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from typing import TypeVar

import numpy as np

import graphfuse
from graphfuse.codegen import generate
from graphfuse.ir import loads
from graphfuse.jit import HostDevice
from graphfuse.match.rewrite import FusedRegion
from tests.fuzz.attempt import Account, Finding, expected, rewritten, run_session
from tests.fuzz.oracle import Oracle
from tests.fuzz.reference import Unsupported
from tests.fuzz.strategies import Case

T = TypeVar("T")


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
        for case, finding in _run_apart(made, account):
            yield case, finding


def _run_apart(made: Sequence[tuple[Case, graphfuse.Result]], account: Account) -> Iterator[tuple[Case, Finding]]:
    """Runs the cases in a process of their own, as a kernel that reads where it must not ends the process; then each by itself."""
    done = _apart(lambda: _run_all(made))
    if not isinstance(done, int):
        own, found = done
        account.add(own)
        yield from ((made[k][0], finding) for k, finding in found)
    elif len(made) == 1:
        yield made[0][0], Finding("crash", f"its kernels end the process by signal {done}")
    else:
        for one in made:
            yield from _run_apart([one], account)


def _run_all(made: Sequence[tuple[Case, graphfuse.Result]]) -> tuple[Account, list[tuple[int, Finding]]]:
    own = Account()
    return own, [(k, finding) for k, (case, result) in enumerate(made) for finding in _run(case, result, own)]


def _apart(run: Callable[[], T]) -> T | int:
    """What ``run`` gives in a fork of this process; the signal that ended it, if one did."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(run()))
    child.start()
    sender.close()
    try:
        given = receiver.recv()
    except EOFError:
        given = None
    child.join()
    return given if given is not None else -(child.exitcode or 0)


def _compile(regions: Sequence[FusedRegion]) -> None:
    """All kernels, each program once, into the cache that sessions look in."""
    programs = [loads(spec) for spec in dict.fromkeys(r.spec for r in regions)]
    HostDevice().load([generate(p) for p in programs])


def _run(case: Case, result: graphfuse.Result, account: Account) -> Iterator[Finding]:
    try:
        oracle = Oracle(case.model)
    except Unsupported:
        return
    wanted = expected(oracle, case, result.model, [oracle.expect(feeds, exact=False) for feeds in case.feeds])
    account.host += 1
    found = next(run_session("host", result.model, case.feeds, wanted, account), None)
    if found:
        yield found
