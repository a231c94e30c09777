"""One ONNX node through the op table: its program, and what the interpreter makes of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx

from graphfuse.ir import Builder, Dim, Program, dumps, interpret, loads
from graphfuse.ir.dtypes import F32, from_numpy
from graphfuse.ops.table import OpCall, lookup

Arrays = Mapping[str, np.ndarray]


def attributes(node: onnx.NodeProto) -> dict[str, object]:
    """Attributes as Python values; text as str, tensors as arrays."""
    return {a.name: _plain(onnx.helper.get_attribute_value(a)) for a in node.attribute}


def _plain(value: object) -> object:
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def lower(
    node: onnx.NodeProto,
    opset: int,
    arrays: Arrays,
    shapes: Mapping[str, Sequence[Dim]] | None = None,
    constants: Collection[str] = (),
    exact_rounding: bool = False,
    carrier: Sequence[Dim] | None = None,
) -> tuple[Program, list[str]]:
    """The program of a node and the names of its inputs.

    ``arrays`` give the types, the shapes where ``shapes`` does not, and the values of inputs that the entry wants known
    or that are named in ``constants``; an array of object dtype holds run-time sizes. ``carrier`` is the shape of one more
    input in front, unused, that tells sizes as other nodes of a region would.
    """
    entry = lookup(node.domain, node.op_type)
    assert entry is not None, node.op_type
    builder = Builder(exact_rounding=exact_rounding)
    if carrier is not None:
        builder.param(F32, carrier)
    names = [name for i, name in enumerate(node.input) if name and i not in entry.known]
    made = {n: builder.param(from_numpy(arrays[n].dtype), (shapes or {}).get(n, arrays[n].shape)) for n in dict.fromkeys(names)}
    args = [made.get(name) if i not in entry.known else None for i, name in enumerate(node.input)]
    values = [arrays[n] if n and (i in entry.known or n in constants) else None for i, n in enumerate(node.input)]
    call = OpCall(builder, args, attributes(node), opset, len(node.output), values)
    results = entry.lower(call)
    return builder.finish([r for name, r in zip(node.output, results, strict=False) if name]), list(made) if carrier is None else [
        "carrier",
        *made,
    ]


def run(node: onnx.NodeProto, opset: int, arrays: Arrays, **how: object) -> list[np.ndarray]:
    """What the interpreter computes for a node, whose program must also survive its text form."""
    program, names = lower(node, opset, arrays, **how)  # type: ignore[arg-type]
    assert loads(dumps(program)) == program
    return interpret.run(program, [arrays[n] for n in names])


def model_of(node: onnx.NodeProto, opset: int, arrays: Arrays) -> onnx.ModelProto:
    """A model of the one node; every array is an input."""
    helper = onnx.helper
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(arrays[n].dtype), arrays[n].shape)
        for n in dict.fromkeys(filter(None, node.input))
    ]
    outputs = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
    graph = helper.make_graph([node], "one_node", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)], ir_version=10)


def onnxruntime_run(node: onnx.NodeProto, opset: int, arrays: Arrays) -> list[np.ndarray]:
    """What ONNX Runtime computes on the CPU without graph optimisation."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    model = model_of(node, opset, arrays).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, {n: np.asarray(arrays[n]) for n in node.input if n})


def onnx_reference_run(node: onnx.NodeProto, opset: int, arrays: Arrays) -> list[np.ndarray]:
    """What ONNX's own reference implementation computes."""
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        evaluator = ReferenceEvaluator(model_of(node, opset, arrays))
        return [np.asarray(r) for r in evaluator.run(None, {n: np.asarray(arrays[n]) for n in node.input if n})]
