"""Activation functions, composed of scalar operations so that no intermediate overflows where the result does not.

``max(x, 0)`` and ``min(x, 0)`` take the place of comparisons where they can: they keep NaN, and unlike a comparison they need
no rounding of small floats before them.
"""

from __future__ import annotations

import math

import numpy as np

from graphfuse.ir.builder import Val
from graphfuse.ir.errors import Refused
from graphfuse.ops.call import OpCall
from graphfuse.ops.table import op


def _positive(x: Val) -> Val:
    return x.builder.map("max", x, 0)


def _negative(x: Val) -> Val:
    return x.builder.map("min", x, 0)


def _parameter(call: OpCall, name: str, default: float) -> Val:
    return call.number(call.real(name, default), call.arg(0).dtype)


@op("Relu", kind="pointwise")
def _relu(call: OpCall) -> Val:
    return _positive(call.arg(0))


@op("LeakyRelu", kind="pointwise")
def _leaky_relu(call: OpCall) -> Val:
    x = call.arg(0)
    return _positive(x) + _parameter(call, "alpha", 0.01) * _negative(x)


@op("PRelu", kind="pointwise")
def _prelu(call: OpCall) -> Val:
    """A slope is data and may be infinite, so here the branch is chosen, not summed."""
    x, slope = call.arg(0), call.arg(1)
    if call.opset < 7 and slope.rank == 1 and x.rank > 1 and slope.shape[0] != 1:  # one slope a channel
        slope = call.b.reshape(slope, (*slope.shape, *[1] * (x.rank - 2)))
    return call.b.map("where", call.b.map("lt", x, 0), x * slope, x)


@op("ThresholdedRelu", kind="pointwise")
def _thresholded_relu(call: OpCall) -> Val:
    x = call.arg(0)
    return call.b.map("where", call.b.map("gt", x, _parameter(call, "alpha", 1.0)), x, 0)


@op("Shrink", kind="pointwise")
def _shrink(call: OpCall) -> Val:
    x, bias = call.arg(0), call.real("bias", 0.0)
    limit = call.real("lambd", 0.5)
    if not x.dtype.is_float:
        raise Refused("dtype", "Shrink of integers is not supported")
    above = call.b.map("gt", x, call.number(limit, x.dtype))
    below = call.b.map("lt", x, call.number(-limit, x.dtype))
    shift = call.number(bias, x.dtype)
    return call.b.map("where", below, x + shift, call.b.map("where", above, x - shift, 0))


@op("Elu", kind="pointwise")
def _elu(call: OpCall) -> Val:
    x = call.arg(0)
    return _positive(x) + _parameter(call, "alpha", 1.0) * call.b.map("expm1", _negative(x))


@op("Selu", kind="pointwise")
def _selu(call: OpCall) -> Val:
    x = call.arg(0)
    alpha = _parameter(call, "alpha", 1.67326319217681884765625)
    gamma = _parameter(call, "gamma", 1.05070102214813232421875)
    return gamma * (_positive(x) + alpha * call.b.map("expm1", _negative(x)))


@op("Celu", kind="pointwise")
def _celu(call: OpCall) -> Val:
    x = call.arg(0)
    alpha = _parameter(call, "alpha", 1.0)
    return _positive(x) + _negative(alpha * call.b.map("expm1", x / alpha))


@op("Sigmoid", kind="pointwise")
def _sigmoid(call: OpCall) -> Val:
    return sigmoid(call.arg(0))


def sigmoid(x: Val) -> Val:
    """``1 / (1 + exp(-x))``; where exp overflows the result is 0, as it should be."""
    return 1 / (1 + x.builder.map("exp", -x))


@op("HardSigmoid", kind="pointwise")
def _hard_sigmoid(call: OpCall) -> Val:
    return _unit_clip(_parameter(call, "alpha", 0.2) * call.arg(0) + _parameter(call, "beta", 0.5))


@op("HardSwish", kind="pointwise")
def _hard_swish(call: OpCall) -> Val:
    """By ONNX's function it is a HardSigmoid, whose 1/6 is an attribute: a float32, for float64 too."""
    x = call.arg(0)
    return x * _unit_clip(x * call.number(float(np.float32(1 / 6)), x.dtype) + 0.5)


def _unit_clip(x: Val) -> Val:
    return x.builder.map("min", _positive(x), 1)


@op("Swish", kind="pointwise")
def _swish(call: OpCall) -> Val:
    x = call.arg(0)
    return x * sigmoid(_parameter(call, "alpha", 1.0) * x)


@op("Softplus", kind="pointwise")
def _softplus(call: OpCall) -> Val:
    return softplus(call.arg(0))


def softplus(x: Val) -> Val:
    """``log(1 + exp(x))`` without overflow and without losing small results to the 1."""
    b = x.builder
    return _positive(x) + b.map("log1p", b.map("exp", -b.map("abs", x)))


@op("Mish", kind="pointwise")
def _mish(call: OpCall) -> Val:
    x = call.arg(0)
    return x * call.b.map("tanh", softplus(x))


@op("Softsign", kind="pointwise")
def _softsign(call: OpCall) -> Val:
    x = call.arg(0)
    return x / (1 + call.b.map("abs", x))


@op("Gelu", kind="pointwise")
def _gelu(call: OpCall) -> Val:
    x = call.arg(0)
    form = call.string("approximate", "none")
    if form not in ("none", "tanh"):
        raise Refused("bad-attribute", f"Gelu has no approximation {form[:20]!r}")
    if form == "none":
        return 0.5 * x * (1 + call.b.map("erf", x * call.number(math.sqrt(0.5), x.dtype)))
    inner = x + call.number(0.044715, x.dtype) * x * x * x
    return 0.5 * x * (1 + call.b.map("tanh", inner * call.number(math.sqrt(2 / math.pi), x.dtype)))
