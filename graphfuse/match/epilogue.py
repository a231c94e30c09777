"""What an engine computes for free at the end of a convolution or matrix product: a bias, then one activation."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir

from graphfuse.graph.facts import Facts, constant_tensor
from graphfuse.match.flow import Flow
from graphfuse.match.small_ops import Kind, NodeClass

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
PRODUCTS = frozenset({"MatMul", "Gemm"})
ACTIVATIONS = frozenset({
    "Celu", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign",
    "Swish", "Tanh", "ThresholdedRelu", "PRelu",
})  # fmt: skip
_CURVED = ACTIVATIONS | {"Erf", "Exp", "Max", "Min", "Pow"}
_PLAIN = frozenset({"Add", "Div", "Mul", "Neg", "Sub", "Cast"})
_LONGEST = 12  # nodes of an activation that is spelled out (GELU by tanh has 8)


def epilogue(start: int, flow: Flow, facts: Facts, classes: list[NodeClass]) -> list[int]:
    """Positions of the nodes that belong to the convolution or product at ``start``, in order."""
    return _Tail(flow, facts, classes).follow(start)


class _Tail:
    def __init__(self, flow: Flow, facts: Facts, classes: list[NodeClass]) -> None:
        self.flow = flow
        self.facts = facts
        self.classes = classes

    def follow(self, start: int) -> list[int]:
        node = self.flow.nodes[start]
        found: list[int] = []
        value = node.outputs[0]
        steps = [self._normalisation, self._bias] if node.op_type in CONVOLUTIONS else [self._bias]
        for step in [*steps, self._activation, self._quantise]:
            taken = step(value)
            if taken:
                found += taken
                value = self.flow.nodes[taken[-1]].outputs[0]
        return found

    def _only_reader(self, value: onnx_ir.Value) -> int | None:
        readers = self.flow.readers.get(value, [])
        free = len(readers) == 1 and value not in self.flow.graph_outputs and not value.is_graph_output()
        return readers[0] if free and self.classes[readers[0]].kind is Kind.SMALL else None

    def _normalisation(self, value: onnx_ir.Value) -> list[int]:
        reader = self._only_reader(value)
        return [reader] if reader is not None and self.flow.nodes[reader].op_type == "BatchNormalization" else []

    def _bias(self, value: onnx_ir.Value) -> list[int]:
        """An Add of a constant that is smaller than what it is added to."""
        reader = self._only_reader(value)
        if reader is None or self.flow.nodes[reader].op_type != "Add":
            return []
        others = [v for v in self.flow.nodes[reader].inputs if v is not value]
        return [reader] if len(others) == 1 and others[0] is not None and self._is_bias(others[0], value) else []

    def _is_bias(self, other: onnx_ir.Value, value: onnx_ir.Value) -> bool:
        shape, whole = self.facts.shape(other), self.facts.shape(value)
        wide = [d for d in shape or () if d != 1]
        return constant_tensor(other) is not None and len(wide) <= 1 and (whole is None or len(shape or ()) <= len(whole))

    def _activation(self, value: onnx_ir.Value) -> list[int]:
        """The smallest closed set of elementwise nodes of this one value: all that reads it, with one result."""
        inside: list[int] = []
        for _ in range(_LONGEST):
            reader = next(self._readers_outside(value, inside), None)
            if reader is None or not self._is_elementwise(reader, value, inside):
                return []
            inside.append(reader)
            if self._closed(value, inside):
                return self._with_scale(inside) if self._is_activation(inside) else []
        return []

    def _readers_outside(self, value: onnx_ir.Value, inside: list[int]) -> Iterator[int]:
        values = [value, *(self.flow.nodes[i].outputs[0] for i in inside)]
        yield from sorted({r for v in values for r in self.flow.readers.get(v, ()) if r not in inside})

    def _is_elementwise(self, reader: int, value: onnx_ir.Value, inside: list[int]) -> bool:
        node = self.flow.nodes[reader]
        known = {value, *(self.flow.nodes[i].outputs[0] for i in inside)}
        if not self.classes[reader].fusable or node.op_type not in _CURVED | _PLAIN:
            return False
        return all(v is None or v in known or self._is_scalar(v) or node.op_type == "PRelu" for v in node.inputs)

    def _is_scalar(self, value: onnx_ir.Value) -> bool:
        tensor = constant_tensor(value)
        return tensor is not None and tensor.size == 1

    def _closed(self, value: onnx_ir.Value, inside: list[int]) -> bool:
        last = inside[-1]
        members = set(inside)
        inner = [value, *(self.flow.nodes[i].outputs[0] for i in inside if i != last)]
        return not any(self.flow.escapes(v, members) for v in inner)

    def _is_activation(self, inside: list[int]) -> bool:
        types = [self.flow.nodes[i].op_type for i in inside]
        return types[0] in ACTIVATIONS if len(types) == 1 else any(t in _CURVED for t in types)

    def _with_scale(self, inside: list[int]) -> list[int]:
        """A spelled-out activation may end with a multiplication by a constant, as GELU does."""
        if len(inside) == 1:
            return inside
        result = self.flow.nodes[inside[-1]].outputs[0]
        reader = self._only_reader(result)
        if reader is None or self.flow.nodes[reader].op_type not in ("Mul", "Div"):
            return inside
        scaled = all(v is result or (v is not None and self._is_scalar(v)) for v in self.flow.nodes[reader].inputs)
        return [*inside, reader] if scaled else inside

    def _quantise(self, value: onnx_ir.Value) -> list[int]:
        reader = self._only_reader(value)
        return [reader] if reader is not None and self.flow.nodes[reader].op_type == "QuantizeLinear" else []
