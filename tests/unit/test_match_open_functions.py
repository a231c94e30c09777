"""Ops that ONNX defines by a function body, and that one kernel cannot hold: opened, right, and stable."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphfuse.match import explain, rewrite_model
from graphfuse.match.rewrite import prepare
from tests.conftest import run_reference
from tests.texts import assert_law, model, op_types, proto, regions

LOSS = "l = SoftmaxCrossEntropyLoss <reduction = {0!r}> (x, t)\ny = Neg(l)".replace("{0!r}", '"{0}"')
INPUTS = "float[{0},7,3] x, int64[{0},3] t"


def feeds(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    return {"x": rng.standard_normal((n, 7, 3)).astype(np.float32), "t": rng.integers(0, 7, (n, 3))}


def assert_close(original: onnx.ModelProto, fused: onnx.ModelProto, given: dict[str, np.ndarray]) -> None:
    onnx.checker.check_model(fused, full_check=True)
    want, got = run_reference(original, given), run_reference(fused, given)
    assert list(want) == list(got)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("batch", [4, "N"])
def test_a_loss_becomes_several_regions(reduction: str, opset: int, batch: int | str) -> None:
    shape = f"float[{batch},3] y" if reduction == "none" else "float y"
    given = model(LOSS.format(reduction), INPUTS.format(batch), shape, opset=opset)
    found = rewrite_model(given, policy="aggressive")
    assert found.report["patterns"]["rewritten"]["function-body"] >= 1
    assert "SoftmaxCrossEntropyLoss" not in {n.op_type for n in found.model.graph}
    assert any("LogSoftmax" in r for r in regions(found))
    assert_law(found, "aggressive")
    for n in (4,) if batch == 4 else (1, 4, 9):
        assert_close(proto(given), proto(found.model), feeds(n))


def test_both_outputs_of_a_loss() -> None:
    body = 'y, p = SoftmaxCrossEntropyLoss <reduction = "mean", ignore_index = 2> (x, t)'
    given = model(body, INPUTS.format(4), "float y, float[4,7,3] p", opset=13)
    found = rewrite_model(given, policy="aggressive")
    assert not [n for n in found.model.graph if n.domain == ""]
    assert_law(found, "aggressive")
    assert_close(proto(given), proto(found.model), feeds(4))


def test_two_losses_and_names_that_are_taken() -> None:
    body = LOSS.format("none") + '\nm = SoftmaxCrossEntropyLoss <reduction = "none"> (x, t)\nz = Add(m, y)'
    given = model(body, INPUTS.format(4), "float[4,3] z", opset=13)
    given.graph[0].name, given.graph[1].name = "loss", "loss/Reshape_1"
    given.graph[1].outputs[0].name = "loss/X_NCD"
    found = rewrite_model(given, policy="aggressive")
    assert found.report["patterns"]["rewritten"]["function-body"] >= 2
    assert_close(proto(given), proto(found.model), feeds(4))


def test_a_loss_in_a_branch() -> None:
    body = """y = If (c) <
  then_branch = a () => (float[4,3] u) { u = SoftmaxCrossEntropyLoss <reduction = "none"> (x, t) },
  else_branch = b () => (float[4,3] v) { v = ReduceMax <axes = [1], keepdims = 0> (x) }
>"""
    given = model(body, INPUTS.format(4) + ", bool c", "float[4,3] y", opset=13)
    found = rewrite_model(given, policy="aggressive")
    assert found.report["patterns"]["rewritten"]["function-body"] >= 1
    for condition in (True, False):
        assert_close(proto(given), proto(found.model), {**feeds(4), "c": np.array(condition)})


def test_what_one_kernel_holds_stays_closed() -> None:
    given = model('c = Neg(x)\ny = NegativeLogLikelihoodLoss <reduction = "none"> (c, t)', INPUTS.format(4), "float[4,3] y", opset=13)
    found = rewrite_model(given, policy="aggressive")
    assert regions(found) == ["Neg NegativeLogLikelihoodLoss"]
    assert "function-body" not in found.report["patterns"]["rewritten"]


def test_opening_can_be_skipped() -> None:
    given = model(LOSS.format("none"), INPUTS.format(4), "float[4,3] y", opset=13)
    for wanted in ({"skip": ["function-body"]}, {"exact_rounding": True}):
        assert op_types(prepare(given, **wanted).model) == ["SoftmaxCrossEntropyLoss", "Neg"]
    assert op_types(prepare(given).model) != ["SoftmaxCrossEntropyLoss", "Neg"]
    assert explain.explain_model(given, skip=["function-body"])[0].rule in ("reduction-rows", "reduction-nesting")
