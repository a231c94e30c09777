"""What stands before a vision model: camera bytes in BGR and NHWC to normalised floats in RGB and NCHW, any size."""

from __future__ import annotations

import onnx
from _builder import Net, write

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def build() -> onnx.ModelProto:
    net = Net(seed=0).within("/preprocess/")
    pixels = net.op("Cast", "image", to=1)
    pixels = net.op("Gather", pixels, net.const([2, 1, 0], "int64"), axis=3)
    pixels = net.op("Div", pixels, net.const(255.0))
    pixels = net.op("Div", net.op("Sub", pixels, net.const(MEAN)), net.const(STD))
    net.op("Transpose", pixels, perm=[0, 3, 1, 2], out="pixels")
    inputs = [{"name": "image", "kind": "int", "dtype": "uint8", "shape": ["batch", "height", "width", 3], "low": 0, "high": 256}]
    outputs = {"pixels": ("float32", ["batch", 3, "height", "width"])}
    dims, alt_dims = {"batch": 2, "height": 96, "width": 128}, {"batch": 1, "height": 45, "width": 67}
    return net.model("preprocess", 17, inputs, outputs, dims=dims, alt_dims=alt_dims)


if __name__ == "__main__":
    write(build(), __file__)
