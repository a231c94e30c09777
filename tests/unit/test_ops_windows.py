"""Pools, running folds and ops by their function bodies, every form against ONNX Runtime or ONNX's own reference."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest

from graphfuse.ir import Builder, interpret, sym
from graphfuse.ir.dtypes import F32, I64
from graphfuse.ir.errors import Refused
from graphfuse.ops.table import OpCall, entries, lookup
from tests.unit import one_node
from tests.unit.test_ops import ROWS, Row, assert_close, ints, node_of, rand, row, spec

LINE, IMAGE, BLOCK = rand(2, 3, 11), rand(2, 3, 8, 7), rand(1, 2, 5, 4, 6)
FORMS = [
    {"kernel_shape": [3], "data": LINE},
    {"kernel_shape": [4], "data": LINE, "strides": [3], "pads": [1, 2]},
    {"kernel_shape": [3], "data": LINE, "strides": [2], "dilations": [2], "pads": [2, 0]},
    {"kernel_shape": [2, 3], "data": IMAGE},
    {"kernel_shape": [3, 3], "data": IMAGE, "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 2], "data": IMAGE, "strides": [1, 3], "pads": [1, 0, 2, 1], "dilations": [2, 1]},
    {"kernel_shape": [2, 3, 2], "data": BLOCK, "strides": [1, 2, 3]},
]
AUTO = [
    {"kernel_shape": [3, 4], "data": IMAGE, "strides": s, "auto_pad": mode}
    for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
    for s in ([1, 1], [2, 3])
]


def pools(op: str, forms: list[dict[str, object]], **more: object) -> list[Row]:
    return [row(op, f["data"], opset=22, **{k: v for k, v in f.items() if k != "data"}, **more) for f in forms]


POOLS = [r for ceil in (0, 1) for r in pools("MaxPool", FORMS, ceil_mode=ceil)] + pools("MaxPool", AUTO)
POOLS += [r for c, n in itertools.product((0, 1), (0, 1)) for r in pools("AveragePool", FORMS, ceil_mode=c, count_include_pad=n)]
POOLS += [r for n in (0, 1) for r in pools("AveragePool", AUTO, count_include_pad=n)]
POOLS += [r for p in (1, 2, 3) for r in pools("LpPool", [*FORMS, *AUTO], p=p)]
POOLS += [
    row("MaxPool", ints(1, 2, 5, 6, dtype=t, low=-9 if t is np.int8 else 0), kernel_shape=[2, 2], opset=12) for t in (np.int8, np.uint8)
]
POOLS += [row("MaxPool", f["data"], outputs=2, opset=22, **{k: v for k, v in f.items() if k != "data"}) for f in FORMS]
POOLS += [
    row("MaxPool", np.zeros((1, 1, 4, 4), np.float32), outputs=2, kernel_shape=[2, 2], pads=[1, 1, 0, 0], storage_order=s) for s in (0, 1)
]
POOLS += [row("LRN", IMAGE, size=n, alpha=0.3, beta=0.6, bias=1.5) for n in (1, 3, 5)]
POOLS += [spec("LRN", rand(3, 3, 4, 5), size=4, alpha=0.3, why="ONNX Runtime takes odd sizes only")]

SCANS = [
    row("CumSum", x, np.array(a, np.int64), exclusive=e, reverse=r)
    for x, a in ((rand(6), 0), (rand(3, 4, 5), 1), (rand(3, 4, 5), -1), (ints(2, 7), 1))
    for e in (0, 1)
    for r in (0, 1)
]
PRODUCT = "ONNX Runtime has no CumProd"
SCANS += [spec("CumProd", rand(3, 4), np.array(1, np.int64), opset=26, exclusive=e, reverse=r, why=PRODUCT) for e in (0, 1) for r in (0, 1)]

SCORES, LABELS = rand(3, 5, 2), ints(3, 2, low=0, high=5)
BY_BODY = [
    row("NegativeLogLikelihoodLoss", SCORES, LABELS, *w, reduction=r, **i)
    for r in ("none", "sum", "mean")
    for w in ((), (np.abs(rand(5)),))
    for i in ({}, {"ignore_index": 2})
]
BY_BODY += [row("SoftmaxCrossEntropyLoss", SCORES, LABELS, outputs=2, reduction=r) for r in ("none", "sum", "mean")]
CACHES = (rand(2, 4, 4), rand(2, 4, 4))
NEW = "newer than ONNX Runtime's kernels"
BY_BODY += [spec("RotaryEmbedding", rand(2, 3, 4, 8), *CACHES, opset=23, interleaved=i, why=NEW) for i in (0, 1)]
BY_BODY += [spec("RotaryEmbedding", rand(2, 4, 24), *CACHES, opset=23, num_heads=3, interleaved=i, why=NEW) for i in (0, 1)]
BY_BODY += [
    spec("RotaryEmbedding", rand(2, 3, 4, 8), rand(9, 2), rand(9, 2), ints(2, 4, low=0, high=9), opset=23, rotary_embedding_dim=4, why=NEW)
]
BY_BODY += [row("CenterCropPad", rand(4, 7), np.array(s, np.int64)) for s in ([6, 3], [3, 8], [4, 7])]
BY_BODY += [row("CenterCropPad", rand(4, 7, 2), np.array([5, 6], np.int64), axes=a) for a in ([0, 1], [1, 0], [-2, -3])]
BY_BODY += [spec("SwiGLU", rand(3, 4), rand(3, 4), opset=28, why=NEW), spec("SwiGLU", rand(3, 4), rand(3, 4), opset=28, alpha=1.7, why=NEW)]
REVERSED = [
    row("ReverseSequence", rand(4, 3, 2), np.array([4, 1, 3], np.int64), opset=10),
    row("ReverseSequence", rand(3, 4), np.array([4, 1, 2], np.int64), opset=10, batch_axis=0, time_axis=1),
]
WINDOW_ROWS = [*REVERSED, *POOLS, *SCANS, *BY_BODY]


@pytest.mark.parametrize("case", WINDOW_ROWS, ids=str)
def test_op(case: Row) -> None:
    node, arrays = node_of(case)
    results = one_node.run(node, case.opset, arrays)
    for got, want in zip(results, case.reference(node, case.opset, arrays), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert_close(got, want)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_ops_of_no_data_are_left_to_constant_folding(op: str) -> None:
    node = onnx.helper.make_node(op, ["n"], ["y"])
    with pytest.raises(Refused, match="unknown-value"):
        one_node.run(node, 17, {"n": np.array(8, np.int64)})


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_large_windows_are_refused(op: str) -> None:
    node = onnx.helper.make_node(op, ["x"], ["y"], kernel_shape=[8, 8])
    with pytest.raises(Refused, match=r"large-window: a window of 64 elements"):
        one_node.run(node, 22, {"x": rand(1, 1, 9, 9)})


def test_long_scans_are_refused() -> None:
    node = onnx.helper.make_node("CumSum", ["x", "axis"], ["y"])
    with pytest.raises(Refused, match="long-scan"):
        one_node.run(node, 14, {"x": rand(300), "axis": np.array(0)})


@pytest.mark.parametrize("size", [5, 8])
@pytest.mark.parametrize("attrs", [{"pads": [1, 1]}, {"strides": [2]}, {"auto_pad": "SAME_UPPER", "strides": [3]}], ids=str)
def test_pool_of_a_run_time_axis(size: int, attrs: dict[str, object]) -> None:
    b = Builder()
    x = b.param(F32, [1, 2, 3 + sym("n")])
    (y,) = lookup("", "AveragePool").lower(OpCall(b, [x], {"kernel_shape": [3], **attrs}, 22))
    data = rand(1, 2, 3 + size)
    (got,) = interpret.run(b.finish([y]), [data])
    node = onnx.helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3], **attrs)
    assert_close(got, one_node.onnxruntime_run(node, 22, {"x": data})[0])


@pytest.mark.parametrize("length", [4, 6])
def test_rotary_embedding_of_a_run_time_length(length: int) -> None:
    b, n = Builder(), sym("n")
    x, cos, sin, ids = b.param(F32, [2, 3, n, 8]), b.param(F32, [9, 4]), b.param(F32, [9, 4]), b.param(I64, [2, n])
    (y,) = lookup("", "RotaryEmbedding").lower(OpCall(b, [x, cos, sin, ids], {}, 23))
    arrays = {"x": rand(2, 3, length, 8), "c": rand(9, 4), "s": rand(4, 9).T.copy(), "i": ints(2, length, low=0, high=9)}
    (got,) = interpret.run(b.finish([y]), list(arrays.values()))
    node = onnx.helper.make_node("RotaryEmbedding", ["x", "c", "s", "i"], ["y"])
    assert_close(got, one_node.onnx_reference_run(node, 23, arrays)[0])


def test_every_entry_has_a_row() -> None:
    folded = {"HannWindow", "HammingWindow", "BlackmanWindow"}
    assert {e.op_type for e in entries()} - folded == {case.op for case in (*ROWS, *WINDOW_ROWS)}
