"""From a program to the one kernel that computes it.

A kernel is a list of *segments*, each with its own range of blocks. A ``Pointwise`` segment has one loop over the elements of
an output shape. A ``Rows`` segment gives each row of a reduction to a team of threads: every reduction in it must be a
function of the row alone, every output is walked row by row. ``plan`` finds the segments, or says why there are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphfuse.ir import expr, scalars
from graphfuse.ir.errors import Refused
from graphfuse.ir.expr import Dim, Shape, Var
from graphfuse.ir.program import Program
from graphfuse.schedule.rows import ROW, RowOutput, column, invert
from graphfuse.schedule.scalar import DEVICE_ONLY, Index, Node, Puller, delinear

NOMINAL = 64  # what a run-time dimension is taken to be where a decision needs a number
RECOMPUTE_RATIO = 2  # work done again because views read a value several times...
RECOMPUTE_FREE = 1 << 22  # ...is fine below this many operations: about the time of a launch
FEW_ROWS, MUCH_PER_ROW = 16, 1 << 19  # one team a row leaves the device idle beyond this


@dataclass(frozen=True)
class Pointwise:
    """Outputs of one shape, one element a loop step; ``results`` are positions in the program's outputs."""

    results: tuple[int, ...]
    shape: Shape


@dataclass(frozen=True)
class Rows:
    """Outputs whose reductions depend on the row alone. ``kept`` are the sizes of the axes that make up the rows."""

    kept: Shape
    outputs: tuple[RowOutput, ...]

    @property
    def rows(self) -> Dim:
        return expr.product(self.kept)


@dataclass(frozen=True)
class Kernel:
    """One launch."""

    program: Program
    segments: tuple[Pointwise | Rows, ...]


def plan(program: Program) -> Kernel:
    """The kernel of a program.

    Raises Refused: ``reduction-nesting`` (a reduction of another one's rows), ``reduction-rows`` (an output does not go row by row),
    ``recompute`` (too much would be computed again), ``few-rows`` (long rows, too few to fill the device), ``too-large``.
    """
    reach = _reductions_reached(program)
    plain = [k for k, r in enumerate(program.results) if not reach[r]]
    twins = _same_rows(program)
    groups = _connected([(k, frozenset(twins[n] for n in reach[r])) for k, r in enumerate(program.results) if reach[r]])
    segments: list[Pointwise | Rows] = []
    for group in groups:
        rows = _plan_rows(program, group)
        extra = [k for k in plain if _same_walk(program, rows, k)]
        plain = [k for k in plain if k not in extra]
        segments.append(_with_plain(program, rows, extra))
    shapes: dict[Shape, list[int]] = {}
    for k in plain:
        shapes.setdefault(program.outputs[k][1], []).append(k)
    segments += [Pointwise(tuple(results), shape) for shape, results in shapes.items()]
    kernel = Kernel(program, tuple(segments))
    _check_recompute(kernel)
    return kernel


def _reductions_reached(program: Program) -> list[frozenset[int]]:
    """For each instruction, the reductions that it is computed from."""
    reach: list[frozenset[int]] = []
    for number, instr in enumerate(program.body):
        own = frozenset([number]) if instr.op == "reduce" else frozenset()
        reach.append(own.union(*(reach[a] for a in instr.args)))
    return reach


def _same_rows(program: Program) -> dict[int, int]:
    """Each reduction, with the first one that folds the same axes of the same shape and reads an input in common."""
    inputs: list[frozenset[int]] = []
    first: dict[int, int] = {}
    for number, instr in enumerate(program.body):
        own = frozenset([number]) if instr.op == "param" else frozenset()
        inputs.append(own.union(*(inputs[a] for a in instr.args)))
        if instr.op == "reduce":
            shape, axes = program.body[instr.args[0]].shape, instr.attr("axes")
            twin = next((n for n in first.values() if _folds(program, n, shape, axes) and inputs[n] & inputs[number]), number)
            first[number] = twin
    return first


def _folds(program: Program, number: int, shape: Shape, axes: tuple[int, ...]) -> bool:
    instr = program.body[number]
    return program.body[instr.args[0]].shape == shape and instr.attr("axes") == axes


