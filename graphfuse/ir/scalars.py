"""The scalar operations that fused programs are made of: one row each.

A row says how many operands the operation takes, what type it returns, what it computes (as NumPy on arrays of the
*compute* type) and how it is written in device code. Everything else (activations, norms, quantisation) is composed
from these by the op table. ``discontinuous`` marks results that jump when an operand moves by one rounding, so small
floats are rounded to their own type before it (design, "Numbers").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphfuse.ir.dtypes import BOOL, BY_NAME, F32, F64, I32, I64, DType

Array = np.ndarray


@dataclass(frozen=True)
class Scalar:
    """One scalar operation. ``result`` is ``same`` (as the operands) or the name of a type; ``only`` is the one type it takes, if so.

    ``device`` maps a type kind to the device expression with ``{0}``, ``{1}``... for operands; ``*`` stands for any kind.
    ``cost`` is in float32 additions, roughly: 1 for an add, about 8 for a division, 20 for a transcendental.
    """

    name: str
    arity: int
    numpy: Callable[..., Array]
    device: dict[str, str]
    kinds: str = "fiub"
    result: str = "same"
    cost: int = 1
    discontinuous: bool = False
    only: str = ""

    def result_type(self, types: tuple[DType, ...]) -> DType:
        """The element type of the result. Raises TypeError when the operand types do not fit."""
        if len(types) != self.arity:
            raise TypeError(f"{self.name} takes {self.arity} operands, not {len(types)}")
        own = types[1:] if self.name == "where" else types
        if len({t.name for t in own}) != 1 or own[0].kind not in self.kinds or own[0].name != (self.only or own[0].name):
            raise TypeError(f"{self.name} does not take operands of type {', '.join(t.name for t in types)}")
        if self.name == "where" and types[0] is not BOOL:
            raise TypeError("where needs a bool condition")
        return BY_NAME.get(self.result, own[0])


def _trunc_div(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if a.dtype.kind == "u":
        return np.asarray(a // np.where(b == 0, 1, b).astype(a.dtype))
    safe = np.where(b == 0, 1, b).astype(a.dtype)
    quotient = a // safe
    wrong = (a % safe != 0) & ((a < 0) != (safe < 0))
    return np.asarray(quotient + wrong).astype(a.dtype)


def _floor_mod(a: Array, b: Array) -> Array:
    return np.asarray(np.mod(a, np.where(b == 0, 1, b).astype(b.dtype) if a.dtype.kind in "iu" else b))


def _trunc_mod(a: Array, b: Array) -> Array:
    return np.asarray(np.fmod(a, np.where(b == 0, 1, b).astype(b.dtype) if a.dtype.kind in "iu" else b))


def _int_pow(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":  # on an exponent of stride 0 NumPy would take square roots for 0.5, which are NaN at -inf
        return np.asarray(np.power(a, np.array(np.broadcast_to(b, np.broadcast_shapes(a.shape, b.shape)))))
    result = np.ones(np.broadcast_shapes(a.shape, b.shape), a.dtype)
    base, exponent = np.broadcast_to(a, result.shape).copy(), np.broadcast_to(b, result.shape).copy()
    negative = exponent < 0
    unit = np.where(base == 1, 1, np.where(base == -1 if base.dtype.kind == "i" else False, 1 - 2 * (exponent & 1), 0))
    exponent = np.where(negative, 0, exponent)
    while exponent.any():
        result = np.where(exponent & 1, result * base, result).astype(a.dtype)
        base, exponent = (base * base).astype(a.dtype), exponent >> 1
    return np.where(negative, unit, result).astype(a.dtype)


def _erf(a: Array) -> Array:
    import math

    return np.vectorize(math.erf, otypes=[a.dtype])(a) if a.size else a


def _shift(left: bool) -> Callable[[Array, Array], Array]:
    def apply(a: Array, b: Array) -> Array:
        bits = a.dtype.itemsize * 8
        safe = np.minimum(b, bits - 1).astype(a.dtype)
        moved = np.left_shift(a, safe) if left else np.right_shift(a, safe)
        return np.where(b >= bits, 0, moved).astype(a.dtype)

    return apply


def _bits(name: str, device: str, only: DType, result: DType) -> Scalar:
    """The same bits as another type."""
    return Scalar(name, 1, lambda a: a.view(result.numpy), {"*": f"{device}({{0}})"}, result=result.name, only=only.name)


def _call(name: str, arity: int) -> dict[str, str]:
    return {"*": f"gf_{name}({', '.join('{%d}' % i for i in range(arity))})"}


def _infix(op: str, name: str, kinds: str = "f") -> dict[str, str]:
    table = _call(name, 2)
    table.update(dict.fromkeys(kinds, f"({{0}} {op} {{1}})"))
    return table


def _unary(name: str, fn: Callable[..., Array], cost: int = 20, **more: object) -> Scalar:
    return Scalar(name, 1, fn, _call(name, 1), kinds="f", cost=cost, **more)  # type: ignore[arg-type]


def _compare(name: str, op: str, fn: Callable[..., Array]) -> Scalar:
    return Scalar(name, 2, fn, {"*": "({0} %s {1})" % op}, result="bool", discontinuous=True)


ROWS: tuple[Scalar, ...] = (
    # arithmetic: integers wrap, integer division truncates and by zero gives what the operand 1 would (no trap)
    Scalar("add", 2, np.add, _infix("+", "add"), "fiu"),
    Scalar("sub", 2, np.subtract, _infix("-", "sub"), "fiu"),
    Scalar("mul", 2, np.multiply, _infix("*", "mul"), "fiu"),
    Scalar("div", 2, _trunc_div, _infix("/", "div"), "fiu", cost=8),
    Scalar("mod", 2, _floor_mod, _call("mod", 2), "fiu", cost=20, discontinuous=True),
    Scalar("fmod", 2, _trunc_mod, _call("fmod", 2), "fiu", cost=20, discontinuous=True),
    Scalar("pow", 2, _int_pow, _call("pow", 2), "fiu", cost=40),
    Scalar("min", 2, np.minimum, _call("min", 2), "fiu"),
    Scalar("max", 2, np.maximum, _call("max", 2), "fiu"),
    Scalar("neg", 1, np.negative, {"f": "(-{0})", "*": "gf_neg({0})"}, "fiu"),
    Scalar("abs", 1, np.abs, _call("abs", 1), "fiu"),
    Scalar("sign", 1, np.sign, _call("sign", 1), "fiu", discontinuous=True),
    # rounding
    _unary("floor", np.floor, 1, discontinuous=True),
    _unary("ceil", np.ceil, 1, discontinuous=True),
    _unary("rint", np.rint, 1, discontinuous=True),
    _unary("trunc", np.trunc, 1, discontinuous=True),
    # transcendental
    _unary("sqrt", np.sqrt, 8),
    _unary("exp", np.exp),
    _unary("log", np.log),
    _unary("log1p", np.log1p),
    _unary("expm1", np.expm1),
    _unary("erf", _erf),
    _unary("sin", np.sin), _unary("cos", np.cos), _unary("tan", np.tan),
    _unary("asin", np.arcsin), _unary("acos", np.arccos), _unary("atan", np.arctan),
    _unary("sinh", np.sinh), _unary("cosh", np.cosh), _unary("tanh", np.tanh),
    _unary("asinh", np.arcsinh), _unary("acosh", np.arccosh), _unary("atanh", np.arctanh),
    # tests and comparisons
    _unary("isnan", np.isnan, 1, result="bool"),
    _unary("isposinf", np.isposinf, 1, result="bool", discontinuous=True),
    _unary("isneginf", np.isneginf, 1, result="bool", discontinuous=True),
    _compare("lt", "<", np.less), _compare("le", "<=", np.less_equal),
    _compare("gt", ">", np.greater), _compare("ge", ">=", np.greater_equal),
    _compare("eq", "==", np.equal), _compare("ne", "!=", np.not_equal),
    # logic on bool, bits on integers
    Scalar("and", 2, np.logical_and, {"*": "({0} && {1})"}, "b"),
    Scalar("or", 2, np.logical_or, {"*": "({0} || {1})"}, "b"),
    Scalar("xor", 2, np.logical_xor, {"*": "({0} != {1})"}, "b"),
    Scalar("not", 1, np.logical_not, {"*": "(!{0})"}, "b"),
    Scalar("bitand", 2, np.bitwise_and, {"*": "({0} & {1})"}, "iu"),
    Scalar("bitor", 2, np.bitwise_or, {"*": "({0} | {1})"}, "iu"),
    Scalar("bitxor", 2, np.bitwise_xor, {"*": "({0} ^ {1})"}, "iu"),
    Scalar("bitnot", 1, np.invert, {"*": "(~{0})"}, "iu"),
    Scalar("shl", 2, _shift(True), _call("shl", 2), "u"),
    Scalar("shr", 2, _shift(False), _call("shr", 2), "u"),
    # bits of floats
    _bits("bits32", "__float_as_int", F32, I32), _bits("float32", "__int_as_float", I32, F32),
    _bits("bits64", "__double_as_longlong", F64, I64), _bits("float64", "__longlong_as_double", I64, F64),
    # selection: never a weighted sum, so the branch not taken cannot leak NaN
    Scalar("where", 3, np.where, {"*": "({0} ? {1} : {2})"}),
)  # fmt: skip

TABLE: dict[str, Scalar] = {row.name: row for row in ROWS}
