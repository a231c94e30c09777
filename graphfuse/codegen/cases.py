"""Values that are chosen by index: what a concat or a pad leaves behind.

A node is written where it is first needed, except that what several branches need is written before the case, provided that
it is safe to compute everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from graphfuse.codegen.text import compute_type
from graphfuse.ir import expr
from graphfuse.ir.expr import Var
from graphfuse.schedule.kernel import exprs_of, reachable
from graphfuse.schedule.scalar import Condition, Node, vector_address

if TYPE_CHECKING:
    from graphfuse.codegen.emit import Emitter


def load_needed(e: Emitter, roots: Sequence[Node], most: int) -> None:
    """Begins the loads that ``roots`` need whichever way their cases go, unless there are more than ``most``."""
    nodes = reachable(e.puller, roots)
    if sum(n.kind == "load" for n in nodes) > most:
        return
    needs: dict[Node, frozenset[Node]] = {}
    for node in nodes:  # arguments come first
        below = [needs[a] for a in node.args]
        own = frozenset([node] if node.kind == "load" else [])
        needs[node] = own.union(*below) if node.kind != "case" else below[0].intersection(*below[1:])
    for node in sorted(frozenset().union(*(needs[r] for r in roots)), key=lambda n: n.number):
        e.ref(node)


def load_safe(e: Emitter, roots: Sequence[Node], guard: str = "") -> None:
    """Begins the loads that are safe at each place; ``guard``, in C, says which threads need them."""
    for node in reachable(e.puller, roots):
        if node.kind == "load" and node.total and not e.written(node):
            if not guard:
                e.ref(node)
                continue
            number, address = node.payload
            e.prepare([address])
            text = f"{guard} ? gf_up(p{number}[{e.index(address)}]) : ({compute_type(node.dtype)})0"
            e.scope.names[node] = e.define_as(node.dtype, text, array=False)


def load_early(e: Emitter, roots: Sequence[Node], guard: str = "") -> None:
    """Begins the loads of branches before anything is computed, each under the condition of its own branch, and of ``guard``.

    Behind a chain of arithmetic they would wait for that and then for memory again. A load that is needed under more than one
    condition stays where it is: no one of them is right for it.
    """
    cases = [n for n in reachable(e.puller, roots) if n.kind == "case"]
    owners: dict[Node, set[object]] = {}
    for case in cases:
        for k, branch in enumerate(case.args):
            for node in reachable(e.puller, [branch]):
                owners.setdefault(node, set()).add((case.payload, k))
    for node in reachable(e.puller, roots, branches=False):
        if node.kind == "load":
            for load in reachable(e.puller, [node]):
                owners.setdefault(load, set()).add(None)
    for node in cases:
        nested = any(n.kind in ("case", "tap") for b in node.args for n in reachable(e.puller, [b]))
        if not nested and not e.puller.gathers and (e.scope.lane or guard or _splits(e, node)):
            _load_branches(e, node, {n for n, found in owners.items() if len(found) == 1}, guard)


def _load_branches(e: Emitter, node: Node, owned: Set[Node], guard: str) -> None:
    conditions: Sequence[Condition] = node.payload
    loads_of = [[n for n in reachable(e.puller, [b]) if n.kind == "load"] for b in node.args]
    split = _splits(e, node)  # then one load for all lanes has no one condition
    own = [[n for n in loads if n in owned and not e.written(n) and (e.is_array(n) or not split)] for loads in loads_of]
    if not any(own):
        return
    e.prepare([*exprs_of(node), *(n.payload[1] for loads in own for n in loads)])
    before, e.share = e.share, e.share / len(node.args)
    for k, loads in enumerate(own):
        failed = [f"!({_test(e, c)})" for c in conditions[:k]]
        test = " && ".join([*([guard] if guard else []), *failed, *(_test(e, c) for c in conditions[k : k + 1])])
        for load in loads:
            number, address = load.payload
            e.access(f"p{number}", load.dtype.size, vector=False)
            text = f"{test} ? gf_up(p{number}[{e.index(address)}]) : ({compute_type(load.dtype)})0"
            e.scope.names[load] = e.define_as(load.dtype, text, array=e.is_array(load))
    e.share = before


def _splits(e: Emitter, node: Node) -> bool:
    """Whether the lanes of a case go different ways."""
    return e.is_array(node) and any("j" in e.names_in(item) for item in exprs_of(node))


def write_case(e: Emitter, node: Node) -> str:
    """Writes a case; its value's C expression. What branches share comes before it, the rest inside of them."""
    conditions: Sequence[Condition] = node.payload
    _hoist(e, node)
    e.prepare(exprs_of(node))
    array = e.is_array(node)
    split = _splits(e, node)
    name, ctype = e.fresh(), compute_type(node.dtype)
    e.line(f"{ctype} {name}[{e.lanes}];" if array else f"{ctype} {name};")
    target = f"{name}[j]" if array else name
    if split:
        with e.block(f"GF_LANES({e.lanes}) {{", lane=True):
            _branches(e, node, conditions, target, [])
    else:
        _branches(e, node, conditions, target, _one_load(e, node) if array else [])
    return target


