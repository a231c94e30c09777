"""Every op of the table, and every form of it, against ONNX Runtime: types, shapes and values, edge values included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from tests import ort_faults
from tests.conftest import run_reference
from tests.unit import one_node

INF, NAN = np.inf, np.nan
F32, F16, F64, I8, U8, I32, I64 = np.float32, np.float16, np.float64, np.int8, np.uint8, np.int32, np.int64
INT_MAX, INT_MIN = np.iinfo(I64).max, np.iinfo(I64).min
EDGES = [NAN, INF, -INF, -0.0, 0.0, 1.0, -1.0, 2.5, -2.5, 0.5, 1.5, -0.3, 88.0, -104.0, 1e-3, 30.0, -17.0, 3e38]


@dataclass(frozen=True)
class Row:
    """One node. ``inputs``: arrays, None for omitted ones. ``constants``: inputs whose value the lowering also sees."""

    op: str
    inputs: tuple[Any, ...]
    opset: int = 18
    outputs: int = 1
    constants: tuple[int, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    reference: Callable[..., list[np.ndarray]] = ort_faults.reference
    why: str = ""  # why not ONNX Runtime

    def __str__(self) -> str:
        kinds = "-".join("x" if i is None else f"{np.asarray(i).dtype}{list(np.shape(i))}" for i in self.inputs[:3])
        text = ",".join(f"{k}={v}" for k, v in self.attrs.items() if not isinstance(v, onnx.TensorProto))
        return f"{self.op}@{self.opset}({kinds}){text}".replace(" ", "")


def row(op: str, *inputs: Any, opset: int = 18, outputs: int = 1, constants: Sequence[int] = (), **attrs: Any) -> Row:
    return Row(op, inputs, opset, outputs, tuple(constants), attrs)


def spec(op: str, *inputs: Any, opset: int = 18, outputs: int = 1, why: str, **attrs: Any) -> Row:
    """As ``row``, checked against ONNX's reference implementation, for the reason given."""
    return Row(op, inputs, opset, outputs, (), attrs, one_node.onnx_reference_run, why)


def f32(*values: float) -> np.ndarray:
    return np.array(values, F32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, I64)


def rand(*shape: int, dtype: Any = F32, scale: float = 2.0) -> np.ndarray:
    rng = np.random.default_rng(sum((i + 1) * d for i, d in enumerate(shape)))
    return (rng.standard_normal(shape) * scale).astype(dtype)


def ints(*shape: int, low: int = -9, high: int = 9, dtype: Any = I64) -> np.ndarray:
    return np.random.default_rng(sum(shape) + 7).integers(low, high, shape).astype(dtype)


def bools(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape) + 3).integers(0, 2, shape).astype(bool)


def with_edges(*shape: int) -> np.ndarray:
    """Random numbers, with a row each that holds NaN, both infinities, and only -inf."""
    x = rand(*shape)
    x[0, 1], x[1, 0], x[1, 2], x[2, :] = NAN, INF, -INF, -INF
    return x


E32 = f32(*EDGES)
NO_F16 = "ONNX Runtime has no CPU kernel for float16 here"

UNARY = [row(op, E32) for op in "Abs Ceil Cos Erf Exp Floor IsNaN Log Neg Reciprocal Round Sign Sin Sqrt Tan Tanh".split()]
UNARY += [row(op, f32(NAN, INF, -INF, -0.0, 0.5, 1, -1, 2, -3)) for op in "Acos Acosh Asin Asinh Atan Atanh Cosh Sinh".split()]
UNARY += [row(op, np.array([INT_MIN, -5, 0, 7, INT_MAX])) for op in ("Abs", "Neg", "Sign")]
UNARY += [row(op, np.array(2.5, F64)) for op in ("Abs", "Exp", "Floor", "Neg", "Round")]
UNARY += [row("Floor", f32().reshape(0, 3)), row("Not", bools(5)), row("Identity", ints(3)), row("Identity", rand(2, 0, 3))]
UNARY += [spec("BitwiseNot", ints(4, dtype=d), why="ONNX Runtime has no CPU kernel for all types") for d in (I8, np.uint16, I64)]
UNARY += [spec(op, f32(0.1, 0.7, 3.3).astype(F16), why=NO_F16) for op in ("Exp", "Log", "Sqrt", "Tanh", "Round", "Reciprocal")]
UNARY += [row("IsInf", E32), row("IsInf", E32, detect_negative=0), row("IsInf", E32, detect_positive=0)]
UNARY += [row("IsInf", E32, detect_positive=0, detect_negative=0)]

