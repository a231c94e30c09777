"""Checks on a model that came from outside, each raising GraphfuseError with one line: thing, reason, mend."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import onnx
import onnx_ir as ir

from graphfuse.ir.errors import GraphfuseError

OLDEST_OPSET = 9
DOMAIN = "graphfuse"  # of fused nodes and their functions
PLUGIN_OP = "FusedRegion"
_SMALL = 1024  # bytes; larger initializers take no part in type inference


def one_line(text: object, limit: int = 240) -> str:
    """Text of a foreign error, on one line and not longer than ``limit`` characters."""
    flat = " ".join(str(text).split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


def check_path(path: Path) -> None:
    """Raises unless ``path`` is a file that can be read."""
    if not path.exists():
        raise GraphfuseError(f"{path}: no such file; check the path")
    if path.is_dir():
        raise GraphfuseError(f"{path}: is a directory; name the .onnx file in it")
    if not os.access(path, os.R_OK):
        raise GraphfuseError(f"{path}: cannot be read; check its permissions")


def checker_error(path: Path) -> Exception | None:
    """What ``onnx.checker`` has against a file, its external data included. It reads the weights twice over and lets them go."""
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        return error
    return None


def check_proto(proto: onnx.ModelProto, name: str, checker: Callable[[onnx.ModelProto], Exception | None] | None = None) -> None:
    """Raises unless ``proto`` is a valid ONNX model. ``checker`` says what is known of it, where ``onnx.checker`` was asked before."""
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise GraphfuseError(f"{name}: not an ONNX model (it has no graph); give a file that onnx.save wrote")
    if proto.graph.sparse_initializer:
        raise GraphfuseError(f"{name}: has sparse initializers, which are not supported; store them as dense ones")
    try:
        if checker is None:
            onnx.checker.check_model(proto)
        elif (found := checker(proto)) is not None:
            raise found
        onnx.shape_inference.infer_shapes(_without_weights(proto), check_type=True)
    except onnx.checker.ValidationError as error:
        raise GraphfuseError(f"{name}: invalid model: {one_line(error)}") from error
    except onnx.shape_inference.InferenceError as error:
        raise GraphfuseError(f"{name}: invalid model: {one_line(error)}") from error
    except (ValueError, RuntimeError) as error:
        raise GraphfuseError(f"{name}: cannot be checked: {one_line(error)}") from error


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with large initializers turned into inputs, so that checking types copies no weights."""
    bare = onnx.ModelProto(ir_version=max(proto.ir_version, 4), opset_import=proto.opset_import, functions=proto.functions)
    graph = proto.graph
    bare.graph.name = graph.name
    for field in ("node", "input", "output", "value_info"):
        getattr(bare.graph, field).extend(getattr(graph, field))
    inputs = {i.name for i in graph.input}
    for tensor in graph.initializer:
        if tensor.ByteSize() <= _SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            bare.graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            bare.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return bare


def check_opset(model: ir.Model, name: str) -> None:
    """Raises for a default opset older than 9, whose operators meant other things."""
    version = model.opset_imports.get("", model.opset_imports.get("ai.onnx"))
    if version is not None and version < OLDEST_OPSET:
        raise GraphfuseError(f"{name}: opset {version} is not supported; convert the model to opset {OLDEST_OPSET} or newer")


def check_domains(model: ir.Model, name: str) -> None:
    """Raises if a node, wherever it stands, is of an operator that nobody defines: neither ONNX, ONNX Runtime nor the model."""
    known = _known_operators()
    for node in all_nodes(model):
        domain, op_type = node.domain, node.op_type
        if node.op_identifier() in model.functions or (domain, op_type) in known or (domain, op_type) == (DOMAIN, PLUGIN_OP):
            continue
        if domain == DOMAIN:
            raise GraphfuseError(
                f"{name}: node {node_label(node)}: {DOMAIN}::{op_type} has no function in the model; rewrite the model again"
            )
        reason = "domain" if domain not in {d for d, _ in known} else "operator"
        raise GraphfuseError(
            f"{name}: node {node_label(node)}: unknown op {reason}: {domain or 'ai.onnx'}::{op_type} has neither a schema nor a function"
            " in the model; add its function or replace the node"
        )


@cache
def _known_operators() -> frozenset[tuple[str, str]]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = {("" if s.domain == "ai.onnx" else s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}
    return frozenset(own | {("" if s.domain == "ai.onnx" else s.domain, s.name) for s in state.get_all_operator_schema()})


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Every node of the graph, its subgraphs and the model's functions."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def node_label(node: ir.Node) -> str:
    """A node as a person finds it: its name, or its first output's."""
    if node.name:
        return repr(node.name)
    return next((f"that makes {v.name!r}" for v in node.outputs if v.name), f"of type {node.op_type}")


def check_external(tensors: Iterator[ir.ExternalTensor], name: str) -> None:
    """Raises if a weight file lies outside the model's folder, is missing or too short. Reads none of them."""
    for tensor in tensors:
        where = Path(tensor.location)
        if where.is_absolute() or ".." in where.parts or where == Path():
            raise GraphfuseError(
                f"{name}: weight {tensor.name!r} points to {str(where)!r}, outside the model's folder; move the file there"
            )
        base = Path(tensor.base_dir or ".").resolve()
        real = (base / where).resolve()
        if not real.is_relative_to(base):
            raise GraphfuseError(f"{name}: weight {tensor.name!r}: {str(where)!r} is a link out of the model's folder; copy the file there")
        if not real.is_file():
            raise GraphfuseError(f"{name}: weight file {str(where)!r} is missing; put it beside the model")
        offset = tensor.offset or 0
        if offset < 0 or offset + tensor.nbytes > real.stat().st_size or tensor.length not in (None, tensor.nbytes):
            raise GraphfuseError(
                f"{name}: weight {tensor.name!r} does not fit its file {str(where)!r}; the file is damaged or of another model"
            )
