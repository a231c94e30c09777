"""Loads a model as ``onnx_ir.Model``, checked, with its weights left where they are until somebody reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from graphfuse.graph import checks
from graphfuse.ir.errors import GraphfuseError


def load_model(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> ir.Model:
    """The model, to be changed at will: an object that was handed in is never touched (weights are shared, not copied).

    Raises GraphfuseError, one line, for anything that is not a valid ONNX model of known operators and opset 9 or newer.
    """
    if isinstance(model, ir.Model):
        loaded = _from_ir(model)
    elif isinstance(model, onnx.ModelProto):
        loaded = _from_proto(model)
    elif isinstance(model, str | os.PathLike):
        loaded = _from_path(Path(model))
    else:
        raise GraphfuseError(f"a model is a path, an onnx.ModelProto or an onnx_ir.Model, not {type(model).__name__}")
    _read_attributes(loaded)
    _forget_no_sizes(loaded)
    return loaded


def _from_ir(model: ir.Model) -> ir.Model:
    name = model.graph.name or "model"
    try:
        loaded = model.clone()
    except Exception as error:  # onnx_ir clones in order, and wraps whatever it meets
        raise GraphfuseError(f"{name}: cannot be copied; put its nodes in order with model.graph.sort()") from error
    checks.check_external(external_tensors(loaded), name)
    _check_operators(loaded, name)
    return loaded


def _check_operators(model: ir.Model, name: str) -> None:
    checks.check_opset(model, name)
    checks.check_domains(model, name)


def _from_path(path: Path) -> ir.Model:
    checks.check_path(path)
    found = checks.checker_error(path)  # first, as long as there is no other copy of the weights; what it says comes last
    proto = _parse(path)
    loaded = _to_ir(proto, str(path))
    ir.external_data.set_base_dir(loaded.graph, path.absolute().parent)
    checks.check_external(external_tensors(loaded), str(path))
    _check_operators(loaded, str(path))
    checks.check_proto(proto, str(path), lambda _: found)
    return loaded


def _parse(path: Path) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except OSError as error:
        raise GraphfuseError(f"{path}: cannot be read: {error.strerror}") from error
    except Exception as error:  # protobuf's DecodeError, from one of several implementations
        raise GraphfuseError(f"{path}: not an ONNX model; give a file that onnx.save wrote") from error
    return proto


def _from_proto(proto: onnx.ModelProto) -> ir.Model:
    name = proto.graph.name or "model"
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)  # onnx_ir keeps the tensors of the proto it reads
    loaded = _to_ir(copy, name)
    if next(external_tensors(loaded), None) is not None:
        raise GraphfuseError(f"{name}: its weights are in files beside it, which a ModelProto cannot find; give the path instead")
    _check_operators(loaded, name)
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


def _forget_no_sizes(model: ir.Model) -> None:
    """Some exporters write -1 or "?" for a size that they do not know: two of those are not the same size."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None and any(_is_no_size(d) for d in value.shape):
            value.shape = ir.Shape([None if _is_no_size(d) else d for d in value.shape])


def _is_no_size(dim: int | ir.SymbolicDim) -> bool:
    return dim < 0 if isinstance(dim, int) else bool(dim.value) and not any(c.isalnum() or c == "_" for c in str(dim.value))


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Every tensor of the model that lives in another file: initializers and attributes, subgraphs and functions included."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value
    for node in checks.all_nodes(model):
        for attr in node.attributes.values():
            yield from (t for t in _attribute_tensors(attr) if isinstance(t, ir.ExternalTensor))


def _attribute_tensors(attr: ir.Attr) -> Sequence[ir.TensorProtocol]:
    if attr.is_ref():
        return ()
    if attr.type == ir.AttributeType.TENSOR:
        return (attr.as_tensor(),)
    return attr.as_tensors() if attr.type == ir.AttributeType.TENSORS else ()


def _read_attributes(model: ir.Model) -> None:
    """Reads tensors in attributes that live in another file: only initializers can be written to one again."""
    for node in checks.all_nodes(model):
        for name, attr in list(node.attributes.items()):
            if not any(isinstance(t, ir.ExternalTensor) for t in _attribute_tensors(attr)):
                continue
            read = [ir.Tensor(t.numpy().copy(), dtype=t.dtype, name=t.name) for t in _attribute_tensors(attr)]
            node.attributes[name] = ir.AttrTensor(name, read[0]) if attr.type == ir.AttributeType.TENSOR else ir.AttrTensors(name, read)