def _branches(e: Emitter, node: Node, conditions: Sequence[Condition], target: str, loaded: Sequence[tuple[Node, str]]) -> None:
    """The branches, each assigning ``target``; ``loaded`` names a load that each of them needs."""
    prefix = f"GF_LANES({e.lanes}) " if e.is_array(node) else ""
    before, e.share = e.share, e.share / len(node.args)
    for k, branch in enumerate(node.args):
        head = f"if ({_test(e, conditions[k])}) {{" if k < len(conditions) else "{"
        with e.block(head if k == 0 else f"else {head}") as scope:
            scope.names.update(loaded[k : k + 1])
            e.line(f"{prefix}{target} = {e.ref(branch)};")
    e.share = before


def _one_load(e: Emitter, node: Node) -> list[tuple[Node, str]]:
    """Where every branch needs one vector of the same input, the address is chosen and loaded before they part."""
    loads = [_own_loads(e, branch) for branch in node.args]
    if any(len(found) != 1 for found in loads) or len({found[0].payload[0] for found in loads}) != 1:
        return []
    chosen = [found[0] for found in loads]
    number, ctype = chosen[0].payload[0], chosen[0].dtype.c
    bases = [expr.substitute(load.payload[1], {Var("j", e.lanes): 0}) for load in chosen]
    e.prepare(bases)
    address = e.index(bases[-1])
    for condition, base in reversed(list(zip(node.payload, bases[:-1], strict=True))):
        address = f"({_test(e, condition)} ? {e.index(base)} : {address})"
    raw = e.fresh("m")
    e.line(f"const auto {raw} = gf_load_vec<{ctype}, {e.lanes}>(p{number} + {address});")
    e.access(f"p{number}", chosen[0].dtype.size, vector=True)
    value = e.define_as(chosen[0].dtype, f"gf_up({raw}.v[j])", array=True)
    return [(load, value) for load in chosen]


def _own_loads(e: Emitter, branch: Node) -> list[Node]:
    """Vectors that a branch loads and that are not at hand yet; none where it has cases or windows of its own."""
    nodes = [n for n in reachable(e.puller, [branch]) if not e.written(n)]
    if any(n.kind in ("case", "tap") for n in nodes):
        return []
    loads = [n for n in nodes if n.kind == "load"]
    return loads if all(e.is_array(n) and vector_address(n.payload[1], e.lanes) for n in loads) else []


def _test(e: Emitter, condition: Condition) -> str:
    return " && ".join(f"{e.index(left)} < {e.index(right)}" for left, right in condition)


def _hoist(e: Emitter, node: Node) -> None:
    """Writes before the case what more than one of its branches needs, if it is safe outside them."""
    uses: dict[Node, int] = {}
    for branch in node.args:
        for needed in reachable(e.puller, [branch]):
            uses[needed] = uses.get(needed, 0) + 1
    for needed in sorted(uses, key=lambda n: n.number):
        if uses[needed] > 1 and needed.total and needed.kind not in ("const", "index"):
            e.ref(needed)
