"""Fused nodes: which they are, and the verified program that each of them carries.

Portable form: the node calls a function of domain ``graphfuse`` whose metadata holds the program. Plugin form: the
node's op_type is ``FusedRegion`` and the program is in its attribute ``spec``. Either comes from a file that may have
been downloaded, so programs are parsed through ``ir.loads`` and their interface is compared with the node's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import onnx_ir

from graphfuse.ir import Program, loads
from graphfuse.ir.errors import GraphfuseError, ProgramError

DOMAIN = "graphfuse"
PLUGIN_OP = "FusedRegion"
SPEC = "graphfuse.spec"
PARAMS = "graphfuse.params"


@dataclass(frozen=True)
class FusedNode:
    """A fused node of a graph. ``inputs`` and ``outputs`` are value names in the order of the program's."""

    name: str
    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def is_fused(node: onnx_ir.Node) -> bool:
    """Whether the node is a fused one, in either form."""
    return node.domain == DOMAIN


def label(node: onnx_ir.Node) -> str:
    """The node's name for people: its own, or its op_type and first output where it has none."""
    return node.name or f"{node.op_type}({node.outputs[0].name if node.outputs else ''})"


def read_fused(node: onnx_ir.Node, model: onnx_ir.Model) -> FusedNode:
    """The program and the interface of a fused node. Raises GraphfuseError when the model does not hold them rightly."""
    spec, places = _plugin_spec(node) if node.op_type == PLUGIN_OP else _function_spec(node, model)
    try:
        program = loads(spec)
    except ProgramError as error:
        raise GraphfuseError(f"fused node {label(node)}: {error}") from error
    if places is None:
        places = list(range(len(node.inputs)))
    if len(places) != len(program.params) or any(not 0 <= p < len(node.inputs) for p in places):
        raise _damaged(node, f"its program takes {len(program.params)} inputs and the node does not give them")
    inputs = [node.inputs[p] for p in places]
    if len(node.outputs) != len(program.results) or any(v is None or not v.name for v in inputs):
        raise _damaged(node, f"its program has {len(program.results)} outputs and {len(program.params)} inputs; the node's do not fit")
    return FusedNode(label(node), program, tuple(v.name or "" for v in inputs if v is not None), tuple(v.name or "" for v in node.outputs))


def _damaged(node: onnx_ir.Node, what: str) -> GraphfuseError:
    return GraphfuseError(f"fused node {label(node)} is damaged: {what}; rewrite the original model again")


def _plugin_spec(node: onnx_ir.Node) -> tuple[str, list[int] | None]:
    attr = node.attributes.get("spec")
    if not isinstance(attr, onnx_ir.Attr) or attr.type != onnx_ir.AttributeType.STRING:
        raise _damaged(node, "it has no attribute spec")
    return attr.as_string(), None


def _function_spec(node: onnx_ir.Node, model: onnx_ir.Model) -> tuple[str, list[int] | None]:
    function = model.functions.get(node.op_identifier())
    if function is None or SPEC not in function.metadata_props:
        raise _damaged(node, f"the model has no function {node.op_type} with a program")
    listed = function.metadata_props.get(PARAMS)
    if listed is None:
        return function.metadata_props[SPEC], None
    try:
        places = json.loads(listed)
    except ValueError:
        places = None
    if not isinstance(places, list) or any(type(p) is not int for p in places):
        raise _damaged(node, f"{PARAMS} is not a list of input numbers")
    return function.metadata_props[SPEC], places