PAIRS = [(rand(2, 3), rand(3)), (rand(2, 1, 3), rand(4, 1)), (np.array(2.0, F32), rand(3)), (rand(0, 3), rand(1, 3)), (E32, E32[::-1])]
BINARY = [row(op, a, b) for op in ("Add", "Sub", "Mul", "Div", "Less", "GreaterOrEqual", "Max", "Min") for a, b in PAIRS]
BINARY += [row(op, E32, np.zeros_like(E32)) for op in ("Equal", "Greater", "LessOrEqual", "Mul", "Div", "Max", "Min")]
BINARY += [row(op, ints(4), ints(2, 4, low=1)) for op in ("Add", "Sub", "Mul", "Div", "Mod", "Equal", "Less", "Max", "Min")]
BINARY += [row("Div", i64(-7, 7, -7, 7, INT_MIN), i64(2, -2, -2, 2, 3)), row("Mul", i64(INT_MAX, INT_MIN), i64(2, 3))]
BINARY += [row("Add", np.array([127, -128], I8), np.array([1, -1], I8)), row("Mul", np.array([200], U8), np.array([2], U8))]
BINARY += [row(op, bools(2, 4), bools(4)) for op in ("And", "Or", "Xor", "Equal")]
BINARY += [row(op, ints(2, 4), ints(4)) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")]
BINARY += [row("Mod", i64(5, -5, 5, -5, INT_MIN), i64(3, 3, -3, -3, 7), fmod=f) for f in (0, 1)]
BINARY += [row("Mod", f32(5.5, -5.5, 5.5, INF, NAN, 1), f32(3, 3, -3, 2, 2, INF), fmod=1)]
BINARY += [row("BitShift", np.array([16, 255, 1], U8), np.array([1, 3, 0], U8), direction=d) for d in ("LEFT", "RIGHT")]
BINARY += [row("BitShift", np.array([1 << 63], np.uint64), np.array([63], np.uint64), direction="RIGHT")]
BINARY += [row("Pow", E32, f32(e), constants=c) for e in (2, 3, 1, -1, 0.5, -0.5, 0, -2.5) for c in ((), (1,))]
BINARY += [row("Pow", f32(2, -2, 0.5), i64(3, 2, -1)), row("Pow", ints(3, dtype=I32), i64(2), constants=[1])]
BINARY += [
    row("Pow", i64(2, -2, 3), i64(3, 3, 0)),
    row("Pow", np.array([4, 9], I32), f32(0.5, 2)),
    row("Pow", rand(2, 1), rand(3), constants=[1]),
]
BINARY += [
    row("Pow", rand(2), rand(1, 1), constants=[1]),
    row("Sum", rand(2, 3), rand(3), rand(1, 1)),
    row("Mean", rand(2, 3), rand(3), rand(2, 1)),
]
BINARY += [row("Max", E32), row("Max", rand(2, 3), rand(3), rand(2, 1)), row("Min", ints(3, dtype=U8, low=0), ints(3, dtype=U8, low=3))]
BINARY += [row("PRelu", E32, f32(0.1)), row("PRelu", rand(2, 3, 4), rand(3, 1)), row("PRelu", f32(-1, 2, 0), f32(INF, INF, INF))]

SELECT = [
    row("Where", bools(2, 1), rand(2, 3), rand(3)),
    row("Where", bools(3), ints(3), ints(1)),
    row("Where", np.array(True), f32(NAN), f32(1)),
]
SELECT += [
    row("Clip", E32, *bounds) for bounds in ((np.array(-1, F32), np.array(2, F32)), (None, np.array(1, F32)), (np.array(1, F32),), ())
]
SELECT += [row("Clip", E32, np.array(3, F32), np.array(1, F32)), row("Clip", E32, opset=10), row("Clip", E32, opset=6, min=-1.5, max=2.0)]
SELECT += [
    row("Clip", ints(9), np.array(-3), np.array(4)),
    row("Clip", ints(9), None, np.array(4)),
    row("Clip", E32, f32(0), f32(6), opset=11),
]
SELECT += [row("Clip", rand(3, dtype=F64), np.array(0.0), None)]

CASTS = [(E32[5:12], t) for t in (I32, I64, I8, F16, F64, bool)] + [(E32, t) for t in (bool, F16, F64)]
CASTS += [(ints(6), t) for t in (F32, F16, U8, I8, I32, bool)] + [(bools(4), t) for t in (F32, I64, U8)]
CASTS += [(np.array([65504, 0.1, -2.7, NAN], F16), t) for t in (F32, F64, bool)] + [(f32(300, -300, 1e-8), F16), (i64(300, -1, 128), U8)]
CAST = [row("Cast", x, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(t))) for x, t in CASTS]
NO_BF16 = "ONNX Runtime's Python takes no bfloat16 arrays"
CAST += [spec("Cast", E32, to=onnx.TensorProto.BFLOAT16, why=NO_BF16), spec("Cast", rand(3).astype(ml_dtypes.bfloat16), to=1, why=NO_BF16)]
CAST += [
    row("CastLike", rand(4), ints(1)),
    row("Cast", ints(3), opset=6, to=1),
    row("Dropout", E32, outputs=2),
    row("Dropout", E32, opset=7),
]
BITS = [(E32, I32), (E32, np.uint32), (E32.astype(F64), I64), (E32.astype(F64), np.uint64), (ints(6), F64), (ints(6, dtype=I32), F32)]
BITS += [(ints(6, dtype=np.uint64, low=0), I64), (np.array([200, 3], U8), I8), (np.array([-1, 3], np.int16), np.uint16), (bools(4), U8)]
NO_BITS = "ONNX Runtime has no BitCast"
CAST += [spec("BitCast", x, opset=26, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(t)), why=NO_BITS) for x, t in BITS]
CAST += [row("Dropout", E32, np.array(0.5, F32), np.array(False), outputs=2, opset=13), row("Dropout", E32, opset=10)]

