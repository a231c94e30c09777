"""The TensorRT flavours: find, load, build, run."""

from graphfuse.engine.build import Engine, build_engine
from graphfuse.engine.flavour import Flavour, load_flavour
from graphfuse.engine.shapes import parse_shapes

__all__ = ["Engine", "Flavour", "build_engine", "load_flavour", "parse_shapes"]
