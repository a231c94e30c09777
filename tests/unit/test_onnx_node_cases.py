"""ONNX's own backend cases of single nodes, through the op table and the interpreter: none may come out wrong."""

from __future__ import annotations

import collections
import functools
import warnings

import numpy as np
import pytest

from graphfuse.ir.dtypes import from_numpy
from graphfuse.ir.errors import Refused
from graphfuse.ops.table import entries, lookup
from tests.unit import one_node


@functools.cache
def cases() -> dict[str, list]:
    """op_type -> cases of one node whose op is in the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        loaded = load_model_tests(kind="node")
    found = collections.defaultdict(list)
    for case in loaded:
        nodes = case.model.graph.node
        if len(nodes) == 1 and lookup(nodes[0].domain, nodes[0].op_type) is not None:
            found[nodes[0].op_type].append(case)
    return found


def verdict(case) -> str:
    """``passed``, the rule of a refusal, or what is wrong."""
    node, opset = case.model.graph.node[0], case.model.opset_import[0].version
    for inputs, outputs in case.data_sets:
        arrays = {v.name: np.asarray(a) for v, a in zip(case.model.graph.input, inputs, strict=True) if not isinstance(a, list)}
        try:
            if len(arrays) < len(inputs):
                raise Refused("dtype", "a sequence")
            for array in (*arrays.values(), *outputs):
                from_numpy(np.asarray(array).dtype)
        except (Refused, ValueError):
            return "refused: dtype"
        try:
            results = one_node.run(node, opset, arrays)
        except Refused as error:
            return f"refused: {error.rule}"
        for got, want in zip(results, outputs, strict=True):
            wrong = difference(got, np.asarray(want), case)
            if wrong:
                return wrong
    return "passed"


def difference(got: np.ndarray, want: np.ndarray, case) -> str:
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    if got.dtype.kind in "iub":
        return "" if np.array_equal(got, want) else f"{np.count_nonzero(got != want)} elements of {got.size} differ"
    rtol = max(case.rtol, 2 * float(np.finfo(np.float16).eps)) if got.dtype.itemsize == 2 else case.rtol
    close = np.isclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=case.atol, equal_nan=True)
    return "" if close.all() else f"{np.count_nonzero(~close)} elements of {got.size} differ"


@pytest.mark.parametrize("op_type", sorted({e.op_type for e in entries()}))
def test_node_cases(op_type: str) -> None:
    wrong = {}
    for case in cases().get(op_type, []):
        found = verdict(case)
        if found != "passed" and not found.startswith("refused: "):
            wrong[case.name] = found
    assert not wrong


def test_refusals_are_few() -> None:
    """Of the cases in types that programs hold, all are built but training, resampling, and a Range of floats."""
    found = collections.Counter(verdict(case) for listed in cases().values() for case in listed)
    allowed = {"passed", "refused: dtype", "refused: training-mode", "refused: unsupported-mode", "refused: unknown-value"}
    assert set(found) <= allowed
    assert found["passed"] > 0.9 * (found.total() - found["refused: dtype"])


if __name__ == "__main__":
    counts: collections.Counter[str] = collections.Counter()
    for op_type, listed in sorted(cases().items()):
        for case in listed:
            try:
                found = verdict(case)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            counts[found if found == "passed" or found.startswith("refused") else "failed"] += 1
            if found != "passed" and found != "refused: dtype":
                print(op_type, case.name, found)
    print(dict(counts))
