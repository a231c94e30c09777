"""The shared models and bug-report cases with their inputs, and a reference run that shows every inner value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

SHARED = Path(__file__).parents[2].parent / "shared"
MODELS = sorted((SHARED / "models").glob("*.onnx"))
CASES = sorted((SHARED / "reports" / "cases").glob("*.onnx"))
needs_corpus = pytest.mark.skipif(not MODELS, reason=f"the shared models are not at {SHARED / 'models'}")


def feeds(path: Path, *, alt: bool = False) -> dict[str, np.ndarray]:
    """Inputs made by the recipe in the model's metadata."""
    model = onnx.load(path)
    notes = {x.key: x.value for x in model.metadata_props}
    dims = json.loads(notes["corpus.dims"])
    if alt:
        dims.update(json.loads(notes["corpus.alt_dims"]))
    rng = np.random.default_rng(0)
    made = {s["name"]: _make(s, [dims[d] if isinstance(d, str) else d for d in s["shape"]], rng) for s in json.loads(notes["corpus.inputs"])}
    return {i.name: made[i.name] for i in model.graph.input}


def _make(spec: dict[str, Any], shape: list[int], rng: np.random.Generator) -> np.ndarray:
    match spec["kind"]:
        case "normal":
            array = rng.standard_normal(shape) * spec.get("scale", 1.0) + spec.get("offset", 0.0)
        case "uniform":
            array = rng.uniform(spec.get("low", 0.0), spec.get("high", 1.0), shape)
        case "int":
            array = rng.integers(spec["low"], spec["high"], shape)
        case "mask":
            array = np.ones(shape)
            if shape[-1] // 4:
                array[..., -(shape[-1] // 4) :] = 0
        case "steps":
            array = np.broadcast_to(np.arange(shape[-1]) + spec.get("start", 0), shape)
        case other:
            raise AssertionError(other)
    return np.ascontiguousarray(array).astype(spec["dtype"])


def has_alt(path: Path) -> bool:
    notes = {x.key: x.value for x in onnx.load(path).metadata_props}
    return bool(json.loads(notes["corpus.alt_dims"]))


def case_feeds(path: Path) -> Iterator[dict[str, np.ndarray]]:
    """The inputs of each run of a bug-report case."""
    for file in sorted(path.parent.glob(f"{path.stem}.in*.npz")):
        with np.load(file) as data:
            yield {str(name): data[f"a{i}"] for i, name in enumerate(data["names"])}


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    opened = session(model)
    return dict(zip([o.name for o in opened.get_outputs()], opened.run(None, inputs), strict=True))


def run_all(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As ``run``, with the outputs of every node of the main graph."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    shown = {o.name for o in wide.graph.output}
    for node in wide.graph.node:
        wide.graph.output.extend(onnx.ValueInfoProto(name=n) for n in node.output if n and n not in shown)
    return run(wide, inputs)
