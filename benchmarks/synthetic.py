"""Transformer-like models of any number of nodes, spelled out as exporters spell them: what rewriting costs is measured on them.

A layer has two layer norms of nine nodes each, attention over heads whose shapes are computed from Shape nodes, a rotary
pair, a scaled and masked softmax, a GELU by Erf and residual adds: 88 nodes. All layers are alike but for their weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, HEAD, LAYER = 4, 16, 88
ALIGN = 4096


class Net:
    """A graph being written down; ``weight`` gives the names of float32 initializers, whose content comes later."""

    def __init__(self, hidden: int) -> None:
        self.hidden = hidden
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, tuple[int, ...]] = {}
        self.constants: dict[str, onnx.TensorProto] = {}
        self.scope = ""

    def op(self, op_type: str, *inputs: str, out: str = "", **attributes: object) -> str:
        name = f"{self.scope}{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [out or name], name, **attributes))
        return out or name

    def const(self, value: float | list[int]) -> str:
        array = np.asarray(value, np.int64 if isinstance(value, list) else np.float32)
        name = f"const_{'_'.join(map(str, np.ravel(array)))}_{array.dtype.kind}"
        self.constants.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        self.weights[f"{self.scope}{name}"] = shape
        return f"{self.scope}{name}"

    def layer(self, x: str, mask: str) -> str:
        """One transformer layer on ``x``: float32[batch, seq, hidden]."""
        x = self.op("Add", self._attention(self._norm(x, "norm1"), mask), x)
        inner = self._gelu(self._linear(self._norm(x, "norm2"), "up", self.hidden, 2 * self.hidden))
        return self.op("Add", self._linear(inner, "down", 2 * self.hidden, self.hidden), x)

    def _norm(self, x: str, name: str) -> str:
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1], keepdims=1))
        variance = self.op("ReduceMean", self.op("Pow", centred, self.const(2.0)), axes=[-1], keepdims=1)
        scaled = self.op("Div", centred, self.op("Sqrt", self.op("Add", variance, self.const(1e-5))))
        return self.op("Add", self.op("Mul", scaled, self.weight(f"{name}.w", self.hidden)), self.weight(f"{name}.b", self.hidden))

    def _linear(self, x: str, name: str, rows: int, columns: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(f"{name}.w", rows, columns)), self.weight(f"{name}.b", columns))

    def _gelu(self, x: str) -> str:
        erf = self.op("Erf", self.op("Div", x, self.const(1.4142135)))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.const(1.0))), self.const(0.5))

    def _sizes(self, x: str) -> list[str]:
        shape = self.op("Shape", x)
        return [self.op("Unsqueeze", self.op("Gather", shape, self.const([axis]), axis=0), self.const([1])) for axis in (0, 1)]

    def _heads(self, x: str, perm: list[int]) -> str:
        flat = [self.op("Squeeze", size, self.const([1])) for size in self._sizes(x)]
        shape = self.op("Concat", *flat, self.const([HEADS]), self.const([-1]), axis=0)
        return self.op("Transpose", self.op("Reshape", x, shape), perm=perm)

    def _rotated(self, x: str, axis: int) -> str:
        low = self.op("Slice", x, self.const([0]), self.const([HEAD // 2]), self.const([axis]))
        high = self.op("Slice", x, self.const([HEAD // 2]), self.const([1 << 40]), self.const([axis]))
        turned = self.op("Concat", self.op("Neg", high), low, axis=axis)
        return self.op("Add", self.op("Mul", x, self.const(0.8)), self.op("Mul", turned, self.const(0.6)))

    def _attention(self, x: str, mask: str) -> str:
        query, key, value = (
            self._heads(self._linear(x, name, self.hidden, HEADS * HEAD), perm)
            for name, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        scores = self.op("Div", self.op("MatMul", self._rotated(query, 3), self._rotated(key, 2)), self.const(4.0))
        mixed = self.op("MatMul", self.op("Softmax", self.op("Add", scores, mask), axis=-1), value)
        joined = self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), self.const([0, 0, HEADS * HEAD]))
        return self._linear(joined, "out", HEADS * HEAD, self.hidden)


def network(nodes: int, hidden: int = 64) -> Net:
    """Layers until there are at least ``nodes`` nodes."""
    net = Net(hidden)
    wide = net.op("Unsqueeze", net.op("Cast", "mask", to=TensorProto.FLOAT), net.const([1, 2]))
    bias = net.op("Mul", net.op("Sub", net.const(1.0), wide), net.const(-10000.0))
    x, number = "x", 0
    while len(net.nodes) < nodes - 1:
        net.scope = f"/layer.{number}/"
        x, number = net.layer(x, bias), number + 1
    net.op("Identity", x, out="y")
    return net


def hidden_for(size: int, nodes: int) -> int:
    """The width at which a network of ``nodes`` nodes has about ``size`` bytes of weights."""
    layers = -(-nodes // LAYER)
    return next(h for h in range(64, 1 << 16, 64) if layers * 4 * h * (4 * h + 4 * HEADS * HEAD) >= size)


def proto(net: Net, weights: Iterable[onnx.TensorProto]) -> onnx.ModelProto:
    """The model of ``net`` with these weights."""
    info = helper.make_tensor_value_info
    shape = ["batch", "seq", net.hidden]
    graph = helper.make_graph(
        net.nodes,
        "transformer",
        [info("x", TensorProto.FLOAT, shape), info("mask", TensorProto.INT64, shape[:2])],
        [info("y", TensorProto.FLOAT, shape)],
        [*net.constants.values(), *weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def model(nodes: int, hidden: int = 64) -> onnx.ModelProto:
    """A model with its weights inside."""
    net, random = network(nodes, hidden), np.random.default_rng(0)
    made = (random.standard_normal(shape, np.float32) / hidden**0.5 for shape in net.weights.values())
    return proto(net, [numpy_helper.from_array(array, name) for name, array in zip(net.weights, made, strict=True)])


def write_external(path: Path, nodes: int, hidden: int) -> int:
    """Writes a model whose weights are in ``<name>.data`` beside it, a weight at a time; returns the bytes of those."""
    net, random = network(nodes, hidden), np.random.default_rng(0)
    places: list[onnx.TensorProto] = []
    data = path.with_name(path.name + ".data")
    with data.open("wb") as file:
        for name, shape in net.weights.items():
            file.seek(-(-file.tell() // ALIGN) * ALIGN)
            array = random.standard_normal(shape, np.float32)
            places.append(_place(name, shape, data.name, file.tell(), array.nbytes))
            file.write(array.tobytes())
    path.write_bytes(proto(net, places).SerializeToString())
    return data.stat().st_size


def _place(name: str, shape: tuple[int, ...], location: str, offset: int, length: int) -> onnx.TensorProto:
    tensor = TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, text in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(text))
    return tensor