def _connected(items: Sequence[tuple[int, frozenset[int]]]) -> list[list[int]]:
    """Groups of outputs that share a reduction, directly or through each other."""
    groups: list[tuple[list[int], set[int]]] = []
    for k, reductions in items:
        touching = [g for g in groups if g[1] & reductions]
        merged = (sorted([k, *(m for g in touching for m in g[0])]), set(reductions).union(*(g[1] for g in touching)))
        groups = [g for g in groups if g not in touching] + [merged]
    return [members for members, _ in sorted(groups, key=lambda g: g[0])]


# --- rows -------------------------------------------------------------------------------------------------------------


def _plan_rows(program: Program, results: list[int]) -> Rows:
    puller = Puller(program)
    probes = {k: direct_reductions(puller, puller.pull(program.results[k], output_index(program.outputs[k][1]))) for k in results}
    found = [node for nodes in probes.values() for node in nodes]
    if not found:
        raise Refused("reduction-rows", "no output sees a reduction directly")
    anchor = max(found, key=lambda n: (nominal(expr.product(program.body[_reduction(n)].shape)), -n.number))
    kept = program.body[_reduction(anchor)].shape
    outputs: list[RowOutput] = []
    for k, nodes in probes.items():
        outputs.append(_walk(program, k, nodes, kept))
    rows = Rows(kept, tuple(outputs))
    _check_rows(program, rows)
    return rows


def _walk(program: Program, result: int, reductions: Sequence[Node], kept: Shape) -> RowOutput:
    """How to go through an output row by row, read off the places where it uses reductions."""
    problem = Refused("reduction-rows", "an output uses no reduction over these rows")
    for node in sorted(reductions, key=lambda n: program.body[_reduction(n)].shape != kept):
        try:
            return invert(result, _kept_index(node), kept, program.outputs[result][1])
        except Refused as refused:
            problem = refused
    raise problem


def _check_rows(program: Program, rows: Rows) -> None:
    """Every reduction must depend on the row alone, and must not be done again for many rows."""
    puller = Puller(program)
    row = _row_var(rows)
    seen: dict[int, set[Node]] = {}
    pending: list[Node] = []
    widest: Dim = 0
    for output in rows.outputs:
        root = puller.pull(program.results[output.result], output.index)
        pending += direct_reductions(puller, root)
        widest = max((widest, output.columns), key=nominal)
    while pending:
        node = pending.pop()
        number = _reduction(node)
        if not node.vars <= {row}:
            raise Refused("reduction-nesting", f"a {program.body[number].attr('fn')} is needed anew at every element of a row")
        if node not in seen.setdefault(number, set()):
            seen[number].add(node)
            body, size = reduce_body(puller, node)
            widest = max((widest, size), key=nominal)
            pending += direct_reductions(puller, body)
    count = nominal(rows.rows)
    for number, nodes in seen.items():
        source = program.body[program.body[number].args[0]].shape
        work = count * len(nodes) * nominal(expr.product([source[a] for a in program.body[number].attr("axes")]))
        if work > RECOMPUTE_RATIO * nominal(expr.product(source)) and work > RECOMPUTE_FREE >> 4:
            raise Refused("recompute", "a reduction would be done again for many rows")
    if count < FEW_ROWS and count * nominal(widest) > MUCH_PER_ROW:
        raise Refused("few-rows", f"{count} rows of {nominal(widest)} elements leave the device idle")


def reduce_body(puller: Puller, node: Node, col: Dim | None = None) -> tuple[Node, Dim]:
    """What a reduction folds, at column ``col`` (default: the plain column index), and the number of columns."""
    instr = puller.program.body[_reduction(node)]
    source = puller.program.body[instr.args[0]].shape
    axes = instr.attr("axes")
    sizes = [source[a] for a in axes]
    total = expr.product(sizes)
    columns = iter(delinear(column(total) if col is None else col, sizes))
    kept = iter(_kept_index(node))
    index = tuple(next(columns) if a in axes else next(kept) for a in range(len(source)))
    return puller.pull(instr.args[0], index), total


