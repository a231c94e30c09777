"""The node cases of the ``onnx`` package, rewritten and run in NumPy: all of them, in ten parts."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conformance.attempt import FAILED, FOLDED, PASSED, REFUSED, attempt
from tests.conformance.cases import load_cases
from tests.conformance.judge import difference
from tests.conformance.suite import run_all


@pytest.mark.parametrize("part", range(10))
def test_part(part: int) -> None:
    results = run_all([c for c in load_cases() if c.part == part], ["numpy"])
    counts = Counter(r.state for r in results)
    assert not [(r.name, r.reason) for r in results if r.state == FAILED]
    assert counts[PASSED] > 0.4 * len(results)
    assert all(r.reason.partition(":")[0] for r in results if r.state == REFUSED)


def test_a_wrong_result_is_found() -> None:
    case = next(c for c in load_cases() if c.name == "test_sigmoid")
    (data,) = case.data
    assert not difference(data.wanted, data.wanted, case.rtol, case.atol)
    assert "differ" in difference([data.wanted[0] * 1.01], data.wanted, case.rtol, case.atol)
    assert "instead of" in difference([data.wanted[0].astype("float64")], data.wanted, case.rtol, case.atol)
    assert "instead of" in difference([data.wanted[0][None]], data.wanted, case.rtol, case.atol)


@pytest.mark.parametrize(("name", "state"), [("test_relu", PASSED), ("test_shape", FOLDED), ("test_lstm_defaults", REFUSED)])
def test_states(name: str, state: str) -> None:
    assert attempt(next(c for c in load_cases() if c.name == name)).state == state
