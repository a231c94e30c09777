"""The fused program: types, integer expressions, scalar operations, instructions, text form, NumPy interpreter."""

from graphfuse.ir.builder import Builder, Val
from graphfuse.ir.dtypes import DType
from graphfuse.ir.errors import GraphfuseError, ProgramError, ShapeError
from graphfuse.ir.expr import Dim, Expr, Shape, sym, var
from graphfuse.ir.program import Instr, Program
from graphfuse.ir.text import dumps, loads, pretty

__all__ = [
    "Builder", "DType", "Dim", "Expr", "GraphfuseError", "Instr", "Program", "ProgramError", "Shape", "ShapeError", "Val",
    "dumps", "loads", "pretty", "sym", "var",
]  # fmt: skip
