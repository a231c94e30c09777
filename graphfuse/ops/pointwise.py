"""Arithmetic, comparisons, logic, bits, selection and conversion, element by element."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

from graphfuse.ir import dtypes
from graphfuse.ir.builder import Val
from graphfuse.ir.dtypes import BOOL, F32, F64, FLOAT8, I32, I64, U8, U16, U32, U64, DType
from graphfuse.ir.errors import Refused
from graphfuse.ops.call import OpCall, normal_axis
from graphfuse.ops.table import Lowering, op, register


def operands(call: OpCall) -> tuple[Val, Val]:
    """Both operands of a binary op. Before opset 7 the second one was aligned by attribute ``axis`` instead of at the right."""
    left, right = call.arg(0), call.arg(1)
    if call.opset < 7 and call.integer("broadcast", 0) and "axis" in call.attrs and right.rank:
        behind = left.rank - normal_axis(call.integer("axis", 0), left.rank) - right.rank
        if behind < 0:
            raise Refused("bad-axis", "the second operand does not fit behind its axis")
        right = call.b.reshape(right, (*right.shape, *[1] * behind))
    return left, right


def unary(fn: str) -> Lowering:
    """The lowering of an op that is one scalar operation of its input."""
    return lambda call: call.b.map(fn, call.arg(0))


def binary(fn: str) -> Lowering:
    """The lowering of an op that is one scalar operation of its two inputs."""
    return lambda call: call.b.map(fn, *operands(call))


def variadic(fn: str) -> Lowering:
    """The lowering of an op that folds any number of inputs by a scalar operation."""
    return lambda call: functools.reduce(lambda a, b: call.b.map(fn, a, b), call.given())


_UNARY = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh",
    "BitwiseNot": "bitnot", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor",
    "IsNaN": "isnan", "Log": "log", "Neg": "neg", "Not": "not", "Round": "rint", "Sign": "sign", "Sin": "sin", "Sinh": "sinh",
    "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
_BINARY = {
    "Add": "add", "And": "and", "BitwiseAnd": "bitand", "BitwiseOr": "bitor", "BitwiseXor": "bitxor", "Div": "div",
    "Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le", "Mul": "mul", "Or": "or",
    "Sub": "sub", "Xor": "xor",
}  # fmt: skip
_VARIADIC = {"Max": "max", "Min": "min", "Sum": "add"}

_FORMS: tuple[tuple[dict[str, str], Callable[[str], Lowering]], ...] = ((_UNARY, unary), (_BINARY, binary), (_VARIADIC, variadic))
for _names, _form in _FORMS:
    for _name, _fn in _names.items():
        register(_name, "pointwise", _form(_fn))


@op("Mean", kind="pointwise")
def _mean(call: OpCall) -> Val:
    vals = call.given()
    return functools.reduce(lambda a, b: a + b, vals) / len(vals)


@op("Reciprocal", kind="pointwise")
def _reciprocal(call: OpCall) -> Val:
    return 1 / call.arg(0)


@op("Mod", kind="pointwise")
def _mod(call: OpCall) -> Val:
    """The sign is the divisor's, or with ``fmod`` the dividend's."""
    return call.b.map("fmod" if call.integer("fmod", 0) else "mod", *operands(call))


@op("Pow", kind="pointwise")
def _pow(call: OpCall) -> Val:
    """The result has the base's type. Known exponents that are cheaper without pow are built without it."""
    base, exponent = operands(call)
    known = call.value(1)
    if known is not None and known.size == 1 and known.dtype != object and all(d == 1 for d in exponent.shape):
        made = _simple_power(call, base, float(known.reshape(-1)[0]))
        if made is not None:
            return call.b.broadcast(made, (1,) * (exponent.rank - base.rank) + base.shape)
    if base.dtype.is_integer and exponent.dtype.is_float:
        wide = call.b.map("pow", call.b.cast(base, F64), call.b.cast(exponent, F64))
        return call.b.cast(wide, base.dtype)
    return call.b.map("pow", base, call.b.cast(exponent, base.dtype))


def _simple_power(call: OpCall, base: Val, exponent: float) -> Val | None:
    """Products, quotients and square roots: as exact as pow, its values at -inf and -0 included."""
    if exponent == 1:
        return base
    if exponent in (2, 3):
        return base * base if exponent == 2 else base * base * base
    if not base.dtype.is_float or exponent not in (-1, 0.5, -0.5):
        return None
    if exponent == -1:
        return 1 / base
    root = call.b.map("where", call.b.map("isneginf", base), math.inf, call.b.map("sqrt", base) + 0.0)
    return root if exponent > 0 else 1 / root


UNSIGNED = {1: U8, 2: U16, 4: U32, 8: U64}  # by size


