"""The pointwise schedule for short last axes that are put together from parts: a warp for each row.

A vector of the flattened output crosses from one part of a concat to the next anywhere. A warp that walks its row in steps of
32 columns knows at which step it is, so that most steps lie in one part and have nothing to choose.
"""

from __future__ import annotations

from graphfuse.codegen.cases import load_early
from graphfuse.codegen.emit import Emitter
from graphfuse.codegen.pointwise import store
from graphfuse.codegen.text import compute_type
from graphfuse.ir import expr
from graphfuse.ir.expr import Dim
from graphfuse.ir.program import Program
from graphfuse.schedule.kernel import Pointwise, reachable
from graphfuse.schedule.scalar import Index, Node, Puller, delinear

WARP = 32
WIDEST = 512
LEAST_USE = 0.75  # of the lanes in the last step and all others


def suits(program: Program, segment: Pointwise) -> bool:
    """Whether walking rows leaves fewer choices than walking the flattened output does."""
    if not segment.shape or not isinstance(segment.shape[-1], int) or not WARP < segment.shape[-1] <= WIDEST:
        return False
    width = segment.shape[-1]
    if width < LEAST_USE * WARP * _steps(width):
        return False
    flat = Puller(program)
    index = delinear(expr.var("i", expr.product(segment.shape)), segment.shape)
    cases = _cases(flat, [flat.pull(program.results[k], index) for k in segment.results])
    walked = Puller(program)
    left = [_cases(walked, [n for _, n in _step(walked, program, segment, k)]) for k in range(_steps(width))]
    return cases > 0 and 2 * sum(left) <= cases * len(left)


def blocks(segment: Pointwise, threads: int) -> Dim:
    """Blocks that a segment needs."""
    return expr.ceildiv(expr.product(segment.shape[:-1]), threads // WARP)


def emit(emitter: Emitter, program: Program, segment: Pointwise, threads: int, first_block: str) -> None:
    """Writes the body of the segment; ``first_block`` is its first block, in C."""
    kind, rows = emitter.index_type, expr.product(segment.shape[:-1])
    block = f"({kind})(blockIdx.x - {first_block})"
    emitter.line(f"const {kind} r = {block} * {emitter.integer(threads // WARP)} + ({kind})threadIdx.x / {emitter.integer(WARP)};")
    emitter.line(f"const {kind} c = ({kind})threadIdx.x % {emitter.integer(WARP)};")
    emitter.prepare([rows])
    width = segment.shape[-1]
    assert isinstance(width, int)
    steps = [_step(emitter.puller, program, segment, k) for k in range(_steps(width))]
    with emitter.block(f"if (r < {emitter.index(rows)}) {{"):
        for k, step in enumerate(steps):  # all loads are under way before the first of them is waited for
            _load(emitter, [n for _, n in step], width - k * WARP)
        for k, step in enumerate(steps):
            if (k + 1) * WARP <= width:
                load_early(emitter, [n for _, n in step])
        for k, step in enumerate(steps):
            with emitter.block("{" if (k + 1) * WARP <= width else f"if (c < {emitter.integer(width - k * WARP)}) {{"):
                for result, (index, node) in zip(segment.results, step, strict=True):
                    store(emitter, result, program.outputs[result][0], node, index, program)


def _load(emitter: Emitter, roots: list[Node], left: int) -> None:
    """Begins the loads of a step that are safe for each of its columns, of which ``left`` are left in the row."""
    for node in reachable(emitter.puller, roots):
        if node.kind == "load" and node.total and not emitter.written(node):
            number, address = node.payload
            emitter.loads += 1
            emitter.prepare([address])
            text = f"gf_up(p{number}[{emitter.index(address)}])"
            guarded = text if left >= WARP else f"c < {emitter.integer(left)} ? {text} : ({compute_type(node.dtype)})0"
            emitter.scope.names[node] = emitter.define_as(node.dtype, guarded, array=False)


def _steps(width: int) -> int:
    return -(-width // WARP)


def _step(puller: Puller, program: Program, segment: Pointwise, k: int) -> list[tuple[Index, Node]]:
    """The output index and node of each result at step ``k`` of row ``r``; the last step may be cut short."""
    *outer, width = segment.shape
    assert isinstance(width, int)
    column = expr.var("c", min(WARP, width - k * WARP)) + k * WARP
    index = (*delinear(expr.var("r", expr.product(outer)), outer), column)
    return [(index, puller.pull(program.results[result], index)) for result in segment.results]


def _cases(puller: Puller, roots: list[Node]) -> int:
    return sum(n.kind == "case" for n in reachable(puller, roots))
