"""The pointwise schedule for short last axes that are put together from parts: a team of threads for each row.

A vector of the flattened output lies in one part of a concat or in another, or across both. A team that walks its row in steps
knows at which step it is: most steps lie in one part and have nothing to choose, and what two steps read is loaded once.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphfuse.codegen.cases import load_early
from graphfuse.codegen.emit import Emitter
from graphfuse.codegen.pointwise import store
from graphfuse.codegen.text import compute_type
from graphfuse.ir import expr
from graphfuse.ir.expr import Dim, Expr
from graphfuse.ir.program import Program
from graphfuse.schedule.kernel import Pointwise, reachable
from graphfuse.schedule.scalar import Index, Node, Puller, delinear

WIDEST = 512  # elements of a row
MOST_STEPS = 16
LEAST_USE = 0.75  # of the threads over all steps


@dataclass(frozen=True)
class Walk:
    """``team`` threads walk a row of ``width`` elements, ``lanes`` elements a thread and step."""

    width: int
    lanes: int
    team: int

    @property
    def steps(self) -> int:
        return -(-self.width // (self.lanes * self.team))

    def left(self, step: int) -> int:
        """Threads that have something to do at a step, at most the team."""
        return min(self.team, self.width // self.lanes - step * self.team)


def choose(program: Program, segment: Pointwise, lanes: int) -> Walk | None:
    """The walk that leaves at most half of the choices which the flattened output has; None if there is none."""
    if not segment.shape or isinstance(segment.shape[-1], Expr) or segment.shape[-1] > WIDEST:
        return None
    puller = Puller(program)
    index = delinear(
        lanes * expr.var("u", expr.exact_quotient(expr.product(segment.shape), lanes) or 1) + expr.var("j", lanes), segment.shape
    )
    cases = _cases(puller, [puller.pull(program.results[k], index) for k in segment.results])
    if not cases:
        return None
    walks = [Walk(segment.shape[-1], n, team) for n in dict.fromkeys((lanes, 1)) for team in (32, 16, 8)]
    return next((w for w in walks if _fits(w) and _walked_cases(program, segment, w) * 2 <= cases * w.steps), None)


def _fits(walk: Walk) -> bool:
    if walk.lanes > 1 and walk.width % (walk.lanes * walk.team):
        return False
    used = walk.width / (walk.lanes * walk.team * walk.steps)
    return 1 < walk.steps <= MOST_STEPS and used >= LEAST_USE and (walk.lanes > 1 or walk.team == 32)


def _walked_cases(program: Program, segment: Pointwise, walk: Walk) -> int:
    puller = Puller(program)
    return sum(_cases(puller, [n for _, n in _step(puller, program, segment, walk, k)]) for k in range(walk.steps))


def _cases(puller: Puller, roots: list[Node]) -> int:
    return sum(n.kind == "case" for n in reachable(puller, roots))


def blocks(segment: Pointwise, walk: Walk, threads: int) -> Dim:
    """Blocks that a segment needs."""
    return expr.ceildiv(expr.product(segment.shape[:-1]), threads // walk.team)


def emit(emitter: Emitter, program: Program, segment: Pointwise, walk: Walk, threads: int, first_block: str) -> None:
    """Writes the body of the segment; ``first_block`` is its first block, in C."""
    kind, rows = emitter.index_type, expr.product(segment.shape[:-1])
    block = f"({kind})(blockIdx.x - {first_block})"
    emitter.line(
        f"const {kind} r = {block} * {emitter.integer(threads // walk.team)} + ({kind})threadIdx.x / {emitter.integer(walk.team)};"
    )
    emitter.line(f"const {kind} c = ({kind})threadIdx.x % {emitter.integer(walk.team)};")
    emitter.prepare([rows])
    steps = [_step(emitter.puller, program, segment, walk, k) for k in range(walk.steps)]
    whole = [walk.left(k) == walk.team for k in range(walk.steps)]
    with emitter.block(f"if (r < {emitter.index(rows)}) {{"):
        for k, step in enumerate(steps):  # all loads are under way before the first of them is waited for
            _load(emitter, [n for _, n in step], "" if whole[k] else f"c < {emitter.integer(walk.left(k))}")
        for k, step in enumerate(steps):
            if whole[k]:
                load_early(emitter, [n for _, n in step])
        for k, step in enumerate(steps):
            with emitter.block("{" if whole[k] else f"if (c < {emitter.integer(walk.left(k))}) {{"):
                for result, (index, node) in zip(segment.results, step, strict=True):
                    store(emitter, result, program.outputs[result][0], node, index, program)


def _load(emitter: Emitter, roots: list[Node], guard: str) -> None:
    """Begins the loads of a step that are safe at each of its columns; ``guard`` says which threads have one."""
    for node in reachable(emitter.puller, roots):
        if node.kind == "load" and node.total and not emitter.written(node):
            if not guard:
                emitter.ref(node)
                continue
            number, address = node.payload
            emitter.loads += 1
            emitter.prepare([address])
            text = f"{guard} ? gf_up(p{number}[{emitter.index(address)}]) : ({compute_type(node.dtype)})0"
            emitter.scope.names[node] = emitter.define_as(node.dtype, text, array=False)


def _step(puller: Puller, program: Program, segment: Pointwise, walk: Walk, k: int) -> list[tuple[Index, Node]]:
    """The output index and node of each result at step ``k`` of row ``r``, for thread ``c`` of the team."""
    outer = segment.shape[:-1]
    thread = expr.var("c", walk.left(k)) + k * walk.team
    column = walk.lanes * thread + expr.var("j", walk.lanes)
    index = (*delinear(expr.var("r", expr.product(outer)), outer), column)
    return [(index, puller.pull(program.results[result], index)) for result in segment.results]
