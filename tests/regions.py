"""Small fused regions and models around them, made by hand for the plugin's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from graphfuse.ir import Builder, DType, dtypes, dumps, expr, sym
from graphfuse.ir.expr import Dim
from graphfuse.ir.plugin_types import PLUGIN_TYPES as PLUGIN_TYPES

ONNX = {t.name: t.onnx for t in dtypes.ALL}


def scale(shape: Sequence[Dim] = (sym("n"), 8), dtype: DType = dtypes.F32) -> str:
    """``2*x + 1``."""
    b = Builder()
    return dumps(b.finish([b.param(dtype, shape) * 2 + 1]))


def pair(shape: Sequence[Dim] = (sym("n"), 8)) -> str:
    """Two inputs (one broadcast), two outputs of different types: ``relu(x + y)`` and ``x < y``."""
    b = Builder()
    x, y = b.param(dtypes.F32, shape), b.param(dtypes.F32, shape[-1:])
    return dumps(b.finish([b.map("max", x + y, 0.0), b.map("lt", x, y)]))


def same(dtype: DType, shape: Sequence[Dim] = (4, 6)) -> str:
    """A region of one type: turned around its second axis, and chosen by a comparison with itself."""
    b = Builder()
    x = b.param(dtype, shape)
    flipped = b.slice(x, [0, shape[1] - 1], shape, [1, -1])
    kept = b.map("and", x, flipped) if dtype is dtypes.BOOL else b.map("max", x, flipped)
    return dumps(b.finish([kept]))


def softmax(columns: int = 33) -> str:
    """A reduction over rows."""
    b = Builder()
    x = b.param(dtypes.F32, [sym("rows"), columns])
    e = b.map("exp", x - b.reduce("max", x, [1], keepdims=True))
    return dumps(b.finish([e / b.reduce("sum", e, [1], keepdims=True)]))


def joined() -> str:
    """Output sizes that are expressions: ``[x, y]`` end to end, and a number repeated."""
    b = Builder()
    n, m = sym("n"), sym("m")
    x, y, z = b.param(dtypes.F32, [n]), b.param(dtypes.F32, [2 * m + 3]), b.param(dtypes.F32, [])
    sizes = [n // 2 + m, n % 3, expr.emax(n, m), expr.emin(n, m)]
    return dumps(b.finish([b.concat([x, y], 0), *(b.broadcast(z * (i + 2), [s]) for i, s in enumerate(sizes))]))


def fused(spec: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **other: str) -> onnx.NodeProto:
    """A node in the plugin form; ``other`` replaces its attributes or its domain."""
    values = {"domain": "graphfuse", "plugin_namespace": "graphfuse", "plugin_version": "1", "spec": spec, **other}
    return helper.make_node("FusedRegion", list(inputs), list(outputs), name=name, **values)


Ports = Mapping[str, tuple[int, Sequence[int | str]]]  # name: (ONNX element type, shape)


def model(
    nodes: Sequence[onnx.NodeProto], inputs: Ports, outputs: Ports, weights: Mapping[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    ports = [[helper.make_tensor_value_info(n, t, list(s)) for n, (t, s) in side.items()] for side in (inputs, outputs)]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("graphfuse", 1)]
    return helper.make_model(helper.make_graph(list(nodes), "g", *ports, constants), opset_imports=opsets, ir_version=10)


def lone(spec: str, shape: Sequence[int | str] = ("n", 8), dtype: int = TensorProto.FLOAT, **other: str) -> onnx.ModelProto:
    """One region between one input ``x`` and one output ``y``."""
    return model([fused(spec, ["x"], ["y"], "region", **other)], {"x": (dtype, shape)}, {"y": (dtype, shape)})
