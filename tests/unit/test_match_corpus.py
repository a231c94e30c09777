"""The collection of realistic models: what is fused, the numbers, the law of restoring, under both policies."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from graphfuse.graph.load import load_model
from graphfuse.match import Rewritten, export_plugin, rewrite_model
from tests.conftest import SHARED_MODELS, shared_models
from tests.texts import assert_law, assert_same_results, region_errors


def recipe(model: onnx.ModelProto, *, alt: bool) -> dict[str, np.ndarray]:
    """Seeded inputs as the collection's README makes them."""
    props = {p.key: p.value for p in model.metadata_props}
    dims = json.loads(props["corpus.dims"]) | (json.loads(props["corpus.alt_dims"]) if alt else {})
    rng = np.random.default_rng(0)
    feeds = {}
    for row in json.loads(props["corpus.inputs"]):
        shape = [dims[d] if isinstance(d, str) else d for d in row["shape"]]
        match row["kind"]:
            case "normal":
                array = rng.standard_normal(shape) * row.get("scale", 1.0) + row.get("offset", 0.0)
            case "uniform":
                array = rng.uniform(row.get("low", 0.0), row.get("high", 1.0), shape)
            case "int":
                array = rng.integers(row["low"], row["high"], shape)
            case "mask":
                array = np.ones(shape)
                array[..., shape[-1] - shape[-1] // 4 :] = 0
            case _:
                array = np.broadcast_to(np.arange(shape[-1]) + row.get("start", 0), shape)
        feeds[row["name"]] = np.ascontiguousarray(array).astype(row["dtype"])
    wanted = {i.name for i in model.graph.input}
    return {k: v for k, v in feeds.items() if k in wanted}


@cache
def rewritten(path: Path, policy: str) -> Rewritten:
    return rewrite_model(load_model(path), policy=policy)


@pytest.mark.parametrize("policy", ["auto", "aggressive"])
@pytest.mark.parametrize("path", shared_models())
def test_models_keep_their_results(path: Path, policy: str) -> None:
    original = onnx.load(path)
    found = rewritten(path, policy)
    half = any(i.data_type == onnx.TensorProto.FLOAT16 for i in original.graph.initializer) or "fp16" in path.stem
    dynamic = json.loads({p.key: p.value for p in original.metadata_props}["corpus.alt_dims"])
    for alt in (False, True) if dynamic and policy == "auto" else (False,):
        feeds = recipe(original, alt=alt)
        assert_same_results(original, found, feeds)
        errors = region_errors(found, feeds)
        assert max(errors.values(), default=0.0) < (2e-3 if half else 5e-6), max(errors, key=lambda k: errors[k])
    assert_law(found, policy)
    assert export_plugin(found.model).plugin_layers == len(found.regions)


def test_the_whole_collection() -> None:
    if not SHARED_MODELS:
        pytest.skip("the model collection is not beside the checkout")
    auto = [rewritten(p, "auto") for p in SHARED_MODELS]
    assert sum(bool(f.regions) for f in auto) >= 45
    full = [rewritten(p, "aggressive") for p in SHARED_MODELS]
    fused, small = (sum(f.report[key] for f in full) for key in ("small_ops_fused", "small_ops"))
    assert fused >= 0.99 * small > 3900
    for found in (*auto, *full):
        spoken = {n for r in found.refusals for n in r.nodes} | {n for r in found.regions for n in r.nodes}
        assert len(spoken) >= found.report["small_ops"], "a small op that is in no region has a refusal"


def test_counts_agree_with_the_collections_table() -> None:
    """Small ops as the collection's README counts them, but for those that folding takes away and pools, which the op table can build."""
    if not SHARED_MODELS:
        pytest.skip("the model collection is not beside the checkout")
    rows = [line.split("|") for line in (SHARED_MODELS[0].parent / "README.md").read_text().splitlines() if ".onnx |" in line]
    table = {r[1].strip(): (int(r[6].split()[0]), int(r[7]), int(r[8])) for r in rows if len(r) > 9}
    assert len(table) == len(SHARED_MODELS)
    for path in SHARED_MODELS:
        nodes, small, chain = table[path.name]
        report = rewritten(path, "auto").report
        assert report["nodes_before"] == nodes
        assert abs(report["small_ops"] - small) <= max(4, 0.06 * small), (path.name, report["small_ops"], small)
        assert abs(report["longest_chain"] - chain) <= 2, (path.name, report["longest_chain"], chain)
