"""Sizes that exporters take through floats: cast, multiplied or divided, rounded down, cast back.

A ``Ratio`` is the exact value. The model computes in float32 or float64, which gives the same whole number as long as the sizes
and their products stay below 2**24: a whole number there is a float32, and a quotient by ``den`` that is not whole keeps a
distance of ``1/den`` to the next whole number, more than its rounding error. Factors such as 0.3, which is no float, stay unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from graphfuse.graph.node_view import Unknown
from graphfuse.ir import expr
from graphfuse.ir.expr import Dim, Expr

_LARGEST_FACTOR = 4096


@dataclass(frozen=True)
class Ratio:
    """``num / den``."""

    num: Dim
    den: int


Real = Ratio | float


def is_real(item: Any) -> bool:
    """Whether arithmetic on the element is that of floats."""
    return isinstance(item, float | Ratio)


def as_ratio(item: Any) -> Ratio:
    """An element as a ratio; raises Unknown for a float that is neither small and whole nor a small binary fraction."""
    if isinstance(item, Ratio):
        return item
    if isinstance(item, Expr) or type(item) is int:
        return Ratio(item, 1)
    if isinstance(item, float) and abs(item) <= _LARGEST_FACTOR:
        exact = Fraction(item)
        if exact.denominator <= _LARGEST_FACTOR:
            return Ratio(exact.numerator, exact.denominator)
    raise Unknown


def add(a: Any, b: Any) -> Real:
    """The sum."""
    left, right = as_ratio(a), as_ratio(b)
    return _reduced(left.num * right.den + right.num * left.den, left.den * right.den)


def subtract(a: Any, b: Any) -> Real:
    """The difference."""
    right = as_ratio(b)
    return add(a, Ratio(-right.num, right.den))


def multiply(a: Any, b: Any) -> Real:
    """The product."""
    left, right = as_ratio(a), as_ratio(b)
    return _reduced(left.num * right.num, left.den * right.den)


def divide(a: Any, b: Any) -> Real:
    """The quotient; raises Unknown unless ``b`` is a positive number."""
    left, right = as_ratio(a), as_ratio(b)
    if not isinstance(right.num, int) or right.num <= 0:
        raise Unknown
    return _reduced(left.num * right.den, left.den * right.num)


def _reduced(num: Dim, den: int) -> Real:
    """Plain numbers become floats again where they are floats; 0 stays unknown, as its sign is."""
    if den > _LARGEST_FACTOR or num == 0:
        raise Unknown
    whole = expr.exact_quotient(num, den)
    if whole is not None:
        num, den = whole, 1
    return num / den if isinstance(num, int) and den & (den - 1) == 0 else Ratio(num, den)


def cross(a: Any, b: Any) -> tuple[Dim, Dim]:
    """Two integers that compare as ``a`` and ``b`` do."""
    left, right = as_ratio(a), as_ratio(b)
    return left.num * right.den, right.num * left.den


def floor(item: Any) -> Real:
    """Rounded down; raises Unknown for what may be below 0, where the size is none anyway."""
    x = as_ratio(item)
    if not expr.is_nonneg(x.num):
        raise Unknown
    return _whole(expr.floordiv(x.num, x.den))


def ceil(item: Any) -> Real:
    """Rounded up; raises Unknown for what may be below 0."""
    x = as_ratio(item)
    if not expr.is_nonneg(x.num):
        raise Unknown
    return _whole(expr.ceildiv(x.num, x.den))


def _whole(size: Dim) -> Real:
    return float(size) if isinstance(size, int) else Ratio(size, 1)


def to_int(item: Ratio) -> Dim:
    """Cast to an integer: towards 0."""
    if not expr.is_nonneg(item.num):
        raise Unknown
    return expr.floordiv(item.num, item.den)


def from_int(item: Dim) -> Real:
    """Cast to a float; raises Unknown for a number that float32 may not hold."""
    if isinstance(item, int) and abs(item) > 1 << 24:
        raise Unknown
    return _whole(item)
