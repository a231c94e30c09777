"""A fixed tenth of the ``onnx`` package's node cases on the host device; ``make conformance`` runs all of them."""

from __future__ import annotations

from tests.conformance.attempt import FAILED, PASSED
from tests.conformance.cases import load_cases
from tests.conformance.suite import run_all


def test_a_tenth() -> None:
    results = run_all([c for c in load_cases() if c.part == 0], ["host"])
    assert not [(r.name, r.reason) for r in results if r.state == FAILED]
    assert sum(r.state == PASSED for r in results) > 60
