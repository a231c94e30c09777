"""uint8 at the edge of a network: TensorRT takes it as network input or output, but hands it to no plugin.

Images come as uint8, so regions that read or write them are common. A Cast at the edge carries the values as float16,
which holds every uint8 exactly, and the region's program converts on its own side.
"""

from __future__ import annotations

import onnx_ir

from graphfuse.ir import Instr, Program
from graphfuse.ir.dtypes import F16, U8


def edge_values(node: onnx_ir.Node, program: Program, graph: onnx_ir.Graph) -> tuple[list[int], list[int]] | None:
    """Numbers of the node's uint8 inputs and outputs, if all of them are inputs and outputs of the network, else None.

    ``graph`` is the main graph; the outputs of a node in a body are not the network's.
    """
    inputs = [k for k, (dtype, _) in enumerate(program.params) if dtype is U8]
    outputs = [k for k, (dtype, _) in enumerate(program.outputs) if dtype is U8]
    from_outside = all(_is_network_input(node.inputs[k], graph) for k in inputs)
    to_outside = all(node.outputs[k].is_graph_output() and not node.outputs[k].uses() for k in outputs) and node.graph is graph
    return (inputs, outputs) if from_outside and to_outside else None


def _is_network_input(value: onnx_ir.Value | None, graph: onnx_ir.Graph) -> bool:
    return value is not None and value in graph.inputs and not value.is_initializer()


def through_half(program: Program) -> Program:
    """The same program with float16 where it takes or gives uint8; the values stand for themselves."""
    body: list[Instr] = []
    place: list[int] = []
    for instr in program.body:
        if instr.op == "param" and instr.dtype is U8:
            body.append(Instr("param", (), F16, instr.shape, instr.attrs))
            body.append(Instr("cast", (len(body) - 1,), U8, instr.shape))
        else:
            body.append(Instr(instr.op, tuple(place[a] for a in instr.args), instr.dtype, instr.shape, instr.attrs))
        place.append(len(body) - 1)
    results = []
    for number in program.results:
        made = place[number]
        if body[made].dtype is U8:
            body.append(Instr("cast", (made,), F16, body[made].shape))
            made = len(body) - 1
        results.append(made)
    params = tuple((F16 if dtype is U8 else dtype, shape) for dtype, shape in program.params)
    return Program(params, tuple(body), tuple(results))


def cast_node(source: onnx_ir.Value, target: onnx_ir.Value, dtype: onnx_ir.DataType, name: str) -> onnx_ir.Node:
    """A Cast of ``source`` into ``target``."""
    return onnx_ir.Node("", "Cast", [source], [onnx_ir.AttrInt64("to", dtype.value)], outputs=[target], name=name)
