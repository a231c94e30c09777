"""Every shared model through ``Session(device="cuda")``, at both sizes of its recipe and under both policies.

With ``GRAPHFUSE_RESULTS`` set to a file, what was seen (regions, largest errors, the machine) is written there as JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import onnx
import pytest

import graphfuse
from graphfuse.check.recipe import read_recipe
from graphfuse.jit import driver
from tests.conftest import shared_models

MODELS = shared_models()


@pytest.fixture(scope="session")  # a parallel run comes back to this module
def seen() -> Iterator[list[dict[str, object]]]:
    rows: list[dict[str, object]] = []
    yield rows
    target = os.environ.get("GRAPHFUSE_RESULTS")
    if target:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")  # each process of a parallel run has a file of its own
        Path(target + worker).write_text(json.dumps({"environment": _environment(), "models": rows}, indent=1) + "\n", encoding="utf-8")


def _environment() -> dict[str, str]:
    name = driver.call("cuDeviceGetName", 100, 0)
    version = driver.call("cuDriverGetVersion")
    return {
        "date": date.today().isoformat(),
        "gpu": bytes(name).split(b"\0")[0].decode(),
        "driver_cuda": str(version),
        "onnx": onnx.__version__,
        "graphfuse": graphfuse.__version__,
    }


@pytest.mark.parametrize("policy", ["auto", "aggressive"])
@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_model_is_right_on_cuda(path: Path, policy: str, seen: list[dict[str, object]]) -> None:
    fused = graphfuse.rewrite(path, policy=policy).model
    props = {p.key: p.value for p in onnx.load(path).metadata_props}
    recipe = read_recipe(props)
    for alt in (False, True) if recipe and "corpus.alt_dims" in props else (False,):
        result = graphfuse.check(path, fused, device="cuda", alt=alt)
        assert result.device == "cuda"
        assert result.passed, [(v.name, v.reason) for v in (*result.outputs, *result.regions) if not v.passed]
        worst = max((o.max_abs or 0.0 for o in result.outputs), default=0.0)
        seen.append({"model": path.stem, "policy": policy, "alt": alt, "regions": len(result.regions), "max_abs": worst})
