"""Paired measurements: their statistics on known noise, their order, and what becomes of a plan. Engines are stand-ins."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphfuse
from graphfuse.bench import bench, compare, decided, measure_pairs
from graphfuse.bench.paired import interval_rank
from graphfuse.cli import main
from graphfuse.graph.load import load_model
from graphfuse.ir import GraphfuseError
from graphfuse.match import load_plan, rewrite_model, save_plan
from graphfuse_plugin.driver import gpu_arch
from tests import engine_test
from tests.portable import info, model

node = onnx.helper.make_node


# --- statistics


@pytest.mark.parametrize(("count", "rank"), [(6, 0), (8, 0), (9, 1), (20, 5), (30, 9), (100, 39)])
def test_rank_of_the_interval(count, rank) -> None:
    """Known ranks of the sign test's interval of 95 % (0-based)."""
    assert interval_rank(count) == rank
    outside = 2 * sum(math.comb(count, k) for k in range(rank + 1)) * 0.5**count
    assert outside <= 0.05


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    rng = random.Random(1)
    held = 0
    for _ in range(600):
        drift = [1 + 0.3 * math.sin(k / 3) for k in range(30)]  # clocks that change while one measures
        first = [10 * d * rng.lognormvariate(0, 0.05) for d in drift]
        second = [9 * d * rng.lognormvariate(0, 0.05) for d in drift]
        found = compare(first, second)
        held += found.low <= 0.9 <= found.high
    assert 0.93 < held / 600 <= 1


def noisy(rng: random.Random, base: float, spread: float, ratio: float) -> tuple[list[float], list[float]]:
    return [base * rng.lognormvariate(0, spread) for _ in range(30)], [base * ratio * rng.lognormvariate(0, spread) for _ in range(30)]


def test_verdicts_need_more_than_the_noise_and_the_gate() -> None:
    rng = random.Random(2)
    for _ in range(20):
        assert compare(*noisy(rng, 10, 0.01, 0.9)).verdict == "faster"
        assert compare(*noisy(rng, 10, 0.01, 1.1)).verdict == "slower"
        assert compare(*noisy(rng, 10, 0.001, 0.995)).verdict == "same"  # real, but not worth a word
    wrong = sum(compare(*noisy(rng, 10, 0.2, 1.0)).verdict != "same" for _ in range(200))
    assert wrong <= 20  # no verdict from noise, but for the one in twenty that 95 % stand for


def test_too_few_or_impossible_times() -> None:
    with pytest.raises(GraphfuseError, match="5 pairs of times are too few"):
        compare([1.0] * 5, [1.0] * 5)
    with pytest.raises(GraphfuseError, match="no time at all"):
        compare([1.0] * 6, [0.0] * 6)


def test_both_take_turns_at_being_first() -> None:
    order: list[str] = []

    def side(name: str, us: float):
        def measure() -> float:
            order.append(name)
            return us

        return measure

    found = measure_pairs(side("a", 2.0), side("b", 1.0), 6)
    assert "".join(order) == "abbaabbaabba"
    assert (found.first_us, found.second_us, found.ratio, found.verdict) == (2.0, 1.0, 0.5, "faster")


# --- the whole and its regions


class Fake:
    """An engine whose time is so much for each node, fused nodes costing what the test says."""

    def __init__(self, graph, cost: dict[str, float], feeds, spoil: bool = False) -> None:
        self.nodes = list(graph)
        self.us = 10 + sum(cost.get(n.name, 1.0) if n.op_type == "FusedRegion" else 1.0 for n in self.nodes)
        self.spoil = spoil and any(n.op_type == "FusedRegion" for n in self.nodes)

    def measure(self) -> float:
        return self.us

    def outputs(self) -> dict[str, np.ndarray]:
        return {"y": np.full(3, 2.0 if self.spoil else 1.0, np.float32)}

    def layers(self) -> list[str]:
        return [n.name or "" for n in self.nodes]


