"""Models with run-time sizes, rewritten once and right at three sizes: the two of the recipe, and one at which one size is 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import graphfuse
from graphfuse.api import Result
from tests.conftest import OWN_MODELS, SHARED_MODELS
from tests.corpus import fused, properties, sizes_of

DYNAMIC = [p for p in (*OWN_MODELS, *SHARED_MODELS) if len(sizes_of(p)) == 2]
ODD = {"height": 41, "width": 70, "frames": 63, "seq": 13}  # of other remainders than the recipes' by 2, 4 and 8


def third_sizes(path: Path) -> dict[str, int]:
    """The batch is 1 where both sizes of the recipe are more than that, else 6; other sizes are odd ones that differ from it."""
    dims, alt = (json.loads(properties(path)[key]) for key in ("corpus.dims", "corpus.alt_dims"))
    return {name: (6 if 1 in (dims[name], alt[name]) else 1) if name == "batch" else ODD[name] for name in alt}


def assert_right(path: Path, found: Result, sizes: dict[str, int]) -> None:
    result = graphfuse.check(path, found.model, device="host", sizes=sizes)
    assert result.device == "host"
    assert result.passed, (sizes, [(v.name, v.reason) for v in (*result.outputs, *result.regions) if not v.passed])


@pytest.mark.parametrize("path", DYNAMIC, ids=lambda p: p.stem)
def test_one_rewrite_is_right_at_three_sizes(path: Path) -> None:
    dims, alt = (json.loads(properties(path)[key]) for key in ("corpus.dims", "corpus.alt_dims"))
    third = third_sizes(path)
    assert all(len({dims[n], alt[n], third[n]}) == 3 for n in alt) and 1 in {s["batch"] for s in (dims, alt, third)}
    for policy in ("auto", "aggressive"):
        assert_right(path, fused(path, policy), third)
        if policy == "aggressive":  # the recipe's own sizes under it; test_models has them under auto
            assert_right(path, fused(path, policy), dims)


@pytest.mark.parametrize("path", [p for p in DYNAMIC if len(third_sizes(p)) > 1], ids=lambda p: p.stem)
def test_every_size_may_be_1(path: Path) -> None:
    """Broadcasting and reductions over a size of 1 are where guesses about sizes show."""
    names = list(third_sizes(path))
    for name in names:
        if name in ("height", "width", "frames"):
            continue  # a window over the image or the spectrum is larger than 1
        assert_right(path, fused(path), third_sizes(path) | {name: 1})
