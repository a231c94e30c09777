"""The chains that are measured, each written once as a torch function of plain tensors.

A function casts by ``wide`` and ``like`` only, so that the same function on float64 inputs is its own reference. Weights,
tables and masks are inputs like all others: what is read from memory is counted, whoever reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (as everybody calls it)

Tensor = torch.Tensor


@dataclass(frozen=True)
class Spec:
    """How an input is made. ``kind``: normal (scale, offset), ints (from low to high - 1) or steps (0, 1, 2...)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str = "normal"
    scale: float = 1.0
    offset: float = 0.0
    low: int = 0
    high: int = 2

    def make(self, device: str, generator: torch.Generator) -> Tensor:
        """A fresh tensor."""
        if self.kind == "ints":
            return torch.randint(self.low, self.high, self.shape, device=device, generator=generator, dtype=self.dtype)
        if self.kind == "steps":
            return torch.arange(self.shape[0], device=device, dtype=self.dtype)
        values = torch.randn(self.shape, device=device, generator=generator) * self.scale + self.offset
        return (values.abs() if self.kind == "positive" else values).to(self.dtype)


@dataclass(frozen=True)
class Chain:
    """One measured chain. ``table`` says whether it belongs to the twelve that the project was started with."""

    name: str
    title: str
    function: Callable[..., Any]
    specs: tuple[Spec, ...]
    table: bool

    def inputs(self, device: str, seed: int) -> tuple[Tensor, ...]:
        """Fresh inputs; equal seeds give equal ones."""
        generator = torch.Generator(device).manual_seed(seed)
        return tuple(spec.make(device, generator) for spec in self.specs)

    def outputs(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What the function gives, always as a tuple."""
        return as_tuple(self.function(*inputs))

    def reference(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The function in float64 on the same values."""
        return self.outputs([x.double() if x.is_floating_point() else x for x in inputs])


def as_tuple(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def wide(x: Tensor) -> Tensor:
    """As a careful model computes: small floats in float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def f32(*shape: int, scale: float = 1.0, offset: float = 0.0, kind: str = "normal") -> Spec:
    return Spec(shape, torch.float32, kind, scale, offset)


def f16(*shape: int, scale: float = 1.0, offset: float = 0.0) -> Spec:
    return Spec(shape, torch.float16, "normal", scale, offset)


def ints(dtype: torch.dtype, low: int, high: int, *shape: int) -> Spec:
    return Spec(shape, dtype, "ints", low=low, high=high)


# --- the twelve ---------------------------------------------------------------------------------------------------------


def detection_head(x: Tensor, grid: Tensor, stride: Tensor, anchor: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    xy = (s[..., 0:2] * 2 - 0.5 + grid) * stride
    wh = (s[..., 2:4] * 2) ** 2 * anchor
    return torch.cat((xy, wh, s[..., 4:]), -1)


def add_layer_norm_gelu(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x + residual, (x.shape[-1],), weight, bias))


def residual_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    z = x + residual
    f = wide(z)
    n = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)
    return n.to(z.dtype) * weight, z


def scale_mask_softmax(x: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(x * 0.125 + mask, -1)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def add_relu_scale_add(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.relu(x + y) * 1.5 + z


def dilate(x: Tensor) -> Tensor:
    height, width = x.shape
    p = F.pad(x, (1, 1, 1, 1), value=-(2**31))
    best = p[0:height, 0:width]
    for dy in range(3):
        for dx in range(3):
            if (dy, dx) != (0, 0):
                best = torch.maximum(best, p[dy : dy + height, dx : dx + width])
    return best


def relu_quantise(x: Tensor) -> Tensor:
    return torch.clamp(torch.round(torch.relu(x) / 0.05), -128, 127).to(torch.int8)


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 32, weight, bias))


# --- more, of the kinds that models hold --------------------------------------------------------------------------------


def masked_softmax(scores: Tensor, bias: Tensor, keep: Tensor) -> Tensor:
    s = scores * 0.125 + bias
    p = torch.softmax(s.masked_fill(keep[:, None, None, :] == 0, float("-inf")), -1)
    return p.masked_fill(torch.isnan(p), 0.0)


def softcap_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(torch.tanh(scores * (0.0625 / 50.0)) * 50.0 + mask, -1)


def swin_partition(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    batch, height, width, channels = x.shape
    y = torch.roll(F.layer_norm(x, (channels,), weight, bias), (-3, -3), (1, 2))
    y = y.view(batch, height // 7, 7, width // 7, 7, channels).permute(0, 1, 3, 2, 4, 5)
    return y.reshape(-1, 49, channels)


def swin_merge(windows: Tensor, residual: Tensor) -> Tensor:
    batch, height, width, channels = residual.shape
    y = windows.view(batch, height // 7, width // 7, 7, 7, channels).permute(0, 1, 3, 2, 4, 5)
    return torch.roll(y.reshape(batch, height, width, channels), (3, 3), (1, 2)) + residual


def dfl_head(x: Tensor, bins: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
    batch, _, places = x.shape
    p = torch.softmax(x[:, :64].reshape(batch, 4, 16, places), 2)
    distance = (p * bins.view(1, 1, 16, 1)).sum(2)
    low, high = anchors - distance[:, :2], anchors + distance[:, 2:]
    box = torch.cat(((low + high) / 2, high - low), 1) * strides
    return torch.cat((box, torch.sigmoid(x[:, 64:])), 1)


def ssd_decode(loc: Tensor, conf: Tensor, priors: Tensor) -> tuple[Tensor, Tensor]:
    centre = priors[:, :2] + loc[..., :2] * 0.1 * priors[:, 2:]
    size = priors[:, 2:] * torch.exp(loc[..., 2:] * 0.2)
    boxes = torch.cat((centre - size / 2, centre + size / 2), -1)
    return torch.clamp(boxes, 0, 1), torch.softmax(conf, -1)


def preprocess(image: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return ((image.to(mean.dtype) / 255.0 - mean) / std).permute(0, 3, 1, 2).contiguous()


def postprocess(image: Tensor) -> Tensor:
    pixels = torch.round(torch.clamp(image * 0.5 + 0.5, 0, 1) * 255.0)
    return pixels.permute(0, 2, 3, 1).contiguous().to(torch.uint8)


def log_mel(mel: Tensor) -> Tensor:
    logs = torch.log10(torch.clamp(mel, min=1e-10))
    top = logs.amax((1, 2), keepdim=True)
    return (torch.maximum(logs, top - 8.0) + 4.0) / 4.0


def unet_norm(x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 32, weight, bias) * (1.0 + scale) + shift)


def quantised_epilogue(acc: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    y = torch.relu(acc.to(scale.dtype) * scale + bias)
    return torch.clamp(torch.round(y / 0.1) - 128, -128, 127).to(torch.int8)


def quantised_residual(a: Tensor, b: Tensor, scales: Tensor) -> Tensor:
    y = torch.relu(a.to(scales.dtype) * scales[0] + b.to(scales.dtype) * scales[1])
    return torch.clamp(torch.round(y / 0.07), -128, 127).to(torch.int8)


def rope_heads(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    width = cos.shape[-1]
    heads = [x.view(x.shape[0], x.shape[1], -1, width).transpose(1, 2) for x in (q, k)]
    return rope(heads[0], cos, sin).contiguous(), rope(heads[1], cos, sin).contiguous()


def bias_gelu_residual(x: Tensor, bias: Tensor, scale: Tensor, residual: Tensor) -> Tensor:
    return F.gelu(x + bias, approximate="tanh") * scale + residual


def channels_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), weight, bias)


def excite_residual(x: Tensor, gate: Tensor, residual: Tensor) -> Tensor:
    return F.hardswish(x) * F.hardsigmoid(gate) + residual


def segmentation(logits: Tensor) -> tuple[Tensor, Tensor]:
    return torch.softmax(logits, 1).amax(1), torch.argmax(logits, 1).to(torch.int32)


def _head(batch: int) -> tuple[Spec, ...]:
    return f32(batch, 8400, 85), f32(8400, 2, scale=20), f32(8400, 1, offset=16), f32(8400, 2, scale=10, offset=50)


def _norm(rows: int) -> tuple[Spec, ...]:
    return f32(rows, 4096), f32(rows, 4096), f32(4096, scale=0.1, offset=1), f32(4096, scale=0.1)


I8, I32, I64, U8 = torch.int8, torch.int32, torch.int64, torch.uint8
MANY = 1 << 26

TWELVE = [
    ("head_1", "detection head 1x8400x85 f32", detection_head, _head(1)),
    ("head_32", "detection head 32x8400x85 f32", detection_head, _head(32)),
    ("norm_gelu_8", "add + layer norm + gelu 8x4096 f32", add_layer_norm_gelu, _norm(8)),
    ("norm_gelu_16k", "add + layer norm + gelu 16384x4096 f32", add_layer_norm_gelu, _norm(16384)),
    ("rms_norm", "residual + rms norm 8192x8192 f16", residual_rms_norm, (f16(8192, 8192), f16(8192, 8192), f16(8192, scale=0.1, offset=1))),
    ("softmax", "scale + mask + softmax 32x1024x1024 f16", scale_mask_softmax, (f16(32, 1024, 1024, scale=8), f16(1024, 1024))),
    ("rope", "rope 8x32x2048x128 f16", rope, (f16(8, 32, 2048, 128), f16(2048, 128, scale=0.7), f16(2048, 128, scale=0.7))),
    ("swiglu", "swiglu 8192x2x11008 f16", swiglu, (f16(8192, 2 * 11008),)),
    ("pointwise", "add + relu + scale + add 64M f32", add_relu_scale_add, (f32(MANY), f32(MANY), f32(MANY))),
    ("dilate", "3x3 dilation 2160x4096 int32", dilate, (ints(I32, -(2**31), 2**31 - 1, 2160, 4096),)),
    ("quantise", "relu + quantise 64M f32 to int8", relu_quantise, (f32(MANY, scale=3),)),
    ("group_norm", "group norm 32 + silu 8x320x64x64 f16", group_norm_silu, (f16(8, 320, 64, 64), f16(320, scale=0.1, offset=1), f16(320, scale=0.1))),
]  # fmt: skip

MORE = [
    ("masked_softmax", "scale + bias + mask + softmax 8x16x512x512 f32", masked_softmax,
     (f32(8, 16, 512, 512, scale=8), f32(1, 16, 512, 512), ints(I64, 0, 2, 8, 512))),
    ("softcap", "tanh softcap + mask + softmax 8x16x1024x1024 f16", softcap_softmax, (f16(8, 16, 1024, 1024, scale=30), f16(1024, 1024))),
    ("swin_partition", "layer norm + shift + windows 32x56x56x128 f16", swin_partition,
     (f16(32, 56, 56, 128), f16(128, scale=0.1, offset=1), f16(128, scale=0.1))),
    ("swin_merge", "windows back + shift + residual 32x56x56x128 f16", swin_merge, (f16(32 * 64, 49, 128), f16(32, 56, 56, 128))),
    ("dfl_head", "yolov8 head: softmax over 16 bins, boxes 16x144x8400 f32", dfl_head,
     (f32(16, 144, 8400), Spec((16,), torch.float32, "steps"), f32(2, 8400, scale=20, offset=40), f32(1, 8400, offset=16))),
    ("ssd_decode", "ssd boxes + scores 32x8732x(4, 21) f32", ssd_decode,
     (f32(32, 8732, 4), f32(32, 8732, 21), f32(8732, 4, scale=0.1, offset=0.5))),
    ("preprocess", "uint8 NHWC to normalised f32 NCHW 16x1080x1920x3", preprocess,
     (ints(U8, 0, 256, 16, 1080, 1920, 3), f32(3, scale=0.1, offset=0.5), f32(3, scale=0.02, offset=0.2))),
    ("postprocess", "f32 NCHW to uint8 NHWC 8x3x1080x1920", postprocess, (f32(8, 3, 1080, 1920),)),
    ("log_mel", "log10 + floor below the maximum 64x80x3000 f32", log_mel, (f32(64, 80, 3000, kind="positive"),)),
    ("unet_norm", "group norm 32 + scale, shift + silu 8x640x32x32 f16", unet_norm,
     (f16(8, 640, 32, 32), f16(8, 640, 1, 1, scale=0.2), f16(8, 640, 1, 1, scale=0.2), f16(640, scale=0.1, offset=1), f16(640, scale=0.1))),
    ("quantised_epilogue", "int32 sums + scale + bias + relu + quantise 8192x4096", quantised_epilogue,
     (ints(I32, -9000, 9000, 8192, 4096), f32(4096, scale=0.0003, offset=0.001), f32(4096))),
    ("quantised_residual", "int8 + int8 dequantised + relu + quantise 32x256x56x56", quantised_residual,
     (ints(I8, -128, 128, 32, 256, 56, 56), ints(I8, -128, 128, 32, 256, 56, 56), f32(2, scale=0.01, offset=0.05))),
    ("rope_heads", "rope of q and k into heads 4x2048x(32, 8)x128 f16", rope_heads,
     (f16(4, 2048, 4096), f16(4, 2048, 1024), f16(2048, 128, scale=0.7), f16(2048, 128, scale=0.7))),
    ("bias_gelu", "bias + tanh gelu + layer scale + residual 8192x4096 f16", bias_gelu_residual,
     (f16(8192, 4096), f16(4096), f16(4096), f16(8192, 4096))),
    ("channels_norm", "NCHW to NHWC + layer norm 32x128x56x56 f32", channels_layer_norm,
     (f32(32, 128, 56, 56), f32(128, scale=0.1, offset=1), f32(128, scale=0.1))),
    ("excite", "hard swish * hard sigmoid gate + residual 64x96x56x56 f16", excite_residual,
     (f16(64, 96, 56, 56, scale=2), f16(64, 96, 1, 1, scale=2), f16(64, 96, 56, 56))),
    ("segmentation", "softmax confidence + argmax over 21 classes 4x512x512 f32", segmentation, (f32(4, 21, 512, 512, scale=3),)),
    ("rms_norm_4", "residual + rms norm 4x4096 f16", residual_rms_norm, (f16(4, 4096), f16(4, 4096), f16(4096, scale=0.1, offset=1))),
]  # fmt: skip

CHAINS = {row[0]: Chain(*row, table=True) for row in TWELVE} | {row[0]: Chain(*row, table=False) for row in MORE}
