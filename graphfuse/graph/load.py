"""Loads a model as ``onnx_ir.Model``, checked, with its weights left where they are until somebody reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from graphfuse.graph import checks
from graphfuse.ir.errors import GraphfuseError


def load_model(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> ir.Model:
    """The model, to be changed at will: an object that was handed in is never touched (weights are shared, not copied).

    Raises GraphfuseError, one line, for anything that is not a valid ONNX model of known operators and opset 9 or newer.
    """
    if isinstance(model, ir.Model):
        loaded, name = model.clone(), model.graph.name or "model"
    elif isinstance(model, onnx.ModelProto):
        loaded, name = _from_proto(model), model.graph.name or "model"
    elif isinstance(model, str | os.PathLike):
        loaded, name = _from_path(Path(model)), str(model)
    else:
        raise GraphfuseError(f"a model is a path, an onnx.ModelProto or an onnx_ir.Model, not {type(model).__name__}")
    checks.check_opset(loaded, name)
    checks.check_domains(loaded, name)
    return loaded


def _from_path(path: Path) -> ir.Model:
    checks.check_path(path)
    proto = _parse(path)
    loaded = _to_ir(proto, str(path))
    ir.external_data.set_base_dir(loaded.graph, path.absolute().parent)
    checks.check_external(external_tensors(loaded), str(path))
    checks.check_opset(loaded, str(path))
    checks.check_domains(loaded, str(path))
    checks.check_proto(proto, str(path), path)
    return loaded


def _parse(path: Path) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise GraphfuseError(f"{path}: not an ONNX model; give a file that onnx.save wrote") from error
    except OSError as error:
        raise GraphfuseError(f"{path}: cannot be read: {error.strerror}") from error
    return proto


def _from_proto(proto: onnx.ModelProto) -> ir.Model:
    name = proto.graph.name or "model"
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)  # onnx_ir keeps the tensors of the proto it reads
    loaded = _to_ir(copy, name)
    if next(external_tensors(loaded), None) is not None:
        raise GraphfuseError(f"{name}: its weights are in files beside it, which a ModelProto cannot find; give the path instead")
    checks.check_opset(loaded, name)
    checks.check_domains(loaded, name)
    checks.check_proto(copy, name)
    return loaded


def _to_ir(proto: onnx.ModelProto, name: str) -> ir.Model:
    if not proto.HasField("graph"):
        raise GraphfuseError(f"{name}: not an ONNX model (it has no graph); give a file that onnx.save wrote")
    try:
        loaded = ir.from_proto(proto)
    except Exception as error:  # onnx_ir states no set of exceptions for broken models
        raise GraphfuseError(f"{name}: invalid model: {checks.one_line(error)}") from error
    if loaded.ir_version < 4:
        _drop_initializer_inputs(loaded)
    return loaded


def _drop_initializer_inputs(model: ir.Model) -> None:
    """Before IR version 4 every initializer had to be listed as an input, yet none could be fed: they are constants."""
    graph = model.graph
    kept = [value for value in graph.inputs if value.name not in graph.initializers]
    graph.inputs.clear()
    graph.inputs.extend(kept)
    model.ir_version = 4


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Every tensor of the model that lives in another file: initializers and attributes, subgraphs and functions included."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value
    for node in checks.all_nodes(model):
        for attr in node.attributes.values():
            if attr.is_ref():
                continue
            tensors = {ir.AttributeType.TENSOR: lambda v: [v], ir.AttributeType.TENSORS: list}.get(attr.type, lambda v: [])(attr.value)
            yield from (t for t in tensors if isinstance(t, ir.ExternalTensor))
