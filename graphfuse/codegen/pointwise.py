"""The pointwise schedule: one loop step for each vector of output elements."""

from __future__ import annotations

from graphfuse.codegen.cases import load_early
from graphfuse.codegen.emit import Emitter
from graphfuse.codegen.windows import find_windows, window
from graphfuse.ir import expr
from graphfuse.ir.dtypes import DType
from graphfuse.ir.expr import Dim, Expr, Var
from graphfuse.ir.program import Program
from graphfuse.schedule.kernel import Pointwise, nominal, reachable
from graphfuse.schedule.scalar import Index, Node, Puller, delinear, linear, vector_address, windows

ITEMS = 2  # measured on an H200: 4 gains nothing over 2
LESS = 0.7  # of the loads that rows on their own need
ENOUGH = 1 << 20  # vectors that keep any device busy even so


def lanes_fit(columns: Dim, lanes: int) -> bool:
    """Whether vectors of ``lanes`` elements tile ``columns`` without a rest."""
    return lanes == 1 or expr.exact_quotient(columns, lanes) is not None


def steps(columns: Dim, lanes: int) -> Dim:
    """Vectors that cover ``columns`` elements."""
    return columns if lanes == 1 else expr.exact_quotient(columns, lanes) or 0


def choose_items(segment: Pointwise, lanes: int, threads: int, loads: int, wish: int | None) -> int:
    """Vectors of one thread: several, so that enough loads are in flight, where they tile a large segment exactly.

    ``loads`` is how many a vector of results needs; ``wish`` goes before the rule.
    """
    count = steps(expr.product(segment.shape), lanes)
    if isinstance(count, Expr) or (wish is None and (count < ENOUGH or loads > ITEMS)):
        return 1
    each = wish or ITEMS
    return each if count % (threads * each) == 0 else 1


def choose_rows(program: Program, segment: Pointwise, lanes: int) -> int:
    """Neighbouring rows of one thread: as many as make it load clearly less, where sliding windows overlap from row to row.

    A vector lies in one row, so vectors must tile it.
    """
    found = windows(program)
    if lanes == 1 or not found or len(segment.shape) < 2 or not lanes_fit(segment.shape[-1], lanes):
        return 1
    alone = _distinct_loads(program, segment, lanes, 1)
    fits = [n for n in (4, 2) if isinstance(segment.shape[-2], int) and segment.shape[-2] % n == 0]
    return next((n for n in fits if _distinct_loads(program, segment, lanes, n) <= LESS * n * alone), 1)


def _distinct_loads(program: Program, segment: Pointwise, lanes: int, rows: int) -> int:
    puller = Puller(program, windows(program))
    nodes = reachable(puller, [node for _, _, node in _steps(puller, program, segment, lanes, rows)])
    return len({window(n)[0] for n in nodes if n.kind == "tap"}) + sum(n.kind == "load" for n in nodes)


def blocks(segment: Pointwise, lanes: int, threads: int, each: int, rows: int) -> Dim:
    """Blocks that a segment needs."""
    return expr.ceildiv(expr.floordiv(steps(expr.product(segment.shape), lanes), rows), threads * each)


def _steps(puller: Puller, program: Program, segment: Pointwise, lanes: int, rows: int) -> list[tuple[int, Index, Node]]:
    """What a thread makes at vector ``u``: result, index and node, for each of its ``rows`` neighbouring rows."""
    shape = segment.shape if rows == 1 else (*segment.shape[:-2], expr.floordiv(segment.shape[-2], rows), segment.shape[-1])
    unit = expr.var("u", steps(expr.product(shape), lanes))
    index = delinear(lanes * unit + expr.var("j", lanes), shape)
    made = []
    for k in range(rows):
        own = index if rows == 1 else (*index[:-2], rows * index[-2] + k, index[-1])
        made += [(result, own, puller.pull(program.results[result], own)) for result in segment.results]
    return made


def emit(emitter: Emitter, program: Program, segment: Pointwise, threads: int, each: int, rows: int, first_block: str) -> None:
    """Writes the body of a pointwise segment: ``each`` vectors a thread, or one in each of ``rows`` rows.

    ``first_block`` is the segment's first block, in C.
    """
    kind = emitter.index_type
    count = expr.floordiv(steps(expr.product(segment.shape), emitter.lanes), rows)
    block = f"({kind})(blockIdx.x - {first_block})"
    if each == 1:
        emitter.line(f"const {kind} u = {block} * {emitter.integer(threads)} + ({kind})threadIdx.x;")
        emitter.prepare([count])
        head = f"if (u < {emitter.index(count)}) {{"
    else:
        unit = f"const {kind} u = ({block} * {each} + k) * {emitter.integer(threads)} + ({kind})threadIdx.x;"
        head = f"GF_UNROLL for (int k = 0; k < {each}; ++k) {{ {unit}"
    made = _steps(emitter.puller, program, segment, emitter.lanes, rows)
    with emitter.block(head):
        find_windows(emitter, [node for _, _, node in made])
        if nominal(count) < ENOUGH:  # the device is not full: waiting for memory twice is what takes the time
            load_early(emitter, [node for _, _, node in made])
        for result, index, node in made:
            store(emitter, result, program.outputs[result][0], node, index, program)


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
