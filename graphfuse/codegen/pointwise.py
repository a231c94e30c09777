"""The pointwise schedule: one loop step for each vector of output elements."""

from __future__ import annotations

from dataclasses import dataclass

from graphfuse.codegen.emit import Emitter, vector_address
from graphfuse.ir import expr
from graphfuse.ir.dtypes import DType
from graphfuse.ir.expr import Dim, Expr, Var
from graphfuse.ir.program import Program
from graphfuse.schedule.kernel import Pointwise, reachable
from graphfuse.schedule.scalar import Index, Node, Puller, delinear, linear

ITEMS = 2  # measured on an H200: 4 gains nothing over 2
ENOUGH = 1 << 20  # vectors that keep any device busy even so


def lanes_fit(columns: Dim, lanes: int) -> bool:
    """Whether vectors of ``lanes`` elements tile ``columns`` without a rest."""
    return lanes == 1 or expr.exact_quotient(columns, lanes) is not None


def steps(columns: Dim, lanes: int) -> Dim:
    """Vectors that cover ``columns`` elements."""
    return columns if lanes == 1 else expr.exact_quotient(columns, lanes) or 0


@dataclass(frozen=True)
class Items:
    """Vectors of one thread: ``each`` of them, neighbouring in a block, or ``apart`` over the whole segment."""

    each: int = 1
    apart: bool = False


def element_index(segment: Pointwise, lanes: int, items: Items) -> Dim:
    """The element of a thread's vector index ``u``, its item ``k`` (where items are apart) and the lane ``j``."""
    count = steps(expr.product(segment.shape), lanes)
    unit = expr.var("u", count)
    if items.apart and isinstance(count, int):
        unit = expr.var("u", count // items.each) + count // items.each * expr.var("k", items.each)
    return lanes * unit + expr.var("j", lanes)


def choose_items(program: Program, segment: Pointwise, lanes: int, threads: int, loads: int, wish: int | None) -> Items:
    """Several vectors a thread, so that enough loads are in flight, where they tile a large segment exactly.

    Where some operand repeats over the outer part of the output, the vectors lie apart by whole repeats, and what repeats is
    loaded once for all of them. ``loads`` is how many a vector of results needs; ``wish`` goes before the rule.
    """
    count = steps(expr.product(segment.shape), lanes)
    if isinstance(count, Expr):
        return Items()
    tiles = {each for each in (wish or 1, 2, 4) if count % (threads * each) == 0}
    if wish is not None:
        return Items(wish) if wish in tiles else Items()
    if count < ENOUGH:
        return Items()
    for each in (4, 2):
        if each in tiles and _repeats(program, segment, lanes, Items(each, apart=True)):
            return Items(each, apart=True)
    return Items(ITEMS) if loads <= ITEMS and ITEMS in tiles else Items()


def _repeats(program: Program, segment: Pointwise, lanes: int, items: Items) -> bool:
    """Whether whole vectors that are loaded are the same for all of a thread's items."""
    puller = Puller(program)
    loads = [n for n in reachable(puller, _roots(puller, program, segment, lanes, items)) if n.kind == "load"]
    names = [{v.name for v in n.vars} for n in loads if lanes == 1 or vector_address(n.payload[1], lanes)]
    return any("u" in own and "k" not in own for own in names) and any("k" in own for own in names)


def _index(segment: Pointwise, lanes: int, items: Items) -> Index:
    return delinear(element_index(segment, lanes, items), segment.shape)


def _roots(puller: Puller, program: Program, segment: Pointwise, lanes: int, items: Items) -> list[Node]:
    return [puller.pull(program.results[k], _index(segment, lanes, items)) for k in segment.results]


def blocks(segment: Pointwise, lanes: int, threads: int, items: Items) -> Dim:
    """Blocks that a segment needs."""
    return expr.ceildiv(steps(expr.product(segment.shape), lanes), threads * items.each)


def emit(emitter: Emitter, program: Program, segment: Pointwise, threads: int, items: Items, first_block: str) -> None:
    """Writes the body of a pointwise segment; ``first_block`` is its first block, in C."""
    kind = emitter.index_type
    roots = _roots(emitter.puller, program, segment, emitter.lanes, items)
    thread = f"({kind})(blockIdx.x - {first_block}) * {emitter.integer(threads)} + ({kind})threadIdx.x"
    if items.each == 1:
        count = steps(expr.product(segment.shape), emitter.lanes)
        emitter.line(f"const {kind} u = {thread};")
        emitter.prepare([count])
        head = f"if (u < {emitter.index(count)}) {{"
    elif items.apart:
        emitter.line(f"const {kind} u = {thread};")
        for node in reachable(emitter.puller, roots):
            if node.kind == "load" and node.total and not any(v.name == "k" for v in node.vars):
                emitter.ref(node)
        head = f"GF_UNROLL for (int k = 0; k < {items.each}; ++k) {{"
    else:
        base = f"(({kind})(blockIdx.x - {first_block}) * {items.each} + k) * {emitter.integer(threads)}"
        head = f"GF_UNROLL for (int k = 0; k < {items.each}; ++k) {{ const {kind} u = {base} + ({kind})threadIdx.x;"
    with emitter.block(head):
        emitter.find_windows(roots)
        emitter.load_early(roots)
        for k, root in zip(segment.results, roots, strict=True):
            store(emitter, k, program.outputs[k][0], root, _index(segment, emitter.lanes, items), program)


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
