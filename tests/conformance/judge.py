"""Whether outputs are the expected ones: the package's own comparison, exact for integers and bools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

BF16_RTOL = 2.0**-6  # as in onnx.backend.test: two units in the last place


def difference(got: Sequence[Any], wanted: Sequence[Any], rtol: float, atol: float) -> str:
    """What is wrong with the outputs, "" if nothing is."""
    if len(got) != len(wanted):
        return f"{len(got)} outputs instead of {len(wanted)}"
    found = (_one(np.asarray(g), np.asarray(w), rtol, atol) for g, w in zip(got, wanted, strict=True))
    return next((f"output {i}: {text}" for i, text in enumerate(found) if text), "")


def _one(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> str:
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if got.dtype.kind in "iub":
        return "" if np.array_equal(got, want) else f"{np.count_nonzero(got != want)} of {got.size} elements differ"
    rtol = max(rtol, BF16_RTOL) if got.dtype.name == "bfloat16" else rtol
    close = np.isclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True)
    if close.all():
        return ""
    worst = np.flatnonzero(~close.reshape(-1))[0]
    return f"{np.count_nonzero(~close)} of {got.size} elements differ: {got.reshape(-1)[worst]} instead of {want.reshape(-1)[worst]}"
