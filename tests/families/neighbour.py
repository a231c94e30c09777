"""One neighbour: a small model, inputs for it, and what ONNX Runtime makes of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir

from graphfuse.graph.load import load_model
from graphfuse.match import rewrite_model
from graphfuse.session import Session
from tests.ort_faults import model_reference
from tests.texts import proto

TEXT = {
    "f4": "float",
    "f8": "double",
    "f2": "float16",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "b1": "bool",
}
TOLERANCE = {"f4": 1e-5, "f8": 1e-12, "f2": 2e-3}  # relative, and a tenth of it absolute; integers and bools exactly


@dataclass(frozen=True)
class Neighbour:
    """``runs`` are inputs by name. ``loose`` replaces the relative tolerance of float32.

    ``wanted`` are the outputs where ONNX Runtime is not to be asked (it drops NaN in reductions).
    """

    name: str
    model: onnx_ir.Model
    runs: tuple[Mapping[str, np.ndarray], ...]
    loose: float = 0.0
    wanted: Mapping[str, np.ndarray] | None = None

    @property
    def part(self) -> int:
        """A number from 0 to 9 that depends on the name alone, to run a fixed tenth."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 10


def neighbour(
    name: str,
    body: str,
    feeds: Mapping[str, np.ndarray] | Sequence[Mapping[str, np.ndarray]],
    outputs: str = "float y",
    *,
    inputs: str = "",
    opset: int = 18,
    weights: str = "",
    loose: float = 0.0,
    wanted: Mapping[str, np.ndarray] | None = None,
) -> Neighbour:
    """A model of ``body`` (nodes as text, apart by semicolons), and outputs whose shapes ONNX infers.

    ``inputs`` are declared as in the first run unless they are given.
    """
    runs = (feeds,) if isinstance(feeds, Mapping) else tuple(feeds)
    declared = inputs or ", ".join(
        f"{TEXT[kind(a)]}[{','.join(map(str, a.shape))}] {n}" if a.ndim else f"{TEXT[kind(a)]} {n}" for n, a in runs[0].items()
    )
    text = f"g ({declared}) => ({outputs}){f' <{weights}>' if weights else ''} {{\n" + body.replace(";", "\n") + "\n}"
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    return Neighbour(name, load_model(onnx.shape_inference.infer_shapes(made, strict_mode=True)), runs, loose, wanted)


def kind(array: np.ndarray) -> str:
    """``f4`` for float32 and so on."""
    return f"{array.dtype.kind}{array.dtype.itemsize}"


def rand(*shape: int, dtype: str = "f4", scale: float = 2.0) -> np.ndarray:
    """Random numbers that depend on the shape alone."""
    rng = np.random.default_rng([*shape, len(shape)])
    return np.asarray(rng.standard_normal(shape) * scale).astype(dtype)


def whole(*shape: int, dtype: str = "i8", low: int = -9, high: int = 10) -> np.ndarray:
    """Random integers."""
    return np.asarray(np.random.default_rng([*shape, 7]).integers(low, high, shape)).astype(dtype)


def check(case: Neighbour, policy: str, device: str) -> int:
    """Compares the rewritten model with ONNX Runtime on the original; how many regions there were."""
    found = rewrite_model(case.model, policy=policy)
    session = Session(found.model, device)
    for feeds in case.runs:
        want, got = case.wanted or model_reference(proto(case.model), feeds), session.run(dict(feeds))
        assert list(got) == list(want)
        for name, array in want.items():
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape), name
            tolerance = case.loose if kind(array) == "f4" and case.loose else TOLERANCE.get(kind(array), 0.0)
            np.testing.assert_allclose(got[name], array, rtol=tolerance, atol=tolerance / 10, equal_nan=True, err_msg=name)
    return len(found.regions)
