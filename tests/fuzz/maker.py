"""A random graph under construction: values with types and sizes, choices, and the helpers that every family of ops needs.

A size is a tuple, one number for each run of the finished model: (4,) where all is static, (3, 1, 8) for a dimension that is
run-time and tried at three values. Shape rules work on all of them at once, so a graph is valid at each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphfuse.ir.dtypes import BY_NAME, DType, from_onnx

Size = tuple[int, ...]
Shape = tuple[Size, ...]
T = TypeVar("T")
MAX_ELEMENTS = 3000
MAX_RANK = 5
FLOATS = ("f32", "f64", "f16", "bf16")
SIGNED = ("i32", "i64", "i8", "i16")
UNSIGNED = ("u8", "u32", "u64", "u16")
INTS = (*SIGNED, *UNSIGNED)
_ONNX_NAMES = {
    "float": "f32", "double": "f64", "float16": "f16", "bfloat16": "bf16", "bool": "bool", "int8": "i8", "int16": "i16", "int32": "i32",
    "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip


@dataclass(frozen=True)
class V:
    """A value of the graph."""

    name: str
    dtype: str
    shape: Shape
    is_const: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> int:
        """The most elements it has in any run."""
        return max(int(np.prod([s[k] for s in self.shape])) for k in range(len(self.shape[0]))) if self.shape else 1


def is_fixed(size: Size) -> bool:
    """Whether a dimension has the same size in every run."""
    return len(set(size)) == 1


def per_run(rule: Callable[..., int], *sizes: Size) -> Size:
    """A rule of numbers, applied to the sizes of each run."""
    return tuple(rule(*row) for row in zip(*sizes, strict=True))


@cache
def allowed(op: str, opset: int, index: int = 0) -> frozenset[str]:
    """The element types that ONNX lets input ``index`` of an op have at an opset; empty where the op does not exist yet."""
    try:
        schema = onnx.defs.get_schema(op, max_inclusive_version=opset)
    except onnx.defs.SchemaError:
        return frozenset()
    if schema.deprecated:
        return frozenset()
    given = schema.inputs[min(index, len(schema.inputs) - 1)]
    text = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == given.type_str), [given.type_str])
    return frozenset(_ONNX_NAMES[t[7:-1]] for t in text if t[7:-1] in _ONNX_NAMES)


def broadcast(*shapes: Shape) -> Shape | None:
    """The common shape by NumPy's rule in every run, None where there is none."""
    rank = max(len(s) for s in shapes)
    result: list[Size] = []
    for axis in range(-rank, 0):
        sizes = [s[axis] for s in shapes if len(s) >= -axis]
        other = {s for s in sizes if any(n != 1 for n in s)}
        if len(other) > 1:
            return None
        result.append(other.pop() if other else sizes[0])
    return tuple(result)


