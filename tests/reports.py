"""The models made from public bug reports: their runs, and a rewritten one on a device."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np

from graphfuse.graph.load import load_model
from graphfuse.match import rewrite_model
from graphfuse.session import Session

Arrays = dict[str, np.ndarray]


def case_runs(path: Path) -> list[tuple[Arrays, Arrays]]:
    """Inputs and expected outputs of each run, by name and in order."""
    runs = []
    for place in sorted(path.parent.glob(f"{path.stem}.in*.npz")):
        pair = [np.load(place), np.load(place.with_name(place.name.replace(".in", ".exp")))]
        feeds, want = ({str(n): data[f"a{i}"] for i, n in enumerate(data["names"])} for data in pair)
        runs.append((feeds, want))
    assert runs
    return runs


@cache
def _manifest(folder: Path) -> dict[str, dict[str, float]]:
    return {entry["model"]: entry for entry in json.loads((folder / "manifest.json").read_text())}


def check_case(path: Path, policy: str, device: str) -> None:
    """Every run of a case, rewritten, against the expected outputs; integers and bools exactly."""
    stated = _manifest(path.parent)[path.name]
    session = Session(rewrite_model(load_model(path), policy=policy).model, device)
    for feeds, want in case_runs(path):
        got = session.run(feeds)
        assert list(got) == list(want)
        for name, array in want.items():
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape), name
            if array.dtype.kind == "f":
                np.testing.assert_allclose(got[name], array, rtol=stated["rtol"], atol=stated["atol"], equal_nan=True, err_msg=name)
            else:
                np.testing.assert_array_equal(got[name], array, err_msg=name)
