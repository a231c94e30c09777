"""A set of ONNX nodes as one fused program.

Every node is built by its entry of the op table, one after the other, in one ``Builder``. What comes from outside the
set becomes a parameter the first time it is read; constants of one element become ``const`` instructions, and inputs
that an entry wants *known* (axes, shapes, pads) leave no trace but in the instructions made from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir

from graphfuse.graph.facts import Facts
from graphfuse.ir import Builder, Instr, Program, ProgramError, Val, sym
from graphfuse.ir.errors import Refused
from graphfuse.ir.expr import Dim
from graphfuse.ir.program import check_symbols
from graphfuse.lower.sizes import Sizes, Translated
from graphfuse.ops.table import lookup

_BROKEN = (ArithmeticError, AttributeError, LookupError, NotImplementedError, RecursionError, TypeError, ValueError)


class NodeRefused(Refused):
    """A refusal that one node of the region is the cause of; ``node`` is None when no single one is."""

    def __init__(self, rule: str, reason: str, node: onnx_ir.Node | None = None) -> None:
        super().__init__(rule, reason)
        self.node = node


@dataclass(frozen=True)
class Lowered:
    """A region's program. ``inputs`` are the values that its parameters read, ``outputs`` those that its results write.

    ``sizes`` gives, for symbols of the program that the model does not have, the size that each stands for.
    """

    program: Program
    inputs: tuple[onnx_ir.Value, ...]
    outputs: tuple[onnx_ir.Value, ...]
    sizes: Mapping[str, Dim] = field(default_factory=dict, compare=False)


def lower_region(nodes: Sequence[onnx_ir.Node], facts: Facts, outputs: Sequence[onnx_ir.Value], *, exact_rounding: bool = False) -> Lowered:
    """The program of ``nodes`` (in topological order) that computes ``outputs``.

    Parameters stand in order of first use, results in the order of ``outputs``. Raises NodeRefused, and nothing else, when
    a node cannot be built or when a run-time size cannot be read off the shape of any input (rule ``unbound-size``).
    """
    first = _Lowering(facts, exact_rounding)
    try:
        return _lowered(first, nodes, outputs)
    except NodeRefused as refused:
        if refused.rule != "unbound-size":
            raise
        try:
            return _lowered(_Lowering(facts, exact_rounding, Sizes(first.builder.params)), nodes, outputs)
        except NodeRefused:
            raise refused from None  # names hide how sizes hang together; other nodes may bring the size in


def _lowered(lowering: _Lowering, nodes: Sequence[onnx_ir.Node], outputs: Sequence[onnx_ir.Value]) -> Lowered:
    for node in nodes:
        lowering.add(node)
    try:
        results = [lowering.values[v] for v in outputs]
        program, inputs = _without_unused(lowering.builder.finish(results), lowering.inputs)
    except ProgramError as error:
        raise NodeRefused("unbound-size" if "cannot be read off" in str(error) else "not-a-program", str(error)) from error
    except KeyError as error:
        raise NodeRefused("not-a-program", "an output of the region is made by none of its nodes") from error
    table = _canonical(program, lowering.facts)
    sizes = lowering.sizes.names if lowering.sizes else {}
    renamed = (
        program.specialise({old: sym(new) for old, new in table.items()}) if any(old != new for old, new in table.items()) else program
    )
    return Lowered(renamed, tuple(inputs), tuple(outputs), {new: sizes.get(old, sym(old)) for old, new in table.items()})


def _without_unused(program: Program, inputs: Sequence[onnx_ir.Value]) -> tuple[Program, list[onnx_ir.Value]]:
    """The program less the parameters that nothing reads (a node did, but only as known values), if their sizes are not needed."""
    needed = {a for instr in program.body for a in instr.args} | set(program.results)
    idle = [n for n, i in enumerate(program.body) if i.op == "param" and n not in needed]
    if not idle:
        return program, list(inputs)
    number = {old: new for new, old in enumerate(n for n in range(len(program.body)) if n not in idle)}
    kept = [k for k in range(len(inputs)) if k not in {program.body[n].attr("index") for n in idle}]
    body = tuple(_moved(program.body[n], number, kept) for n in number)
    smaller = Program(tuple(program.params[k] for k in kept), body, tuple(number[r] for r in program.results))
    try:
        check_symbols(smaller)
    except ProgramError:
        return program, list(inputs)
    return smaller, [inputs[k] for k in kept]


def _moved(instr: Instr, number: Mapping[int, int], kept: list[int]) -> Instr:
    attrs = (("index", kept.index(instr.attr("index"))),) if instr.op == "param" else instr.attrs
    return Instr(instr.op, tuple(number[a] for a in instr.args), instr.dtype, instr.shape, attrs)


def _canonical(program: Program, facts: Facts) -> dict[str, str]:
    """New names: sizes that have one in the model keep it, others get canonical ones, so that equal layers have equal programs."""
    strange = [s for s in program.symbols if s not in facts.input_symbols]
    fresh = (f"d{i}" for i in range(len(program.symbols) + len(facts.input_symbols)) if f"d{i}" not in facts.input_symbols)
    return dict(zip(strange, fresh, strict=False))


class _Lowering:
    def __init__(self, facts: Facts, exact_rounding: bool, sizes: Sizes | None = None) -> None:
        self.facts = facts
        self.sizes = sizes
        self.builder = Builder(exact_rounding=exact_rounding)
        self.values: dict[onnx_ir.Value, Val] = {}
        self.inputs: list[onnx_ir.Value] = []

    def add(self, node: onnx_ir.Node) -> None:
        """Builds ``node``; its outputs become known values."""
        try:
            self._add(node)
        except NodeRefused:
            raise
        except Refused as error:
            raise NodeRefused(error.rule, error.reason, node) from error
        except ProgramError as error:
            raise NodeRefused("cannot-lower", f"{node.op_type}: {error}", node) from error
        except _BROKEN as error:  # an entry met attributes or shapes that no valid model has
            reason = f"{node.op_type}: {type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
            raise NodeRefused("cannot-lower", reason, node) from error

    def _add(self, node: onnx_ir.Node) -> None:
        entry = lookup(node.domain, node.op_type)
        if entry is None:
            raise NodeRefused("unknown-op", f"{node.domain or 'ai.onnx'}.{node.op_type} is not in the op table", node)
        args = [None if v is None or i in entry.known else self._read(v, node) for i, v in enumerate(node.inputs)]
        call = self.facts.call(node, self.builder, args)
        if self.sizes is not None:
            call = replace(call, values=Translated(call.values, self.sizes))
        results = entry.lower(call)
        for value, made in zip(node.outputs, results, strict=False):
            self.values[value] = made

    def _read(self, value: onnx_ir.Value, node: onnx_ir.Node) -> Val:
        if value not in self.values:
            self.values[value] = self._constant(value) or self._param(value, node)
        return self.values[value]

    def _constant(self, value: onnx_ir.Value) -> Val | None:
        if any(d != 1 for d in self.facts.shape(value) or ()):
            return None  # weights are not read for nothing
        known, dtype = self.facts.value(value), self.facts.dtype(value)
        if known is None or dtype is None or known.size != 1 or known.dtype == object:
            return None
        number = known.reshape(-1)[0]
        scalar = float(number) if dtype.is_float else bool(number) if dtype.kind == "b" else int(number)
        return self.builder.broadcast(self.builder.const(scalar, dtype), known.shape)

    def _param(self, value: onnx_ir.Value, node: onnx_ir.Node) -> Val:
        dtype, shape = self.facts.dtype(value), self.facts.shape(value)
        if dtype is None or shape is None:
            what = "type" if dtype is None else "shape"
            raise NodeRefused("unknown-shape", f"the {what} of an input of {node.op_type} is not known", node)
        made = self.builder.param(dtype, shape if self.sizes is None else self.sizes.shape(shape))
        self.inputs.append(value)
        return made
