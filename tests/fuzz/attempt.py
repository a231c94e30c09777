"""One case through everything: rewritten by both policies, run as ONNX, in NumPy, restored; each compared with what is right."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

import graphfuse
from graphfuse.ir.errors import GraphfuseError
from tests.fuzz.oracle import Expectation, Oracle, Tally, is_limit, own_session, run_by_name
from tests.fuzz.reference import Unsupported, left_alone
from tests.fuzz.strategies import Case, Feeds


@dataclass(frozen=True)
class Finding:
    """Something wrong: ``stage`` is the kind of check that failed, ``text`` what it saw."""

    stage: str
    text: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.text}"


@dataclass
class Account:
    """Counts over many cases; ``skipped`` by reason."""

    graphs: int = 0
    nodes: int = 0
    regions: int = 0
    host: int = 0
    tally: Tally = field(default_factory=Tally)
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, other: Account) -> None:
        """Adds the counts of other cases."""
        self.graphs, self.nodes = self.graphs + other.graphs, self.nodes + other.nodes
        self.regions, self.host = self.regions + other.regions, self.host + other.host
        self.tally.judged += other.tally.judged
        self.tally.unjudged += other.tally.unjudged
        self.skipped.update(other.skipped)

    def __str__(self) -> str:
        total = self.tally.judged + self.tally.unjudged
        skipped = ", ".join(f"{k} {v}" for k, v in self.skipped.most_common())
        return (
            f"{self.graphs} graphs, {self.nodes} nodes, {self.regions} regions, {self.host} on the host device; {total} elements, "
            f"{100 * self.tally.judged / max(1, total):.2f}% judged" + (f"; skipped: {skipped}" if skipped else "")
        )


def attempt(case: Case, account: Account, *, thorough: bool = True) -> Finding | None:
    """The first thing that is wrong with a case, None if nothing is.

    ``thorough``: policy ``auto`` too, and a second rewrite, which must give the same bytes.
    """
    account.graphs += 1
    account.nodes += len(case.model.graph.node)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            oracle = Oracle(case.model)
            wanted = [oracle.expect(feeds, exact=False) for feeds in case.feeds]
        except Unsupported as error:
            account.skipped[f"no reference for {str(error).split('(')[0]}"] += 1
            return None
        except Exception as error:
            if "ShapeInferenceError" in str(error):  # of slices whose steps are inputs, ONNX takes the steps to be 1
                account.skipped["not understood by ONNX"] += 1
                return None
            return Finding("reference", f"{type(error).__name__}: {str(error)[:300]}")
        return next(_findings(case, oracle, wanted, account, thorough), None)


def _findings(case: Case, oracle: Oracle, wanted: list[Expectation], account: Account, thorough: bool) -> Iterator[Finding]:
    seen: dict[str, bytes] = {}
    for policy in ("aggressive", "auto") if thorough else ("aggressive",):
        made = rewritten(case.model, policy)
        if isinstance(made, Finding):
            yield made
            return
        account.regions += len(made.regions)
        text = made.model.SerializeToString(deterministic=True)
        if text not in seen.values():
            yield from _judge_form(made.model, case, expected(oracle, case, made.model, wanted), account)
        seen[policy] = text
    again = rewritten(case.model, "auto") if thorough else None
    if again is not None and (isinstance(again, Finding) or again.model.SerializeToString(deterministic=True) != seen["auto"]):
        yield Finding("determinism", "a second rewrite gives another model")
    if oracle.has_small:
        yield from _exactly(case, oracle, account)


def expected(oracle: Oracle, case: Case, fused: onnx.ModelProto, wanted: list[Expectation]) -> list[Expectation]:
    """``wanted``, or what is right where some nodes are left to ONNX Runtime's kernels."""
    left = left_alone(fused, exact=False)
    return [oracle.expect(feeds, exact=False, left=left) for feeds in case.feeds] if left else wanted


def rewritten(model: onnx.ModelProto, policy: str, *, exact: bool = False) -> graphfuse.Result | Finding:
    """The fused model, or why it could not be made."""
    try:
        made = graphfuse.rewrite(model, policy=policy, exact_rounding=exact)
        made.model  # noqa: B018 (made when it is asked for)
        return made
    except Exception as error:
        return Finding("rewrite", _told(error))


def _told(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:300]} ({where.filename.rpartition('/')[2]}:{where.lineno})"


def _judge_form(fused: onnx.ModelProto, case: Case, wanted: list[Expectation], account: Account) -> Iterator[Finding]:
    try:
        onnx.checker.check_model(fused)
    except onnx.checker.ValidationError as error:
        yield Finding("checker", str(error)[:300])
    yield from _same_in_onnxruntime("portable form", fused, case.feeds, wanted)
    try:
        plain = graphfuse.restore(fused)
    except Exception as error:
        yield Finding("restore", _told(error))
        return
    if any(n.domain == "graphfuse" for n in plain.graph.node):
        yield Finding("restore", "fused nodes are left")
    yield from _same_in_onnxruntime("restored", plain, case.feeds, wanted)
    yield from run_session("numpy", fused, case.feeds, wanted, account)


def _same_in_onnxruntime(stage: str, model: onnx.ModelProto, feeds: Sequence[Feeds], wanted: list[Expectation]) -> Iterator[Finding]:
    """The same kernels in the same order: the same bits, unless ONNX Runtime casts float16 elsewhere."""
    if wanted[0].own is None:
        return
    try:
        ready = own_session(model)
        for given, want in zip(feeds, wanted, strict=True):
            got = run_by_name(ready, given)
            if not all(_identical(want.own[n], got[n]) for n in got):  # type: ignore[index]
                wrong = want.judge(got, Tally())
                if wrong and not want.overflows():
                    yield Finding(stage, wrong)
    except Exception as error:  # ONNX Runtime's errors have no common class
        if not is_limit(error):
            yield Finding(stage, f"{type(error).__name__}: {str(error)[:300]}")


def _identical(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def _exactly(case: Case, oracle: Oracle, account: Account) -> Iterator[Finding]:
    """Small floats rounded after every node, as the model does it."""
    made = rewritten(case.model, "aggressive", exact=True)
    if isinstance(made, Finding):
        yield made
        return
    left = left_alone(made.model, exact=True)
    wanted = [oracle.expect(feeds, exact=True, left=left) for feeds in case.feeds]
    yield from run_session("numpy", made.model, case.feeds, wanted, account, "exact rounding, ")


def run_session(
    device: str, fused: onnx.ModelProto, feeds: Sequence[Feeds], wanted: list[Expectation], account: Account, how: str = ""
) -> Iterator[Finding]:
    """What is wrong with the outputs of our own session on a device."""
    try:
        ready = graphfuse.Session(fused, device)
        for given, want in zip(feeds, wanted, strict=True):
            if want.overflows():
                account.skipped["a float overflows on the way"] += 1
                continue
            got = ready.run(given)
            wrong = want.judge({n: np.asarray(a) for n, a in got.items()}, account.tally)
            if wrong:
                yield Finding(f"{how}{device}", wrong)
    except GraphfuseError as error:
        if not is_limit(error):
            yield Finding(f"{how}{device}", _told(error))
        else:
            account.skipped["unfused nodes without a kernel"] += 1
    except Exception as error:
        yield Finding(f"{how}{device}", _told(error))
