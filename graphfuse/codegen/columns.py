"""The pointwise schedule for short last axes that are put together from parts and that no vectors suit: a warp for each row.

An element of the flattened output lies in one part of a concat or in another. A warp that walks its row in steps knows at which
step it is: most steps lie in one part and have nothing to choose, and what two steps read is loaded once.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphfuse.codegen.cases import load_early, load_safe
from graphfuse.codegen.emit import Emitter
from graphfuse.codegen.pointwise import store
from graphfuse.ir import expr
from graphfuse.ir.expr import Dim, Expr
from graphfuse.ir.program import Program
from graphfuse.schedule.kernel import Pointwise, reachable
from graphfuse.schedule.scalar import Index, Node, Puller, delinear

WIDEST = 512  # elements of a row
MOST_STEPS = 16
LEAST_USE = 0.75  # of the threads over all steps
TEAM = 32


@dataclass(frozen=True)
class Walk:
    """A warp walks a row of ``width`` elements."""

    width: int

    @property
    def steps(self) -> int:
        return -(-self.width // TEAM)

    def left(self, step: int) -> int:
        """Threads that have something to do at a step."""
        return min(TEAM, self.width - step * TEAM)


def choose(program: Program, segment: Pointwise) -> Walk | None:
    """The walk, if it leaves at most half of the choices that the flattened output has."""
    if not segment.shape or isinstance(segment.shape[-1], Expr) or segment.shape[-1] > WIDEST:
        return None
    puller, walk = Puller(program), Walk(segment.shape[-1])
    index = delinear(expr.var("u", expr.product(segment.shape)), segment.shape)
    cases = _cases(puller, [puller.pull(program.results[k], index) for k in segment.results])
    return walk if cases and _fits(walk) and _walked_cases(program, segment, walk) * 2 <= cases * walk.steps else None


def _fits(walk: Walk) -> bool:
    return 1 < walk.steps <= MOST_STEPS and walk.width >= LEAST_USE * TEAM * walk.steps


def _walked_cases(program: Program, segment: Pointwise, walk: Walk) -> int:
    puller = Puller(program)
    return sum(_cases(puller, [n for _, n in _step(puller, program, segment, walk, k)]) for k in range(walk.steps))


def _cases(puller: Puller, roots: list[Node]) -> int:
    return sum(n.kind == "case" for n in reachable(puller, roots))


def blocks(segment: Pointwise, threads: int) -> Dim:
    """Blocks that a segment needs."""
    return expr.ceildiv(expr.product(segment.shape[:-1]), threads // TEAM)


def emit(emitter: Emitter, program: Program, segment: Pointwise, walk: Walk, threads: int, first_block: str) -> None:
    """Writes the body of the segment; ``first_block`` is its first block, in C."""
    kind, rows = emitter.index_type, expr.product(segment.shape[:-1])
    block = f"({kind})(blockIdx.x - {first_block})"
    emitter.line(f"const {kind} r = {block} * {emitter.integer(threads // TEAM)} + ({kind})threadIdx.x / {emitter.integer(TEAM)};")
    emitter.line(f"const {kind} c = ({kind})threadIdx.x % {emitter.integer(TEAM)};")
    emitter.prepare([rows])
    steps = [_step(emitter.puller, program, segment, walk, k) for k in range(walk.steps)]
    guards = ["" if walk.left(k) == TEAM else f"c < {emitter.integer(walk.left(k))}" for k in range(walk.steps)]
    with emitter.block(f"if (r < {emitter.index(rows)}) {{"):
        for load in (load_safe, load_early):  # all loads are under way before the first of them is waited for
            for guard, step in zip(guards, steps, strict=True):
                load(emitter, [n for _, n in step], guard)
        for guard, step in zip(guards, steps, strict=True):
            with emitter.block(f"if ({guard}) {{" if guard else "{"):
                for result, (index, node) in zip(segment.results, step, strict=True):
                    store(emitter, result, program.outputs[result][0], node, index, program)


def _step(puller: Puller, program: Program, segment: Pointwise, walk: Walk, k: int) -> list[tuple[Index, Node]]:
    """The output index and node of each result at step ``k`` of row ``r``, for thread ``c`` of the warp."""
    outer = segment.shape[:-1]
    column = expr.var("c", walk.left(k)) + k * TEAM
    index = (*delinear(expr.var("r", expr.product(outer)), outer), column)
    return [(index, puller.pull(program.results[result], index)) for result in segment.results]
