"""From a program to CUDA source: chooses vectors and teams for each segment and puts the entry points together."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from graphfuse.codegen import columns, pointwise
from graphfuse.codegen.config import BY_RULE, WARP, Config
from graphfuse.codegen.emit import Emitter
from graphfuse.codegen.passes import walk
from graphfuse.codegen.rowwise import MOST_KEPT, RowEmitter
from graphfuse.codegen.source import CLUSTERS, KernelSource, Variant
from graphfuse.codegen.teams import THREADS, Team, choose_cluster, choose_team, longest_walk, wished_team
from graphfuse.codegen.text import INDENT
from graphfuse.ir import expr
from graphfuse.ir.expr import Dim, Expr
from graphfuse.ir.program import Program
from graphfuse.schedule.kernel import Kernel, Pointwise, Rows, plan
from graphfuse.schedule.scalar import Puller, windows

VECTOR = 16  # bytes of the widest access
FEW_OPERANDS = 4  # that a thread holds beside them
LONG_ROW = 1025  # elements from which on a row is worth a block instead of a warp
ENTRY = "graphfuse_kernel"
LIMIT_32 = 1 << 31


def generate(program: Program, config: Config = BY_RULE) -> KernelSource:
    """CUDA source of a program, hardened to the sizes that it fixes; sizes it leaves open become arguments.

    ``config`` says what an autotuner wishes. Raises Refused when the program is not one kernel (see ``schedule.plan``).
    """
    kernel = plan(program)
    shapes = [Shaped(kernel.program, s, config) for s in kernel.segments]
    entries = [_entry(kernel, shapes, choice) for choice in _choices(kernel, shapes)]
    clusters = [device_text("clusters.cuh")] if any(v.cluster > 1 for _, v in entries) else []
    text = "\n".join([prelude(), *clusters, *(_where(text, variant) for text, variant in entries)])
    return KernelSource(text, tuple(v for _, v in entries), len(program.params), len(program.results), program.symbols)


def _where(text: str, variant: Variant) -> str:
    """An entry point, hidden from the architectures that do without it."""
    if variant.cluster == 1 and not variant.before:
        return text
    return f"#if {'' if variant.cluster > 1 else '!'}GF_CLUSTERS\n{text}\n#endif"


def prelude() -> str:
    """The device prelude that every kernel starts with."""
    return device_text("prelude.cuh")


@lru_cache(maxsize=8)
def device_text(name: str) -> str:
    """A file of device code."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


