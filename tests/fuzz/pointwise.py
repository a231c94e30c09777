"""Families of element-wise ops: each function adds one or a few nodes to the graph, or none where nothing fits."""

from __future__ import annotations

from graphfuse.ir.dtypes import BY_NAME
from tests.fuzz.maker import FLOATS, INTS, Maker, V, allowed, broadcast

ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "Mod", "Sum", "Mean", "PRelu")
COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
BITS = ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift")
UNARY = (
    "Neg", "Abs", "Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Log", "Reciprocal", "Sign", "Floor", "Ceil", "Round", "Erf", "Sin", "Cos",
    "Tan", "Atan", "Asin", "Acos", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Identity", "IsNaN", "IsInf", "Not", "BitwiseNot",
)  # fmt: skip
# attributes with the numbers to draw from
ACTIVATIONS: dict[str, dict[str, tuple[float | str, ...]]] = {
    "LeakyRelu": {"alpha": (0.01, 0.3, -0.5)}, "Elu": {"alpha": (1.0, 0.3)}, "Selu": {}, "Celu": {"alpha": (1.0, 2.0)},
    "HardSigmoid": {"alpha": (0.2, 0.5)}, "HardSwish": {}, "Softplus": {}, "Softsign": {}, "ThresholdedRelu": {"alpha": (1.0, 0.0)},
    "Shrink": {"lambd": (0.5, 1.0), "bias": (0.0, 0.5)}, "Gelu": {"approximate": ("none", "tanh")}, "Mish": {},
    "Swish": {"alpha": (1.0, 1.7)},
}  # fmt: skip


def unary(m: Maker) -> None:
    """One op of one operand, brought into its domain half of the time."""
    op = m.choose(UNARY)
    x = m.pick(allowed(op, m.opset))
    if x is None:
        return
    if op in ("Sqrt", "Log", "Acosh", "Asin", "Acos", "Atanh"):
        m.has_nan, x = (True, x) if m.chance(30) else (m.has_nan, _into_domain(m, op, x))
    if op in ("Exp", "Sinh", "Cosh", "Tan") and not m.wild:
        x = m.add("Tanh", [x], x.dtype, x.shape) if x.dtype in allowed("Tanh", m.opset) else x
    if op == "Reciprocal":
        x = _away_from_zero(m, x)
    m.add(op, [x], "bool" if op in ("IsNaN", "IsInf", "Not") else x.dtype, x.shape)


def _into_domain(m: Maker, op: str, x: V) -> V:
    if op in ("Sqrt", "Log", "Acosh"):
        return m.add("Add", [m.add("Abs", [x], x.dtype, x.shape), m.const(1.0 if op == "Acosh" else 0.25, x.dtype)], x.dtype, x.shape)
    return m.add("Mul", [m.add("Tanh", [x], x.dtype, x.shape), m.const(0.9, x.dtype)], x.dtype, x.shape)


def _away_from_zero(m: Maker, x: V) -> V:
    """``|x| + 1``; the sign of a zero that something was divided by would otherwise decide an infinity's."""
    if x.dtype not in allowed("Abs", m.opset) & allowed("Add", m.opset):
        return m.data(x.dtype, m.operand_shape(x), nonzero=True)
    absolute = m.add("Abs", [x], x.dtype, x.shape)
    if x.dtype in INTS:  # the smallest integer has no absolute value, and one more than the largest is 0
        return (
            m.add("Max", [absolute, m.const(1, x.dtype)], x.dtype, x.shape) if x.dtype in allowed("Max", m.opset) else m.const(3, x.dtype)
        )
    return m.add("Add", [absolute, m.const(1, x.dtype)], x.dtype, x.shape)


def activation(m: Maker) -> None:
    """One of the activations with drawn attributes."""
    op = m.choose(tuple(ACTIVATIONS))
    x = m.pick(allowed(op, m.opset) & {*FLOATS})
    if x is None:
        return
    if op == "Celu" and x.dtype != "f32":
        return
    attrs = {k: m.choose(v) for k, v in ACTIVATIONS[op].items() if m.chance(60)}
    m.add(op, [x], x.dtype, x.shape, **attrs)


