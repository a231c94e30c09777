"""A region as its plugins know it: its spec, and of its program only as much as is needed.

A loading process gets the sizes of inputs and outputs from the kernels' field; what the region computes is in the kernels. The
program itself, which takes far longer to read than all the rest, is read where kernels are made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from graphfuse.ir import loads
from graphfuse.ir.dtypes import DType
from graphfuse.ir.errors import ProgramError
from graphfuse.ir.expr import Shape
from graphfuse.ir.plugin_types import MAX_RANK, PLUGIN_TYPES
from graphfuse.ir.program import Program

Tensors = tuple[tuple[DType, Shape], ...]


@dataclass(frozen=True)
class Interface:
    """Types and shapes of a region's inputs and outputs."""

    params: Tensors
    outputs: Tensors

    @classmethod
    def of(cls, program: Program) -> Interface:
        """A program's."""
        return cls(program.params, program.outputs)

    @property
    def pointers(self) -> int:
        """Inputs and outputs together."""
        return len(self.params) + len(self.outputs)

    @cached_property
    def _bare(self) -> Program:
        return Program(self.params, (), ())

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the run-time sizes."""
        return self._bare.symbols

    def bind(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The value of each symbol for these input shapes. Raises ShapeError when they do not fit the region."""
        return self._bare.bind(shapes)

    def unsupported(self) -> str | None:
        """Why it cannot be a plugin's, in one line; None if it can."""
        for side, tensors in (("input", self.params), ("output", self.outputs)):
            for number, (dtype, shape) in enumerate(tensors):
                if dtype not in PLUGIN_TYPES:
                    return f"{side} {number} is {dtype}; TensorRT plugins take {', '.join(t.name for t in PLUGIN_TYPES)}"
                if len(shape) > MAX_RANK:
                    return f"{side} {number} has rank {len(shape)}; TensorRT tensors have at most {MAX_RANK} dimensions"
        return None


def unsupported_io(program: Program) -> str | None:
    """Why a program cannot be a plugin, in one line; None if it can. Its inner values may have any type."""
    return Interface.of(program).unsupported()


@dataclass(frozen=True)
class Region:
    """A region by its spec and its interface."""

    spec: str
    interface: Interface

    @classmethod
    def parse(cls, spec: str) -> Region:
        """Raises ProgramError for a spec that is damaged or that cannot be a plugin."""
        program = loads(spec)
        region = cls.known(spec, Interface.of(program))
        region.__dict__["program"] = program
        return region

    @classmethod
    def known(cls, spec: str, interface: Interface) -> Region:
        """A region whose interface somebody has read already. Raises ProgramError if it cannot be a plugin."""
        reason = interface.unsupported()
        if reason is not None:
            raise ProgramError(f"this region cannot be a TensorRT plugin: {reason}")
        return cls(spec, interface)

    @cached_property
    def program(self) -> Program:
        """What it computes, read and verified when it is asked for. Raises ProgramError for a damaged spec."""
        return loads(self.spec)
