"""Hand-made models in portable form, for tests that must not depend on what ``rewrite`` decides."""

from __future__ import annotations

import json
from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from graphfuse.ir import Program, dumps

FLOAT = TensorProto.FLOAT


def info(name: str, dtype: int = FLOAT, shape: Sequence[int | str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def function(name: str, program: Program, nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str], params=None):
    """A fused function: its body are the original nodes, its metadata the program."""
    made = helper.make_function("graphfuse", name, list(inputs), list(outputs), list(nodes), [helper.make_opsetid("", 17)])
    made.metadata_props.add(key="graphfuse.spec", value=dumps(program))
    made.metadata_props.add(key="graphfuse.params", value=json.dumps(list(range(len(inputs))) if params is None else params))
    return made


def call(name: str, inputs: Sequence[str], outputs: Sequence[str], label: str = "") -> onnx.NodeProto:
    return helper.make_node(name, list(inputs), list(outputs), name=label, domain="graphfuse")


def model(nodes, inputs, outputs, initializers=(), functions=(), value_info=()) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initializers), value_info=list(value_info))
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid("graphfuse", 1)] if functions else [])
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)
