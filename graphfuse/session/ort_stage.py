"""The unfused parts of a model, run by ONNX Runtime as they are: its graph optimisation is always off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime as ort

from graphfuse.graph.evaluate import RUN_IR_VERSION
from graphfuse.ir.errors import GraphfuseError
from graphfuse.session.fused import label
from graphfuse.session.stages import outer_reads, walk
from graphfuse.session.values import Value, array_to_ort, is_native, parse_type, tensor_type

INLINE_BYTES = 16 << 10  # larger weights are handed over in memory instead of copied into the sub-model's text
Types = dict[str, onnx.TypeProto]


class OrtStage:
    """Nodes of one graph as an ONNX Runtime session of their own.

    ``types`` gives the type of every value that the nodes read from outside them (initializers excepted); ``wanted`` are
    the names to hand out. Raises GraphfuseError when ONNX Runtime does not take the nodes.
    """

    def __init__(self, model: onnx_ir.Model, nodes: Sequence[onnx_ir.Node], types: Mapping[str, onnx.TypeProto], wanted: Iterable[str]):
        self.labels = [label(n) for n in nodes]
        made = {v.name for n in nodes for v in n.outputs if v.name}
        read = dict.fromkeys(v for n in nodes for v in outer_reads(n, model.graph) if v.name not in made)
        weights = [v for v in read if v.const_value is not None and v.is_initializer() and not v.is_graph_input()]
        self.inputs = tuple(v.name or "" for v in read if v not in set(weights))
        self.outputs = tuple(dict.fromkeys(w for w in wanted if w in made))
        graph = onnx.GraphProto(name="stage")
        graph.node.extend(onnx_ir.serde.serialize_node(n) for n in nodes)
        graph.input.extend(onnx.ValueInfoProto(name=name, type=_known(types, name)) for name in self.inputs)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in self.outputs)
        self._shared: dict[str, Any] = {}
        graph.initializer.extend(self._weight(v) for v in weights)
        self._fed: dict[str, Any] = {}
        self._session = self._open(_model_proto(model, graph, nodes), weights)

    def _open(self, proto: onnx.ModelProto, weights: Sequence[onnx_ir.Value]) -> Any:
        """A session; with weights that it is fed where their shapes let ONNX's inference reject what runs.

        It takes the steps of a Slice to be 1 when they are an input, and finds that the wrong size does not fit.
        """
        try:
            return open_session(proto, self._shared)
        except GraphfuseError as error:
            if "ShapeInferenceError" not in str(error):
                raise
            fed = {v.name or "": _weight_array(v) for v in weights}
            if not all(is_native(a.dtype) for a in fed.values()):
                raise
            hidden = onnx.ModelProto()
            hidden.CopyFrom(proto)
            del hidden.graph.initializer[:]
            kinds = {t.name: t.data_type for t in proto.graph.initializer}
            hidden.graph.input.extend(onnx.ValueInfoProto(name=n, type=tensor_type(kinds[n])) for n in fed)
            try:
                session = open_session(hidden, {})
            except GraphfuseError:
                raise error from None
            self._fed = {n: array_to_ort(a) for n, a in fed.items()}
            return session

    def _weight(self, value: onnx_ir.Value) -> onnx.TensorProto:
        """A small weight in full; a large one as a mark that the session fills from memory, which may be a mapped file."""
        tensor = value.const_value
        assert tensor is not None
        name = value.name or ""
        if tensor.dtype == onnx_ir.DataType.STRING:
            proto = onnx_ir.serde.serialize_tensor(tensor)
            proto.name = name
            return proto
        proto = onnx.TensorProto(name=name, data_type=int(tensor.dtype), dims=[int(d) for d in tensor.shape.numpy()])
        array = _weight_array(value) if tensor.nbytes > INLINE_BYTES else None
        if array is None or not is_native(array.dtype):
            proto.raw_data = tensor.tobytes()
            return proto
        self._shared[name] = array_to_ort(array)
        proto.data_location = onnx.TensorProto.EXTERNAL
        for key, text in (("location", "memory"), ("offset", "0"), ("length", str(array.nbytes))):
            proto.external_data.add(key=key, value=text)
        return proto

    @property
    def output_types(self) -> Types:
        """The types that ONNX Runtime inferred for the outputs."""
        return {o.name: parse_type(o.type) for o in self._session.get_outputs()}

    def run(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """The outputs by name. Raises GraphfuseError with ONNX Runtime's own first line when it fails."""
        feeds = {name: values[name].for_ort for name in self.inputs} | self._fed
        return run_session(self._session, self.outputs, feeds)


