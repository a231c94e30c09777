"""The pointwise schedule: one loop step for each vector of output elements."""

from __future__ import annotations

from graphfuse.codegen.emit import Emitter, vector_address
from graphfuse.ir import expr
from graphfuse.ir.dtypes import DType
from graphfuse.ir.expr import Dim, Expr, Var
from graphfuse.ir.program import Program
from graphfuse.schedule.kernel import Pointwise
from graphfuse.schedule.scalar import Index, Node, delinear, linear

ITEMS = 2  # measured on an H200: 4 gains nothing over 2
ENOUGH = 1 << 20  # vectors that keep any device busy even so


def lanes_fit(columns: Dim, lanes: int) -> bool:
    """Whether vectors of ``lanes`` elements tile ``columns`` without a rest."""
    return lanes == 1 or expr.exact_quotient(columns, lanes) is not None


def steps(columns: Dim, lanes: int) -> Dim:
    """Vectors that cover ``columns`` elements."""
    return columns if lanes == 1 else expr.exact_quotient(columns, lanes) or 0


def lane_index(unit: str, columns: Dim, lanes: int) -> Dim:
    """The element index ``lanes*unit + j``."""
    return lanes * expr.var(unit, steps(columns, lanes)) + expr.var("j", lanes)


def items(segment: Pointwise, lanes: int, threads: int, loads: int, wish: int | None = None) -> int:
    """Vectors of one thread: several, so that enough loads are in flight, where they tile the segment exactly.

    ``loads`` is how many a vector of results needs; ``wish`` goes before the rule.
    """
    count = steps(expr.product(segment.shape), lanes)
    if wish is not None:
        return wish if isinstance(count, int) and count % (threads * wish) == 0 else 1
    if isinstance(count, Expr) or count < ENOUGH or count % (threads * ITEMS):
        return 1
    return ITEMS if loads <= ITEMS else 1


def blocks(segment: Pointwise, lanes: int, threads: int, each: int) -> Dim:
    """Blocks that a segment needs."""
    return expr.ceildiv(steps(expr.product(segment.shape), lanes), threads * each)


def emit(emitter: Emitter, program: Program, segment: Pointwise, threads: int, each: int, first_block: str) -> None:
    """Writes the body of a pointwise segment, ``each`` vectors a thread; ``first_block`` is its first block, in C."""
    total = expr.product(segment.shape)
    count = steps(total, emitter.lanes)
    kind = emitter.index_type
    base = f"({kind})(blockIdx.x - {first_block})"
    if each > 1:
        head = f"GF_UNROLL for (int k = 0; k < {each}; ++k) {{ const {kind} u = ({base} * {each} + k) * {emitter.integer(threads)} + ({kind})threadIdx.x;"
    else:
        emitter.line(f"const {kind} u = {base} * {emitter.integer(threads)} + ({kind})threadIdx.x;")
        emitter.prepare([count])
        head = f"if (u < {emitter.index(count)}) {{"
    with emitter.block(head):
        index = delinear(lane_index("u", total, emitter.lanes), segment.shape)
        nodes = [emitter.puller.pull(program.results[k], index) for k in segment.results]
        emitter.find_windows(nodes)
        for k, node in zip(segment.results, nodes, strict=True):
            store(emitter, k, program.outputs[k][0], node, index, program)


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