def direct_reductions(puller: Puller, root: Node) -> list[Node]:
    """The reductions that an expression reads, not those inside their bodies; in order of creation."""
    return [n for n in reachable(puller, [root]) if n.kind == "reduce"]


def reachable(puller: Puller, roots: Iterable[Node], *, branches: bool = True) -> list[Node]:
    """Every node that ``roots`` need, run-time indices included, arguments first; optionally not what branches of cases need."""
    seen: set[Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending += node.args if branches or node.kind != "case" else ()
            pending += [puller.gathers[v] for item in exprs_of(node) for v in expr.variables(item) if v in puller.gathers]
    return sorted(seen, key=lambda n: n.number)


def exprs_of(node: Node) -> list[Dim]:
    """The index expressions in a node's payload."""
    match node.kind:
        case "load":
            return [node.payload[1]]
        case "index":
            return [node.payload]
        case "case":
            return [side for condition in node.payload for pair in condition for side in pair]
        case "reduce" | "tap":
            return list(_kept_index(node))
    return []


def output_index(shape: Shape) -> Index:
    """One loop index for each axis of an output."""
    return tuple(expr.var(f"o{axis}", dim) for axis, dim in enumerate(shape))


def _reduction(node: Node) -> int:
    number: int = node.payload[0]
    return number


def _kept_index(node: Node) -> Index:
    index: Index = node.payload[1]
    return index


def _row_var(rows: Rows) -> Var:
    return Var(ROW, rows.rows)


def _same_walk(program: Program, rows: Rows, result: int) -> bool:
    """Whether an output without reductions has the shape of one of the segment's outputs, so that they share loads."""
    shape = program.outputs[result][1]
    return any(program.outputs[o.result][1] == shape for o in rows.outputs)


def _with_plain(program: Program, rows: Rows, extra: Sequence[int]) -> Rows:
    outputs = list(rows.outputs)
    for k in extra:
        twin = next(o for o in rows.outputs if program.outputs[o.result][1] == program.outputs[k][1])
        outputs.append(RowOutput(k, twin.index, twin.columns))
    return Rows(rows.kept, tuple(outputs))


# --- cost -------------------------------------------------------------------------------------------------------------


def nominal(dim: Dim) -> int:
    """A number for a dimension, run-time sizes taken as ``NOMINAL``."""
    return dim if isinstance(dim, int) else expr.evaluate(dim, dict.fromkeys(expr.symbols(dim), NOMINAL))


def _check_recompute(kernel: Kernel) -> None:
    program = kernel.program
    once = sum(_cost(i.attr("fn")) * nominal(expr.product(i.shape)) for i in program.body if i.op == "map")
    fused = 0.0
    for segment in kernel.segments:
        if isinstance(segment, Pointwise):
            puller = Puller(program)
            roots = [puller.pull(program.results[k], delinear(_flat(segment.shape), segment.shape)) for k in segment.results]
            fused += _weighted_cost(puller, roots) * nominal(expr.product(segment.shape))
    if fused > RECOMPUTE_RATIO * once and fused - once > RECOMPUTE_FREE:
        raise Refused("recompute", f"{fused / max(once, 1):.0f} times the arithmetic: a value is read under many indices or broadcast")


def _flat(shape: Shape) -> Dim:
    return expr.var("i", expr.product(shape))


def _weighted_cost(puller: Puller, roots: Sequence[Node]) -> float:
    """Operations for one element; of the branches of a case only one runs."""
    weight: dict[Node, float] = {}
    for root in roots:
        weight[root] = 1.0
    total = 0.0
    for node in reversed(reachable(puller, roots)):
        own = weight.get(node, 1.0)
        share = own / len(node.args) if node.kind == "case" else own
        for arg in node.args:
            weight[arg] = min(1.0, weight.get(arg, 0.0) + share)
        if node.kind == "op":
            total += own * _cost(node.payload)
    return total


def _cost(fn: object) -> int:
    return scalars.TABLE[DEVICE_ONLY.get(str(fn), str(fn))].cost
