"""The plugin form: what a TensorRT parser is given. Every fused node is a ``FusedRegion`` that carries its program.

The portable model it was made from travels along in the metadata, without the weights that both share, so that
``restore`` works from either form.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir

from graphfuse.graph.bodies import nested
from graphfuse.graph.fold import remove_unused
from graphfuse.ir import GraphfuseError, Program, dumps, loads
from graphfuse.ir.dtypes import U8, DType
from graphfuse.ir.plugin_types import MAX_RANK, PLUGIN_TYPES
from graphfuse.match.edges import cast_node, edge_values, through_half
from graphfuse.match.flow import read_values
from graphfuse.match.names import DIGEST_KEY, DOMAIN, PLUGIN_OP, PLUGIN_VERSION, PORTABLE_KEY, SPEC_KEY, unused_name, value_names
from graphfuse.match.planfile import Refusal
from graphfuse.match.restore import drop_functions, inline, is_fused

MAX_PORTABLE = 256 << 20  # bytes of the portable model once unpacked
_WEIGHTS_KEY = "graphfuse.weights"  # on the packed model: names of the weights that it shares
_KEPT_WEIGHT = 1 << 16  # bytes; larger weights stay in the graph even if only the portable form reads them


@dataclass(frozen=True)
class Exported:
    """A model in plugin form, and the regions that went back to plain nodes because no plugin can take their types."""

    model: onnx_ir.Model
    inlined: list[Refusal] = field(default_factory=list)

    @property
    def proto(self) -> onnx.ModelProto:
        """The model as a protobuf message (weights in other files stay there)."""
        return onnx_ir.to_proto(self.model)

    @property
    def plugin_layers(self) -> int:
        """Nodes that become plugin layers of an engine."""
        return sum(n.domain == DOMAIN and n.op_type == PLUGIN_OP for n in self.model.graph.all_nodes())


def export_plugin(model: onnx_ir.Model, types: Collection[DType] = PLUGIN_TYPES) -> Exported:
    """The plugin form of a model in portable form; ``model`` is not changed.

    Regions with inputs or outputs of other element types than ``types`` are inlined. Raises GraphfuseError for a broken spec.
    """
    own = model.clone()
    inlined: list[Refusal] = []
    if not is_fused(model):
        return Exported(own)

    def unfit(node: onnx_ir.Node, function: onnx_ir.Function) -> bool:
        reason = _why_no_plugin(node, _program(function), own.graph, types)
        if reason:
            inlined.append(Refusal("plugin-types", [node.name or ""], reason))
        return bool(reason)

    inline(own, unfit)
    names = value_names(own.graph)
    for graph in list(nested(own.graph)):
        for node in list(graph):
            function = own.functions.get(node.op_identifier())
            if function is not None and node.domain == DOMAIN and SPEC_KEY in function.metadata_props:
                _to_plugin(graph, node, function, names, types)
    drop_functions(own)
    _keep_heavy(own)
    own.graph.sort()
    own.metadata_props[PORTABLE_KEY] = _pack(model, set(own.graph.initializers))
    own.metadata_props[DIGEST_KEY] = _digest(own.graph)
    return Exported(own, inlined)


def _program(function: onnx_ir.Function) -> Program:
    try:
        return loads(function.metadata_props[SPEC_KEY])
    except GraphfuseError as error:
        raise GraphfuseError(f"function {function.name!r}: {error}; rewrite the original model again") from error


def _why_no_plugin(node: onnx_ir.Node, program: Program, graph: onnx_ir.Graph, types: Collection[DType]) -> str | None:
    at_edge = edge_values(node, program, graph) is not None
    for dtype, shape in (*program.params, *program.outputs):
        if dtype not in types and not (dtype is U8 and at_edge):
            return f"TensorRT plugins take no tensors of type {dtype}"
        if len(shape) > MAX_RANK:
            return f"TensorRT takes tensors of rank {MAX_RANK} at most, not {len(shape)}"
    return None


def _to_plugin(graph: onnx_ir.Graph, node: onnx_ir.Node, function: onnx_ir.Function, names: set[str], types: Collection[DType]) -> None:
    """Puts a plugin node, and Casts around it where it takes or gives uint8, in place of a call."""
    program = _program(function)
    if len(program.params) > len(node.inputs) or len(program.results) != len(node.outputs):
        raise GraphfuseError(f"call {node.name!r} does not fit the program of {function.name!r}; rewrite the original model again")
    outputs = [onnx_ir.Value(name=v.name, type=v.type, shape=v.shape) for v in node.outputs]
    inputs, results, spec = list(node.inputs[: len(program.params)]), list(outputs), function.metadata_props[SPEC_KEY]
    edges = None if U8 in types else edge_values(node, program, graph)
    before: list[onnx_ir.Node] = []
    after: list[onnx_ir.Node] = []
    if edges is not None and edges != ([], []):
        spec = dumps(through_half(program))
        before = [_edge_cast(inputs[k], None, names) for k in edges[0]]
        after = [_edge_cast(None, outputs[k], names) for k in edges[1]]
        for k, cast in zip(edges[0], before, strict=True):
            inputs[k] = cast.outputs[0]
        for k, cast in zip(edges[1], after, strict=True):
            assert cast.inputs[0] is not None
            results[k] = cast.inputs[0]
    texts = {"spec": spec, "plugin_namespace": DOMAIN, "plugin_version": PLUGIN_VERSION}
    attributes = [onnx_ir.AttrString(key, text) for key, text in texts.items()]
    made = onnx_ir.Node(DOMAIN, PLUGIN_OP, inputs, attributes, outputs=results, name=node.name)
    onnx_ir.convenience.replace_all_uses_with(node.outputs, outputs, replace_graph_outputs=True)
    graph.insert_after(node, [*before, made, *after])
    graph.remove(node, safe=True)


def _edge_cast(source: onnx_ir.Value | None, target: onnx_ir.Value | None, names: set[str]) -> onnx_ir.Node:
    """A Cast of a uint8 network input to float16, or of float16 to a uint8 network output."""
    outer = source or target
    assert outer is not None
    name = unused_name(f"{outer.name}_half", names)
    names.add(name)
    inner = onnx_ir.Value(name=name, type=onnx_ir.TensorType(onnx_ir.DataType.FLOAT16), shape=outer.shape)
    if source is not None:
        return cast_node(source, inner, onnx_ir.DataType.FLOAT16, name)
    return cast_node(inner, outer, onnx_ir.DataType.UINT8, name)


def _keep_heavy(model: onnx_ir.Model) -> None:
    """Drops nodes and small weights that only the portable form needs."""
    heavy = {k: v for k, v in model.graph.initializers.items() if v.const_value is not None and v.const_value.nbytes > _KEPT_WEIGHT}
    remove_unused(model)
    for name, value in heavy.items():
        if name not in model.graph.initializers:
            model.graph.register_initializer(value)


# --- the portable model inside ------------------------------------------------------------------------------------------


def _pack(model: onnx_ir.Model, shared: set[str]) -> str:
    """The portable model as text, the weights named in ``shared`` replaced by empty ones."""
    bare = model.clone()
    emptied = sorted(shared & set(bare.graph.initializers))
    for name in emptied:
        tensor = bare.graph.initializers[name].const_value
        if tensor is not None:
            bare.graph.initializers[name].const_value = onnx_ir.Tensor(np.empty(0, tensor.dtype.numpy()), dtype=tensor.dtype, name=name)
    bare.metadata_props[_WEIGHTS_KEY] = json.dumps(emptied)
    content = onnx_ir.to_proto(bare).SerializeToString(deterministic=True)
    return base64.b64encode(zlib.compress(content, 9)).decode("ascii")


def portable_of(model: onnx_ir.Model) -> onnx_ir.Model:
    """The portable model that a plugin form was made from, with the weights of the plugin form.

    Raises GraphfuseError if it is missing or damaged, or if the plugin form's graph was changed since.
    """
    if PORTABLE_KEY not in model.metadata_props:
        raise GraphfuseError("the model is in plugin form without the portable one inside; restore from the portable model instead")
    if model.metadata_props.get(DIGEST_KEY) != _digest(model.graph):
        raise GraphfuseError("the model was changed after it was brought into plugin form; restore from the portable model instead")
    portable = _unpack(model.metadata_props[PORTABLE_KEY])
    for name in json.loads(portable.metadata_props.pop(_WEIGHTS_KEY, "[]")):
        value, shared = portable.graph.initializers.get(name), model.graph.initializers.get(name)
        tensor = None if shared is None else shared.const_value
        if value is None or tensor is None:
            raise GraphfuseError(f"weight {name!r} is gone from the plugin form; restore from the portable model instead")
        value.const_value = tensor
        value.shape, value.type = onnx_ir.Shape(tensor.shape.numpy()), onnx_ir.TensorType(tensor.dtype)
    return portable


def _unpack(text: str) -> onnx_ir.Model:
    problem = "the portable model inside the plugin form is damaged; restore from the portable model instead"
    try:
        unzip = zlib.decompressobj()
        content = unzip.decompress(base64.b64decode(text, validate=True), MAX_PORTABLE)
        proto = onnx.ModelProto()
        proto.ParseFromString(content)
        model = onnx_ir.from_proto(proto)
    except (zlib.error, binascii.Error, ValueError) as error:
        raise GraphfuseError(problem) from error
    except Exception as error:  # protobuf and onnx_ir state no set of exceptions for broken content
        raise GraphfuseError(problem) from error
    if unzip.unconsumed_tail or not unzip.eof:
        raise GraphfuseError(problem)
    return model


def _digest(graph: onnx_ir.Graph) -> str:
    """What a change of the graph changes; the order of nodes does not count."""
    lines = []
    for node in graph.all_nodes():
        spec = node.attributes.get("spec")
        lines.append(
            json.dumps(
                [
                    node.domain,
                    node.op_type,
                    [v.name for v in read_values(node)],
                    [v.name for v in node.outputs],
                    str(spec.value) if spec else "",
                ]
            )
        )
    lines.sort()
    lines.append(json.dumps([[v.name for v in graph.inputs], [v.name for v in graph.outputs]]))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
