"""The ``onnx`` package's node cases on CUDA: every kernel of ours that they lead to, compiled side by side, then run."""

from __future__ import annotations

from tests.conformance.attempt import FAILED, PASSED
from tests.conformance.cases import load_cases
from tests.conformance.suite import run_all


def test_all() -> None:
    results = run_all(load_cases(), ["cuda"])
    assert not [(r.name, r.reason) for r in results if r.state == FAILED]
    assert sum(r.state == PASSED for r in results) >= 1_100
