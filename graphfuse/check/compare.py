"""Compares two arrays, or two sets of named outputs, more strictly than is usual.

Polygraphy's defaults pass a missing output, float16 against float32 and the int64 2^40 against 2^40+1, pair renamed
outputs by position and fail equal infinities. Here names, order, dtypes and shapes (rank 0 included) must be the
original's, integers and bools equal, NaN where NaN was, infinities of the same sign; the rest obeys ``Tolerance``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from graphfuse.check.tolerance import Tolerance, is_float, scale
from graphfuse.check.verdict import OutputVerdict

Chooser = Callable[[str, np.dtype], Tolerance]


def compare_outputs(want: Mapping[str, Any], got: Mapping[str, Any], choose: Chooser) -> list[OutputVerdict]:
    """A verdict for each output of either side; the original's come first, in its order."""
    verdicts = []
    for name, expected in want.items():
        if name in got:
            verdicts.append(compare_output(name, expected, got[name], choose))
        else:
            spare = [n for n in got if n not in want]
            hint = f"; it has {', '.join(map(repr, spare))} instead" if spare else ""
            verdicts.append(_refuse(name, expected, f"the fused model has no such output{hint}"))
    verdicts += [_refuse(name, got[name], "the original has no such output") for name in got if name not in want]
    if all(v.passed for v in verdicts) and list(want) != list(got):
        verdicts = [_refuse(n, a, f"the outputs stand in another order: {', '.join(got)}") for n, a in want.items()]
    return verdicts


def compare_output(name: str, want: Any, got: Any, choose: Chooser) -> OutputVerdict:
    """The verdict on one output (an array, or a list of arrays for a sequence)."""
    if isinstance(want, list) or isinstance(got, list):
        return _compare_lists(name, want, got, choose)
    if want.dtype != got.dtype:
        return _refuse(name, want, f"it is {got.dtype}, the original's is {want.dtype}")
    if want.shape != got.shape:
        return _refuse(name, want, f"its shape is {list(got.shape)}, the original's is {list(want.shape)}")
    if is_float(want.dtype):
        return _compare_floats(name, want, got, choose(name, want.dtype))
    return _compare_exact(name, want, got)


def _compare_lists(name: str, want: Any, got: Any, choose: Chooser) -> OutputVerdict:
    if not (isinstance(want, list) and isinstance(got, list) and len(want) == len(got)):
        return _refuse(name, np.zeros(0), "it is not a sequence of as many tensors as the original's")
    parts = [compare_output(name, w, g, choose) for w, g in zip(want, got, strict=True)]
    bad = next((p for p in parts if not p.passed), None)
    return bad or (parts[0] if parts else OutputVerdict(name, "sequence", (0,), True))


def _refuse(name: str, array: Any, reason: str) -> OutputVerdict:
    array = np.asarray(array) if isinstance(array, list) else array
    return OutputVerdict(name, str(array.dtype), tuple(array.shape), False, reason)


def _compare_exact(name: str, want: np.ndarray, got: np.ndarray) -> OutputVerdict:
    different = np.asarray(want != got)
    wrong = int(np.count_nonzero(different))
    reason = ""
    if wrong:
        at = _place(different)
        reason = (
            f"{wrong} of {want.size} differ, first at {list(at)}: {got[at]} instead of {want[at]}; {want.dtype} is compared exactly, "
            "so where it comes out of floats a rounding across a boundary fails too"
        )
    spread = _integer_spread(want, got, different) if wrong and want.dtype.kind in "iu" else 0.0
    return OutputVerdict(name, str(want.dtype), want.shape, not wrong, reason, max_abs=spread, wrong=wrong)


def _integer_spread(want: np.ndarray, got: np.ndarray, different: np.ndarray) -> float:
    """The largest difference of integers, without wrapping: Python's have no limit, and only the wrong ones are turned into them."""
    pairs = zip(want[different].tolist(), got[different].tolist(), strict=True)
    return float(max(abs(int(w) - int(g)) for w, g in pairs))


def _compare_floats(name: str, want: np.ndarray, got: np.ndarray, tolerance: Tolerance) -> OutputVerdict:
    """NaN and infinities first, each as a kind of its own; then differences against the tolerance, in float64."""
    w, g = want.astype(np.float64), got.astype(np.float64)
    special = ~np.isfinite(w) | ~np.isfinite(g)
    same = (w == g) | (np.isnan(w) & np.isnan(g))
    finite = np.where(special, 0.0, w)
    with np.errstate(over="ignore", invalid="ignore"):
        difference = np.where(special, 0.0, np.abs(np.where(special, 0.0, g) - finite))
        allowed = tolerance.allowed(finite)
    bad = (special & ~same) | (difference > allowed)
    wrong = int(np.count_nonzero(bad))
    return OutputVerdict(
        name, str(want.dtype), want.shape, not wrong,
        reason=_why(want, got, special & ~same, bad, difference, allowed) if wrong else "",
        max_abs=_top(difference), max_rel=_top(_ratio(difference, np.maximum(np.abs(finite), scale(finite)))), rtol=tolerance.rtol,
        atol=_top(allowed - tolerance.rtol * np.abs(finite)), used=_top(_ratio(difference, allowed)),
        nans=int(np.count_nonzero(np.isnan(w))), infs=int(np.count_nonzero(np.isinf(w))), wrong=wrong,
    )  # fmt: skip


def _why(want: np.ndarray, got: np.ndarray, special: np.ndarray, bad: np.ndarray, difference: np.ndarray, allowed: np.ndarray) -> str:
    if special.any():
        at = _place(special)
        count = int(np.count_nonzero(special))
        hint = ""
        if not np.isfinite(want[at]) and np.isfinite(got[at]) and want.dtype.itemsize == 2:
            hint = "; the original overflows where the region keeps float32: rewrite with exact_rounding for the same"
        return f"{count} of {want.size} NaN or infinite on one side only, first at {list(at)}: {got[at]} instead of {want[at]}{hint}"
    at = _place(np.where(bad, _ratio(difference, allowed), -1.0))
    count = int(np.count_nonzero(bad))
    return f"{count} of {want.size} are off, worst at {list(at)}: {got[at]} instead of {want[at]}, {allowed[at]:.3g} is allowed"


def _place(values: np.ndarray) -> tuple[int, ...]:
    """Where the first of the largest is."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(values)), values.shape))


def _top(values: np.ndarray) -> float:
    return float(np.max(values)) if values.size else 0.0


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """``part / whole``, 0 where both are 0, infinite where only ``whole`` is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(part == 0, 0.0, part / whole))
