"""A model in the form that everything after works on: constants folded, sizes read off inputs, patterns rewritten, to a fixed point.

Ops that are functions, and need several kernels, are opened on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir

from graphfuse.graph.facts import Facts
from graphfuse.graph.fold import fold_constants
from graphfuse.ir.errors import GraphfuseError
from graphfuse.match.hoist import hoist_shapes
from graphfuse.match.open_functions import open_functions
from graphfuse.patterns.apply import Repair, rewrite_patterns
from graphfuse.patterns.pattern import Pattern

MAX_ROUNDS = 8


class Normal(NamedTuple):
    """What is known of a model that is in this form, what was rewritten on the way, and how many functions were opened."""

    facts: Facts
    repairs: list[Repair]
    opened: int


def normalise(model: onnx_ir.Model, patterns: Sequence[Pattern], *, functions: bool = True) -> Normal:
    """Changes ``model`` in place. A second call changes nothing. ``functions``: whether to open them.

    Raises GraphfuseError for a pattern of the user's that makes what it looks for.
    """
    repairs: list[Repair] = []
    opened = 0
    for _ in range(MAX_ROUNDS):
        facts = _plain(model)
        while functions and (more := open_functions(model, facts)):
            opened, facts = opened + more, _plain(model)
        made = rewrite_patterns(model, facts, patterns)
        if not made:
            return Normal(facts, repairs, opened)
        repairs += made
    name = repairs[-1].pattern.name
    raise GraphfuseError(f"pattern {name!r} still fits after {MAX_ROUNDS} rounds of rewriting: it makes what it looks for; mend it")


def _plain(model: onnx_ir.Model) -> Facts:
    """Constants folded, sizes read off inputs."""
    _state_axes(model)
    fold_constants(model)
    facts = Facts(model)
    return Facts(model) if hoist_shapes(model, facts) else facts


def _state_axes(model: onnx_ir.Model) -> None:
    """Writes down the default axes of MeanVarianceNormalization: ONNX Runtime does not find them inside a function."""
    for node in model.graph.all_nodes():
        if node.op_type == "MeanVarianceNormalization" and node.domain == "" and "axes" not in node.attributes:
            node.attributes["axes"] = onnx_ir.AttrInt64s("axes", [0, 2, 3])
