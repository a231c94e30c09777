"""Fused nodes as the graph sees them: where their program stands, and what it says of the outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

import onnx_ir as ir

from graphfuse.graph.checks import DOMAIN, PLUGIN_OP
from graphfuse.ir import expr, text
from graphfuse.ir.dtypes import DType
from graphfuse.ir.errors import GraphfuseError
from graphfuse.ir.expr import Atom, Dim, Expr, Shape, Sym
from graphfuse.ir.program import Program

SPEC_KEY = "graphfuse.spec"  # of the function's metadata; the plugin form has an attribute "spec"
PARAMS_KEY = "graphfuse.params"  # of the function's metadata: which of its inputs are the program's, all if absent


def spec_of(node: ir.Node, model: ir.Model) -> str | None:
    """The program's JSON of a fused node in either form, None for any other node."""
    if node.domain != DOMAIN:
        return None
    if node.op_type == PLUGIN_OP:
        attr = node.attributes.get("spec")
        return attr.as_string() if attr is not None and attr.type == ir.AttributeType.STRING else None
    function = model.functions.get(node.op_identifier())
    return None if function is None else function.metadata_props.get(SPEC_KEY)


def parameters_of(node: ir.Node, model: ir.Model) -> list[ir.Value | None]:
    """The node's inputs in the order of the program's parameters; [] where the model states no valid order."""
    function = model.functions.get(node.op_identifier())
    listed = None if function is None else function.metadata_props.get(PARAMS_KEY)
    if listed is None:
        return list(node.inputs)
    try:
        places = json.loads(listed)
    except ValueError:
        return []
    sound = isinstance(places, list) and all(type(p) is int and 0 <= p < len(node.inputs) for p in places)
    return [node.inputs[p] for p in places] if sound else []


@lru_cache(maxsize=256)
def _program(spec: str) -> Program | None:
    try:
        return text.loads(spec)
    except GraphfuseError:
        return None


def output_facts(spec: str, inputs: Sequence[Shape | None]) -> list[tuple[DType, Shape]] | None:
    """Dtype and shape of the outputs for these input shapes; None where they cannot be told."""
    program = _program(spec)
    if program is None or len(inputs) != len(program.params):
        return None
    table: dict[Atom, Dim] = {}
    for (_, declared), actual in zip(program.params, inputs, strict=True):
        if actual is None or len(actual) != len(declared):
            return None
        pairs = [(_symbol(d), a) for d, a in zip(declared, actual, strict=True)]
        table.update({symbol: a for symbol, a in pairs if symbol is not None})
    if any(Sym(name) not in table for name in program.symbols):
        return None
    return [(dtype, tuple(expr.substitute(d, table) for d in shape)) for dtype, shape in program.outputs]


def _symbol(dim: Dim) -> Sym | None:
    """The symbol that ``dim`` is, None for a number and for an expression."""
    if not isinstance(dim, Expr):
        return None
    (mono, factor), *more = dim.terms.items()
    atom = mono[0] if len(mono) == 1 else None
    return atom if not more and factor == 1 and isinstance(atom, Sym) else None