PLAIN = "Relu LeakyRelu Elu Selu Celu Sigmoid HardSigmoid HardSwish Mish Softplus Softsign ThresholdedRelu Shrink".split()
ACTIVATIONS = [row(op, E32) for op in PLAIN] + [row(op, rand(2, 3, scale=8)) for op in PLAIN] + [row("Relu", ints(5, dtype=I32))]
ACTIVATIONS += [
    row("LeakyRelu", E32, alpha=-0.3),
    row("Elu", E32, alpha=2.0),
    row("Celu", E32, alpha=0.3),
    row("Selu", E32, alpha=1.1, gamma=2.0),
]
ACTIVATIONS += [
    row("HardSigmoid", E32, alpha=0.7, beta=0.1),
    row("ThresholdedRelu", E32, alpha=0.3),
    row("Shrink", E32, bias=0.2, lambd=0.9),
]
ACTIVATIONS += [row("Gelu", x, opset=20, approximate=a) for x in (E32, rand(2, 3)) for a in ("none", "tanh")]
ACTIVATIONS += [spec("Swish", E32, opset=24, why="new in opset 24"), spec("Swish", E32, opset=24, alpha=1.7, why="new in opset 24")]
F16_ACTIVATIONS = "Relu LeakyRelu Elu Selu Sigmoid HardSigmoid HardSwish Softplus Softsign".split()
ACTIVATIONS += [spec(op, rand(16, dtype=F16), why=NO_F16) for op in F16_ACTIVATIONS]


