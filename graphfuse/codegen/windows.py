"""Sliding windows: elements that several neighbours need are loaded and computed once, into an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphfuse.codegen.cases import load_early, load_safe
from graphfuse.codegen.text import compute_type
from graphfuse.ir import expr
from graphfuse.ir.expr import Dim
from graphfuse.schedule.kernel import reachable
from graphfuse.schedule.scalar import MAX_REACH, Index, Node, vector_address

if TYPE_CHECKING:
    from graphfuse.codegen.emit import Emitter


def find_windows(e: Emitter, roots: Sequence[Node]) -> None:
    """Notes how far the windows among the nodes of ``roots`` reach; comes before the first of them is written.

    Places that only a branch needs do not count: where the other one is taken they may lie outside the tensor.
    """
    for node in reachable(e.puller, roots, branches=False):
        if node.kind == "tap":
            key, place = window(node)
            e.taps.setdefault(key, []).append(place)


def exchange(e: Emitter, roots: Sequence[Node]) -> None:
    """Writes the windows of ``roots`` in a block that whole warps enter, each with 32 neighbouring vectors of one row.

    What a vector's neighbours have comes from their threads: all loads first, then the shuffles that wait for them.
    """
    e.sides = []
    for node in reachable(e.puller, roots, branches=False):
        if node.kind == "tap":
            e.ref(node)
    e.scope.lines += e.sides
    e.sides = None


def write_tap(e: Emitter, node: Node) -> str:
    """One place of a window: the elements of all places and lanes are computed once, into one array."""
    number, index = node.payload
    key, place = window(node)
    places = e.taps.get(key, [place])
    first, reach = min(places), max(places) - min(places)
    if e.scope.lane or reach == 0 or reach > MAX_REACH or not first <= place <= first + reach:
        return e.ref(e.puller.pull_through(number, index))
    array = _find_window(e, key)
    if array is None:
        array = _write_window(e, number, key, first, reach)
        e.scope.windows[key] = array
    return f"{array}[j + {place - first}]"


def _write_window(e: Emitter, number: int, key: tuple[int, Index], first: int, reach: int) -> str:
    *outer, last = key[1]
    array, width = e.fresh("w"), e.lanes + reach
    ctype = compute_type(e.puller.program.body[number].dtype)
    inside, e.in_window = e.in_window, True
    sides, e.sides = e.sides, None  # a window that another one reads must be whole at once
    aligned = next((p for p in range(first, first + reach + 1) if _aligned(e, number, (*outer, last + p + _lane(e)))), None)
    if aligned is None:  # no place stands at whole vectors: all elements one by one
        before, e.lanes = e.lanes, width
        value = e.ref(e.puller.pull_through(number, (*outer, last + first + _lane(e))))
        e.line(f"{ctype} {array}[{width}]; GF_LANES({width}) {array}[j] = {value};")
        e.lanes = before
    else:  # one vector, and the elements on both sides of it
        value = e.ref(e.puller.pull_through(number, (*outer, last + aligned + _lane(e))))
        e.line(f"{ctype} {array}[{width}]; GF_LANES({e.lanes}) {array}[j + {aligned - first}] = {value};")
        for k in [*range(aligned - first), *range(aligned - first + e.lanes, width)]:
            element, side = e.puller.pull_through(number, (*outer, last + first + k)), -1 if k < aligned - first else 1
            beside = k - side * e.lanes  # the neighbour's vector has it there
            if sides is not None and 0 <= beside - (aligned - first) < e.lanes:
                sides.append(_write_side(e, f"{array}[{k}]", f"gf_beside({array}[{beside}], {side})", side, element))
            else:
                e.line(f"{array}[{k}] = {e.ref(element)};")
    e.in_window, e.sides = inside, sides
    return array


def _write_side(e: Emitter, target: str, beside: str, side: int, element: Node) -> str:
    """Loads an element beside the thread's own vector at the end of the warp alone; the statement that takes it from a neighbour."""
    end = f"threadIdx.x % 32 == {0 if side < 0 else 31}"
    with e.block("{"):  # names of what only the end has loaded stay inside
        load_safe(e, [element], end)
        load_early(e, [element], end)
        e.line(f"{target} = {e.ref(element)};")
    return f"{{ const auto near = {beside}; {target} = {end} ? {target} : near; }}"


def _lane(e: Emitter) -> Dim:
    return expr.var("j", e.lanes)


def _aligned(e: Emitter, number: int, index: Index) -> bool:
    """Whether every load behind this element is a whole vector."""
    loads = [n for n in reachable(e.puller, [e.puller.pull_through(number, index)]) if n.kind == "load"]
    return all(vector_address(n.payload[1], e.lanes) for n in loads if any(v.name == "j" for v in n.vars))


def _find_window(e: Emitter, key: tuple[int, Index]) -> str | None:
    return next((s.windows[key] for s in e.scopes() if key in s.windows), None)


def window(node: Node) -> tuple[tuple[int, Index], int]:
    """The window that a tap belongs to (its index without lane and place), and its place in it."""
    number, index = node.payload
    last = index[-1] - sum((expr.var(v.name, v.extent) for v in expr.variables(index[-1]) if v.name == "j"), 0)
    place = last if isinstance(last, int) else last.terms.get((), 0)
    return (number, (*index[:-1], last - place)), place
