"""The ONNX function of a region: the original nodes under canonical names, with all constants that they need inside.

Function inputs are the parameters of the region's program, in order, then *extras*: run-time values that the original
nodes read but the program does not need, such as a shape computed elsewhere. Only the portable form connects those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir

from graphfuse.graph.facts import Facts, constant_tensor
from graphfuse.ir import dumps
from graphfuse.lower import Lowered
from graphfuse.match.names import DOMAIN, PARAMS_KEY, SPEC_KEY


@dataclass(frozen=True)
class Body:
    """A function still without a name, and the values of the graph that stand behind its own.

    ``inputs``: parameters, then extras; ``inner``: values made and used inside, in order; ``constants``: values whose
    tensors were copied into the function, in order.
    """

    function: onnx_ir.Function
    spec: str
    inputs: tuple[onnx_ir.Value, ...]
    outputs: tuple[onnx_ir.Value, ...]
    inner: tuple[onnx_ir.Value, ...]
    constants: tuple[onnx_ir.Value, ...]

    def content(self) -> bytes:
        """What tells functions apart: the program and the nodes."""
        nodes: bytes = onnx_ir.to_proto(self.function).SerializeToString(deterministic=True)
        return self.spec.encode() + b"\0" + nodes


def make_body(nodes: Sequence[onnx_ir.Node], lowered: Lowered, facts: Facts, opsets: Mapping[str, int]) -> Body:
    """The function of ``nodes`` (in topological order), whose program is ``lowered``."""
    return _Maker(lowered, facts).make(nodes, opsets)


class _Maker:
    def __init__(self, lowered: Lowered, facts: Facts) -> None:
        self.lowered = lowered
        self.facts = facts
        self.inside: dict[onnx_ir.Value, onnx_ir.Value] = {v: onnx_ir.Value(name=f"x{i}") for i, v in enumerate(lowered.inputs)}
        self.names = {v: f"y{i}" for i, v in enumerate(lowered.outputs)}
        self.nodes: list[onnx_ir.Node] = []
        self.extras: list[onnx_ir.Value] = []
        self.inner: list[onnx_ir.Value] = []
        self.constants: list[onnx_ir.Value] = []

    def make(self, nodes: Sequence[onnx_ir.Node], opsets: Mapping[str, int]) -> Body:
        made = {v for node in nodes for v in node.outputs}
        for node in nodes:
            self._copy(node, [None if v is None else self.inside.get(v) or self._outside(v, v in made) for v in node.inputs])
        inputs = (*self.lowered.inputs, *self.extras)
        outputs = [self.inside[v] for v in self.lowered.outputs]
        used = {"" if n.domain == "ai.onnx" else n.domain for n in nodes} | ({""} if self.constants else set())
        graph = onnx_ir.Graph(
            [self.inside[v] for v in inputs],
            outputs,
            nodes=self.nodes,
            opset_imports={d: v for d, v in opsets.items() if d in used},
            name="region",
        )
        spec = dumps(self.lowered.program)
        function = onnx_ir.Function(DOMAIN, "", graph=graph, attributes=[])
        function.metadata_props[SPEC_KEY] = spec
        function.metadata_props[PARAMS_KEY] = json.dumps(list(range(len(self.lowered.inputs))), separators=(",", ":"))
        return Body(function, spec, inputs, self.lowered.outputs, tuple(self.inner), tuple(self.constants))

    def _outside(self, value: onnx_ir.Value, made_later: bool) -> onnx_ir.Value:
        assert not made_later, "the nodes of a region are in topological order"
        tensor = constant_tensor(value)
        if tensor is not None:
            self.inside[value] = self._constant(value, tensor)
        else:
            self.inside[value] = onnx_ir.Value(name=f"s{len(self.extras)}")
            self.extras.append(value)
        return self.inside[value]

    def _constant(self, value: onnx_ir.Value, tensor: onnx_ir.TensorProtocol) -> onnx_ir.Value:
        own = onnx_ir.Tensor(np.array(tensor.numpy()), dtype=tensor.dtype, shape=onnx_ir.Shape(tensor.shape.numpy()))
        made = onnx_ir.Value(name=f"c{len(self.constants)}")
        self.constants.append(value)
        self.nodes.append(onnx_ir.Node("", "Constant", [], [onnx_ir.AttrTensor("value", own)], outputs=[made], name=f"n{len(self.nodes)}"))
        return made

    def _copy(self, node: onnx_ir.Node, inputs: Sequence[onnx_ir.Value | None]) -> None:
        outputs = [self._made(v) for v in node.outputs]
        self.nodes.append(
            onnx_ir.Node(
                "" if node.domain == "ai.onnx" else node.domain, node.op_type, inputs, list(node.attributes.values()),
                outputs=outputs, name=f"n{len(self.nodes)}",
            )
        )  # fmt: skip

    def _made(self, value: onnx_ir.Value) -> onnx_ir.Value:
        if not value.name:
            return onnx_ir.Value(name="")
        name = self.names.get(value)
        if name is None:
            name = f"v{len(self.inner)}"
            self.inner.append(value)
        self.inside[value] = onnx_ir.Value(name=name)
        return self.inside[value]
