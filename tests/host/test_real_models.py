"""Trained models of real packages, rewritten and checked end to end: outputs and regions, one rewrite for all sizes."""

from __future__ import annotations

import onnx
import pytest

import graphfuse
from tests.real_models import RealModel, params


@pytest.mark.parametrize("policy", ["auto", "aggressive"])
@pytest.mark.parametrize("model", params())
def test_a_trained_model_is_right(model: RealModel, policy: str) -> None:
    path = model.path
    assert path is not None
    found = graphfuse.rewrite(path, policy=policy)
    onnx.checker.check_model(found.model, full_check=True)
    assert policy == "auto" or found.report["small_ops_fused"] > 0
    for number, feeds in enumerate(model.feeds()):
        result = graphfuse.check(path, found.model, device="host", inputs=feeds)
        assert result.device == "host"
        assert result.passed, (number, [(v.name, v.reason) for v in (*result.outputs, *result.regions) if not v.passed])


@pytest.mark.parametrize("model", params())
def test_a_trained_model_comes_back(model: RealModel) -> None:
    """The restored model is the original's equal (weights that were computed are now stored), and rewriting it gives the same file."""
    path = model.path
    assert path is not None
    found = graphfuse.rewrite(path, policy="aggressive").model
    restored = graphfuse.restore(found)
    assert not restored.functions
    again = graphfuse.rewrite(restored, policy="aggressive").model
    assert again.SerializeToString(deterministic=True) == found.SerializeToString(deterministic=True)
    assert graphfuse.check(path, restored, device="host", inputs=next(model.feeds())).passed
