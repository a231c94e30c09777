"""Whether a set of nodes may become one kernel: limits, lowering, schedule. Profit is somebody else's question."""

from __future__ import annotations

from collections.abc import Sequence

from graphfuse.graph.facts import Facts
from graphfuse.ir import Program
from graphfuse.ir.errors import Refused
from graphfuse.lower import Lowered, NodeRefused, lower_region
from graphfuse.match.flow import Flow
from graphfuse.schedule.kernel import plan

MAX_NODES = 200
MAX_TENSORS = 48  # parameters and results of one kernel


class Legality:
    """Answers ``check`` for sets of nodes of one graph; every answer is remembered, and so is each program's schedule."""

    def __init__(self, flow: Flow, facts: Facts, *, exact_rounding: bool = False) -> None:
        self.flow = flow
        self.facts = facts
        self.exact_rounding = exact_rounding
        self._answers: dict[tuple[int, ...], Lowered | NodeRefused] = {}
        self._schedules: dict[Program, Refused | None] = {}

    def check(self, members: Sequence[int]) -> Lowered | NodeRefused:
        """The program of these nodes (positions, sorted), or why they cannot be one kernel. Cycles are not looked for here."""
        key = tuple(members)
        if key not in self._answers:
            self._answers[key] = self._check(key)
        return self._answers[key]

    def _check(self, members: tuple[int, ...]) -> Lowered | NodeRefused:
        if len(members) > MAX_NODES:
            return NodeRefused("too-large", f"{len(members)} nodes are more than the {MAX_NODES} of one region")
        nodes = [self.flow.nodes[i] for i in members]
        outputs = self.flow.outputs(members)
        if not outputs:
            return NodeRefused("unused", "nothing reads the result")
        try:
            lowered = lower_region(nodes, self.facts, outputs, exact_rounding=self.exact_rounding)
        except NodeRefused as refused:
            return refused
        tensors = len(lowered.inputs) + len(outputs)
        if tensors > MAX_TENSORS:
            return NodeRefused("too-many-tensors", f"{tensors} inputs and outputs are more than the {MAX_TENSORS} of one kernel")
        if not lowered.inputs:
            return NodeRefused("no-input", "the result does not depend on any run-time value")
        refused_plan = self._schedule(lowered.program)
        return NodeRefused(refused_plan.rule, refused_plan.reason) if refused_plan else lowered

    def _schedule(self, program: Program) -> Refused | None:
        if program not in self._schedules:
            self._schedules[program] = schedulable(program)
        return self._schedules[program]


def schedulable(program: Program) -> Refused | None:
    """None if the program can be one kernel, else the reason why not."""
    try:
        plan(program)
    except Refused as refused:
        return refused
    return None
