"""Measuring on a GPU: what its memory and its launches can do, and which configuration of a kernel is the fastest."""

from graphfuse.tune.database import lookup

__all__ = ["lookup"]
