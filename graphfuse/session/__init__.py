"""Runs any model: its fused nodes on a device, everything else in ONNX Runtime."""

from graphfuse.session.session import Session

__all__ = ["Session"]
