"""Two pre-norm transformer blocks over a dynamic batch and sequence, as the TorchScript exporter writes them.

Layer norms and GELUs arrive as their pieces, head sizes are computed from Shape nodes, padding is masked additively.
"""

from __future__ import annotations

import numpy as np
import onnx
from _builder import Net, write

HIDDEN, HEADS, INNER, LAYERS = 64, 4, 256, 2
HEAD = HIDDEN // HEADS


def layer_norm(net: Net, x: str, name: str) -> str:
    mean = net.op("ReduceMean", x, axes=[-1], keepdims=1)
    centred = net.op("Sub", x, mean)
    variance = net.op("ReduceMean", net.op("Pow", centred, net.const(2.0)), axes=[-1], keepdims=1)
    deviation = net.op("Sqrt", net.op("Add", variance, net.const(1e-5)))
    scaled = net.op("Mul", net.op("Div", centred, deviation), net.weight(f"{name}.weight", (HIDDEN,), 0.3, around=1.0))
    return net.op("Add", scaled, net.weight(f"{name}.bias", (HIDDEN,), 0.2))


def gelu(net: Net, x: str) -> str:
    erf = net.op("Erf", net.op("Div", x, net.const(np.sqrt(2.0))))
    product = net.op("Mul", x, net.op("Add", erf, net.const(1.0)))
    return net.op("Mul", product, net.const(0.5))


def linear(net: Net, x: str, name: str, rows: int, columns: int) -> str:
    product = net.op("MatMul", x, net.weight(f"{name}.weight", (rows, columns), 2.0 / rows**0.5))
    return net.op("Add", net.weight(f"{name}.bias", (columns,), 0.2), product)


def size_of(net: Net, x: str, axis: int) -> str:
    """The run-time size of an axis: int64[1]."""
    size = net.op("Gather", net.op("Shape", x), net.const(axis, "int64"), axis=0)
    return net.op("Unsqueeze", size, net.const([0], "int64"))


def heads(net: Net, x: str, perm: list[int]) -> str:
    shape = [size_of(net, x, 0), size_of(net, x, 1), net.const([HEADS], "int64"), net.const([HEAD], "int64")]
    split = net.op("Reshape", x, net.op("Concat", *shape, axis=0))
    return net.op("Transpose", split, perm=perm)


def attention(net: Net, x: str, bias: str) -> str:
    query = heads(net, linear(net, x, "query", HIDDEN, HIDDEN), [0, 2, 1, 3])
    key = heads(net, linear(net, x, "key", HIDDEN, HIDDEN), [0, 2, 3, 1])
    value = heads(net, linear(net, x, "value", HIDDEN, HIDDEN), [0, 2, 1, 3])
    scores = net.op("Div", net.op("MatMul", query, key), net.const(HEAD**0.5))
    weights = net.op("Softmax", net.op("Add", scores, bias), axis=-1)
    mixed = net.op("Transpose", net.op("MatMul", weights, value), perm=[0, 2, 1, 3])
    shape = [size_of(net, mixed, 0), size_of(net, mixed, 1), net.const([HIDDEN], "int64")]
    joined = net.op("Reshape", mixed, net.op("Concat", *shape, axis=0))
    return linear(net, joined, "out", HIDDEN, HIDDEN)


def mask_bias(net: Net, mask: str) -> str:
    """int64[batch, seq] of 1 (token) and 0 (padding) to float32[batch, 1, 1, seq] that is added to the scores."""
    wide = net.op("Unsqueeze", net.op("Unsqueeze", mask, net.const([1], "int64")), net.const([2], "int64"))
    return net.op("Mul", net.op("Sub", net.const(1.0), net.op("Cast", wide, to=1)), net.const(-10000.0))


def build() -> onnx.ModelProto:
    net = Net(seed=7).within("/mask/")
    bias = mask_bias(net, "attention_mask")
    x = "hidden"
    for number in range(LAYERS):
        net.within(f"/block.{number}/")
        x = net.op("Add", attention(net, layer_norm(net, x, "norm1"), bias), x)
        inner = gelu(net, linear(net, layer_norm(net, x, "norm2"), "up", HIDDEN, INNER))
        x = net.op("Add", linear(net, inner, "down", INNER, HIDDEN), x)
    final = layer_norm(net.within("/"), x, "norm")
    net.op("Identity", final, out="output")
    inputs = [
        {"name": "hidden", "kind": "normal", "dtype": "float32", "shape": ["batch", "seq", HIDDEN]},
        {"name": "attention_mask", "kind": "mask", "dtype": "int64", "shape": ["batch", "seq"]},
    ]
    outputs = {"output": ("float32", ["batch", "seq", HIDDEN])}
    return net.model("transformer_block", 17, inputs, outputs, dims={"batch": 2, "seq": 24}, alt_dims={"batch": 3, "seq": 17})


if __name__ == "__main__":
    write(build(), __file__)