def arithmetic(m: Maker) -> None:
    """An op of two (or more) operands that broadcast."""
    op = m.choose(ARITHMETIC)
    if op == "Pow" and m.opset < 10:
        return
    types = allowed(op, m.opset) - {"bool"} if op != "PRelu" else {*FLOATS} & allowed(op, m.opset)
    x = m.pick(types)
    if x is None:
        return
    y = m.partner(x)
    attrs = {}
    if op in ("Div", "Mod"):
        y = _away_from_zero(m, y)
        if op == "Mod" and (x.dtype in FLOATS or m.chance(40)):
            attrs["fmod"] = 1
    if op == "Pow":
        x, y = _power(m, x)
    if op == "PRelu":
        y = m.data(x.dtype, m.operand_shape(x))
    operands = [y, x] if op not in ("Div", "Mod", "Pow", "PRelu") and m.chance(40) else [x, y]
    if op in ("Sum", "Mean"):  # in another order they would overflow elsewhere
        operands = [m.squarable(v) if not v.is_const else v for v in operands]
    if op in ("Min", "Max", "Sum", "Mean") and m.chance(30):
        operands.append(m.partner(x))
    shape = broadcast(*(v.shape for v in operands))
    if shape is not None:
        m.add(op, operands, x.dtype, shape, **attrs)


def _power(m: Maker, x: V) -> tuple[V, V]:
    """A base and an exponent for which the result is defined and moderate."""
    if x.dtype in INTS:  # small ones: ONNX Runtime raises integers to powers in float64
        return m.add("Mod", [x, m.const(7, x.dtype)], x.dtype, x.shape), m.const(m.integer(0, 2), x.dtype)
    exponent = m.choose((2.0, 0.5, 3.0, -1.0, -0.5, 1.0, 0.0, 1.7))
    kind = "i64" if m.opset >= 12 and exponent == int(exponent) and m.chance(30) else x.dtype
    if exponent != int(exponent) or exponent < 0:
        x = _away_from_zero(m, x)
    return x, m.const(exponent if m.chance(70) else [exponent], kind)


def comparison(m: Maker) -> None:
    """A comparison of two values; sometimes of one with itself."""
    op = m.choose(COMPARISONS)
    x = m.pick(allowed(op, m.opset))
    if x is None:
        return
    y = x if m.chance(10) else m.partner(x)
    shape = broadcast(x.shape, y.shape)
    if shape is not None:
        m.add(op, [x, y], "bool", shape)


def logic(m: Maker) -> None:
    """And, Or, Xor, Not."""
    x = m.pick(["bool"])
    if x is None:
        return
    op = m.choose(("And", "Or", "Xor", "Not"))
    y = m.partner(x)
    shape = broadcast(x.shape, y.shape)
    if shape is not None:
        m.add(op, [x] if op == "Not" else [x, y], "bool", x.shape if op == "Not" else shape)


def bits(m: Maker) -> None:
    """Bits of integers; shifts by less than the width and by more."""
    op = m.choose(BITS)
    x = m.pick(allowed(op, m.opset))
    if x is None:
        return
    attrs = {}
    y = m.partner(x)
    if op == "BitShift":
        width = BY_NAME[x.dtype].size * 8
        y = m.const(m.rng().integers(0, width, m.operand_shape(x)), x.dtype)
        attrs["direction"] = m.choose(("LEFT", "RIGHT"))
    shape = broadcast(x.shape, y.shape)
    if shape is not None:
        m.add(op, [x, y], x.dtype, shape, **attrs)


def select(m: Maker) -> None:
    """Where with broadcasting in all three places."""
    x = m.pick(allowed("Where", m.opset, 1))
    if x is None:
        return
    y, condition = m.partner(x), m.partner(x, "bool")
    shape = broadcast(x.shape, y.shape, condition.shape)
    if shape is not None:
        m.add("Where", [condition, x, y] if m.chance(50) else [condition, y, x], x.dtype, shape)


def clip(m: Maker) -> None:
    """Bounds as attributes or inputs, one or both, also crossed."""
    x = m.pick(allowed("Clip", m.opset) & ({*FLOATS} if m.opset < 12 else {*FLOATS, *INTS}))
    if x is None:
        return
    low, high = (1, 5) if x.dtype[0] == "u" else (-1, 2)
    if m.opset >= 11 and m.chance(10):
        low, high = high, low
    both = x.dtype in ("f16", "bf16") or m.chance(60)
    if m.opset < 11:
        m.add("Clip", [x], x.dtype, x.shape, **({"min": float(low), "max": float(high)} if both else {"min": float(low)}))
    else:
        m.add("Clip", [x, m.const(low, x.dtype), *([m.const(high, x.dtype)] if both else [])], x.dtype, x.shape)


def cast(m: Maker) -> None:
    """To any type of this graph."""
    x = m.find(lambda v: True)
    if x is not None:
        m.cast(x, m.choose(m.types))
