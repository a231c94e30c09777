"""Predicted launches and bytes: what a region replaces, and what its kernel costs. Deterministic; no device is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir

from graphfuse.graph.facts import Facts
from graphfuse.ir import Instr, Program, expr, scalars
from graphfuse.ir.expr import Dim, Shape
from graphfuse.match.small_ops import costs_a_kernel

NOMINAL_SIZE = 64  # what a run-time dimension counts as where no size for it is given

# The rates are those of an NVIDIA H200, rounded. They only choose between one kernel and several, which are all priced alike.
LAUNCH_US = (
    2.0  # measured: small kernels that wait for each other in a CUDA graph; one that does nothing takes 0.51 (`graphfuse calibrate`)
)
BYTES_PER_US = 4.0e6  # measured: plain copies move 4.1e6 to 4.4e6, by the mix of reads and writes (`graphfuse calibrate`)
OPS_PER_US = 3.0e7  # float32 additions, by its data sheet: 132 multiprocessors of 128 lanes at 1.98 GHz make 3.3e7; not measured


@dataclass(frozen=True)
class Cost:
    """Kernels launched, bytes read and written, and arithmetic in float32 additions where it may matter."""

    launches: int = 0
    bytes: int = 0
    ops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.launches + other.launches, self.bytes + other.bytes, self.ops + other.ops)

    @property
    def microseconds(self) -> float:
        """A rough time: the launches, and the memory traffic or the arithmetic, whichever takes longer."""
        return self.launches * LAUNCH_US + max(self.bytes / BYTES_PER_US, self.ops / OPS_PER_US)


def node_cost(node: onnx_ir.Node, facts: Facts, sizes: Mapping[str, int] | None = None) -> Cost:
    """One kernel that reads every input and writes every output; nothing for a pure view."""
    if not costs_a_kernel(node):
        return Cost()
    values = [v for v in dict.fromkeys((*node.inputs, *node.outputs)) if v is not None and v.name]
    written = sum(_value_bytes(v, facts, sizes) for v in node.outputs if v.name)
    read = sum(_value_bytes(v, facts, sizes) for v in values if v not in node.outputs)
    if node.op_type in ("Slice", "Gather", "Split", "GatherND", "GatherElements"):  # read what they take, not all there is
        read = min(read, written)
    return Cost(1, read + written)


def unfused_cost(nodes: Iterable[onnx_ir.Node], facts: Facts, sizes: Mapping[str, int] | None = None) -> Cost:
    """One kernel a node."""
    return sum((node_cost(n, facts, sizes) for n in nodes), Cost())


def fused_cost(program: Program, sizes: Mapping[str, int] | None = None) -> Cost:
    """One kernel that reads each parameter once (of one that is only sliced, the slices) and writes each result.

    Arithmetic is counted as the program has it: an op that is built from many more operations than it stands for shows here.
    """
    taken: list[list[int]] = [[] for _ in program.params]
    numbers = {n: i.attr("index") for n, i in enumerate(program.body) if i.op == "param"}
    for instr in program.body:
        for arg in set(instr.args) & numbers.keys():
            partial = instr.op == "slice" or (instr.op == "gather" and arg == instr.args[0] and arg not in instr.args[1:])
            dtype, shape = program.params[numbers[arg]]
            taken[numbers[arg]].append(_bytes(instr.shape if partial else shape, dtype.size, sizes))
    read = sum(min(sum(t), _bytes(s, d.size, sizes)) for t, (d, s) in zip(taken, program.params, strict=True))
    ops = sum(_ops(instr, program, sizes) for instr in program.body)
    return Cost(1, read + sum(_bytes(s, d.size, sizes) for d, s in program.outputs), ops)


def own_sizes(named: Mapping[str, Dim], sizes: Mapping[str, int] | None = None) -> dict[str, int]:
    """``sizes``, and the values at those of a program's own symbols, of which ``named`` says what they stand for."""
    return {**(sizes or {}), **{name: count((dim,), sizes) for name, dim in named.items()}}


def _ops(instr: Instr, program: Program, sizes: Mapping[str, int] | None) -> int:
    if instr.op == "map":
        return scalars.TABLE[instr.attr("fn")].cost * count(instr.shape, sizes)
    return count(program.body[instr.args[0]].shape, sizes) if instr.op == "reduce" else 0


def _value_bytes(value: onnx_ir.Value, facts: Facts, sizes: Mapping[str, int] | None) -> int:
    dtype, shape = facts.dtype(value), facts.shape(value)
    return 0 if dtype is None or shape is None else _bytes(shape, dtype.size, sizes)


def _bytes(shape: Shape, size: int, sizes: Mapping[str, int] | None) -> int:
    return count(shape, sizes) * size


def count(shape: Shape, sizes: Mapping[str, int] | None = None) -> int:
    """Elements of a shape, with run-time dimensions at ``sizes`` or the nominal size."""
    dims: Sequence[int] = [expr.evaluate(d, {s: (sizes or {}).get(s, NOMINAL_SIZE) for s in expr.symbols(d)}) for d in shape]
    total = 1
    for dim in dims:
        total *= max(dim, 0)
    return total
