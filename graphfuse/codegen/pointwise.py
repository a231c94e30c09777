"""The pointwise schedule: one loop step for each vector of output elements."""

from __future__ import annotations

from graphfuse.codegen.cases import load_early
from graphfuse.codegen.emit import Emitter
from graphfuse.codegen.windows import find_windows
from graphfuse.ir import expr
from graphfuse.ir.dtypes import DType
from graphfuse.ir.expr import Dim, Expr, Var
from graphfuse.ir.program import Program
from graphfuse.schedule.kernel import Pointwise, nominal
from graphfuse.schedule.scalar import Index, Node, delinear, linear, vector_address

ITEMS = 2  # measured on an H200: 4 gains nothing over 2
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


def blocks(segment: Pointwise, lanes: int, threads: int, each: int) -> Dim:
    """Blocks that a segment needs."""
    return expr.ceildiv(steps(expr.product(segment.shape), lanes), threads * each)


def emit(emitter: Emitter, program: Program, segment: Pointwise, threads: int, each: int, first_block: str) -> None:
    """Writes the body of a pointwise segment, ``each`` vectors a thread; ``first_block`` is its first block, in C."""
    total, kind = expr.product(segment.shape), emitter.index_type
    count = steps(total, emitter.lanes)
    block = f"({kind})(blockIdx.x - {first_block})"
    if each == 1:
        emitter.line(f"const {kind} u = {block} * {emitter.integer(threads)} + ({kind})threadIdx.x;")
        emitter.prepare([count])
        head = f"if (u < {emitter.index(count)}) {{"
    else:
        unit = f"const {kind} u = ({block} * {each} + k) * {emitter.integer(threads)} + ({kind})threadIdx.x;"
        head = f"GF_UNROLL for (int k = 0; k < {each}; ++k) {{ {unit}"
    index = delinear(emitter.lanes * expr.var("u", count) + expr.var("j", emitter.lanes), segment.shape)
    roots = [emitter.puller.pull(program.results[k], index) for k in segment.results]
    with emitter.block(head):
        find_windows(emitter, roots)
        if nominal(count) < ENOUGH:  # the device is not full: waiting for memory twice is what takes the time
            load_early(emitter, roots)
        for k, root in zip(segment.results, roots, strict=True):
            store(emitter, k, program.outputs[k][0], root, index, program)


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
