"""The walks over the columns of a row: reductions in order of what they need, then the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphfuse.codegen.pointwise import steps
from graphfuse.ir import expr
from graphfuse.ir.expr import Dim, Var
from graphfuse.ir.program import Program
from graphfuse.schedule.kernel import Rows, direct_reductions, reduce_body
from graphfuse.schedule.rows import COLUMN
from graphfuse.schedule.scalar import Index, Node, Puller

MAX_UNROLLED = 80  # columns of one thread that are unrolled; more run in a loop


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
    return width * expr.var(unit_name(columns, lanes), steps(columns, width)) + expr.var("j", width)


def unit_name(columns: Dim, lanes: int) -> str:
    """The vector index of a walk, in C."""
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