def run_session(session: Any, outputs: Sequence[str], feeds: Mapping[str, Any]) -> dict[str, Value]:
    """Runs an ONNX Runtime session on ``OrtValue``s or string arrays; outputs stay ``OrtValue``s where they can."""
    strings = any(isinstance(f, np.ndarray) for f in feeds.values())
    try:
        if strings:  # only this call takes them; it returns arrays
            return {n: _from_run(r) for n, r in zip(outputs, session.run(list(outputs), dict(feeds)), strict=True)}
        found = session.run_with_ort_values(list(outputs), dict(feeds))
    except Exception as error:  # its exceptions share no base class of their own
        raise GraphfuseError(f"ONNX Runtime cannot run the model on these inputs: {first_line(error)}") from error
    return {n: Value(ort_value=r) for n, r in zip(outputs, found, strict=True)}


def _from_run(result: Any) -> Value:
    if isinstance(result, list):
        raise GraphfuseError("a sequence cannot pass between parts of a model that also reads strings; restore the model and run that")
    return Value(array=np.asarray(result))


def session_options() -> Any:
    """Options of every reference: no graph optimisation, quiet, and no threads that spin between the stages."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def open_session(model: onnx.ModelProto, shared: Mapping[str, Any]) -> Any:
    """An ``InferenceSession`` of the model; ``shared`` are weights that its text only names."""
    options = session_options()
    if shared:
        options.add_external_initializers(list(shared), list(shared.values()))
    try:
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise GraphfuseError(f"ONNX Runtime cannot run this model: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The telling line of an ONNX Runtime error, without its codes."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0].split(" : ", 3)[-1] if lines[0].startswith("[ONNXRuntimeError]") else lines[0]


def _weight_array(value: onnx_ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return value.const_value.numpy()


def known_types(graph: onnx_ir.Graph) -> Types:
    """Types of the graph's inputs and of its constants."""
    types: Types = {}
    for value in (*graph.inputs, *graph.initializers.values()):
        if value.type is not None:
            types[value.name or ""] = onnx_ir.serde.serialize_type(value.type)
        elif value.const_value is not None:
            types[value.name or ""] = tensor_type(int(value.const_value.dtype))
    return types


def _known(types: Mapping[str, onnx.TypeProto], name: str) -> onnx.TypeProto:
    if name not in types:
        raise GraphfuseError(f"the type of value {name!r} is not known; the model's nodes are not in topological order")
    return types[name]


def _model_proto(model: onnx_ir.Model, graph: onnx.GraphProto, nodes: Sequence[onnx_ir.Node]) -> onnx.ModelProto:
    result = onnx.ModelProto(ir_version=min(model.ir_version, RUN_IR_VERSION), graph=graph)
    for domain, version in model.graph.opset_imports.items():
        result.opset_import.add(domain=domain, version=version)
    result.functions.extend(onnx_ir.serde.serialize_function(f) for f in _functions(model, nodes))
    return result


def _functions(model: onnx_ir.Model, nodes: Iterable[onnx_ir.Node]) -> list[onnx_ir.Function]:
    """The model's functions that the nodes call, directly or not, in the model's order."""
    needed: set[tuple[str, str, str]] = set()
    queue = list(nodes)
    while queue:
        for node in walk(queue.pop()):
            key = node.op_identifier()
            if key in model.functions and key not in needed:
                needed.add(key)
                queue.extend(model.functions[key])
    return [f for key, f in model.functions.items() if key in needed]