def slice10(x: np.ndarray, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Row:
    return row("Slice", x, *(None if v is None else np.array(v, I64) for v in (starts, ends, axes, steps)))


X345 = rand(3, 4, 5)
SHAPES = [row("Reshape", X345, i64(*s)) for s in ([12, 5], [-1], [0, -1], [0, 0, 5], [2, -1, 3, 5], [3, 4, 5, 1])]
SHAPES += [
    row("Reshape", rand(0, 4), i64(0, 2, 2)),
    row("Reshape", rand(0, 4), i64(4, 0), allowzero=1),
    row("Reshape", rand(1), np.zeros(0, I64)),
]
SHAPES += [row("Flatten", X345, axis=a) for a in (0, 1, 2, 3, -1)] + [row("Flatten", X345, opset=9), row("Flatten", rand(0, 3))]
SHAPES += [
    row("Squeeze", rand(1, 3, 1, 2), i64(0, -2)),
    row("Squeeze", rand(1, 3, 1, 2)),
    row("Squeeze", rand(1, 3, 1), opset=11, axes=[0]),
]
SHAPES += [
    row("Unsqueeze", rand(3, 2), i64(0, -1)),
    row("Unsqueeze", rand(3, 2), opset=11, axes=[1, 3]),
    row("Unsqueeze", np.array(1.0, F32), i64(0)),
]
SHAPES += [row("Transpose", X345), row("Transpose", X345, perm=[1, 0, 2]), row("Transpose", ints(2, 0, 3), perm=[2, 0, 1])]
SHAPES += [row("Expand", rand(3, 1), i64(*s)) for s in ([2, 1, 6], [3, 4], [1], [2, 3, 1], [3, 0])] + [
    row("Expand", np.array(1.0, F32), i64(2, 2))
]
SHAPES += [
    row("Tile", rand(2, 3), i64(2, 1)),
    row("Tile", rand(2, 3), i64(1, 3)),
    row("Tile", ints(2, 3), i64(2, 2)),
    row("Tile", rand(2, 3), i64(0, 2)),
]
SHAPES += [row("DepthToSpace", rand(2, 8, 2, 3), blocksize=2, mode=m) for m in ("DCR", "CRD")] + [
    row("DepthToSpace", rand(1, 9, 1, 2), opset=10, blocksize=3)
]
SHAPES += [row("SpaceToDepth", rand(2, 3, 4, 6), blocksize=2), row("Concat", rand(2, 3), rand(2, 1), rand(2, 0), axis=1)]
SHAPES += [row("Concat", rand(2, 3), rand(4, 3), axis=-2), row("Concat", rand(2, 0), rand(2, 0), axis=0), row("Concat", ints(3), axis=0)]

RANGES = [
    ([1], [3]),
    ([0], [INT_MAX]),
    ([-3], [INT_MAX]),
    ([-100], [100]),
    ([1], [-1]),
    ([3], [1]),
    ([-2], [-5]),
    ([2], [2]),
    ([7], [9]),
    ([0], [2**31 - 1]),
]
BACKWARDS = [([-1], [INT_MIN]), ([4], [0]), ([100], [-100]), ([-1], [-4]), ([1], [3]), ([INT_MAX], [INT_MIN]), ([2], [-(2**31)])]
PARTS = [slice10(X345, s, e, [2]) for s, e in RANGES] + [slice10(X345, s, e, [-1], [k]) for s, e in RANGES for k in (2, 3)]
PARTS += [slice10(X345, s, e, [2], [k]) for s, e in BACKWARDS for k in (-1, -2, -7)]
PARTS += [slice10(X345, [1, 0], [3, 2]), slice10(X345, [1, -1], [3, -5], [0, 2], [1, -2]), slice10(rand(0, 3), [0], [4], [1])]
PARTS += [
    row("Slice", X345, opset=9, starts=[1, -2], ends=[INT_MAX, INT_MAX], axes=[0, 2]),
    row("Slice", X345, opset=1, starts=[0, 1], ends=[2, 9]),
]
PARTS += [
    row("Split", rand(6, 2), opset=13, outputs=3),
    row("Split", rand(6, 2), i64(1, 2, 3), outputs=3),
    row("Split", rand(2, 6), outputs=2, axis=-1, num_outputs=2),
]
PARTS += [
    row("Split", rand(7, 2), outputs=3, num_outputs=3),
    row("Split", rand(6), opset=11, split=[4, 2], outputs=2),
    row("Split", rand(6), opset=11, outputs=2),
]
PARTS += [row("Split", rand(6), i64(6, 0), opset=13, outputs=2), row("Split", rand(6), opset=2, outputs=2)]

PADS = [row("Pad", rand(2, 3), i64(*p), *fill) for p in ([1, 0, 0, 2], [0, 1, 2, 3], [0, 0, 0, 0]) for fill in ((), (np.array(-1.5, F32),))]
PADS += [
    row("Pad", rand(3, 4), i64(-1, 2, 1, -2)),
    row("Pad", rand(3, 4), i64(1, 1), None, i64(-1)),
    row("Pad", ints(3), i64(1, 2), np.array(7)),
]
PADS += [row("Pad", rand(3, 4), i64(2, 1, 1, 3), mode=m) for m in ("reflect", "edge")] + [
    row("Pad", rand(3, 4), i64(2, 1, 1, 3), opset=19, mode="wrap")
]
PADS += [row("Pad", rand(2, 3), opset=10, pads=[1, 0, 0, 2], value=2.5), row("Pad", rand(2, 3), opset=2, pads=[0, 1, 0, 1], mode="edge")]
PADS += [row("Pad", bools(2, 3), i64(1, 0, 0, 1), np.array(True)), row("Pad", rand(0, 3), i64(1, 0, 1, 0))]

IMAGE = rand(1, 2, 3, 4)
RESIZES = [
    row("Resize", IMAGE, None, f32(1, 1, *f), mode="nearest", coordinate_transformation_mode=c, nearest_mode=n)
    for c, n, factors in [
        ("asymmetric", "floor", [(2, 2), (3, 1), (4, 5)]),
        ("half_pixel", "round_prefer_floor", [(2, 2), (3, 4)]),
        ("half_pixel", "round_prefer_ceil", [(2, 5)]),
        ("pytorch_half_pixel", "round_prefer_floor", [(2, 3)]),
        ("asymmetric", "round_prefer_floor", [(2, 1)]),
    ]
    for f in factors
]
RESIZES += [
    row("Resize", IMAGE, None, None, i64(1, 2, 6, 12), mode="nearest"),
    row("Resize", IMAGE, f32(1, 1, 2, 2), opset=10, mode="nearest"),
]
RESIZES += [
    row("Resize", IMAGE, None, f32(2, 3), mode="nearest", axes=[2, 3]),
    row("Upsample", IMAGE, f32(1, 1, 2, 3), opset=9, mode="nearest"),
]
RESIZES += [row("Upsample", IMAGE, opset=7, scales=[1.0, 1.0, 3.0, 2.0])]

INDEXING = [row("Gather", X345, np.array(v, I64), axis=a, constants=c) for v, a in (
    (1, 0), (-1, 2), ([0, 2, 1], 1), ([[0, -1], [1, 1]], -1), ([1, 2, 3], 2), ([3, 1], 1), ([-1, -2], 2), ([2], 0), ([-3, -2, -1], 1), ([1, 1], 1)
) for c in ((), (1,))]  # fmt: skip
INDEXING += [
    row("Gather", ints(4), np.array([3, 0], I32)),
    row("Gather", rand(0, 3), i64(1, 2), axis=1),
    row("Gather", rand(3), np.zeros((0, 2), I64)),
]
INDEXING += [
    row("GatherElements", X345, ints(2, 4, 5, low=-3, high=3), axis=0),
    row("GatherElements", X345, ints(3, 4, 2, low=-5, high=5, dtype=I32), axis=-1),
]
INDEXING += [
    row("GatherND", X345, i64(0, 1, 2, 3).reshape(2, 2)),
    row("GatherND", X345, i64(-1, 3, 4).reshape(1, 3)),
    row("GatherND", X345, i64(2).reshape(1, 1)),
]
INDEXING += [row("GatherND", X345, ints(3, 2, 1, low=-4, high=4), batch_dims=1)]
INDEXING += [row("Trilu", rand(2, 3, 4), *k, upper=u) for u in (0, 1) for k in ((), (np.array(1),), (np.array(-2),), (np.array(9),))] + [
    row("Trilu", ints(3, 3))
]
INDEXING += [
    row("Range", *(np.array(v, t) for v in b))
    for b in ((0, 5, 1), (3, 10, 4), (10, 3, -2), (5, 5, 1), (5, 1, 1), (-3, 2, 2))
    for t in (I64, I32)
]
INDEXING += [row("ConstantOfShape", i64(2, 3)), row("ConstantOfShape", np.zeros(0, I64)), row("ConstantOfShape", i64(0, 2))]
INDEXING += [row("ConstantOfShape", i64(2, 3), value=onnx.numpy_helper.from_array(np.array([v]))) for v in (7, True, 0.5)]
INDEXING += [row("EyeLike", rand(3, 4)), row("EyeLike", ints(3, 3, dtype=I32), k=-1, dtype=1), row("EyeLike", rand(2, 3), k=2)]
INDEXING += [row("OneHot", ints(2, 3, low=-4, high=4), np.array(4), f32(-1, 5), axis=a) for a in (-1, 0, 1)] + [
    row("OneHot", i64(9, -9, 1), i64(3), i64(0, 1))
]

FOLDS = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp".split()
AXES = ({"axes": [1]}, {"axes": [-1, 0], "keepdims": 0}, {})
REDUCTIONS = [
    row(op, X345, i64(*a["axes"]) if "axes" in a else None, **{k: v for k, v in a.items() if k != "axes"}) for op in FOLDS for a in AXES
]
REDUCTIONS += [row(op, X345, opset=11, **a) for op in FOLDS for a in AXES] + [
    row(op, X345, noop_with_empty_axes=1) for op in ("ReduceSum", "ReduceMax")
]
REDUCTIONS += [row(op, with_edges(4, 3), i64(1)) for op in ("ReduceSum", "ReduceLogSumExp", "ReduceMean", "ReduceL1")]
REDUCTIONS += [
    spec(op, with_edges(4, 3), i64(1), why="ONNX Runtime loses a NaN that is not the first") for op in ("ReduceMax", "ReduceMin")
]
REDUCTIONS += [
    row(op, ints(3, 4, dtype=I32), i64(1))
    for op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceSumSquare")
]
REDUCTIONS += [row(op, np.abs(X345), i64(0, 2)) for op in ("ReduceLogSum",)] + [
    row("ReduceLogSum", np.abs(X345), opset=11, axes=[0], keepdims=0)
]
REDUCTIONS += [
    row("ReduceSum", np.array(3.0, F32)),
    row("ReduceSum", rand(0, 3), i64(0)),
    row("ReduceSum", X345, np.zeros(0, I64)),
    row("ReduceMean", rand(5, 0, 3), i64(0)),
]
REDUCTIONS += [
    row("ReduceLogSumExp", f32(1000, 1001, 999)),
    row("ReduceLogSumExp", f32(-2000, -2001)),
    row("ReduceMax", bools(3, 4), i64(1), opset=20),
]
EMPTY = "ONNX Runtime refuses what opset 20 defines: the extremum of nothing"
REDUCTIONS += [spec(op, x, i64(0), opset=20, why=EMPTY) for op in ("ReduceMax", "ReduceMin") for x in (rand(0, 3), ints(0, 3))]
REDUCTIONS += [spec(op, rand(4, 40, dtype=F16), i64(1), why=NO_F16) for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2")]
TIES = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [-5, -1, -5, -1]], F32)
REDUCTIONS += [
    row(op, TIES, axis=a, keepdims=k, select_last_index=s) for op in ("ArgMax", "ArgMin") for a in (0, -1) for k in (0, 1) for s in (0, 1)
]
REDUCTIONS += [row("ArgMax", ints(3, 4, dtype=I32), axis=1), row("ArgMax", f32(-INF, INF, 0)), row("ArgMin", TIES, opset=11)]
REDUCTIONS += [row("Hardmax", TIES), row("Hardmax", X345, axis=0), row("Hardmax", X345, opset=11, axis=1), row("Hardmax", X345, opset=11)]

