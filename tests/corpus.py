"""The model collection, seen as the tier tests want it: recipes, sizes, fused models, shapes for an engine."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import onnx

import graphfuse
from graphfuse.api import Result
from tests.conftest import OWN_MODELS, shared_models

EVERY_MODEL = [*OWN_MODELS, *shared_models()]


@lru_cache(maxsize=256)
def fused(path: Path, policy: str = "auto") -> Result:
    """The rewritten model; one rewrite a process."""
    return graphfuse.rewrite(path, policy=policy)


def properties(path: Path) -> dict[str, str]:
    """The model's metadata."""
    return {p.key: p.value for p in onnx.load(path, load_external_data=False).metadata_props}


def sizes_of(path: Path) -> list[bool]:
    """The values of ``alt`` to check a model at: both sizes of its recipe where it has two."""
    return [False, True] if json.loads(properties(path).get("corpus.alt_dims", "{}")) else [False]


def engine_shapes(path: Path) -> dict[str, tuple[tuple[int, ...], ...]]:
    """(min, opt, max) for each dynamic input: from 1 to the larger of the recipe's sizes."""
    props = properties(path)
    main = json.loads(props.get("corpus.dims", "{}"))
    other = {**main, **json.loads(props.get("corpus.alt_dims", "{}"))}
    shapes = {}
    for value in onnx.load(path, load_external_data=False).graph.input:
        dims = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        if any(isinstance(d, str) for d in dims):
            opt = tuple(main[d] if isinstance(d, str) else d for d in dims)
            low = tuple(min(main[d], other[d]) if isinstance(d, str) else d for d in dims)
            high = tuple(max(main[d], other[d]) if isinstance(d, str) else d for d in dims)
            shapes[value.name] = (low, opt, high)
    return shapes
