"""The tail of a quantised residual block: int8 in and out around add, hard-swish and a squeeze-excite gate.

Scales are symmetric (zero point 0), as TensorRT wants them.
"""

from __future__ import annotations

import onnx
from _builder import Net, write

CHANNELS, SIZE = 32, 14


def through_int8(net: Net, x: str, scale: float, out: str = "") -> str:
    """Quantised to int8 and back, as between two quantised layers."""
    step, zero = net.const(scale), net.const(0, "int8")
    return net.op("DequantizeLinear", net.op("QuantizeLinear", x, step, zero), step, zero, out=out)


def hard_swish(net: Net, x: str) -> str:
    shifted = net.op("Clip", net.op("Add", x, net.const(3.0)), net.const(0.0), net.const(6.0))
    return net.op("Div", net.op("Mul", x, shifted), net.const(6.0))


def build() -> onnx.ModelProto:
    net = Net(seed=9).within("/tail/")
    total = net.op("Add", through_int8(net, "x", 0.03125), through_int8(net, "skip", 0.046875))
    active = through_int8(net, hard_swish(net, through_int8(net, total, 0.0625)), 0.05)
    gate = net.op("Sigmoid", net.op("Add", "gate", net.weight("gate.bias", (1, CHANNELS, 1, 1), 1.0)))
    scaled = net.op("Mul", active, through_int8(net, gate, 1 / 127))
    through_int8(net, net.op("Max", scaled, net.const(-0.25)), 0.04, out="y")
    shape = ["batch", CHANNELS, SIZE, SIZE]
    rows = [{"name": name, "kind": "normal", "dtype": "float32", "shape": shape} for name in ("x", "skip")]
    rows.append({"name": "gate", "kind": "normal", "dtype": "float32", "shape": ["batch", CHANNELS, 1, 1]})
    outputs = {"y": ("float32", shape)}
    return net.model("quantised_tail", 13, rows, outputs, dims={"batch": 2}, alt_dims={"batch": 5})


if __name__ == "__main__":
    write(build(), __file__)
