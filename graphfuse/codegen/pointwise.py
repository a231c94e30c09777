"""The pointwise schedule: one loop step for each vector of output elements."""

from __future__ import annotations

from dataclasses import dataclass

from graphfuse.codegen.cases import load_early, load_needed
from graphfuse.codegen.config import WARP
from graphfuse.codegen.emit import Emitter
from graphfuse.codegen.windows import exchange, find_windows, window
from graphfuse.ir import expr
from graphfuse.ir.dtypes import DType
from graphfuse.ir.expr import Dim, Expr, Var
from graphfuse.ir.program import Program
from graphfuse.schedule.kernel import Pointwise, exprs_of, nominal, reachable
from graphfuse.schedule.scalar import Index, Node, Puller, delinear, linear, vector_address, windows

THREADS = 128  # of a block. Measured on an H200: within 1% of 256, and 2 to 5% faster where a thread has much to compute
IN_FLIGHT = 32  # bytes that a thread should move. Measured on an H200: with 20 it takes 5% longer, with 10 37%; 64 gain nothing
MOST_ITEMS = 8
MOST_AT_ONCE = 8  # loads before anything is computed
LESS = 0.7  # of the loads that rows on their own need
BUSY = 1 << 18  # threads that keep any device busy


@dataclass(frozen=True)
class Tile:
    """Neighbours along an axis of the output, ``count`` of them, that one thread makes."""

    axis: int
    count: int


ALONE = Tile(0, 1)


def lanes_fit(columns: Dim, lanes: int) -> bool:
    """Whether vectors of ``lanes`` elements tile ``columns`` without a rest."""
    return lanes == 1 or expr.exact_quotient(columns, lanes) is not None


def steps(columns: Dim, lanes: int) -> Dim:
    """Vectors that cover ``columns`` elements."""
    return columns if lanes == 1 else expr.exact_quotient(columns, lanes) or 0


def choose_items(segment: Pointwise, lanes: int, moved: float, wish: int | None) -> int:
    """Vectors of one thread: several where one moves few bytes (``moved``), as long as enough threads are left.

    ``wish`` goes before the rule.
    """
    count = steps(expr.product(segment.shape), lanes)
    if isinstance(count, Expr):
        return 1
    each = wish or 1
    while not wish and each < MOST_ITEMS and moved * each < IN_FLIGHT and count >= 2 * each * BUSY:
        each *= 2
    return each


def choose_tile(program: Program, segment: Pointwise, lanes: int) -> Tile:
    """Neighbours of one thread. A vector lies within one of them, so vectors must tile it."""
    if lanes == 1 or len(segment.shape) < 2:
        return ALONE
    if windows(program):
        return _overlapping(program, segment, lanes)
    return _choosing(program, segment, lanes)


def _overlapping(program: Program, segment: Pointwise, lanes: int) -> Tile:
    """Rows, as many as make a thread load clearly less, where sliding windows overlap from row to row."""
    if not lanes_fit(segment.shape[-1], lanes):
        return ALONE
    alone = _distinct_loads(program, segment, lanes, ALONE)
    fits = [Tile(-2, n) for n in (4, 2) if isinstance(segment.shape[-2], int) and segment.shape[-2] % n == 0]
    return next((t for t in fits if _distinct_loads(program, segment, lanes, t) <= LESS * t.count * alone), ALONE)


def _choosing(program: Program, segment: Pointwise, lanes: int) -> Tile:
    """Two places of the outermost axis where lanes lie in different parts of the output: what both need is found and loaded once."""
    outer, plane = segment.shape[0], expr.product(segment.shape[1:])
    if isinstance(outer, Expr) or isinstance(plane, Expr) or outer % 2 or plane % lanes or outer * plane // lanes < 4 * BUSY:
        return ALONE
    twice = Tile(0, 2)
    alone = _distinct_loads(program, segment, lanes, ALONE)
    return twice if _has_choices(program, segment, lanes) and _distinct_loads(program, segment, lanes, twice) < 2 * alone else ALONE


def _has_choices(program: Program, segment: Pointwise, lanes: int) -> bool:
    """Whether the lanes of a vector may lie in different parts of what the output is put together from."""
    nodes = _made(program, segment, lanes, ALONE)
    return any(n.kind == "case" and any(v.name == "j" for item in exprs_of(n) for v in expr.variables(item)) for n in nodes)


def _distinct_loads(program: Program, segment: Pointwise, lanes: int, tile: Tile) -> int:
    nodes = [n for n in _made(program, segment, lanes, tile) if n.vars]  # what is the same everywhere costs nothing
    return len({window(n)[0] for n in nodes if n.kind == "tap"}) + sum(n.kind == "load" for n in nodes)


def _made(program: Program, segment: Pointwise, lanes: int, tile: Tile) -> list[Node]:
    puller = Puller(program, windows(program))
    return reachable(puller, [node for _, _, node in _steps(puller, program, segment, lanes, tile)])


