"""Who is nearer to the truth where a region and the original disagree.

Some networks compute what cannot be computed well in their own precision: a variance as the mean of squares less the square
of the mean loses the digits that both share, in the original as in the kernel, and each loses others. There the original's
nodes are run once more in float64. The kernel is right if it is within tolerance of that result. Where the original itself
is not, its formula has no more digits to give in float32: then the kernel may be twice as far off as the original, as it
is luck which of two evaluations in the same precision comes nearer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir

from graphfuse.check.tolerance import Tolerance
from graphfuse.ir.errors import GraphfuseError
from graphfuse.session.ort_stage import open_session, run_session
from graphfuse.session.values import Value

FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
_OTHER_FLOATS = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE})
Arrays = Sequence[np.ndarray]


@dataclass(frozen=True)
class Distance:
    """The largest distances from the float64 result, in units of what is allowed there."""

    kernel: float
    original: float

    @property
    def excuses(self) -> bool:
        """Whether the kernel is right by what float64 says."""
        return self.kernel <= 1 or (self.original > 1 and self.kernel <= 2 * self.original)


def distance(truth: Arrays, want: Arrays, got: Arrays, tolerance: Callable[[np.dtype], Tolerance]) -> Distance | None:
    """How far the original's outputs and the kernel's are from the float64 ones; None where they cannot be compared so."""
    kernel = original = 0.0
    for exact, w, g in zip(truth, want, got, strict=True):
        if not exact.shape == w.shape == g.shape or w.dtype != g.dtype:
            return None
        if w.dtype != np.float32:
            if not np.array_equal(w, g):
                return None
            continue
        if not all(np.isfinite(a).all() for a in (exact, w, g)):
            return None
        allowed = np.maximum(tolerance(w.dtype).allowed(exact), np.finfo(np.float64).tiny)
        kernel = max(kernel, float(np.max(np.abs(g - exact) / allowed, initial=0.0)))
        original = max(original, float(np.max(np.abs(w - exact) / allowed, initial=0.0)))
    return Distance(kernel, original)


def in_float64(original: onnx_ir.Model, inputs: Mapping[str, Value], outputs: Sequence[str]) -> list[np.ndarray] | None:
    """The named values of the original, computed in float64 from ``inputs`` by the original's own nodes.

    None where other values are needed, where other floats are on the way (their roundings are part of what is meant), or
    where ONNX Runtime has no float64 kernel.
    """
    nodes = _between(original.graph, inputs, outputs)
    if nodes is None:
        return None
    arrays = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in _read(original, nodes, inputs).items()}
    if any(a.dtype.kind not in "fiub" or a.dtype == np.float16 for a in arrays.values()):
        return None
    graph = onnx.GraphProto(name="exact")
    graph.node.extend(_widened(onnx_ir.to_proto(n)) for n in nodes)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in arrays.items()
    )
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    if any(_has_other_floats(n) for n in (onnx_ir.to_proto(n) for n in nodes)):
        return None
    imports = [onnx.helper.make_opsetid(d, v) for d, v in original.opset_imports.items()]
    model = onnx.ModelProto(ir_version=10, graph=graph, opset_import=imports)
    try:
        made = run_session(open_session(model, {}), list(outputs), {n: Value(array=a).for_ort for n, a in arrays.items()})
    except GraphfuseError:
        return None
    return [made[name].array for name in outputs]


def _between(graph: onnx_ir.Graph, inputs: Mapping[str, Value], outputs: Iterable[str]) -> list[onnx_ir.Node] | None:
    """The nodes that make ``outputs`` from ``inputs`` and constants, in order; None if something else is read or they have bodies."""
    makers = {v.name: n for n in graph for v in n.outputs if v.name}
    needed: set[onnx_ir.Node] = set()
    pending = list(outputs)
    while pending:
        name = pending.pop()
        if name in inputs or name in graph.initializers:
            continue
        node = makers.get(name)
        if node is None or any(a.type in (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            return None
        if node not in needed:
            needed.add(node)
            pending += [v.name for v in node.inputs if v is not None and v.name]
    return [n for n in graph if n in needed]


def _read(original: onnx_ir.Model, nodes: Sequence[onnx_ir.Node], inputs: Mapping[str, Value]) -> dict[str, np.ndarray]:
    """What the nodes read from outside."""
    made = {v.name for n in nodes for v in n.outputs}
    names = dict.fromkeys(v.name for n in nodes for v in n.inputs if v is not None and v.name and v.name not in made)
    weights = original.graph.initializers
    tensors = {n: weights[n].const_value for n in names if n and n not in inputs}
    found = {n: inputs[n].array for n in names if n in inputs} | {n: t.numpy() for n, t in tensors.items() if t is not None}
    return {n: np.ascontiguousarray(a).reshape(a.shape) for n, a in found.items()}


def _widened(node: onnx.NodeProto) -> onnx.NodeProto:
    """The node with float64 in place of float32 in its attributes."""
    if node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(onnx.helper.make_attribute("value", onnx.helper.make_tensor("", DOUBLE, [1], [0.0])))
    for attr in node.attribute:
        if attr.name in ("to", "dtype") and attr.i == FLOAT:
            attr.i = DOUBLE
        elif attr.type == attr.TENSOR and attr.t.data_type == FLOAT:
            attr.t.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(attr.t).astype(np.float64)))
        elif node.op_type == "Constant" and attr.name in ("value_float", "value_floats"):
            value = np.float64(attr.f) if attr.name == "value_float" else np.asarray(attr.floats, np.float64)
            attr.CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(np.asarray(value))))
    return node


def _has_other_floats(node: onnx.NodeProto) -> bool:
    types = [a.i for a in node.attribute if a.name in ("to", "dtype")] + [a.t.data_type for a in node.attribute if a.type == a.TENSOR]
    return any(t in _OTHER_FLOATS for t in types)
