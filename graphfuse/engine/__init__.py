"""The TensorRT flavours: find, load, build, run."""

from graphfuse.engine.build import Engine, build_engine
from graphfuse.engine.flavour import Flavour, load_flavour
from graphfuse.engine.run import LoadedEngine, run_engine
from graphfuse.engine.shapes import parse_profiles, parse_shapes

__all__ = ["Engine", "Flavour", "LoadedEngine", "build_engine", "load_flavour", "parse_profiles", "parse_shapes", "run_engine"]