def blocks(segment: Pointwise, lanes: int, threads: int, each: int, tile: Tile) -> Dim:
    """Blocks that a segment needs."""
    return expr.ceildiv(expr.floordiv(steps(expr.product(segment.shape), lanes), tile.count), threads * each)


def _steps(puller: Puller, program: Program, segment: Pointwise, lanes: int, tile: Tile) -> list[tuple[int, Index, Node]]:
    """What a thread makes at vector ``u``: result, index and node, for each neighbour of its tile.

    A tile of the outermost axis has vector ``i`` of places ``g * count`` to ``g * count + count - 1``.
    """
    outermost = tile.count > 1 and tile.axis == 0
    shape = list(segment.shape[1:] if outermost else segment.shape)
    if tile.count > 1 and not outermost:
        shape[tile.axis] = expr.floordiv(shape[tile.axis], tile.count)
    unit = expr.var("i" if outermost else "u", steps(expr.product(shape), lanes))
    index = delinear(lanes * unit + expr.var("j", lanes), shape)
    if outermost:
        index = (expr.var("g", expr.floordiv(segment.shape[0], tile.count)), *index)
    made = []
    for k in range(tile.count):
        own = list(index)
        if tile.count > 1:
            own[tile.axis] = tile.count * own[tile.axis] + k
        made += [(result, tuple(own), puller.pull(program.results[result], tuple(own))) for result in segment.results]
    return made


def emit(emitter: Emitter, program: Program, segment: Pointwise, threads: int, each: int, tile: Tile, first_block: str) -> None:
    """Writes the body of a pointwise segment: ``each`` vectors a thread, or one for each neighbour of a tile.

    ``first_block`` is the segment's first block, in C.
    """
    kind = emitter.index_type
    count = expr.floordiv(steps(expr.product(segment.shape), emitter.lanes), tile.count)
    block = f"({kind})(blockIdx.x - {first_block})"
    if each == 1:
        emitter.line(f"const {kind} u = {block} * {emitter.integer(threads)} + ({kind})threadIdx.x;")
        emitter.prepare([count])
        head = f"if (u < {emitter.index(count)}) {{"
    else:
        place = f"({block} * {each} + k) * {emitter.integer(threads)} + ({kind})threadIdx.x"
        if nominal(count) % (each * threads):  # beyond the end the last one is done again, so that no load waits for a test
            place = f"gf_smaller<{kind}>({place}, {emitter.index(count - 1)})"
        head = f"GF_UNROLL for (int k = 0; k < {each}; ++k) {{ const {kind} u = {place};"
    made = _steps(emitter.puller, program, segment, emitter.lanes, tile)
    with emitter.block(head):
        if tile.count > 1 and tile.axis == 0:
            plane = emitter.index(steps(expr.product(segment.shape[1:]), emitter.lanes))
            emitter.line(f"const {kind} g = gf_quot(u, {plane}), i = gf_rem(u, {plane});")
        roots = [node for _, _, node in made]
        find_windows(emitter, roots)
        if each == 1 and emitter.lanes > 1 and _whole_warps(segment, emitter.lanes):
            exchange(emitter, roots)
        load_needed(emitter, roots, MOST_AT_ONCE)  # before the tests of rare quotients, which loads cannot pass
        load_early(emitter, roots)
        if tile.count > 1:  # before the first store: the assembler moves loads to behind it, to save registers
            for node in roots:
                emitter.ref(node)
        for result, index, node in made:
            store(emitter, result, program.outputs[result][0], node, index, program)


def _whole_warps(segment: Pointwise, lanes: int) -> bool:
    """Whether each warp has its vectors in one row."""
    columns = segment.shape[-1] if segment.shape else 1
    return isinstance(columns, int) and columns % (WARP * lanes) == 0


def store(emitter: Emitter, result: int, dtype: DType, node: Node, index: Index, program: Program) -> None:
    """Writes the store of ``node`` into output ``result`` at ``index``, as one vector where addresses allow."""
    address = linear(index, program.outputs[result][1])
    emitter.prepare([address])
    value, pointer = emitter.ref(node), f"q{result}"
    if emitter.lanes == 1:
        emitter.access(pointer, dtype.size, vector=False)
        emitter.line(f"{pointer}[{emitter.index(address)}] = gf_down<{dtype.c}>({value});")
        return
    vector = vector_address(address, emitter.lanes)
    emitter.access(pointer, dtype.size, vector=vector)
    if not vector:
        emitter.line(f"GF_LANES({emitter.lanes}) {pointer}[{emitter.index(address)}] = gf_down<{dtype.c}>({value});")
        return
    packed = emitter.fresh("m")
    base = expr.substitute(address, {Var("j", emitter.lanes): 0})
    emitter.line(f"gf_vec<{dtype.c}, {emitter.lanes}> {packed}; GF_LANES({emitter.lanes}) {packed}.v[j] = gf_down<{dtype.c}>({value});")
    emitter.line(f"gf_store_vec({pointer} + {emitter.index(base)}, {packed});")
