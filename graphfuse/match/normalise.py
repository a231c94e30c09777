"""A model in the form that everything after works on: constants folded, sizes read off inputs, patterns rewritten, to a fixed point."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir

from graphfuse.graph.facts import Facts
from graphfuse.graph.fold import fold_constants
from graphfuse.ir.errors import GraphfuseError
from graphfuse.match.hoist import hoist_shapes
from graphfuse.patterns.apply import Repair, rewrite_patterns
from graphfuse.patterns.pattern import Pattern

MAX_ROUNDS = 8


def normalise(model: onnx_ir.Model, patterns: Sequence[Pattern]) -> tuple[Facts, list[Repair]]:
    """Changes ``model`` in place; returns what is known of it then, and what was rewritten. A second call changes nothing.

    Raises GraphfuseError for a pattern of the user's that makes what it looks for.
    """
    repairs: list[Repair] = []
    for _ in range(MAX_ROUNDS):
        fold_constants(model)
        facts = Facts(model)
        if hoist_shapes(model, facts):
            facts = Facts(model)
        made = rewrite_patterns(model, facts, patterns)
        if not made:
            return facts, repairs
        repairs += made
    name = repairs[-1].pattern.name
    raise GraphfuseError(f"pattern {name!r} still fits after {MAX_ROUNDS} rounds of rewriting: it makes what it looks for; mend it")