# --- choices ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """One entry point: vectors or single elements, 32- or 64-bit indices, for rows of any length or for long ones.

    ``cluster``: rows have a cluster each; ``before``: only for architectures before this one.
    """

    name: str
    vectors: bool
    wide: bool
    long: bool = False
    cluster: bool = False
    before: int = 0


class Shaped:
    """A segment with the widest vectors that suit it and, for rows, its team."""

    def __init__(self, program: Program, segment: Pointwise | Rows, config: Config = BY_RULE) -> None:
        self.program = program
        self.segment = segment
        self.config = config
        self._emitters: dict[int, Emitter] = {}  # by lanes: what was tried
        self._tiles: dict[int, pointwise.Tile] = {}
        self.lanes = next((n for n in (config.lanes, 8, 4, 2) if n and self._worthwhile(n)), 1) if config.lanes != 1 else 1
        self.moved = 0.0  # bytes for an element of a pointwise segment
        self.walk: columns.Walk | None = None
        if isinstance(segment, Pointwise):
            self.moved = sum(a.bytes for a in self._tried(self.lanes).accesses) / self.lanes
            if self.lanes == 1 and not config.lanes and not config.items:
                self.walk = columns.choose(program, segment)
        self.team: Team | None = None
        self.cluster: Team | None = None
        self.open_rows: Expr | None = None  # the length of a row that only a launch knows: long ones get an entry point of their own
        if isinstance(segment, Rows):
            puller = Puller(program)
            walked = walk(puller, program, segment, self.lanes)
            self.team = wished_team(choose_team(puller, program, segment, self.lanes, walked), config)
            self.cluster = choose_cluster(program, segment, self.lanes, walked, self.team, config)
            longest = longest_walk(walked)
            self.open_rows = longest if isinstance(longest, Expr) and not config.team else None

    def suited(self, choice: Choice) -> Shaped:
        """The same for an entry point: rows of a length that is open and may be long have a block each, few long rows a cluster."""
        if choice.cluster:
            other = copy(self)
            other.team = self.cluster
            return other
        if self.open_rows is None or not (choice.long or choice.wide):
            return self
        other = copy(self)
        other.team = Team(THREADS, THREADS)
        return other

    def _worthwhile(self, lanes: int) -> bool:
        """Vectors pay when most bytes then move by accesses of at most 16 bytes that are whole vectors."""
        smallest = min(t.size for t, _ in (*self.program.params, *self.program.outputs))
        if isinstance(self.segment, Pointwise):
            sizes = [expr.product(self.segment.shape)]
        else:
            sizes = [p.columns for p in walk(Puller(self.program), self.program, self.segment, lanes).passes]
        if smallest * lanes > VECTOR or not any(pointwise.lanes_fit(c, lanes) and c != 0 for c in sizes):
            return False
        emitter = self._tried(lanes)
        good = sum(a.bytes for a in emitter.accesses if a.vector or a.window)
        narrowest = min((a.width for a in emitter.accesses if a.vector), default=0)
        return good * 2 > sum(a.bytes for a in emitter.accesses) and narrowest <= VECTOR

    def _tried(self, lanes: int) -> Emitter:
        """The segment written with vectors of ``lanes``, to see what it does to memory."""
        if lanes not in self._emitters:
            self._emitters[lanes] = self._written(lanes)
        return self._emitters[lanes]

    def _written(self, lanes: int) -> Emitter:
        emitter = Emitter(
            Puller(self.program, _windows(self.program, self.segment, lanes)), wide=True, lanes=lanes, symbols=self.program.symbols
        )
        _emit_segment(emitter, self.program, self.segment, Team(1, THREADS), 1, pointwise.ALONE, "0")
        return emitter

    def tile(self, lanes: int) -> pointwise.Tile:
        """Neighbours that one thread makes in a pointwise segment."""
        if not isinstance(self.segment, Pointwise) or self.config.items is not None:
            return pointwise.ALONE
        if lanes not in self._tiles:
            self._tiles[lanes] = pointwise.choose_tile(self.program, self.segment, lanes)
        return self._tiles[lanes]

    def items(self, lanes: int) -> int:
        """Vectors of one thread in a pointwise segment; where single elements only stand in for vectors, compiling counts more."""
        if not isinstance(self.segment, Pointwise) or lanes < self.lanes or self.tile(lanes).count > 1:
            return 1
        return pointwise.choose_items(self.segment, lanes, self.moved * lanes, self.config.items)


def _windows(program: Program, segment: Pointwise | Rows, lanes: int) -> frozenset[int]:
    """Sliding windows are worth an array where a thread has several neighbouring elements."""
    return windows(program) if lanes > 1 and isinstance(segment, Pointwise) else frozenset()


def _choices(kernel: Kernel, shapes: Sequence[Shaped]) -> list[Choice]:
    static = not kernel.program.symbols
    wide = static and _largest(kernel.program) >= LIMIT_32
    vectors = any(s.lanes > 1 for s in shapes)
    kinds = [True, False] if vectors else [False]
    if static:
        plain = [Choice(f"{ENTRY}_{'vector' if v else 'scalar'}", v, wide) for v in kinds]
        if len(shapes) > 1 or shapes[0].cluster is None:
            return plain
        best = plain[0]
        return [replace(best, name=f"{best.name}_cluster", cluster=True), replace(best, before=CLUSTERS), *plain[1:]]
    narrow = [Choice(f"{ENTRY}_{'vector' if v else 'scalar'}_32", v, False) for v in kinds]
    if any(s.open_rows is not None for s in shapes):
        narrow = [Choice(f"{c.name}_long", c.vectors, c.wide, long=True) for c in narrow] + narrow
    return [*narrow, *(Choice(f"{ENTRY}_{'vector' if v else 'scalar'}_64", v, True) for v in kinds)]


def _largest(program: Program) -> int:
    return max((s for s in _sizes(program) if isinstance(s, int)), default=0)


def _sizes(program: Program) -> list[Dim]:
    """Elements of every input and output: the largest index that a kernel forms."""
    return [expr.product(shape) for _, shape in (*program.params, *program.outputs)]


# --- entry points -----------------------------------------------------------------------------------------------------


def _entry(kernel: Kernel, shapes: Sequence[Shaped], choice: Choice) -> tuple[str, Variant]:
    program = kernel.program
    shapes = [s.suited(choice) for s in shapes]
    usual = THREADS if any(s.team for s in shapes) else pointwise.THREADS
    block = max((s.team.block if s.team and s.team.threads > WARP else s.config.threads or usual for s in shapes), default=usual)
    if len(shapes) == 1 and shapes[0].team:
        block = shapes[0].team.block
    lines: list[str] = []
    outer = Emitter(Puller(program), wide=choice.wide, lanes=1, symbols=program.symbols)  # for what decides between segments
    vector_pointers: dict[str, int] = {}
    first: Dim = 0
    cluster = shapes[0].team.cluster if choice.cluster and shapes[0].team else 1
    scratch = 0  # words of shared memory
    kept = 0
    for number, shaped in enumerate(shapes):
        lanes = shaped.lanes if choice.vectors else 1
        emitter = Emitter(Puller(program, _windows(program, shaped.segment, lanes)), wide=choice.wide, lanes=lanes, symbols=program.symbols)
        emitter.compact = lanes < shaped.lanes
        count = _blocks(shaped, lanes, block)
        edge = _edge(outer, number, first)
        if shaped.walk and isinstance(shaped.segment, Pointwise):
            columns.emit(emitter, program, shaped.segment, shaped.walk, block, edge)
        else:
            _emit_segment(emitter, program, shaped.segment, _team(shaped, block), shaped.items(lanes), shaped.tile(lanes), edge)
        last = number == len(shapes) - 1
        head = "{" if last else f"if (blockIdx.x < {_edge(outer, number + 1, first + count)}) {{"
        lines += [head if number == 0 else f"else {head}", *(INDENT + text for text in emitter.scope.lines), "}"]
        first = first + count
        kept = max(kept, emitter.kept)
        scratch = max(scratch, emitter.scratch)
        for access in emitter.accesses:
            if access.vector:
                vector_pointers[access.pointer] = max(
                    vector_pointers.get(access.pointer, 1), vector_alignment(program, access.pointer, lanes)
                )
    lines = [*_shared(scratch, cluster, any(s.team for s in shapes)), *outer.scope.lines, *lines]
    text = "\n".join(
        [_signature(program, choice, block, _resident(program, block, kept), cluster), *(INDENT + text for text in lines), "}"]
    )
    limits = tuple(d for d in _sizes(program) if isinstance(d, Expr)) if not choice.wide else ()
    least = tuple((s.open_rows, LONG_ROW) for s in shapes if choice.long and s.open_rows is not None)
    return text, Variant(choice.name, first, block, _alignments(program, vector_pointers), limits, least, cluster, choice.before)


def _team(shaped: Shaped, block: int) -> Team:
    if shaped.team is None:
        return Team(1, block)
    return shaped.team if shaped.team.cluster > 1 else Team(block if shaped.team.threads > WARP else shaped.team.threads, block)


def _shared(words: int, cluster: int, used: bool) -> list[str]:
    """The shared memory of folds; teams of a warp need none."""
    if cluster > 1:
        return [f"GF_CLUSTER_SHARED(gf_scratch, {words}, {cluster});"]
    return [f"__shared__ gf_u64 gf_scratch[{words}];"] if words else ["gf_u64* const gf_scratch = nullptr;"] * used


def _blocks(shaped: Shaped, lanes: int, block: int) -> Dim:
    if isinstance(shaped.segment, Rows):
        team = _team(shaped, block)
        return expr.ceildiv(shaped.segment.rows, team.rows) * team.cluster
    if shaped.walk:
        return columns.blocks(shaped.segment, block)
    return pointwise.blocks(shaped.segment, lanes, block, shaped.items(lanes), shaped.tile(lanes))


def _edge(outer: Emitter, number: int, count: Dim) -> str:
    """The first block of segment ``number``, in C; a run-time one gets a name, once."""
    name = f"edge{number}"
    if isinstance(count, int):
        return f"(gf_u32){outer.index(count)}"
    if not any(line.startswith(f"const gf_u32 {name} ") for line in outer.scope.lines):
        outer.prepare([count])
        outer.line(f"const gf_u32 {name} = (gf_u32){outer.index(count)};")
    return name


def _emit_segment(
    emitter: Emitter, program: Program, segment: Pointwise | Rows, team: Team, each: int, tile: pointwise.Tile, first: str
) -> None:
    emitter.scope.lane = emitter.lanes == 1
    if isinstance(segment, Rows):
        RowEmitter(emitter, program, segment, team).emit(first)
    else:
        pointwise.emit(emitter, program, segment, team.block, each, tile, first)


def _resident(program: Program, block: int, kept: int) -> int:
    """Blocks that a processor must have room for, so that one computes while another waits for memory.

    64 registers a thread let 1024 threads stay. Measured on an H200: two blocks of 512 instead of one make a group norm of
    40960 elements a group 15% faster. A row that takes more registers, or many operands beside it, would spill.
    """
    return max(1, 1024 // block) if block >= 512 and kept <= MOST_KEPT and len(program.params) <= FEW_OPERANDS else 1


def _signature(program: Program, choice: Choice, block: int, resident: int, cluster: int) -> str:
    inputs = [f"const {t.c}* __restrict__ p{k}" for k, (t, _) in enumerate(program.params)]
    outputs = [f"{t.c}* __restrict__ q{k}" for k, (t, _) in enumerate(program.outputs)]
    kind = "gf_i64" if choice.wide else "gf_i32"
    sizes = [f"const long long size{k}" for k in range(len(program.symbols))]
    bounds = f"{block}, {resident}" if resident > 1 else str(block)
    together = f" __cluster_dims__({cluster}, 1, 1)" if cluster > 1 else ""
    head = f'extern "C" __global__ void __launch_bounds__({bounds}){together} {choice.name}({", ".join([*inputs, *outputs, *sizes])}) {{'
    return "\n".join([head, *(f"{INDENT}const {kind} s{k} = ({kind})size{k};" for k in range(len(program.symbols)))])


def vector_alignment(program: Program, pointer: str, lanes: int) -> int:
    """Bytes that vectors of ``lanes`` elements behind ``pointer`` are aligned to."""
    number = int(pointer[1:])
    dtype = program.params[number][0] if pointer[0] == "p" else program.outputs[number][0]
    return min(VECTOR, dtype.size * lanes)


def _alignments(program: Program, vectors: dict[str, int]) -> tuple[int, ...]:
    inputs = [vectors.get(f"p{k}", t.size) for k, (t, _) in enumerate(program.params)]
    return (*inputs, *(vectors.get(f"q{k}", t.size) for k, (t, _) in enumerate(program.outputs)))
