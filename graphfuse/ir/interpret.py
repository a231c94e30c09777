"""Runs a fused program in NumPy: the meaning that every generated kernel must reproduce.

Small floats are held in float32 between roundings, sums are pairwise in the compute type, as the design's "Numbers" say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graphfuse.ir import expr
from graphfuse.ir.dtypes import BOOL, DType
from graphfuse.ir.program import Instr, Program, identity
from graphfuse.ir.scalars import TABLE

Array = np.ndarray


def run(program: Program, inputs: Sequence[Array]) -> list[Array]:
    """The outputs for these inputs (NumPy arrays of the declared dtypes). Raises ShapeError when shapes do not fit."""
    env = program.bind([np.shape(a) for a in inputs])
    values: list[Array] = []
    with np.errstate(all="ignore"):
        for instr in program.body:
            args = [values[a] for a in instr.args]
            if instr.op == "param":
                values.append(np.asarray(inputs[instr.attr("index")]).astype(instr.dtype.compute.numpy))
            else:
                values.append(np.asarray(_STEP[instr.op](instr, args, env)))
        return [_store(values[r], program.body[r].dtype) for r in program.results]


def _store(value: Array, dtype: DType) -> Array:
    return np.ascontiguousarray(value.astype(dtype.numpy)).reshape(value.shape)


def _shape(instr: Instr, env: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(expr.evaluate(d, env) for d in instr.shape)


def _map(instr: Instr, args: list[Array], env: Mapping[str, int]) -> Array:
    return TABLE[instr.attr("fn")].numpy(*args).astype(instr.dtype.compute.numpy)


def _cast(instr: Instr, args: list[Array], env: Mapping[str, int]) -> Array:
    (x,) = args
    if instr.dtype is BOOL:
        return np.asarray(x != 0)
    if instr.dtype.is_integer and x.dtype.kind == "f":
        return _float_to_int(x, instr.dtype)
    if instr.dtype.is_small_float and x.dtype == np.float64:
        x = _odd_float32(x)
    return x.astype(instr.dtype.numpy).astype(instr.dtype.compute.numpy)


def _odd_float32(x: Array) -> Array:
    """Float64 rounded to odd, so that a second rounding, to a small float, gives what one alone would."""
    near = x.astype(np.float32)
    away = np.abs(near.astype(np.float64)) > np.abs(x)
    bits = near.view(np.uint32) - (away & np.isfinite(near))
    odd = (bits | 1).astype(np.uint32).view(np.float32)
    return np.where((near == x) | np.isnan(x) | np.isinf(near), near, odd)


def _float_to_int(x: Array, dtype: DType) -> Array:
    """Truncation; narrow integers go through int64 so that only the wide conversion is undefined out of range."""
    wide = x.astype(np.uint64 if dtype.name == "u64" else np.int64)
    return wide.astype(dtype.numpy)


def _round(instr: Instr, args: list[Array], env: Mapping[str, int]) -> Array:
    return args[0].astype(instr.dtype.numpy).astype(instr.dtype.compute.numpy)


def _slice(instr: Instr, args: list[Array], env: Mapping[str, int]) -> Array:
    x = args[0]
    for axis, (start, step, size) in enumerate(zip(instr.attr("starts"), instr.attr("steps"), _shape(instr, env), strict=True)):
        x = np.take(x, expr.evaluate(start, env) + step * np.arange(size), axis=axis)
    return x


def _pad(instr: Instr, args: list[Array], env: Mapping[str, int]) -> Array:
    x, fill = args
    low = [expr.evaluate(p, env) for p in instr.attr("low")]
    result = np.full(_shape(instr, env), fill, dtype=x.dtype)
    result[tuple(slice(lo, lo + d) for lo, d in zip(low, x.shape, strict=True))] = x
    return result


def _gather(instr: Instr, args: list[Array], env: Mapping[str, int]) -> Array:
    data, indices = args
    axis = instr.attr("axis")
    size = data.shape[axis]
    indices = indices.astype(np.int64)
    return np.take(data, np.clip(np.where(indices < 0, indices + size, indices), 0, size - 1), axis=axis)


def _reduce(instr: Instr, args: list[Array], env: Mapping[str, int]) -> Array:
    (x,) = args
    fn, axes = instr.attr("fn"), instr.attr("axes")
    if fn in ("argmax", "argmin"):
        pick = np.argmax if fn == "argmax" else np.argmin
        if instr.attr("last"):
            return np.asarray(x.shape[axes[0]] - 1 - pick(np.flip(x, axes[0]), axis=axes[0]))
        return np.asarray(pick(x, axis=axes[0])).astype(np.int64)
    if fn in ("max", "min"):  # a run-time axis may be empty
        return np.asarray((np.max if fn == "max" else np.min)(x, axis=axes, initial=identity(fn, instr.dtype)))
    return np.asarray((np.sum if fn == "sum" else np.prod)(x, axis=axes, dtype=x.dtype))


_STEP: dict[str, Callable[[Instr, list[Array], Mapping[str, int]], Any]] = {
    "const": lambda i, a, e: np.asarray(i.attr("value"), dtype=i.dtype.compute.numpy),
    "extent": lambda i, a, e: np.asarray(expr.evaluate(i.attr("size"), e), dtype=i.dtype.compute.numpy),
    "iota": lambda i, a, e: np.broadcast_to(
        np.arange(_shape(i, e)[i.attr("axis")], dtype=i.dtype.numpy).reshape(
            [-1 if k == i.attr("axis") else 1 for k in range(len(i.shape))]
        ),
        _shape(i, e),
    ),
    "map": _map,
    "cast": _cast,
    "round": _round,
    "transpose": lambda i, a, e: np.transpose(a[0], i.attr("perm")),
    "reshape": lambda i, a, e: np.reshape(a[0], _shape(i, e)),
    "broadcast": lambda i, a, e: np.broadcast_to(a[0], _shape(i, e)),
    "slice": _slice,
    "pad": _pad,
    "concat": lambda i, a, e: np.concatenate(a, axis=i.attr("axis")),
    "gather": _gather,
    "reduce": _reduce,
}