SOFTMAXES = [row(op, x, axis=a) for op in ("Softmax", "LogSoftmax") for x in (X345, X345 * 200) for a in (-1, 0, 1)]
SOFTMAXES += [row(op, X345, opset=11, **a) for op in ("Softmax", "LogSoftmax") for a in ({}, {"axis": 0}, {"axis": 2}, {"axis": -2})]
SOFTMAXES += [row(op, with_edges(4, 3)) for op in ("Softmax", "LogSoftmax")] + [
    row("Softmax", rand(0, 3)),
    row("Softmax", rand(3, 0)),
    row("Softmax", rand(7, dtype=F64)),
]

C3 = (np.abs(rand(3)) + 0.5, rand(3))
STATS = (*C3, rand(3) * 0.3, np.abs(rand(3)) + 0.2)
IMAGES = rand(2, 3, 4, 5)
NORMS = [row("LayerNormalization", X345, rand(5), rand(5), outputs=3), row("LayerNormalization", X345, rand(4, 5), axis=1, epsilon=1e-2)]
NORMS += [
    row("LayerNormalization", X345, rand(5, dtype=F32), None, outputs=2),
    row("LayerNormalization", X345.astype(F64), rand(5, dtype=F64)),
]
NORMS += [row("LayerNormalization", X345, rand(3, 4, 5), rand(3, 4, 5), axis=0)]
NORMS += [row("LayerNormalization", rand(4, 64, dtype=F16), rand(64, dtype=F16), rand(64, dtype=F16))]
NORMS += [
    spec("RMSNormalization", X345, rand(*s), opset=23, axis=a, why="new in opset 23") for s, a in (((5,), -1), ((4, 5), 1), ((1,), 2))
]
NORMS += [spec("RMSNormalization", rand(4, 64, dtype=F16), rand(64, dtype=F16), opset=23, epsilon=1e-3, why=NO_F16)]
NORMS += [row("InstanceNormalization", x, *C3, epsilon=1e-3) for x in (IMAGES, rand(2, 3, 7))]
NORMS += [row("GroupNormalization", rand(2, 6, 3, 2), rand(6), rand(6), opset=21, num_groups=g) for g in (1, 3, 6)]
NORMS += [
    spec(
        "GroupNormalization", rand(2, 6, 3, 2), rand(3), rand(3), num_groups=3, why="ONNX Runtime's function body of opset 18 fails to load"
    )
]
NORMS += [
    row("BatchNormalization", IMAGES, *STATS),
    row("BatchNormalization", IMAGES, *STATS, opset=9, epsilon=1e-2),
    row("BatchNormalization", rand(4, 3), *STATS),
]
NORMS += [row("BatchNormalization", IMAGES, *STATS, opset=7)]
NORMS += [row("LpNormalization", np.vstack([rand(2, 3), np.zeros((1, 3), F32)]), p=p, axis=a) for p in (1, 2) for a in (0, -1)]
NORMS += [row("MeanVarianceNormalization", IMAGES), row("MeanVarianceNormalization", IMAGES, axes=[1, 2])]
NORMS += [row("GlobalAveragePool", IMAGES), row("GlobalMaxPool", IMAGES), row("GlobalAveragePool", rand(1, 2, 6))]

