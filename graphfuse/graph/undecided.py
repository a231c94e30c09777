"""Results that no input decides: of nothing, such as the sum over an axis without elements, or of sizes alone, such as EyeLike."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from graphfuse.graph.facts import Facts
from graphfuse.ir import Builder, expr, interpret
from graphfuse.ir.errors import GraphfuseError
from graphfuse.ops import table

_READS_SIZES = frozenset({"EyeLike"})  # of a data input nothing but its shape


def undecided(node: ir.Node, facts: Facts, limit_bytes: int) -> list[np.ndarray] | None:
    """The outputs of a node whose data inputs have no elements or do not matter, or that makes none; None for any other, and for large ones."""
    entry = table.lookup(node.domain, node.op_type)
    if entry is None or not all(_is_small(v, facts, limit_bytes) for v in node.outputs if v.name):
        return None
    data = [v for i, v in enumerate(node.inputs) if v is not None and i not in entry.known]
    is_empty = all(0 in (facts.shape(v) or ()) for v in node.outputs if v.name)
    if not is_empty and node.op_type not in _READS_SIZES and any(0 not in (facts.shape(v) or ()) for v in data):
        return None
    builder = Builder()
    args = facts.arguments(node, builder)
    try:
        program = builder.finish(entry.lower(facts.call(node, builder, args))) if args is not None else None
    except GraphfuseError:
        return None
    if program is None or program.symbols:
        return None
    with np.errstate(all="ignore"):
        return interpret.run(program, [np.zeros([expr.evaluate(d, {}) for d in shape], dtype.numpy) for dtype, shape in program.params])


def _is_small(value: ir.Value, facts: Facts, limit_bytes: int) -> bool:
    dtype, shape = facts.dtype(value), facts.shape(value)
    sizes = [d for d in shape or () if isinstance(d, int)]
    return dtype is not None and shape is not None and len(sizes) == len(shape) and math.prod(sizes) * dtype.size <= limit_bytes
