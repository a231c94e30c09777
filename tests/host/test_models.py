"""Every model, fused, on the host device: outputs and each region, at both sizes of its recipe."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import graphfuse
from tests.corpus import EVERY_MODEL, fused, sizes_of


@pytest.mark.parametrize("path", EVERY_MODEL, ids=lambda p: p.stem)
def test_fused_model_is_right(path: Path) -> None:
    model = fused(path).model
    onnx.checker.check_model(model, full_check=True)
    for alt in sizes_of(path):
        result = graphfuse.check(path, model, device="host", alt=alt)
        assert result.device == "host" and len(result.regions) == len(fused(path).regions)
        assert result.passed, [(v.name, v.reason) for v in (*result.outputs, *result.regions) if not v.passed]


@pytest.mark.parametrize("path", EVERY_MODEL, ids=lambda p: p.stem)
def test_aggressively_fused_model_is_right(path: Path) -> None:
    result = graphfuse.check(path, fused(path, "aggressive").model, device="host", alt=sizes_of(path)[-1])
    assert result.passed, [(v.name, v.reason) for v in (*result.outputs, *result.regions) if not v.passed]
