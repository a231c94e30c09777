"""Quantisation: real numbers to small integers and back, per tensor, per axis, or per block of an axis."""

from __future__ import annotations

from graphfuse.ir.builder import Val
from graphfuse.ir.dtypes import F32, FLOAT8, I32, U8, DType
from graphfuse.ir.errors import Refused
from graphfuse.ops.call import OpCall, along
from graphfuse.ops.movement import repeated
from graphfuse.ops.pointwise import converted
from graphfuse.ops.table import op


@op("QuantizeLinear", kind="quant")
def _quantize_linear(call: OpCall) -> Val:
    """``saturate(round_half_even(x / scale) + zero_point)``.

    The division is in float32; from opset 23, which says so, in attribute ``precision`` or the type of the scale.
    """
    b, x, scale = call.b, call.arg(0), call.arg(1)
    dtype = _quantized_type(call)
    stated = call.dtype("precision") if call.integer("precision", 0) else scale.dtype
    precision = stated if call.opset >= 23 and stated.is_float else F32
    ratio = b.cast(x, precision) / _fitted(call, b.cast(scale, precision), x)
    if dtype in FLOAT8:
        ratio = ratio + _fitted(call, b.cast(call.arg(2), precision), x) if call.has(2) else ratio
        return converted(call, ratio, dtype)
    whole = b.cast(b.map("rint", ratio), F32)
    if call.has(2):
        whole = whole + _fitted(call, b.cast(call.arg(2), F32), x)
    return saturated(whole, dtype)


def _quantized_type(call: OpCall) -> DType:
    dtype = call.arg(2).dtype if call.has(2) else call.dtype("output_dtype") if call.integer("output_dtype", 0) else U8
    if dtype not in FLOAT8 and (not dtype.is_integer or dtype.size > 2):
        raise Refused("dtype", f"quantisation to {dtype} is not supported")
    return dtype


def saturated(x: Val, dtype: DType) -> Val:
    """A whole float32 as an integer of at most 16 bits, held at the ends of its range."""
    low = -(1 << (dtype.size * 8 - 1)) if dtype.kind == "i" else 0
    high = low + (1 << (dtype.size * 8)) - 1
    b = x.builder
    return b.cast(b.map("min", b.map("max", x, low), high), dtype)


def _fitted(call: OpCall, parameter: Val, x: Val) -> Val:
    """A scale or zero point, shaped to broadcast with ``x``."""
    if all(d == 1 for d in parameter.shape):
        return call.b.reshape(parameter, ())
    axis = call.axis(1, x.rank)
    if parameter.rank == 1:
        return along(parameter, axis, x.rank)
    block = call.integer("block_size", 0)
    if block < 1 or parameter.rank != x.rank:
        raise Refused("bad-shape", "a scale of this shape needs block_size and the rank of its data")
    spread = repeated(parameter, [block if i == axis else 1 for i in range(x.rank)], inner=True)
    return call.b.slice(spread, [0] * x.rank, x.shape)


@op("DequantizeLinear", kind="quant")
def _dequantize_linear(call: OpCall) -> Val:
    """``(x - zero_point) * scale``, the difference exact in int32."""
    b, x, scale = call.b, call.arg(0), call.arg(1)
    if x.dtype not in FLOAT8 and (not x.dtype.is_integer or x.dtype.size > 4):
        raise Refused("dtype", f"dequantisation of {x.dtype} is not supported")
    exact = F32 if x.dtype in FLOAT8 else I32
    whole = b.cast(x, exact)
    if call.has(2):
        whole = whole - _fitted(call, b.cast(call.arg(2), exact), x)
    dtype = call.dtype("output_dtype") if call.integer("output_dtype", 0) else scale.dtype
    return b.cast(b.cast(whole, F32) * _fitted(call, b.cast(scale, F32), x), dtype)


@op("DynamicQuantizeLinear", kind="quant")
def _dynamic_quantize_linear(call: OpCall) -> list[Val]:
    """To uint8, with a scale and zero point such that the range of ``x``, widened to hold 0, just fits."""
    b, x = call.b, call.arg(0)
    axes = list(range(x.rank))
    low = b.map("min", b.reduce("min", x, axes), 0)
    high = b.map("max", b.reduce("max", x, axes), 0)
    scale = b.map("where", b.map("eq", high, low), 1, (high - low) / 255)
    zero = saturated(b.map("rint", -low / scale), U8)
    y = saturated(b.map("rint", x / scale) + b.cast(zero, F32), U8)
    return [y, scale, zero]