TIED = f32(0.5, 1.5, 2.5, -0.5, -1.5, 300, -300, 3.49, 0, INF, -INF) * np.float32(0.5)
QUANT = [row("QuantizeLinear", TIED, np.array(0.5, F32), np.array(z, t)) for z, t in ((3, I8), (-128, I8), (128, U8), (255, U8))]
QUANT += [
    row("QuantizeLinear", TIED, np.array(0.5, F32)),
    spec("QuantizeLinear", ints(4, dtype=I32), np.array(0.3, F32), np.array(1, U8), why="ONNX Runtime quantises no int32"),
]
QUANT += [row("QuantizeLinear", rand(2, 3, 4), f32(0.1, 0.5, 2), np.array([0, 5, -9], I8), axis=a) for a in (1, -2)]
QUANT += [
    row("QuantizeLinear", rand(2, 3) * 9, f32(0.1, 0.5, 2), np.array([0, 5, 9], U8), axis=1),
    row("QuantizeLinear", TIED, np.array(0.5, F32), np.array(3, I8), opset=10),
]
QUANT += [row("QuantizeLinear", TIED * 1e3, np.array(0.01, F32), np.array(7, t), opset=21) for t in (np.uint16, np.int16)]
QUANT += [
    row("QuantizeLinear", TIED, np.array(0.5, F32), opset=21, output_dtype=t) for t in (onnx.TensorProto.INT8, onnx.TensorProto.UINT16)
]
QUANT += [row("QuantizeLinear", rand(16, dtype=F16), np.array(0.1, F16), np.array(3, I8), opset=19)]
QUANT += [row("QuantizeLinear", rand(2, 6), np.abs(rand(2, 2)) + F32(0.1), ints(2, 2, dtype=I8), opset=21, axis=1, block_size=3)]
QUANT += [
    row("DequantizeLinear", np.array([0, 1, 127, 128, 255]).astype(t), np.array(0.3, F32), np.array(z, t)) for z, t in ((3, U8), (-7, I8))
]
QUANT += [
    row("DequantizeLinear", ints(5, dtype=I32, low=-(2**30), high=2**30), np.array(1e-3, F32)),
    row("DequantizeLinear", ints(5, dtype=U8, low=0), np.array(0.1, F32)),
]
QUANT += [
    row("DequantizeLinear", ints(2, 3, 4, dtype=I8), f32(0.1, 0.5, 2), np.array([0, 5, -9], I8), axis=1),
    row("DequantizeLinear", ints(3, dtype=I8), f32(0.5), np.array([1], I8)),
]
QUANT += [row("DequantizeLinear", ints(2, 5, dtype=I8), np.abs(rand(2, 2)), ints(2, 2, dtype=I8), opset=21, axis=1, block_size=3)]
QUANT += [row("DequantizeLinear", ints(5, dtype=np.int16), np.array(0.1, F16), np.array(3, np.int16), opset=21)]
QUANT += [row("DynamicQuantizeLinear", x, outputs=3) for x in (rand(3, 4), np.abs(rand(3, 4)), -np.abs(rand(3, 4)), np.zeros((2, 2), F32))]