class Maker:
    """Draws from ``random``, and collects nodes. ``types`` are the element types that this graph may use."""

    def __init__(self, random: Random, opset: int, runs: int, types: Sequence[str]) -> None:
        self._random = random
        self.opset, self.runs, self.types = opset, runs, tuple(types)
        self.values: list[V] = []
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[V] = []
        self.initializers: dict[str, np.ndarray] = {}
        self.wild = False  # whether inputs hold NaN, infinities and extremes
        self.has_nan = False  # whether a value may be NaN for other reasons
        self.feedable: list[str] = []  # initializers whose values nothing else depends on
        self._count = 0

    # --- draws

    def integer(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``, both included."""
        return self._random.randint(low, high)

    def choose(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.integer(0, len(items) - 1)]

    def chance(self, percent: int) -> bool:
        """True so often."""
        return self._random.random() * 100 < percent

    def axis(self, rank: int) -> tuple[int, int]:
        """An axis, and the number written for it, which may be negative."""
        axis = self.integer(0, rank - 1)
        return axis, axis - rank if self.chance(40) else axis

    def axes(self, rank: int, low: int = 1) -> tuple[list[int], list[int]]:
        """Some different axes, in any order, and the numbers written for them."""
        left, found, written = list(range(rank)), [], []
        for _ in range(self.integer(min(low, rank), rank)):
            axis = left.pop(self.integer(0, len(left) - 1))
            found.append(axis)
            written.append(axis - rank if self.chance(40) else axis)
        return found, written

    def rng(self) -> np.random.Generator:
        """A generator of data."""
        return np.random.default_rng(self.integer(0, 2**16))

    # --- values

    def fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def find(self, fits: Callable[[V], bool]) -> V | None:
        """A value that fits, the newer the likelier; None if there is none."""
        found = [v for v in self.values if fits(v)]
        if not found:
            return None
        return found[-1 - min(self.integer(0, len(found) - 1), self.integer(0, len(found) - 1))]

    def pick(self, types: Iterable[str], fits: Callable[[V], bool] = lambda v: True) -> V | None:
        """A value of one of the types; if there is none, another one cast to one of them."""
        wanted = [t for t in self.types if t in set(types)]
        found = self.find(lambda v: v.dtype in wanted and fits(v))
        if found is not None or not wanted:
            return found
        other = self.find(fits)
        return None if other is None else self.cast(other, self.choose(wanted))

    def add(self, op: str, inputs: Sequence[V | None], dtype: str, shape: Shape, /, **attrs: Any) -> V:
        """A node of one output."""
        return self.node(op, inputs, [(dtype, shape)], **attrs)[0]

    def node(self, op: str, inputs: Sequence[V | None], outputs: Sequence[tuple[str, Shape]], /, **attrs: Any) -> list[V]:
        """A node; its outputs can be picked from now on."""
        made = [V(self.fresh(), dtype, shape) for dtype, shape in outputs]
        node = helper.make_node(op, [v.name if v else "" for v in inputs], [v.name for v in made])
        kinds = {k: onnx.AttributeProto.INTS if isinstance(v, list) else None for k, v in attrs.items()}  # an empty list has no type
        node.attribute.extend(helper.make_attribute(k, v, attr_type=kinds[k]) for k, v in attrs.items())
        self.nodes.append(node)
        self.values += made
        return made

    def const(self, array: Any, dtype: str) -> V:
        """A constant: an initializer, or the output of a Constant node. It cannot be picked."""
        array = np.asarray(array).astype(BY_NAME[dtype].numpy)
        made = V(self.fresh(), dtype, tuple((n,) * self.runs for n in array.shape), True)
        if self.chance(15):
            self.nodes.append(helper.make_node("Constant", [], [made.name], value=numpy_helper.from_array(array, "")))
        else:
            self.initializers[made.name] = array
        return made

    def ints(self, numbers: Iterable[int]) -> V:
        """A constant list of integers for an input such as axes."""
        return self.const(np.array(list(numbers), np.int64), "i64")

    def data(self, dtype: str, shape: Sequence[int], *, nonzero: bool = False, positive: bool = False) -> V:
        """A constant of moderate random numbers."""
        made = self.const(moderate(self.rng(), BY_NAME[dtype], shape, nonzero=nonzero, positive=positive), dtype)
        if made.name in self.initializers and not (nonzero or positive):
            self.feedable.append(made.name)
        return made

    def cast(self, x: V, dtype: str) -> V:
        """``x`` in another type; floats are brought into the range of an integer type first, as ONNX leaves the rest undefined."""
        if x.dtype in FLOATS and dtype in INTS:
            x = self._in_range(x, BY_NAME[dtype])
        return self.add("Cast", [x], dtype, x.shape, to=BY_NAME[dtype].onnx)

    def without_nan(self, x: V) -> V:
        """``x`` with 0 for NaN, whose conversion to an integer and whose place in an order are not defined."""
        if not (self.wild or self.has_nan):
            return x
        nan = self.add("IsNaN", [x], "bool", x.shape)
        return self.add("Where", [nan, self.const(0, x.dtype), x], x.dtype, x.shape)

    def _in_range(self, x: V, target: DType) -> V:
        low = 0 if target.kind == "u" else -100 if target.size == 1 else -2000
        high = 100 if target.name == "i8" else 200 if target.size == 1 else 2000
        return self._between(self.without_nan(x), low, high)

    def squarable(self, x: V) -> V:
        """``x`` within bounds whose squares do not overflow: where they would, ops that hold squares inside are not defined."""
        if not self.wild:
            return x
        if x.dtype in FLOATS:
            return self._between(x, -100, 100)
        if self.opset >= 10:
            return self.add("Mod", [x, self.const(100, x.dtype)], x.dtype, x.shape)
        return self.cast(self.cast(x, "f32"), x.dtype)

    def without_infinities(self, x: V) -> V:
        """``x`` within bounds and without NaN, for softmax and its kin: infinities less infinities are anybody's guess there."""
        if self.has_nan and x.dtype in FLOATS:  # where there is a NaN, the logarithm of 0 may be
            return self._between(self.without_nan(x), -100, 100)
        return self.squarable(self.without_nan(x))

    def _between(self, x: V, low: int, high: int) -> V:
        x = self.add("Max", [x, self.const(low, x.dtype)], x.dtype, x.shape)
        return self.add("Min", [x, self.const(high, x.dtype)], x.dtype, x.shape)

    def partner(self, x: V, dtype: str | None = None) -> V:
        """A second operand for ``x`` that broadcasts with it: another value, or a constant."""
        dtype = dtype or x.dtype
        if self.chance(70):
            found = self.find(lambda v: v.dtype == dtype and _joins(v, x))
            if found is not None:
                return found
        return self.data(dtype, self.operand_shape(x))

    def operand_shape(self, x: V) -> list[int]:
        """A static shape that broadcasts to that of ``x``."""
        tail = x.shape[x.rank - self.integer(0, x.rank) :] if x.rank else ()
        return [s[0] if is_fixed(s) and not self.chance(30) else 1 for s in tail]


def _joins(a: V, b: V) -> bool:
    shape = broadcast(a.shape, b.shape)
    return shape is not None and V("", a.dtype, shape).elements <= MAX_ELEMENTS and len(shape) <= MAX_RANK


def moderate(rng: np.random.Generator, dtype: DType, shape: Sequence[int], *, nonzero: bool = False, positive: bool = False) -> np.ndarray:
    """Numbers around 1; integers from -9 to 9 (or 0 to 9)."""
    if dtype.is_float:
        x = rng.normal(size=shape) * rng.choice([0.5, 1.0, 3.0])
        if rng.random() < 0.3:  # ties, and values between two integers
            x = np.round(x * 2) / 2
        if positive:
            x = np.abs(x)
        return np.where(np.abs(x) < 0.1, 0.5, x) if nonzero else x
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    x = rng.integers(0 if dtype.kind == "u" or positive else -9, 10, shape)
    return np.where(x == 0, 3, x) if nonzero else x


def dtype_name(code: int) -> str:
    """The name of a ``TensorProto.DataType``."""
    found = from_onnx(code)
    assert found is not None, code
    return found.name
