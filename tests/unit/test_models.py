from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphfuse.check.inputs import make_inputs
from graphfuse.check.recipe import read_recipe
from tests.conftest import MODELS, OWN_MODELS, run_reference

SCRIPTS = sorted(MODELS.glob("[a-z]*.py"))


def test_every_script_has_its_model_and_every_model_its_script() -> None:
    assert [s.stem for s in SCRIPTS] == [m.stem for m in OWN_MODELS]
    assert len(SCRIPTS) >= 4


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_the_same_bytes_are_made_again(script: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.onnx"
    subprocess.run([sys.executable, script, again], check=True, cwd=tmp_path, capture_output=True)
    assert again.read_bytes() == script.with_suffix(".onnx").read_bytes()


@pytest.mark.parametrize("path", OWN_MODELS, ids=lambda p: p.stem)
def test_models_are_valid_and_run_at_both_sizes(path: Path) -> None:
    onnx.checker.check_model(path, full_check=True)
    model = ir.load(path)
    assert read_recipe(model.metadata_props) is not None
    declared = {v.name: v for v in model.graph.outputs}
    for alt in (False, True):
        outputs = run_reference(path, make_inputs(model, alt=alt))
        assert list(outputs) == list(declared)
        for name, array in outputs.items():
            assert np.isfinite(array).all()
            assert 1e-3 < np.abs(array).mean() < 1e3
            assert array.std() > 1e-3
            fixed = [(have, want) for have, want in zip(array.shape, declared[name].shape, strict=True) if isinstance(want, int)]
            assert all(have == want for have, want in fixed)
