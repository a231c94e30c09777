"""The row-reduction schedule: a team of threads for each row, the row kept in registers between passes.

Reductions become *passes* over the columns; those that need no other reduction's result share one. What a later pass needs
again is kept in an array of the thread's own columns when they are few enough, else it is read and computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphfuse.codegen.emit import Emitter
from graphfuse.codegen.pointwise import steps, store
from graphfuse.codegen.text import compute_type, literal
from graphfuse.ir import expr
from graphfuse.ir.dtypes import DType
from graphfuse.ir.expr import Dim, Expr, Var
from graphfuse.ir.program import Program
from graphfuse.ir.scalars import TABLE
from graphfuse.schedule.kernel import Rows, direct_reductions, nominal, reachable, reduce_body
from graphfuse.schedule.rows import COLUMN, ROW
from graphfuse.schedule.scalar import Index, Node, Puller, vector_address

WARP = 32
FEW_ROWS = 132  # fewer than a large device has processors
SCRATCH = 64  # 8-byte words of shared memory for a fold: an element of 16 bytes for each warp of a block
MAX_KEPT = 64  # registers for values kept between passes
MAX_UNROLLED = 80  # columns of one thread that are unrolled; more run in a loop


@dataclass(frozen=True)
class Team:
    """Threads that share a row: 1 (a thread), up to 32 (part of a warp), or the whole block."""

    threads: int
    block: int

    @property
    def rows(self) -> int:
        return self.block // self.threads


@dataclass(frozen=True)
class Pass:
    """One walk over ``columns``: folds ``reductions``, or stores ``outputs`` (result, index) when there are none."""

    columns: Dim
    reductions: tuple[Node, ...] = ()
    outputs: tuple[tuple[int, Index], ...] = ()


@dataclass(frozen=True)
class Walk:
    """The passes of a segment; ``roots`` are the nodes that each pass evaluates at its columns."""

    passes: tuple[Pass, ...]
    roots: tuple[tuple[Node, ...], ...]


def walk(puller: Puller, program: Program, rows: Rows, lanes: int) -> Walk:
    """Orders reductions by what they need, then the outputs, one pass for each number of columns."""
    outputs = [(o.result, tuple(_at(i, o.columns, lanes) for i in o.index), o.columns) for o in rows.outputs]
    stored = {k: puller.pull(program.results[k], index) for k, index, _ in outputs}
    depth = _depths(puller, list(stored.values()), lanes)
    passes: dict[tuple[int, str], list[Node]] = {}
    columns: dict[tuple[int, str], Dim] = {}
    for node, level in depth.items():
        size = reduce_body(puller, node)[1]
        key = (level, str(size))
        passes.setdefault(key, []).append(node)
        columns[key] = size
    made = [
        Pass(columns[key], reductions=tuple(sorted(nodes, key=lambda n: n.number)))
        for key, nodes in sorted(passes.items(), key=lambda t: t[0])
    ]
    for size in sorted({c for _, _, c in outputs}, key=str, reverse=True):
        made.append(Pass(size, outputs=tuple((k, index) for k, index, c in outputs if c == size)))
    roots = [tuple(_body(puller, n, lanes) for n in p.reductions) if p.reductions else tuple(stored[k] for k, _ in p.outputs) for p in made]
    return Walk(tuple(made), tuple(roots))


def pass_lanes(columns: Dim, lanes: int) -> int:
    """Lanes for a walk over ``columns``: as wanted where they tile it, else one by one."""
    return lanes if lanes == 1 or expr.exact_quotient(columns, lanes) is not None else 1


def _unit(columns: Dim, lanes: int) -> Dim:
    """The column index of a pass, in a vector index of its own and the lane ``j``."""
    width = pass_lanes(columns, lanes)
    return width * expr.var(_unit_name(columns, lanes), steps(columns, width)) + expr.var("j", width)


def _unit_name(columns: Dim, lanes: int) -> str:
    return f"u{columns}" if isinstance(columns, int) else "u"


def _at(item: Dim, columns: Dim, lanes: int) -> Dim:
    return expr.substitute(item, {Var(COLUMN, columns): _unit(columns, lanes)})


def _body(puller: Puller, node: Node, lanes: int) -> Node:
    columns = reduce_body(puller, node)[1]
    return reduce_body(puller, node, _unit(columns, lanes))[0]


def _depths(puller: Puller, roots: Sequence[Node], lanes: int) -> dict[Node, int]:
    """Each reduction that ``roots`` need, with how many others it needs, one inside the other."""
    depth: dict[Node, int] = {}
    pending = [n for root in reversed(roots) for n in reversed(direct_reductions(puller, root))]
    while pending:
        node = pending[-1]
        inner = direct_reductions(puller, _body(puller, node, lanes))
        missing = [n for n in inner if n not in depth]
        pending += reversed(missing)
        if not missing:
            depth[pending.pop()] = max((depth[n] + 1 for n in inner), default=0)
    return depth


class RowEmitter:
    """Writes one rows segment."""

    def __init__(self, emitter: Emitter, program: Program, rows: Rows, team: Team) -> None:
        self.e = emitter
        self.program = program
        self.rows = rows
        self.team = team
        self.lanes = emitter.lanes
        self.walk = walk(emitter.puller, program, rows, emitter.lanes)
        self.folds = 0  # written so far
        self.kept = self._choose_kept()

    # --- what stays in registers

    def items(self, columns: Dim) -> int | None:
        """Vectors of one thread in a walk over ``columns``; None where that is not known or too many to unroll."""
        if isinstance(columns, Expr):
            return None
        width = pass_lanes(columns, self.lanes)
        count = -(-(columns // width) // self.team.threads)
        return count if count * width <= MAX_UNROLLED else None

    def _choose_kept(self) -> dict[Node, int]:
        """Nodes that a later pass over the same columns needs again, with the pass that computes them first."""
        made: dict[Node, int] = {}
        kept: set[Node] = set()
        for number, roots in enumerate(self.walk.roots):
            if number == 0 and nominal(self.rows.rows) < FEW_ROWS:
                made.update(dict.fromkeys(self._early_loads(), 0))
            here = {n: k for n, k in made.items() if self._same_columns(k, number)}
            again, fresh = self._needs(roots, here)
            if self.items(self.walk.passes[number].columns) is not None:
                kept.update(n for n in again if made[n] < number)
                made.update((n, number) for n in fresh if n not in made)
        self.registers = sum(self._registers(n, self.walk.passes[made[n]].columns) for n in kept)
        return {n: made[n] for n in kept} if self.registers <= 2 * MAX_KEPT else {}

    def _same_columns(self, first: int, second: int) -> bool:
        """Whether a thread has the same columns in two passes; a value of one vector names no columns that would tell."""
        return self.walk.passes[first].columns == self.walk.passes[second].columns

    def _early_loads(self) -> list[Node]:
        """What later passes load, from the first pass on: with few rows, waiting for memory again is what takes the time."""
        first, puller = self.walk.passes[0].columns, self.e.puller
        later = [r for step, roots in zip(self.walk.passes, self.walk.roots, strict=True) if step.columns == first for r in roots]
        loads = [n for n in reachable(puller, later) if n.kind == "load" and n.total and self._per_column(n)]
        return loads if len(self.walk.passes) > 1 and self.items(first) is not None else []

    def _needs(self, roots: Sequence[Node], made: dict[Node, int]) -> tuple[list[Node], list[Node]]:
        """(nodes available from earlier passes, nodes that this pass computes at the level of its columns)."""
        again: dict[Node, None] = {}
        fresh: dict[Node, None] = {}
        pending = list(roots)
        while pending:
            node = pending.pop()
            if node in again or node in fresh or not self._per_column(node) or node.kind in ("const", "index"):
                continue
            if node in made and not self._cheap(node):
                again[node] = None
                continue
            fresh[node] = None
            if node.kind != "case":  # inside a case nothing is sure to have been computed
                pending += node.args
                pending += [self.e.puller.gathers[v] for v in node.vars if v in self.e.puller.gathers]
        return list(again), list(fresh)

    def _packed(self, node: Node) -> bool:
        """Whether a kept value stays as it was loaded: two small floats in one register."""
        return node.kind == "load" and node.dtype.is_small_float and self.lanes > 1 and vector_address(node.payload[1], self.lanes)

    def _registers(self, node: Node, columns: Dim) -> int:
        elements = (self.items(columns) or 0) * self._kept_width(node, columns)
        return elements // 2 if self._packed(node) else elements * max(1, node.dtype.compute.size // 4)

    def _cheap(self, node: Node) -> bool:
        """Whether computing the node again from one kept value costs less than keeping it too."""
        simple = node.kind in ("cast", "round") or (node.kind == "op" and node.payload in TABLE and TABLE[str(node.payload)].cost == 1)
        return simple and sum(self._per_column(a) for a in node.args) == 1

    def _per_column(self, node: Node) -> bool:
        return any(v.name != ROW for v in node.vars)

    # --- text

    def emit(self, first_block: str) -> None:
        """Writes the segment; ``first_block`` is the number of its first block, in C."""
        e, kind = self.e, self.e.index_type
        count = self.rows.rows
        e.kept = self.registers
        e.prepare([count])
        local = f"({kind})(blockIdx.x - {first_block})"
        if self.team.rows == 1:
            e.line(f"const {kind} r = {local};")
            e.line("const bool live = true;")
        else:
            e.line(f"const {kind} row = {local} * {e.integer(self.team.rows)} + ({kind})threadIdx.x / {e.integer(self.team.threads)};")
            e.line(f"const bool live = row < {e.index(count)};")
            e.line(f"const {kind} r = live ? row : {e.index(count - 1)};  // threads of a warp stay together")
        e.line(f"const {kind} lane = ({kind})threadIdx.x % {e.integer(self.team.threads)};")
        self._declare_kept()
        for number, step in enumerate(self.walk.passes):
            self._pass(number, step)

    def _declare_kept(self) -> None:
        self.names: dict[Node, str] = {}
        self.packed: dict[Node, str] = {}
        for node in sorted(self.kept, key=lambda n: n.number):
            columns = self.walk.passes[self.kept[node]].columns
            width, items = self._kept_width(node, columns), self.items(columns) or 0
            name = self.e.fresh("keep")
            if self._packed(node):
                self.e.line(f"gf_vec<{node.dtype.c}, {width}> {name}[{items}];")
                self.names[node] = f"gf_up({name}[k].v[j])"
                self.packed[node] = f"{name}[k]"
            else:
                self.e.line(f"{compute_type(node.dtype)} {name}[{items * width}];")
                self.names[node] = f"{name}[k * {width} + j]" if width > 1 else f"{name}[k]"

    def _kept_width(self, node: Node, columns: Dim) -> int:
        """Elements kept of a vector: one, where all of its lanes have the same value."""
        return pass_lanes(columns, self.lanes) if any(v.name == "j" for v in node.vars) else 1

    def _pass(self, number: int, step: Pass) -> None:
        e = self.e
        width = pass_lanes(step.columns, self.lanes)
        for node in self._row_nodes(self.walk.roots[number]):
            e.ref(node)
        folds = [Fold(self.program, node, e.fresh("a"), width, self.folds + k) for k, node in enumerate(step.reductions)]
        self.folds += len(folds)
        for fold in folds:
            e.line(fold.start())
        before, e.lanes = e.lanes, width
        self._columns(number, step, folds, width)
        e.lanes = before
        for fold in folds:
            for text in fold.finish(self.team.threads):
                e.line(text)
            e.scope.names[fold.node] = fold.result

    def _row_nodes(self, roots: Sequence[Node]) -> list[Node]:
        """What depends on the row alone is computed once, before the walk; only what is safe for every column."""
        nodes = reachable(self.e.puller, roots)
        return [n for n in nodes if n.total and not self._per_column(n) and n.kind not in ("const", "index", "reduce")]

    def _columns(self, number: int, step: Pass, folds: Sequence[Fold], width: int) -> None:
        e, kind = self.e, self.e.index_type
        count, items = steps(step.columns, width), self.items(step.columns)
        unit = _unit_name(step.columns, self.lanes)
        e.prepare([count])
        if items is None:
            head = f"for ({kind} {unit} = lane; {unit} < {e.index(count)}; {unit} += {e.integer(self.team.threads)}) {{"
            with e.block(head, lane=width == 1):
                self._work(number, step, folds, width)
            return
        exact = isinstance(count, int) and count == items * self.team.threads
        with e.block(f"GF_UNROLL for (int k = 0; k < {items}; ++k) {{", lane=width == 1):
            e.line(f"const {kind} {unit} = k * {e.integer(self.team.threads)} + lane;")
            if exact:
                self._work(number, step, folds, width)
            else:
                with e.block(f"if ({unit} < {e.index(count)}) {{"):
                    self._work(number, step, folds, width)

    def _work(self, number: int, step: Pass, folds: Sequence[Fold], width: int) -> None:
        e = self.e
        roots = self.walk.roots[number]
        for node, name in self.names.items():
            if self.kept[node] < number and self._same_columns(self.kept[node], number):
                e.scope.names[node] = name
        for node in sorted(self.names, key=lambda n: n.number):
            if self.kept[node] == number:
                value = e.ref(node)
                if node in self.packed:
                    e.line(f"{self.packed[node]} = {e.raw[node]};")
                else:
                    lanes = self._kept_width(node, step.columns)
                    e.line(f"{f'GF_LANES({lanes}) ' if lanes > 1 else ''}{self.names[node]} = {value};")
        if not folds:
            if self._guarded():
                with e.block("if (live) {"):
                    self._store(step, roots)
            else:
                self._store(step, roots)
            return
        for fold, root in zip(folds, roots, strict=True):
            value = e.ref(root)
            position = self._position(step, width)
            e.line(f"{f'GF_LANES({width}) ' if width > 1 else ''}{fold.step(value, position)}")

    def _guarded(self) -> bool:
        return self.team.rows > 1

    def _store(self, step: Pass, roots: Sequence[Node]) -> None:
        for (result, index), root in zip(step.outputs, roots, strict=True):
            store(self.e, result, self.program.outputs[result][0], root, index, self.program)

    def _position(self, step: Pass, width: int) -> str:
        unit = _unit_name(step.columns, self.lanes)
        return unit if width == 1 else f"{unit} * {self.e.integer(width)} + j"


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

    def step(self, value: str, position: str) -> str:
        """Folds one element in."""
        element = f"{self.ctype}{{{value}, (gf_i64)({position})}}" if self.arg else value
        own = self.name if self.lanes == 1 else f"{self.name}_lanes[j]"
        return f"{own} = {self._fold}::apply({own}, {element});"

    def finish(self, team: int) -> list[str]:
        """Folds over the lanes, then over the team."""
        lines = []
        if self.lanes > 1:
            lines.append(f"{self.ctype} {self.name} = {self.name}_lanes[0];")
            lines.append(
                f"GF_UNROLL for (int j = 1; j < {self.lanes}; ++j) {self.name} = {self._fold}::apply({self.name}, {self.name}_lanes[j]);"
            )
        if team > 1:
            scratch = f"gf_scratch + {self.slot * SCRATCH}" if team > WARP else "gf_scratch"
            lines.append(f"{self.name} = gf_team_fold<{team}, {self._fold}>({self.name}, reinterpret_cast<{self.ctype}*>({scratch}));")
        return lines


def _neutral(fn: str, dtype: DType) -> int | float:
    if fn in ("sum", "prod"):
        return 0 if fn == "sum" else 1
    if dtype.is_float:
        return float("-inf") if fn == "max" else float("inf")
    bits = dtype.size * 8
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.kind == "i" else (0, (1 << bits) - 1)
    return low if fn == "max" else high
