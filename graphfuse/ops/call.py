"""What a lowering is given: one node's operands, attributes and known values, and the questions that ops ask of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphfuse.ir import expr
from graphfuse.ir.builder import Builder, Number, Val
from graphfuse.ir.dtypes import DType, from_onnx
from graphfuse.ir.errors import Refused
from graphfuse.ir.expr import Dim


@dataclass(frozen=True)
class OpCall:
    """One node to build.

    ``args``: a Val for each data input; None for an omitted one and for those that the entry wants *known*.
    ``values``: for each input its value where it is known, else None; of ``object`` dtype, holding ints and Exprs, where
    it is computed from run-time sizes. Whoever makes the call refuses a node whose ``known`` input is present but unknown, so
    that None here means "omitted". ``attrs``: numbers, text, lists of them, and NumPy arrays for tensors. ``opset``: the
    version of the op's domain.
    """

    b: Builder
    args: Sequence[Val | None]
    attrs: Mapping[str, Any]
    opset: int
    n_outputs: int = 1
    values: Sequence[np.ndarray | None] = ()

    # --- inputs

    def has(self, index: int) -> bool:
        """Whether data input ``index`` is given."""
        return index < len(self.args) and self.args[index] is not None

    def arg(self, index: int) -> Val:
        """Data input ``index``; raises Refused when the node omits it."""
        value = self.args[index] if index < len(self.args) else None
        if value is None:
            raise Refused("missing-input", f"input {index} is not given")
        return value

    def given(self) -> list[Val]:
        """All data inputs of a variadic op; raises Refused when there are none."""
        vals = [a for a in self.args if a is not None]
        return vals or [self.arg(0)]

    def value(self, index: int) -> np.ndarray | None:
        """The known value of input ``index``, else None."""
        return self.values[index] if index < len(self.values) else None

    def require_value(self, index: int, what: str) -> np.ndarray:
        """The known value of input ``index``; raises Refused when it is known at run time only."""
        value = self.value(index)
        if value is None:
            raise Refused("unknown-value", f"{what} is not known when the graph is rewritten")
        return value

    def dims(self, index: int) -> list[Dim] | None:
        """The known value of input ``index`` as a list of dimensions, else None."""
        value = self.value(index)
        return None if value is None else [_dim(v) for v in value.reshape(-1).tolist()]

    def require_dims(self, index: int, what: str) -> list[Dim]:
        """As ``dims``; raises Refused when the value is known at run time only."""
        self.require_value(index, what)
        return self.dims(index) or []

    def fixed(self, index: int, what: str) -> list[int] | None:
        """The known value of input ``index`` as plain integers, None when omitted; raises Refused for run-time sizes."""
        dims = self.dims(index)
        if dims is None:
            return None
        plain = [d for d in dims if isinstance(d, int)]
        if len(plain) != len(dims):
            raise Refused("unknown-value", f"{what} is a run-time size")
        return plain

    # --- attributes

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        return int(self._typed(name, default, int))

    def real(self, name: str, default: float) -> float:
        """A float attribute, and its default too, in float32 as ONNX stores them."""
        return float(np.float32(self._typed(name, default, (int, float))))

    def string(self, name: str, default: str) -> str:
        """A string attribute."""
        found = self.attrs.get(name, default)
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(self._typed(name, default, str))

    def ints(self, name: str) -> list[int] | None:
        """A list of integers, None when the attribute is absent."""
        found = self.attrs.get(name)
        if found is None:
            return None
        if not isinstance(found, Sequence) or not all(isinstance(i, (int, np.integer)) for i in found):
            raise Refused("bad-attribute", f"attribute {name} is no list of integers")
        return [int(i) for i in found]

    def _typed(self, name: str, default: Any, kinds: Any) -> Any:
        found = self.attrs.get(name, default)
        if not isinstance(found, kinds) or isinstance(found, bool):
            raise Refused("bad-attribute", f"attribute {name} is {found!r}")
        return found

    def dtype(self, name: str, default: DType | None = None) -> DType:
        """An attribute that names an element type; raises Refused for a type that programs cannot hold."""
        code = self.integer(name, default.onnx if default else 0)
        found = from_onnx(code)
        if found is None:
            raise Refused("dtype", f"element type {code} is not supported")
        return found

    # --- axes

    def axis(self, default: int, rank: int | None = None) -> int:
        """Attribute ``axis`` as an axis of input 0 (or of ``rank``), 0 or more."""
        rank = self.arg(0).rank if rank is None else rank
        return normal_axis(self.integer("axis", default), rank)

    def axes(self, rank: int, input_index: int) -> list[int] | None:
        """Axes from the input (newer opsets) or from attribute ``axes``, normalised; None when neither is there."""
        found = self.fixed(input_index, "axes")
        found = self.ints("axes") if found is None else found
        return None if found is None else [normal_axis(a, rank) for a in found]

    # --- constants

    def number(self, value: float, dtype: DType) -> Val:
        """A constant that keeps float32 precision in a small float: 0.01 as a float16 would be off by 1 in 2000.

        Small floats are computed in float32, so a sum of two or three of their constants, scaled by powers of 2, is exact
        to about 22 bits; device compilers fold it.
        """
        if not dtype.is_small_float or not math.isfinite(value):
            return self.b.const(value, dtype)
        made: Val | None = None
        rest, exponent = math.frexp(value)
        scale = 0 if abs(exponent) < 8 else exponent
        rest = math.ldexp(rest, exponent - scale)
        for _ in range(3):
            part = dtype.nearest(rest)
            rest -= part
            if made is None or part:
                term = self.b.const(part, dtype)
                made = term if made is None else made + term
        assert made is not None
        while scale:
            step = max(-14, min(14, scale))
            made, scale = made * math.ldexp(1.0, step), scale - step
        return made

    def full(self, value: Number, dtype: DType, shape: Sequence[Dim]) -> Val:
        """A constant repeated to ``shape``."""
        return self.b.broadcast(self.b.const(value, dtype), shape)


def normal_axis(axis: int, rank: int) -> int:
    """``axis`` counted from the front; raises Refused when a value of ``rank`` has no such axis."""
    if not -rank <= axis < rank:
        raise Refused("bad-axis", f"axis {axis} is outside a value of rank {rank}")
    return axis + rank if axis < 0 else axis


def along(val: Val, axis: int, rank: int) -> Val:
    """A vector, reshaped to lie along ``axis`` of a value of ``rank``."""
    size = expr.product(val.shape)
    return val.builder.reshape(val, [size if i == axis else 1 for i in range(rank)])


def _dim(value: Any) -> Dim:
    return value if isinstance(value, expr.Expr) else int(value)
