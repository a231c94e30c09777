"""Reductions as text: an accumulator for each lane of a vector, their steps, and the fold over the team."""

from __future__ import annotations

from graphfuse.codegen.config import WARP
from graphfuse.codegen.teams import Team
from graphfuse.codegen.text import compute_type, literal
from graphfuse.ir.dtypes import DType
from graphfuse.ir.program import Program
from graphfuse.schedule.scalar import Node


class Fold:
    """The text of one reduction: an accumulator for each lane, their step and their end."""

    def __init__(self, program: Program, node: Node, name: str, lanes: int, slot: int) -> None:
        self.slot = slot
        instr = program.body[node.payload[0]]
        self.node = node
        self.name = name
        self.lanes = lanes
        self.fn: str = instr.attr("fn")
        self.source: DType = program.body[instr.args[0]].dtype
        self.arg = self.fn in ("argmax", "argmin")
        self.last = bool(instr.attr("last")) if self.arg else False
        self.ctype = f"gf_arg<{compute_type(self.source)}>" if self.arg else compute_type(self.source)

    @property
    def result(self) -> str:
        """The folded value, in C."""
        return f"{self.name}.index" if self.arg else self.name

    @property
    def _fold(self) -> str:
        if self.arg:
            return f"gf_fold_arg<{'true' if self.fn == 'argmax' else 'false'}, {'true' if self.last else 'false'}>"
        return f"gf_fold_{self.fn}"

    @property
    def _start(self) -> str:
        if self.arg:
            return f"{self.ctype}{{({compute_type(self.source)})0, -1}}"
        return literal(_neutral(self.fn, self.source), self.source)

    def start(self) -> str:
        """Declares the accumulators with the fold's neutral value."""
        if self.lanes == 1:
            return f"{self.ctype} {self.name} = {self._start};"
        return f"{self.ctype} {self.name}_lanes[{self.lanes}]; GF_LANES({self.lanes}) {self.name}_lanes[j] = {self._start};"

    def given(self, value: str) -> str:
        """Declares the accumulator with what a thread has folded already."""
        self.lanes = 1
        return f"{self.ctype} {self.name} = {value};"

    def step(self, value: str, position: str) -> str:
        """Folds one element in."""
        element = f"{self.ctype}{{{value}, (gf_i64)({position})}}" if self.arg else value
        own = self.name if self.lanes == 1 else f"{self.name}_lanes[j]"
        return f"{own} = {self._fold}::apply({own}, {element});"

    def finish(self, team: Team) -> list[str]:
        """Folds over the lanes, then over the team."""
        lines = []
        if self.lanes > 1:
            lines.append(f"{self.ctype} {self.name} = {self.name}_lanes[0];")
            lines.append(
                f"GF_UNROLL for (int j = 1; j < {self.lanes}; ++j) {self.name} = {self._fold}::apply({self.name}, {self.name}_lanes[j]);"
            )
        if team.threads > 1:
            scratch = f"gf_scratch + {self.slot * team.scratch}" if team.threads > WARP else "gf_scratch"
            if team.cluster > 1:
                lines += ["gf_cluster_wait();"] * (self.slot == 0)
                lines.append(f"{self.name} = gf_cluster_fold<{team.block}, {team.cluster}, {self._fold}>({self.name}, {scratch}, gf_room);")
            else:
                place = f"reinterpret_cast<{self.ctype}*>({scratch})"
                lines.append(f"{self.name} = gf_team_fold<{team.threads}, {self._fold}>({self.name}, {place});")
        return lines


def _neutral(fn: str, dtype: DType) -> int | float:
    if fn in ("sum", "prod"):
        return 0 if fn == "sum" else 1
    if dtype.is_float:
        return float("-inf") if fn == "max" else float("inf")
    bits = dtype.size * 8
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.kind == "i" else (0, (1 << bits) - 1)
    return low if fn == "max" else high
