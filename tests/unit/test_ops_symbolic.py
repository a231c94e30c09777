"""Ops on run-time sizes: one program must be right for every size, or be refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest

from graphfuse.ir import Dim, expr, interpret, sym
from graphfuse.ir.errors import Refused
from tests import ort_faults
from tests.unit import one_node

N, M = sym("n"), sym("m")
I64, END, START = np.int64, np.iinfo(np.int64).max, np.iinfo(np.int64).min
SIZES = ({"n": 5, "m": 3}, {"n": 2, "m": 4}, {"n": 1, "m": 1}, {"n": 7, "m": 2}, {"n": 0, "m": 2})


@dataclass(frozen=True)
class Row:
    """``shapes`` of the data inputs; ``known`` values that may hold run-time sizes; ``ints`` data of indices instead of floats."""

    op: str
    shapes: tuple[Sequence[Dim], ...]
    known: tuple[Any, ...] = ()
    opset: int = 18
    outputs: int = 1
    attrs: dict[str, Any] = field(default_factory=dict)
    never_empty: bool = False  # the op, or ONNX Runtime's kernel of it, has no meaning for n = 0

    def __str__(self) -> str:
        return f"{self.op}@{self.opset}{self.shapes}{self.known}{self.attrs}".replace(" ", "")


def row(
    op: str, *shapes: Sequence[Dim], known: Sequence[Any] = (), opset: int = 18, outputs: int = 1, never_empty: bool = False, **attrs: Any
) -> Row:
    return Row(op, shapes, tuple(known), opset, outputs, attrs, never_empty)


def sliced(start: Any, end: Any, step: int = 1, **more: Any) -> Row:
    return row("Slice", (2, N), known=([start], [end], [1], [step]), **more)


SLICES = [
    sliced(s, e)
    for s, e in ((0, END), (1, END), (0, 4), (2, 4), (-1, END), (-3, -1), (0, -1), (4, 2), (1, 2**31 - 1), (-100, 3), (0, N), (N, END))
]
SLICES += [
    sliced(s, e, k)
    for s, e, k in ((0, END, 2), (1, END, 2), (1, END, 3), (-1, START, -1), (END, START, -1), (3, START, -1), (-1, START, -2))
]
MOVES = [
    row("Reshape", (N, 4, M), known=([0, -1],), never_empty=True),
    row("Reshape", (N, 4, M), known=([-1, 2, 2],)),
    row("Reshape", (N, 6), known=([N, 2, 3],)),
    row("Reshape", (N, 6), known=([N, -1, 3],), never_empty=True),
    row("Reshape", (N, M), known=([N * M],)),
    row("Reshape", (2, N, M), known=([2, M, N],), never_empty=True),
    row("Flatten", (N, 2, M), axis=2),
    row("Squeeze", (N, 1, M), known=([1],)),
    row("Unsqueeze", (N, M), known=([0, 3],)),
    row("Transpose", (N, 2, M), perm=[2, 0, 1]),
    row("Expand", (N, 1), known=([N, M],)),
    row("Expand", (1, 1, N), known=([M, 3, 1],)),
    row("Expand", (N, 2), known=([1, 1],)),
    row("Tile", (N, 2), known=([2, 1],)),
    row("Tile", (2, N), known=([1, M],)),
    row("Concat", (N, 2), (N, 3), axis=1),
    row("Concat", (N, 2), (M, 2), axis=0),
    row("Split", (N, 6), known=([2, 4],), opset=13, outputs=2, axis=1),
    row("Split", (2 * N, 3), opset=13, outputs=2),
    row("Split", (N + 2, 3), known=([N, 2],), opset=13, outputs=2),
    row("Pad", (N, 2), known=([1, 0, 2, 1],)),
    row("Pad", (N, 2), known=([0, -1, 1, 0],)),
    row("Pad", (N + 1, 2), known=([2, 0, 1, 0],), mode="edge"),
    row("Pad", (N + 3, 2), known=([2, 0, 1, 0],), mode="reflect"),
    row("DepthToSpace", (N, 4, M, 2), blocksize=2, never_empty=True),
    row("SpaceToDepth", (N, 3, 2 * M, 4), blocksize=2, never_empty=True),
    row("Resize", (1, 2, N, M), known=(None, np.array([1, 1, 2, 3], np.float32)), mode="nearest", never_empty=True),
    row("Resize", (1, 2, N, M), known=(None, None, [1, 2, 2 * N, 3 * M]), mode="nearest", never_empty=True),
    row("Trilu", (2, N, M)),
    row("Range", known=(0, N, 1)),
    row("Range", known=(N + 2, 0, -2)),
    row("ConstantOfShape", known=([N, 3],)),
]
COMPUTES = [
    row("Add", (N, 3), (3,)),
    row("ReduceMean", (3, N), known=([1],), never_empty=True),
    row("ReduceSum", (N, M), known=([0],)),
    row("Softmax", (3, N)),
    row("Softmax", (N, 2, M), opset=11, never_empty=True),
    row("LogSoftmax", (N, 5)),
    row("LayerNormalization", (N, M), (M,), (M,), never_empty=True),
    row("GlobalAveragePool", (N, 3, M, 2), never_empty=True),
    row("InstanceNormalization", (N, 3, M), (3,), (3,), never_empty=True),
    row("GroupNormalization", (N, 4, M), (4,), (4,), opset=21, num_groups=2, never_empty=True),
    row("ArgMax", (N, 4), axis=1),
]
ROWS = [*SLICES, *MOVES, *COMPUTES]


def symbolic(value: Any) -> np.ndarray | None:
    """A known value as the graph room gives it: of object dtype where it holds run-time sizes."""
    if value is None or isinstance(value, np.ndarray):
        return value
    array = np.array(value, object)
    return array if any(isinstance(d, expr.Expr) for d in array.reshape(-1)) else array.astype(I64)


def at(value: np.ndarray, env: dict[str, int]) -> np.ndarray:
    if value.dtype != object:
        return value
    return np.array([expr.evaluate(d, env) for d in value.reshape(-1)], I64).reshape(value.shape)


def prepared(case: Row) -> tuple[onnx.NodeProto, dict[str, Sequence[Dim]], dict[str, np.ndarray]]:
    """The node, the shapes of its data inputs, and arrays for all inputs: known ones, and stand-ins for data."""
    data = [f"x{i}" for i in range(len(case.shapes))]
    known = {f"k{i}": symbolic(v) for i, v in enumerate(case.known)}
    names = data + ["" if v is None else n for n, v in known.items()]
    node = onnx.helper.make_node(case.op, names, [f"y{i}" for i in range(case.outputs)], **case.attrs)
    shapes = dict(zip(data, case.shapes, strict=True))
    arrays = {n: np.zeros([1] * len(s), np.float32) for n, s in shapes.items()}
    return node, shapes, arrays | {n: v for n, v in known.items() if v is not None}


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_one_program_for_all_sizes(case: Row) -> None:
    node, shapes, arrays = prepared(case)
    sizes = [env for env in SIZES if not (case.never_empty and env["n"] == 0)]
    known = {n: v for n, v in arrays.items() if n not in shapes}
    program, names = one_node.lower(node, case.opset, arrays, shapes, carrier=(N, M))
    for env in sizes:
        feeds = {n: random_array([expr.evaluate(d, env) for d in shape]) for n, shape in shapes.items()}
        wanted = ort_faults.reference(node, case.opset, feeds | {n: at(v, env) for n, v in known.items()})
        feeds["carrier"] = random_array([env["n"], env["m"]])
        assert program.output_shapes(env) == [w.shape for w in wanted]
        for got, want in zip(interpret.run(program, [feeds[n] for n in names]), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def random_array(shape: Sequence[int]) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_first_and_last_five_are_equally_many() -> None:
    """However long the axis; so their sum has a shape."""
    sizes = {one_node.lower(*prepared_slice(s, e))[0].outputs[0][1] for s, e in ((0, 5), (-5, END), (-5, N))}
    assert sizes == {(2, expr.emin(5, N))}


def prepared_slice(start: Dim, end: Dim) -> tuple[Any, ...]:
    node, shapes, arrays = prepared(sliced(start, end))
    return node, 18, arrays, shapes


REFUSED = [
    (row("Add", (N,), (M,)), "not-provable"),
    (row("Add", (N,), (4,)), "not-provable"),
    (row("Concat", (N, 2), (M, 2), axis=1), "not-provable"),
    (row("Reshape", (N, 3), known=([-1, 2],)), "not-provable"),
    (row("Reshape", (N, 3), known=([M, 3],)), "not-provable"),
    (row("Squeeze", (N, 2), known=([0],)), "not-provable"),
    (row("Squeeze", (N, 1)), "unknown-value"),
    (row("Expand", (N, 1), known=([M, 4],)), "not-provable"),
    (row("Split", (N, 3), opset=13, outputs=2), "not-provable"),
    (row("Split", (N, 3), outputs=2, num_outputs=2), "not-provable"),
    (row("Split", (N, 3), known=([2, 4],), outputs=2), "not-provable"),
    (sliced(0, N - M), "unknown-value"),
    (sliced(0, 6, 2), "not-provable"),
    (row("Pad", (N, 2), known=([2, 0, 1, 0],), mode="reflect"), "not-provable"),
    (row("Pad", (N, 2), known=([2, 0, 1, 0],), mode="edge"), "not-provable"),
    (row("SpaceToDepth", (1, 2, N, 4), blocksize=2), "not-provable"),
    (row("Slice", (2, N)), "unknown-value"),
    (row("Slice", (2, N), known=([0], [4], [1], [0])), "bad-shape"),
    (row("Slice", (2, N), known=([0], [4], [7])), "bad-axis"),
    (row("Transpose", (N, 2), perm=[0, 0]), "not-provable"),
    (row("Softmax", (N, 2), axis=5), "bad-axis"),
    (row("Softmax", (N, 2), axis="last"), "bad-attribute"),
    (row("Cast", (N,), to=8), "dtype"),
    (row("Resize", (1, 1, N, N), known=(None, np.array([1, 1, 2, 2], np.float32)), mode="linear"), "unsupported-mode"),
    (row("Resize", (1, 1, N, N), known=(None, np.array([1, 1, 1.5, 2], np.float32)), mode="nearest"), "unsupported-mode"),
    (row("GroupNormalization", (1, N, 3), (4,), (4,), num_groups=4), "bad-shape"),
    (row("Relu"), "missing-input"),
]


@pytest.mark.parametrize(("case", "rule"), REFUSED, ids=str)
def test_refused_with_its_rule(case: Row, rule: str) -> None:
    node, shapes, arrays = prepared(case)
    with pytest.raises(Refused) as refusal:
        one_node.lower(node, case.opset, arrays, shapes)
    assert refusal.value.rule == rule
    assert "\n" not in str(refusal.value)
