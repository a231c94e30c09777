"""2,000 random graphs of small ops: fused, and run as ONNX and in NumPy against ONNX Runtime. ``make fuzz`` runs ten times as many."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import TensorProto, helper

from tests.conftest import compiler_absence
from tests.fuzz import host
from tests.fuzz.attempt import Account, attempt
from tests.fuzz.oracle import Oracle, Tally
from tests.fuzz.reduce import load, reduced, save
from tests.fuzz.strategies import Case, cases, first_cases, numbered_case

SEEDS, EACH = 40, 50
THOROUGH = 8  # every how many graphs also go through policy auto and a second rewrite
SAVED = Path(os.environ.get("FUZZ_OUT", "out/fuzz"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_graphs(seed: int) -> None:
    account = Account()
    failed = []
    for number, case in enumerate(first_cases(seed, EACH)):
        found = attempt(case, account, thorough=number % THOROUGH == 0)
        if found:
            path = save(case, SAVED, f"test_seed{seed}_{number}")
            failed.append(f"{found}\n  smaller: python -m tests.fuzz --replay {path}")
    assert not failed, "\n".join(failed)
    assert account.graphs == EACH
    assert account.regions > EACH  # else little was fused
    assert account.tally.judged > 0.75 * (account.tally.judged + account.tally.unjudged), account  # else little was compared
    assert sum(account.skipped.values()) < EACH / 3, account  # older releases of ONNX Runtime have fewer kernels


@settings(max_examples=25, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_graphs_that_hypothesis_draws(case: Case) -> None:
    found = attempt(case, Account())
    assert found is None, found


# --- the judge sees what it must see


def one_op(op: str, shape: list[int], dtype: int = TensorProto.FLOAT, **attrs: object) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, dtype, shape) for n in ("x", "y")]
    nodes = [helper.make_node(op, ["x"], ["y"], **attrs)]
    return helper.make_model(
        helper.make_graph(nodes, "one", infos[:1], infos[1:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(4, 33)).astype(np.float32)


def _wrong(model: onnx.ModelProto, x: np.ndarray, change: float) -> Iterator[tuple[str, str]]:
    """What is said of the right answer, and of one of which a single element is off by a factor of ``1 + change``."""
    expected = Oracle(model).expect({"x": x}, exact=True)
    y = expected.wanted["y"].astype(x.dtype)
    yield "right", expected.judge({"y": y}, Tally())
    off = y.copy()
    off[2, 5] *= 1 + change
    yield "off", expected.judge({"y": off}, Tally())


@pytest.mark.parametrize(("op", "change"), [("Exp", 1e-5), ("Tanh", 1e-5), ("Softmax", 3e-5), ("Neg", 1e-7), ("Relu", 2e-7)])
def test_one_wrong_element_is_seen(op: str, change: float, x: np.ndarray) -> None:
    x[2, 5] = 0.75
    said = dict(_wrong(one_op(op, [4, 33]), x, change))
    assert said["right"] == ""
    assert "1 of 132 wrong, first at [2, 5]" in said["off"]


def test_one_unit_of_float16_is_seen_where_nothing_is_rounded(x: np.ndarray) -> None:
    x = x.astype(np.float16)
    x[2, 5] = 0.75
    said = dict(_wrong(one_op("Neg", [4, 33], TensorProto.FLOAT16), x, 2.0**-10))
    assert said["right"] == ""
    assert "1 of 132 wrong" in said["off"]


def test_a_jump_is_not_judged_and_what_is_beside_it_is(x: np.ndarray) -> None:
    """Of ``floor(2 * tan(x) - 2 * tan(x))`` nothing can be told, of ``floor(x)`` everything."""
    expected = Oracle(one_op("Floor", [4, 33])).expect({"x": x}, exact=True)
    tally = Tally()
    assert expected.judge({"y": np.floor(x)}, tally) == ""
    assert (tally.judged, tally.unjudged) == (132, 0)
    nodes = [helper.make_node("Tan", ["x"], ["t"]), helper.make_node("Mul", ["t", "t"], ["s"]), helper.make_node("Div", ["s", "t"], ["d"])]
    nodes += [helper.make_node("Sub", ["d", "t"], ["z"]), helper.make_node("Sign", ["z"], ["y"])]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 33]) for n in ("x", "y")]
    made = helper.make_model(
        helper.make_graph(nodes, "jumps", infos[:1], infos[1:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    tally = Tally()
    assert Oracle(made).expect({"x": x}, exact=True).judge({"y": np.ones_like(x)}, tally) == ""
    assert tally.unjudged > 120


def test_nan_and_infinities_must_be_where_they_are(x: np.ndarray) -> None:
    expected = Oracle(one_op("Log", [4, 33])).expect({"x": x}, exact=True)
    y = expected.wanted["y"].astype(np.float32)
    assert expected.judge({"y": y}, Tally()) == ""
    for wrong in (np.where(np.isnan(y), 0, y), np.where(y > 0, np.inf, y)):
        assert "wrong" in expected.judge({"y": wrong.astype(np.float32)}, Tally())


def test_a_failing_graph_is_made_small_and_can_be_run_again(tmp_path: Path) -> None:
    def fails(case: Case) -> bool:
        return any(n.op_type == "Softmax" for n in case.model.graph.node)

    case = next(c for c in (numbered_case(7, k) for k in range(200)) if fails(c))
    small = reduced(case, fails)
    assert [n.op_type for n in small.model.graph.node] == ["Softmax"]
    again = load(save(small, tmp_path, "small"))
    assert again.model == small.model
    assert all(np.array_equal(again.feeds[0][n], a, equal_nan=True) for n, a in small.feeds[0].items())
    assert attempt(again, Account()) is None


@pytest.mark.skipif(compiler_absence() is not None, reason=str(compiler_absence()))
def test_a_kernel_that_ends_the_process_is_found_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [numbered_case(5, k) for k in range(4)]
    bad = cases[2].model

    def run(case: Case, result: object, account: Account) -> Iterator[None]:
        if case.model is bad:
            os.kill(os.getpid(), signal.SIGSEGV)
        account.host += 1
        yield from ()

    monkeypatch.setattr(host, "_run", run)
    account = Account()
    found = list(host.attempt_on_host(cases, account))
    assert [(case.model is bad, finding.stage) for case, finding in found] == [(True, "crash")]
    assert account.host == 3


def test_cases_by_number_are_the_same_again() -> None:
    first, second = (numbered_case(5, 11) for _ in range(2))
    assert first.model == second.model
    assert all(
        np.array_equal(a[n], b[n], equal_nan=a[n].dtype.kind == "f") for a, b in zip(first.feeds, second.feeds, strict=True) for n in a
    )
    assert len({numbered_case(5, k).model.SerializeToString(deterministic=True) for k in range(50)}) == 50
