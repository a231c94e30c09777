"""What rewriting costs grows as the model does: guards with bounds wide enough for a busy machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks import scaling, synthetic
from graphfuse.graph.load import load_model
from graphfuse.match import rewrite_model
from graphfuse.match.convex import Clusters


def seconds(nodes: int) -> float:
    """CPU time of rewriting, the better of two runs."""
    model, best = load_model(synthetic.model(nodes)), float("inf")
    for _ in range(2):
        start = time.process_time()
        rewrite_model(model)
        best = min(best, time.process_time() - start)
    return best


def test_time_is_linear_in_the_nodes() -> None:
    """Eight times the nodes take some eight times as long; quadratic work would take 64 times, half of it quadratic 30 times."""
    seconds(300)  # tables and memos
    small, large = seconds(700), seconds(5600)
    assert large < 14 * small, f"{small:.2f} s for 700 nodes, {large:.2f} s for 5,600"


def test_identical_layers_are_looked_at_once() -> None:
    """Of 40 layers the first is lowered, the others are remembered: programs of one shape are equal."""
    found = rewrite_model(load_model(synthetic.model(40 * synthetic.LAYER)))
    assert len(found.regions) > 40 * 3 and len(found.model.functions) <= 8


def test_a_value_that_every_layer_reads_costs_no_walk_through_them() -> None:
    """A mask made first and read by the last of many layers: whether it may merge is told from its end of the graph."""
    layers = 4000
    preds = [[], [0], *([0, i - 1] for i in range(2, layers))]  # node 0 is the mask
    clusters = Clusters(preds)
    start = time.process_time()
    assert not any(clusters.can_merge(0, i) for i in range(2, layers, 4))
    assert time.process_time() - start < 5


@pytest.mark.parametrize("external", [False, True], ids=["inside", "beside"])
def test_weights_are_not_held_twice_over(external: bool, tmp_path: Path) -> None:
    """Beside the file they are streamed; inside it they are held as the file's bytes and as the parsed message, for a moment."""
    row = scaling.by_weights(150 << 20, tmp_path, nodes=260) if external else scaling.by_nodes(260, 1408, tmp_path)
    assert row["model_bytes"] > 60 << 20
    held = row["peak_bytes"] - row["base_bytes"]
    assert held < (0.5 if external else 3) * row["model_bytes"] + (40 << 20)