@op("BitShift", kind="pointwise")
def _bit_shift(call: OpCall) -> Val:
    direction = call.string("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise Refused("bad-attribute", f"BitShift has the direction {direction[:20]!r}")
    left, right = operands(call)
    if left.dtype.kind == "u":
        return call.b.map("shl" if direction == "LEFT" else "shr", left, right)
    return _signed_shift(left, right, leftwards=direction == "LEFT")


def _signed_shift(x: Val, amount: Val, *, leftwards: bool) -> Val:
    """By way of unsigned bits, where amounts past the width, or negative ones, shift everything out.

    To the right the sign fills in: a negative number is shifted inverted.
    """
    b = x.builder
    bits = UNSIGNED[x.dtype.size]
    if leftwards:
        return b.cast(b.map("shl", b.cast(x, bits), b.cast(amount, bits)), x.dtype)
    negative = b.map("lt", x, 0)
    shifted = b.cast(b.map("shr", b.cast(_inverted_where(negative, x), bits), b.cast(amount, bits)), x.dtype)
    return _inverted_where(negative, shifted)


def _inverted_where(condition: Val, x: Val) -> Val:
    return x.builder.map("where", condition, x.builder.map("bitnot", x), x)


@op("IsInf", kind="pointwise")
def _is_inf(call: OpCall) -> Val:
    x = call.arg(0)
    tests = [fn for fn, name in (("isposinf", "detect_positive"), ("isneginf", "detect_negative")) if call.integer(name, 1)]
    found = [call.b.map(fn, x) for fn in tests] or [call.full(False, BOOL, x.shape)]
    return functools.reduce(lambda a, b: call.b.map("or", a, b), found)


@op("Where", kind="pointwise")
def _where(call: OpCall) -> Val:
    return call.b.map("where", call.arg(0), call.arg(1), call.arg(2))


@op("Clip", kind="pointwise")
def _clip(call: OpCall) -> Val:
    """Bounds are attributes up to opset 10, inputs after it. A bound not given is the type's finite limit, so it clips infinities."""
    x = call.arg(0)
    low, high = (_bound(call, x.dtype, name, index) for name, index in (("min", 1), ("max", 2)))
    x = x if low is None else call.b.map("max", x, low)
    return x if high is None else call.b.map("min", x, high)  # last: where min > max, the result is max


def _bound(call: OpCall, dtype: DType, name: str, index: int) -> Val | None:
    if call.has(index):
        return call.b.reshape(call.arg(index), ())
    if not dtype.is_float:
        return None
    limit = largest(dtype) if name == "max" else -largest(dtype)
    return call.b.const(call.real(name, 0.0) if name in call.attrs else limit, dtype)


def largest(dtype: DType) -> float:
    """The largest finite number of a float type."""
    return float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]


# --- conversion and the ops that do nothing


@op("Cast", kind="pointwise")
def _cast(call: OpCall) -> Val:
    return converted(call, call.arg(0), _old_type_name(call) if call.opset < 6 else call.dtype("to"))


def converted(call: OpCall, x: Val, dtype: DType) -> Val:
    """``x`` as Cast would make it: to a float8 held at its largest numbers, unless attribute ``saturate`` is 0."""
    if dtype in FLOAT8 and x.dtype is not dtype and call.integer("saturate", 1):
        x = x if x.dtype.is_float and not x.dtype.is_small_float else call.b.cast(x, F32)
        x = call.b.map("min", call.b.map("max", x, -largest(dtype)), largest(dtype))
    return call.b.cast(x, dtype)


def _old_type_name(call: OpCall) -> DType:
    named = {"FLOAT": F32, "DOUBLE": F64, **{np.dtype(t.numpy).name.upper(): t for t in dtypes.ALL}}
    name = call.string("to", "")
    if name not in named:
        raise Refused("dtype", f"element type {name[:20]!r} is not supported")
    return named[name]


@op("CastLike", kind="pointwise")
def _cast_like(call: OpCall) -> Val:
    return converted(call, call.arg(0), call.arg(1).dtype)


_BITS = {F32: "bits32", F64: "bits64"}
_FROM_BITS = {F32: ("float32", I32), F64: ("float64", I64)}


@op("BitCast", kind="pointwise")
def _bit_cast(call: OpCall) -> Val:
    """Of types that are computed in as they are; a small float is held in float32, where a NaN has other bits."""
    x, dtype = call.arg(0), call.dtype("to")
    if x.dtype.size != dtype.size or x.dtype.is_small_float or dtype.is_small_float or (dtype is BOOL and x.dtype is not BOOL):
        raise Refused("dtype", f"the bits of {x.dtype} are not kept as {dtype}")
    if x.dtype is dtype:
        return x
    whole = call.b.map(_BITS[x.dtype], x) if x.dtype.is_float else x
    if not dtype.is_float:
        return call.b.cast(whole, dtype)  # between integers of one size a cast keeps all bits
    name, bits = _FROM_BITS[dtype]
    return call.b.map(name, call.b.cast(whole, bits))


@op("Identity", kind="pointwise")
def _identity(call: OpCall) -> Val:
    return call.arg(0)


@op("Dropout", kind="pointwise", known=(1, 2))
def _dropout(call: OpCall) -> list[Val]:
    """Inference only: the data as it is, and a mask that keeps all of it."""
    x = call.arg(0)
    training, ratio = call.value(2), call.value(1)
    if call.opset < 7 and not call.integer("is_test", 0):
        raise Refused("training-mode", "Dropout without is_test is random before opset 7")
    if training is not None and training.any() and (ratio is None or ratio.any()):
        raise Refused("training-mode", "Dropout in training mode is random")
    if call.n_outputs > 1 and call.opset < 12:
        raise Refused("bad-attribute", "the mask of a Dropout in inference has no meaning before opset 12")
    return [x, call.full(True, BOOL, x.shape)][: max(1, call.n_outputs)]