ROWS = [*UNARY, *BINARY, *SELECT, *CAST, *ACTIVATIONS, *SHAPES, *PARTS, *PADS, *RESIZES, *INDEXING, *REDUCTIONS, *SOFTMAXES, *NORMS, *QUANT]


def node_of(case: Row) -> tuple[onnx.NodeProto, dict[str, np.ndarray]]:
    names = ["" if value is None else f"x{i}" for i, value in enumerate(case.inputs)]
    node = onnx.helper.make_node(case.op, names, [f"y{i}" for i in range(case.outputs)], **case.attrs)
    return node, {n: np.asarray(v) for n, v in zip(names, case.inputs, strict=True) if n}


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_op(case: Row) -> None:
    node, arrays = node_of(case)
    results = one_node.run(node, case.opset, arrays, constants=[f"x{i}" for i in case.constants])
    wanted = case.reference(node, case.opset, arrays)
    assert len(results) == len(wanted)
    for got, want in zip(results, wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert_close(got, want)


@pytest.mark.parametrize("fault", ort_faults.FAULTS, ids=str)
def test_faults_of_onnx_runtime_are_those_it_has(fault: ort_faults.Fault) -> None:
    """Where another one judges, ONNX Runtime must be wrong, and no longer than that."""
    arrays = {f"x{i}": x for i, x in enumerate(fault.example)}
    node = onnx.helper.make_node(fault.op, list(arrays), [f"y{i}" for i in range(fault.outputs)], **fault.attributes)
    assert fault.meets(fault.attributes, fault.example)
    old = ort_faults.installed() < fault.mended
    right = _survives(node, arrays) if fault.crashes and old else _is_right(node, arrays, fault.judge(node, 19, arrays))
    assert right != old


def test_casts_of_casts_in_onnx_runtime() -> None:
    infos = [onnx.helper.make_tensor_value_info(n, t, [2]) for n, t in (("x", onnx.TensorProto.FLOAT), ("y", onnx.TensorProto.BOOL))]
    casts = [onnx.helper.make_node("Cast", ["x"], ["i"], to=onnx.TensorProto.INT64), onnx.helper.make_node("Cast", ["i"], ["y"], to=9)]
    graph = onnx.helper.make_graph(casts, "casts", infos[:1], infos[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    feeds = {"x": f32(0.5, 1.5)}
    assert ort_faults.model_reference(model, feeds)["y"].tolist() == [False, True]
    assert run_reference(model, feeds)["y"].tolist() == [ort_faults.installed() < ort_faults.CASTS_MENDED, True]


def _is_right(node: onnx.NodeProto, arrays: dict[str, np.ndarray], wanted: Sequence[np.ndarray]) -> bool:
    try:
        results = one_node.onnxruntime_run(node, 19, arrays)
    except Exception:  # ONNX Runtime raises a class of its own for each status code
        return False
    return all(np.array_equal(got, want, equal_nan=got.dtype.kind == "f") for got, want in zip(results, wanted, strict=True))


def _survives(node: onnx.NodeProto, arrays: dict[str, np.ndarray]) -> bool:
    """Whether a process that runs the node in ONNX Runtime lives on."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            pool.submit(one_node.onnxruntime_run, node, 19, arrays).result()
        except BrokenProcessPool:
            return False
    return True


OLD_BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power, "Less": np.less}


@pytest.mark.parametrize("op", OLD_BINARY)
def test_operands_aligned_by_axis_before_opset_7(op: str) -> None:
    a, b = np.abs(rand(2, 3, 4, 5)), rand(3, 4)
    node = onnx.helper.make_node(op, ["a", "b"], ["y"], axis=1, broadcast=1)
    (got,) = one_node.run(node, 6, {"a": a, "b": b})
    assert_close(got, OLD_BINARY[op](a, b[None, :, :, None]))


@pytest.mark.parametrize("op", ["LayerNormalization", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"])
def test_variance_is_two_pass(op: str) -> None:
    """Far from zero ``E[x2] - E[x]2`` in float32 loses everything; only the rounding of the mean itself may show."""
    x = (IMAGES + 4096).astype(F32)
    axes = {"LayerNormalization": (3,), "MeanVarianceNormalization": (0, 2, 3)}.get(op, (2, 3))
    parameters = {} if op.startswith("Mean") else {"s": np.ones(x.shape[-1] if op.startswith("Layer") else 3, F32)}
    parameters |= {"b": parameters["s"] * 0} if parameters else {}
    node = onnx.helper.make_node(op, ["x", *parameters], ["y"], **({"num_groups": 3} if op.startswith("Group") else {}))
    (got,) = one_node.run(node, 21, {"x": x, **parameters})
    wide = x.astype(F64)
    want = (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + (0 if op.startswith("Mean") else 1e-5))
    np.testing.assert_allclose(got, want, rtol=0, atol=4096 * np.finfo(F32).eps * 4)


@pytest.mark.parametrize("dtype", [F16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("alpha", [0.01, 1 / 3, 1e-6, 3000.1])
def test_attributes_keep_float32_precision_in_small_floats(dtype: Any, alpha: float) -> None:
    """The one rounding is that of the result: a slope of 0.01 rounded to the small type would show."""
    x = -np.abs(rand(64)).astype(dtype)
    (got,) = one_node.run(onnx.helper.make_node("LeakyRelu", ["x"], ["y"], alpha=alpha), 18, {"x": x})
    want = (np.float64(F32(alpha)) * x.astype(F64)).astype(dtype)
    assert np.count_nonzero(got != want) <= 1  # one in 64 may lie on a tie


@pytest.mark.parametrize("size", [2049, 70000])
def test_means_count_exactly_in_float16(size: int) -> None:
    x = np.ones(size, F16)
    (got,) = one_node.run(onnx.helper.make_node("ReduceMean", ["x"], ["y"], keepdims=0), 18, {"x": x})
    assert got == 1


def test_exact_rounding_rounds_where_a_node_ends() -> None:
    node = onnx.helper.make_node("Gelu", ["x"], ["y"])
    x = rand(64, dtype=F16)
    (plain,) = one_node.run(node, 20, {"x": x})
    (exact,) = one_node.run(node, 20, {"x": x}, exact_rounding=True)
    np.testing.assert_array_equal(plain, exact)


def assert_close(got: np.ndarray, want: np.ndarray) -> None:
    """Integers and bools exactly; floats to 64 roundings (libm and vectorised kernels differ), small ones to 4 of their own."""
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
        return
    eps = float(ml_dtypes.finfo(got.dtype).eps)
    tolerance = eps * (4 if got.dtype.itemsize == 2 else 64)
    np.testing.assert_allclose(got.astype(F64), want.astype(F64), rtol=tolerance, atol=tolerance)
