"""The row-reduction schedule: a team of threads for each row, the row kept in registers between passes.

Reductions become *passes* over the columns; those that need no other reduction's result share one. What a later pass needs
again is kept in an array of the thread's own columns when they are few enough, else it is read and computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphfuse.codegen.config import WARP
from graphfuse.codegen.emit import Emitter
from graphfuse.codegen.folds import Fold
from graphfuse.codegen.moments import LEAST, Moments, squares
from graphfuse.codegen.passes import MAX_UNROLLED, Pass, Walk, pass_lanes, unit_name, walk
from graphfuse.codegen.pointwise import steps, store
from graphfuse.codegen.teams import PROCESSORS, Team
from graphfuse.codegen.text import compute_type
from graphfuse.ir.expr import Dim, Expr
from graphfuse.ir.program import Program
from graphfuse.ir.scalars import TABLE
from graphfuse.schedule.kernel import Rows, direct_reductions, nominal, reachable
from graphfuse.schedule.rows import ROW
from graphfuse.schedule.scalar import Node, vector_address

ENOUGH = 32  # elements of a thread in registers, from which on a walk costs more than what spares it
COMPACT = 8  # the same as MAX_UNROLLED, where text should be short
MAX_KEPT = 64  # registers for values kept between passes
MOST_KEPT = 40  # what 64 registers a thread hold without spilling


class RowEmitter:
    """Writes one rows segment."""

    def __init__(self, emitter: Emitter, program: Program, rows: Rows, team: Team) -> None:
        self.e = emitter
        self.program = program
        self.rows = rows
        self.team = team
        self.lanes = emitter.lanes
        self.walk = walk(emitter.puller, program, rows, emitter.lanes)
        self.moments: dict[Node, Moments] = {}
        self.derived: dict[Node, tuple[Moments, Node | None]] = {}  # reductions that need no walk, and about what
        self._share_moments()
        self.folds = 0  # written so far
        # With at most a block for each processor, waiting for memory twice is what takes the time.
        self.in_order = nominal(rows.rows) * team.cluster <= PROCESSORS and team.threads > WARP
        self.early = self._early_loads() if self.in_order else []
        self.kept = self._choose_kept()

    # --- means and variances

    def _share_moments(self) -> None:
        """Finds variances whose elements the first pass can take in: then no pass of their own walks for them."""
        passes, roots = self.walk.passes, [list(r) for r in self.walk.roots]
        columns = passes[0].columns
        width, items = pass_lanes(columns, self.lanes), self.items(columns)
        if width < LEAST or (items is not None and items * width < ENOUGH):
            return
        for number, step in enumerate(passes):
            for node, root in zip(step.reductions, self.walk.roots[number], strict=False):
                found = squares(self.e.puller, root) if number and step.columns == columns and self._adds(node) else None
                if found:
                    moments = self.moments.setdefault(found.x, Moments(found.x, self.e.fresh("x"), width))
                    self.derived[node] = moments, found.about
                    roots[number].remove(root)
        for node, root in zip(passes[0].reductions, self.walk.roots[0], strict=False):
            if root in self.moments and self._adds(node):
                self.derived[node] = self.moments[root], None
                roots[0].remove(root)
        roots[0] += self.moments
        self.walk = Walk(passes, tuple(tuple(r) for r in roots))

    def _adds(self, node: Node) -> bool:
        return bool(self.program.body[node.payload[0]].attr("fn") == "sum")

    def _derived(self, node: Node) -> str:
        moments, about = self.derived[node]
        return moments.total if about is None else moments.about(self.e.ref(about))

    # --- what stays in registers

    def items(self, columns: Dim) -> int | None:
        """Vectors of one thread in a walk over ``columns``; None where that is not known or too many to unroll."""
        if isinstance(columns, Expr):
            return None
        width = pass_lanes(columns, self.lanes)
        count = -(-(columns // width) // self.team.threads)
        return count if count * width <= (COMPACT if self.e.compact else MAX_UNROLLED) else None

    def _choose_kept(self) -> dict[Node, int]:
        """Nodes that a later pass over the same columns needs again, with the pass that computes them first."""
        made: dict[Node, int] = {}
        kept: set[Node] = set()
        for number, roots in enumerate(self.walk.roots):
            if number == 0:
                made.update(dict.fromkeys(self.early, 0))
            here = {n: k for n, k in made.items() if self._same_columns(k, number)}
            again, fresh = self._needs(roots, here)
            if self.items(self.walk.passes[number].columns) is not None:
                kept.update(n for n in again if made[n] < number or n in self.early)
                made.update((n, number) for n in fresh if n not in made)
        self.registers = sum(self._registers(n, self.walk.passes[made[n]].columns) for n in kept)
        return {n: made[n] for n in kept} if self.registers <= 2 * MAX_KEPT else {}

    def _same_columns(self, first: int, second: int) -> bool:
        """Whether a thread has the same columns in two passes; a value of one vector names no columns that would tell."""
        return self.walk.passes[first].columns == self.walk.passes[second].columns

    def _early_loads(self) -> list[Node]:
        """What later passes load, at addresses that no reduction decides."""
        first, puller = self.walk.passes[0].columns, self.e.puller
        later = [r for step, roots in zip(self.walk.passes, self.walk.roots, strict=True) if step.columns == first for r in roots]
        loads = [n for n in reachable(puller, later) if n.kind == "load" and n.total and self._per_column(n)]
        own = set(reachable(puller, self.walk.roots[0]))
        return [n for n in loads if n not in own and not direct_reductions(puller, n)] if self.items(first) is not None else []

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
        e.scratch = self.team.scratch * sum(len(p.reductions) for p in self.walk.passes) if self.team.threads > WARP else 0
        e.prepare([count])
        local = f"({kind})(blockIdx.x - {first_block})"
        if self.team.cluster > 1:
            e.line(f"const {kind} r = {local} / {self.team.cluster};")
            e.line("const bool live = true;")
        elif self.team.rows == 1:
            e.line(f"const {kind} r = {local};")
            e.line("const bool live = true;")
        else:
            e.line(f"const {kind} row = {local} * {e.integer(self.team.rows)} + ({kind})threadIdx.x / {e.integer(self.team.threads)};")
            e.line(f"const bool live = row < {e.index(count)};")
            e.line(f"const {kind} r = live ? row : {e.index(count - 1)};  // threads of a warp stay together")
        if self.team.cluster > 1:
            e.line(f"const {kind} lane = {local} % {self.team.cluster} * {self.team.block} + ({kind})threadIdx.x;")
        else:
            e.line(f"const {kind} lane = ({kind})threadIdx.x % {e.integer(self.team.threads)};")
        self._declare_kept()
        self._load_early()
        for number, step in enumerate(self.walk.passes):
            self._pass(number, step)
            e.early = False

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
        walked = [fold for fold in folds if fold.node not in self.derived]
        moments = list(self.moments.values()) if number == 0 else []
        for text in [*(fold.start() for fold in walked), *(own.start() for own in moments)]:
            e.line(text)
        if self.walk.roots[number]:
            before, e.lanes = e.lanes, width
            self._walk(step.columns, width, lambda: self._work(number, step, walked, width))
            e.lanes = before
        for fold in folds:
            if fold.node in self.derived:
                e.line(fold.given(self._derived(fold.node)))
            for text in fold.finish(self.team):
                e.line(text)
            e.scope.names[fold.node] = fold.result

    def _row_nodes(self, roots: Sequence[Node]) -> list[Node]:
        """What depends on the row alone is computed once, before the walk; only what is safe for every column."""
        nodes = reachable(self.e.puller, roots)
        return [n for n in nodes if n.total and not self._per_column(n) and n.kind not in ("const", "index", "reduce")]

    def _load_early(self) -> None:
        """Asks for what later passes need, before the first pass asks for its own."""
        e, step = self.e, self.walk.passes[0]
        e.early = self.in_order
        for node in self._row_loads():
            e.ref(node)
        if self.early:
            width = pass_lanes(step.columns, self.lanes)
            before, e.lanes = e.lanes, width
            self._walk(step.columns, width, self._ask)
            e.lanes = before
        if self.team.cluster > 1:
            folds = sum(len(p.reductions) for p in self.walk.passes)
            e.line(f"gf_cluster_start(gf_scratch, {folds}, {self.team.scratch});")

    def _ask(self) -> None:
        for node in self.early:
            if node in self.kept:
                self._keep(node)

    def _row_loads(self) -> list[Node]:
        """What is loaded once a row, at an address that no reduction decides."""
        puller = self.e.puller
        nodes = reachable(puller, [root for roots in self.walk.roots for root in roots])
        return [n for n in nodes if n.kind == "load" and n.total and not self._per_column(n) and not direct_reductions(puller, n)]

    def _walk(self, columns: Dim, width: int, work: Callable[[], None]) -> None:
        """The loop over a thread's vectors of ``columns``, unrolled where they are few."""
        e, kind = self.e, self.e.index_type
        count, items = steps(columns, width), self.items(columns)
        unit = unit_name(columns, self.lanes)
        e.prepare([count])
        if items is None:
            head = f"for ({kind} {unit} = lane; {unit} < {e.index(count)}; {unit} += {e.integer(self.team.threads)}) {{"
            with e.block(head, lane=width == 1):
                work()
            return
        exact = isinstance(count, int) and count == items * self.team.threads
        with e.block(f"GF_UNROLL for (int k = 0; k < {items}; ++k) {{", lane=width == 1):
            e.line(f"const {kind} {unit} = k * {e.integer(self.team.threads)} + lane;")
            if exact:
                work()
            else:
                with e.block(f"if ({unit} < {e.index(count)}) {{"):
                    work()

    def _work(self, number: int, step: Pass, folds: Sequence[Fold], width: int) -> None:
        e = self.e
        roots = self.walk.roots[number]
        for node, name in self.names.items():
            if (self.kept[node] < number or node in self.early) and self._same_columns(self.kept[node], number):
                e.scope.names[node] = name
        for node in sorted(self.names, key=lambda n: n.number):
            if self.kept[node] == number and node not in self.early:
                self._keep(node)
        if step.outputs:
            if self._guarded():
                with e.block("if (live) {"):
                    self._store(step, roots)
            else:
                self._store(step, roots)
            return
        for fold, root in zip(folds, roots, strict=False):
            value = e.ref(root)
            position = self._position(step, width)
            e.line(f"{f'GF_LANES({width}) ' if width > 1 else ''}{fold.step(value, position)}")
        if number == 0:
            for x, moments in self.moments.items():
                e.line(moments.step(e.ref(x), moments.count if self.items(step.columns) is None else "k"))

    def _keep(self, node: Node) -> None:
        """Writes a node into its place in the registers."""
        value = self.e.ref(node)
        if node in self.packed:
            self.e.line(f"{self.packed[node]} = {self.e.raw[node]};")
        else:
            lanes = self._kept_width(node, self.walk.passes[self.kept[node]].columns)
            self.e.line(f"{f'GF_LANES({lanes}) ' if lanes > 1 else ''}{self.names[node]} = {value};")

    def _guarded(self) -> bool:
        return self.team.rows > 1

    def _store(self, step: Pass, roots: Sequence[Node]) -> None:
        for (result, index), root in zip(step.outputs, roots, strict=True):
            store(self.e, result, self.program.outputs[result][0], root, index, self.program)

    def _position(self, step: Pass, width: int) -> str:
        unit = unit_name(step.columns, self.lanes)
        return unit if width == 1 else f"{unit} * {self.e.integer(width)} + j"