def opener(cost: dict[str, float], *, spoil: bool = False):
    @contextmanager
    def open_engine(made, feeds) -> Iterator[Fake]:
        yield Fake(made.graph, cost, feeds, spoil)

    return open_engine


def two_regions() -> onnx.ModelProto:
    w = onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    nodes = [
        node("Sigmoid", ["x"], ["a"]), node("Mul", ["a", "x"], ["b"]), node("Add", ["b", "x"], ["c"]), node("MatMul", ["c", "w"], ["d"]),
        node("Relu", ["d"], ["e"]), node("Tanh", ["e"], ["f"]), node("Mul", ["f", "e"], ["y"]),
    ]  # fmt: skip
    return model(nodes, [info("x", shape=[4, 8])], [info("y", shape=[4, 8])], [w])


@pytest.fixture
def fused():
    return rewrite_model(load_model(two_regions()), policy="aggressive")


def test_regions_are_left_out_one_by_one(fused, tmp_path) -> None:
    first, second = (r.name for r in fused.regions)
    cost = {first: 1.0, second: 9.0}  # the second costs more than its three nodes
    feeds = {"x": np.ones((4, 8), np.float32)}
    found = bench(load_model(two_regions()), fused.model, feeds, opener(cost), pairs=6, plan=fused.plan)
    assert (found.whole.first_us, found.whole.second_us) == (17.0, 21.0)
    assert found.whole.verdict == "slower"
    assert not found.passed
    assert {r.name: (r.accepted, r.paired.first_us, r.paired.second_us) for r in found.regions} == {
        first: (True, 23.0, 21.0),
        second: (False, 15.0, 21.0),
    }
    plan = decided(fused.plan, found.regions)
    assert [r.enabled for r in plan.regions] == [True, False]
    assert "measured: rejected, slower: 15.00 to 21.00 us" in plan.regions[1].reason
    again = decided(plan, found.regions)
    assert [r.reason for r in again.regions] == [r.reason for r in plan.regions]  # figures replace figures
    save_plan(plan, tmp_path / "p.yaml")
    applied = rewrite_model(load_model(two_regions()), plan=load_plan(tmp_path / "p.yaml"))
    assert [r.name for r in applied.regions] == [first]
    assert bench(load_model(two_regions()), applied.model, feeds, opener(cost), pairs=6).passed


def test_wrong_outputs_fail_however_fast(fused) -> None:
    found = bench(load_model(two_regions()), fused.model, {}, opener({}, spoil=True), pairs=6)
    assert found.whole.verdict == "faster"
    assert not found.passed
    assert json.loads(json.dumps(found.to_json()))["outputs"] == {"y": False}


@pytest.mark.skipif(gpu_arch() is not None, reason="this machine has a GPU")
def test_without_a_gpu_one_line_says_so_at_once(fused, tmp_path: Path, capsys) -> None:
    onnx.save(two_regions(), tmp_path / "m.onnx")
    graphfuse.rewrite(two_regions(), policy="aggressive").save(tmp_path / "f.onnx")
    assert main(["bench", str(tmp_path / "m.onnx"), str(tmp_path / "f.onnx")]) == 2
    err = capsys.readouterr().err
    assert "running an engine needs an NVIDIA GPU" in err
    assert err.count("\n") == 1


@pytest.mark.skipif(gpu_arch() is not None, reason="this machine has a GPU")
def test_engine_test_says_what_is_missing(capsys) -> None:
    assert engine_test.main([]) == 2
    err = capsys.readouterr().err
    assert err.startswith("engine-test: running an engine needs an NVIDIA GPU")
    assert err.count("\n") == 1


def test_rows_of_the_engine_test(fused) -> None:
    found = bench(load_model(two_regions()), fused.model, {}, opener({}, spoil=True), pairs=6)
    cells = engine_test.Row("two", 2, found).text().split("  ")
    assert [c.strip() for c in cells if c.strip()] == ["two", "2", "7 to 3", "17.00", "13.00", "0.765 to 0.765", "1 wrong", "-", "faster"]
