"""What ``onnx.shape_inference`` says: node by node with the facts that we have, and of the whole graph where that is not enough.

It knows every operator's types, and the shapes of those that we have no rule for; run-time sizes pass through it by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from graphfuse.graph.node_view import PartialShape
from graphfuse.ir.expr import Dim, Expr, Shape

SHOWN = 1024  # elements; larger constants are not shown to the inference


@dataclass(frozen=True)
class TensorFacts:
    """Type (``TensorProto.DataType``, 0 if unknown), shape (None if the rank is unknown) and value of a tensor."""

    dtype: int
    shape: Shape | None
    value: np.ndarray | None = None


def infer_node(node: ir.Node, inputs: Mapping[str, TensorFacts], opsets: Mapping[str, int]) -> dict[str, tuple[int, PartialShape | None]]:
    """Type and partial shape of the outputs of one node by name; outputs that nothing is known of are left out."""
    version = opsets.get(node.domain, 1)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        texts: dict[str, Dim] = {}
        types = {name: _type(facts, texts) for name, facts in inputs.items()}
        plain = {name: f.value for name, f in inputs.items() if f.value is not None and f.value.dtype != object and f.value.size <= SHOWN}
        data = {name: onnx.numpy_helper.from_array(value, name) for name, value in plain.items()}
        imports = [onnx.helper.make_opsetid(d, v) for d, v in opsets.items()]
        if node.op_type == "Slice":
            texts.clear()  # up to opset 12 a cut axis is said to keep its run-time size
        found = onnx.shape_inference.infer_node_outputs(schema, ir.to_proto(node), types, data, None, imports)
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, ValueError, RuntimeError, KeyError, TypeError):
        return {}
    return {name: (t.tensor_type.elem_type, _read(t, texts)) for name, t in found.items() if t.HasField("tensor_type")}


def _type(facts: TensorFacts, texts: dict[str, Dim]) -> onnx.TypeProto:
    shape: list[int | str] | None = None
    if facts.shape is not None:
        shape = [str(d) if isinstance(d, Expr) else d for d in facts.shape]
        texts.update({str(d): d for d in facts.shape if isinstance(d, Expr)})
    return onnx.helper.make_tensor_type_proto(facts.dtype, shape)


def _read(proto: onnx.TypeProto, texts: Mapping[str, Dim]) -> PartialShape | None:
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else texts.get(d.dim_param) for d in tensor.shape.dim)


def infer_graph(model: ir.Model, names: Mapping[str, Dim]) -> dict[str, tuple[int, PartialShape | None]]:
    """Types and partial shapes of the graph's values by name. ``names``: the dim_params of graph inputs that may be believed."""
    try:
        found = onnx.shape_inference.infer_shapes(_bare(model), data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return {}
    values = (*found.graph.value_info, *found.graph.output)
    return {v.name: (v.type.tensor_type.elem_type, _read(v.type, names)) for v in values if v.type.HasField("tensor_type")}


def _bare(model: ir.Model) -> onnx.ModelProto:
    """The model without large weights, and without what it claims of inner values."""
    graph = model.graph
    imports = [onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items()]
    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=imports)
    bare.functions.extend(ir.to_proto(f) for f in model.functions.values())
    bare.graph.name = graph.name or "graph"
    bare.graph.input.extend(ir.serde.serialize_value(v) for v in graph.inputs)
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and tensor.size <= SHOWN:
            bare.graph.initializer.append(ir.to_proto(tensor))
        elif tensor is not None and not value.is_graph_input():
            bare.graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.dtype.value, tensor.shape.numpy()))
    bare.graph.node.extend(ir.to_proto(n) for n in graph)
    bare.graph.output.extend(onnx.ValueInfoProto(name=v.name) for v in graph.outputs if v.name)
    return bare


def captured(node: ir.Node) -> Iterable[ir.Value]:
    """Values of outer graphs that the node's subgraphs read."""
    inner = [g for a in node.attributes.values() if not a.is_ref() for g in _graphs(a)]
    own: set[ir.Graph] = set(inner)
    for graph in inner:
        own.update(graph.subgraphs())
    for graph in inner:
        for inside in graph.all_nodes():
            yield from (v for v in inside.inputs if v is not None and v.graph not in own)
        yield from (v for g in (graph, *graph.subgraphs()) for v in g.outputs if v.graph not in own)


def _graphs(attr: ir.Attr) -> Iterable[ir.Graph]:
    if attr.type == ir.AttributeType.GRAPH:
        return (attr.as_graph(),)
    return attr.as_graphs() if attr.type == ir.AttributeType.GRAPHS else ()
