"""One case through the rewriter, and then through a device."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir

from graphfuse.graph.facts import constant_tensor
from graphfuse.graph.load import load_model
from graphfuse.ir import GraphfuseError, Program, loads
from graphfuse.ir.dtypes import from_numpy
from graphfuse.match.rewrite import rewrite_model
from graphfuse.ops.table import lookup
from graphfuse.session import Session
from graphfuse.session.fused import is_fused
from tests.conformance.cases import Case
from tests.conformance.judge import difference

PASSED, FOLDED, REFUSED, FAILED = "passed", "folded", "refused", "failed"


@dataclass(frozen=True)
class Attempt:
    """A case and what the rewriter made of it.

    ``state`` is ``passed`` as long as nothing speaks against it (every node is fused), ``folded`` (the outputs are constants: the
    data are not read), ``refused`` or ``failed``; ``reason`` says why it is one of the last two, ``rule: text`` for a refusal.
    """

    case: Case
    state: str
    reason: str = ""
    model: onnx_ir.Model | None = None
    programs: tuple[Program, ...] = ()


def attempt(case: Case) -> Attempt:
    """The case rewritten with policy ``aggressive``, which takes single ops too."""
    foreign = _foreign_type(case)
    if foreign:
        return Attempt(case, REFUSED, f"dtype: {foreign}")
    try:
        rewritten = rewrite_model(load_model(case.model), policy="aggressive")
    except GraphfuseError as error:
        return Attempt(case, REFUSED, f"not-loaded: {error}")
    except Exception as error:  # a fault of ours
        return Attempt(case, FAILED, f"rewrite: {type(error).__name__}: {str(error)[:200]}")
    model = rewritten.model
    left = [n for n in model.graph if not is_fused(n)]
    programs = tuple(loads(r.spec) for r in rewritten.regions)
    if left and all(n.op_type == "Constant" for n in left) and not programs:
        return Attempt(case, FOLDED, "", model)
    if left:
        return Attempt(case, REFUSED, _why(left, rewritten.refusals), model, programs)
    return Attempt(case, PASSED, "", model, programs)


def _foreign_type(case: Case) -> str:
    """An element type that programs cannot hold, or a value that is no tensor."""
    for data in case.data:
        for value in (*data.feeds.values(), *data.wanted):
            if value is None or isinstance(value, list | dict):
                return "no tensor"
            try:
                from_numpy(np.asarray(value).dtype)
            except ValueError:
                name = np.asarray(value).dtype.name
                return "string" if name == "object" else name
    return ""


def _why(left: Iterable[onnx_ir.Node], refusals: Iterable[Any]) -> str:
    """The commonest of the reasons; an op that is not in the table comes first."""
    unknown = Counter(n.op_type for n in left if lookup(n.domain, n.op_type) is None)
    if unknown:
        return f"unknown-op: {unknown.most_common(1)[0][0]}"
    found = Counter(f"{r.rule}: {r.reason}" for r in refusals)
    return found.most_common(1)[0][0] if found else f"left-alone: {next(iter(left)).op_type}"


def run(tried: Attempt, device: str) -> str:
    """What is wrong with the outputs on a device, "" if nothing is. A model that is fused in part runs the rest in ONNX Runtime."""
    case = tried.case
    assert tried.model is not None
    if tried.state == FOLDED:
        found = [constant_tensor(v) for v in tried.model.graph.outputs]
        constants = [t.numpy() for t in found if t is not None]
        return next((w for d in case.data if (w := difference(constants, d.wanted, case.rtol, case.atol))), "")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            session = Session(tried.model, device)
            for data in case.data:
                feeds = {p.name: np.asarray(data.feeds[p.name]) for p in session.inputs if p.name in data.feeds}
                got = session.run(feeds)
                wrong = difference(list(got.values()), data.wanted, case.rtol, case.atol)
                if wrong:
                    return wrong
        except GraphfuseError as error:
            return f"{type(error).__name__}: {error}"
    return ""
