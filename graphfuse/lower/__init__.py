"""Regions of ONNX nodes as fused programs."""

from graphfuse.lower.region import Lowered, NodeRefused, lower_region

__all__ = ["Lowered", "NodeRefused", "lower_region"]
