"""A YOLO detection head as exporters write it: three scales, 1x1 convolutions, box decoding, scores, corner boxes."""

from __future__ import annotations

import numpy as np
import onnx
from _builder import Net, write

IMAGE = 320
CLASSES = 80
CHANNELS = 5 + CLASSES  # x, y, width, height, objectness, classes
SCALES = {  # stride: (feature channels, anchors in pixels)
    8: (32, ((10, 13), (16, 30), (33, 23))),
    16: (48, ((30, 61), (62, 45), (59, 119))),
    32: (64, ((116, 90), (156, 198), (373, 326))),
}


def grid(size: int) -> np.ndarray:
    """The cell corners, moved by the half cell that the decoding subtracts: float32[1, 3, size, size, 2]."""
    y, x = np.mgrid[:size, :size]
    return np.broadcast_to(np.stack([x, y], -1) - 0.5, (1, 3, size, size, 2)).astype(np.float32)


def decode(net: Net, features: str, stride: int) -> str:
    """One scale: float32[1, c, size, size] to float32[1, 3*size*size, CHANNELS], boxes in pixels as center and size."""
    depth, anchors = SCALES[stride]
    size = IMAGE // stride
    weight = net.weight("conv.weight", (3 * CHANNELS, depth, 1, 1), 0.4)
    raw = net.op("Conv", features, weight, net.weight("conv.bias", (3 * CHANNELS,), 0.5), kernel_shape=[1, 1])
    raw = net.op("Reshape", raw, net.const([1, 3, CHANNELS, size, size], "int64"))
    raw = net.op("Transpose", raw, perm=[0, 1, 3, 4, 2])
    parts = net.const([2, 2, CHANNELS - 4], "int64")
    center, extent, rest = net.ops("Split", net.op("Sigmoid", raw), parts, out=("", "", ""), axis=-1)
    center = net.op("Add", net.op("Mul", center, net.const(2.0)), net.given("grid", grid(size)))
    center = net.op("Mul", center, net.const(float(stride)))
    extent = net.op("Pow", net.op("Mul", extent, net.const(2.0)), net.const(2.0))
    extent = net.op("Mul", extent, net.given("anchors", np.array(anchors, np.float32).reshape(1, 3, 1, 1, 2)))
    joined = net.op("Concat", center, extent, rest, axis=-1)
    return net.op("Reshape", joined, net.const([1, 3 * size * size, CHANNELS], "int64"))


def part(net: Net, value: str, start: int, end: int) -> str:
    """Channels ``start`` to ``end`` of the last axis."""
    return net.op("Slice", value, net.const([start], "int64"), net.const([end], "int64"), net.const([-1], "int64"), net.const([1], "int64"))


def build() -> onnx.ModelProto:
    net = Net(seed=5)
    inputs = [
        {"name": f"p{k}", "kind": "normal", "dtype": "float32", "shape": [1, depth, IMAGE // stride, IMAGE // stride]}
        for k, (stride, (depth, _)) in enumerate(SCALES.items(), 3)
    ]
    scales = [decode(net.within(f"/head.{k}/"), row["name"], stride) for k, (row, stride) in enumerate(zip(inputs, SCALES, strict=True))]
    net.within("/post/")
    found = net.op("Concat", *scales, axis=1)
    center, extent = part(net, found, 0, 2), part(net, found, 2, 4)
    half = net.op("Div", extent, net.const(2.0))
    net.op("Concat", net.op("Sub", center, half), net.op("Add", center, half), axis=-1, out="boxes")
    net.op("Mul", part(net, found, 5, CHANNELS), part(net, found, 4, 5), out="scores")
    count = sum(3 * (IMAGE // s) ** 2 for s in SCALES)
    outputs = {"boxes": ("float32", [1, count, 4]), "scores": ("float32", [1, count, CLASSES])}
    return net.model("yolo_head", 17, inputs, outputs, dims={}, alt_dims={})


if __name__ == "__main__":
    write(build(), __file__)
