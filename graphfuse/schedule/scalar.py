"""One element of a program's value, as an expression over loop indices.

``Puller.pull(value, index)`` walks a program backwards from an output: views turn into arithmetic on the index, element-wise
instructions into operations, and what is left are loads at computed addresses. Equal nodes are the same object, so a
value that is used twice, or by two passes over a row, is computed once. Nothing here knows how loops are run.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from graphfuse.ir import dtypes, expr
from graphfuse.ir.builder import Number, const_text
from graphfuse.ir.dtypes import DType
from graphfuse.ir.errors import Refused
from graphfuse.ir.expr import Dim, Var
from graphfuse.ir.program import Instr, Program

Index = tuple[Dim, ...]
Condition = tuple[tuple[Dim, Dim], ...]  # all of ``left < right``

MAX_NODES = 4000
MAX_BRANCHES = 64  # cases inside one another; compilers bound nested blocks
MAX_TERMS = 100  # of the index arithmetic of one axis: reshapes that do not match multiply it; models have 10
MAX_REACH = 16  # elements between the ends of a window

# Operations that only kernels have: (x, divisor, its inverse); for values of 16 bits, where a relative error of 2^-17 is lost.
DEVICE_ONLY = {"div_by": "div", "exp_small": "exp", "rcp_small": "div"}


@dataclass(frozen=True, eq=False)
class Node:
    """A scalar. Nodes are interned by their ``Puller``: compare and hash by identity.

    kind     args              payload
    load     -                 (parameter number, linear address)
    const    -                 value
    index    -                 integer expression, as a value
    op       operands          name of the scalar operation, or one of ``DEVICE_ONLY``
    cast     x                 None
    round    x                 None
    case     branches          the condition of each branch but the last
    reduce   -                 (instruction number, index of the kept axes)
    tap      -                 (instruction number, index): one place of a sliding window, see ``windows``
    """

    kind: str
    dtype: DType
    args: tuple[Node, ...]
    payload: Any
    total: bool  # safe to compute anywhere in the loop: no load may fall outside its tensor
    vars: frozenset[Var] = field(default=frozenset())
    number: int = 0  # in order of creation: arguments come before users
    cases: int = 0  # inside one another


@dataclass
class Gather:
    """A loop-like index whose value is read from memory: ``node``, made non-negative and clamped to the axis."""

    var: Var
    node: Node


# Makes an element: yields the (instruction, index) of each other one that it needs, and is sent its node.
Steps = Generator[tuple[int, Index], Node, Node]


class Wish(NamedTuple):
    """An element that is wanted; ``inside``: for what a window stands for, where no windows are looked for."""

    number: int
    at: Index
    inside: bool


class Puller:
    """Pulls elements of one program's values; ``gathers`` maps the run-time indices it had to introduce to their nodes."""

    def __init__(self, program: Program, windows: frozenset[int] = frozenset()) -> None:
        self.program = program
        self._windows = windows
        self.nodes: list[Node] = []
        self.gathers: dict[Var, Node] = {}
        self._interned: dict[object, Node] = {}
        self._pulled: dict[Wish, Node] = {}
        self._by_index: dict[Node, Var] = {}
        self._exact = _rounds_results(program)

    def pull(self, number: int, index: Index) -> Node:
        """The element of instruction ``number`` at ``index``. Raises Refused when there would be too much to compute."""
        return self._grant(Wish(number, index, False))

    def pull_through(self, number: int, index: Index) -> Node:
        """As ``pull``, with no windows: what a tap stands for."""
        return self._grant(Wish(number, index, True))

    def _grant(self, wish: Wish) -> Node:
        """The element, after what it needs. Chains of instructions are longer than Python's stack is deep: this has its own."""
        node = self._pulled.get(wish)
        stack = [] if node else [(wish, *self._begin(wish))]
        while stack:
            wish, steps, inside = stack[-1]
            try:
                needed = Wish(*steps.send(node), inside)  # type: ignore[arg-type]  # None starts a generator
            except StopIteration as done:
                node = self._pulled[wish] = done.value
                stack.pop()
                continue
            node = self._pulled.get(needed)
            if node is None:
                stack.append((needed, *self._begin(needed)))
        assert node is not None
        return node

    def _begin(self, wish: Wish) -> tuple[Steps, bool]:
        """The steps of an element, and whether what they need is inside of a window."""
        if wish.number in self._windows and not wish.inside and slides(wish.at):
            return self._tap(wish.number, wish.at), True
        return self._element(wish.number, wish.at), wish.inside

    def _tap(self, number: int, index: Index) -> Steps:
        through = yield number, index
        return self.intern("tap", self.program.body[number].dtype, (), (number, index), exprs=index, total=through.total)

    def _element(self, number: int, index: Index) -> Steps:
        instr = self.program.body[number]
        made: Node | Steps = getattr(self, f"_{instr.op}")(instr, number, index)
        return made if isinstance(made, Node) else (yield from made)

    def intern(
        self, kind: str, dtype: DType, args: tuple[Node, ...], payload: Any, *, exprs: Sequence[Dim] = (), total: bool = True
    ) -> Node:
        """The node with these parts; ``exprs`` are the index expressions in the payload."""
        key = (kind, dtype.name, args, const_text(payload) if kind == "const" else payload)
        found = self._interned.get(key)
        if found is None:
            indices = {v for item in exprs for v in expr.variables(item)}
            needed = [*args, *(self.gathers[v] for v in indices if v in self.gathers)]
            loops = (indices - self.gathers.keys()).union(*(n.vars for n in needed))
            cases = max((n.cases for n in needed), default=0) + (kind == "case")
            total = total and all(a.total for a in args)
            found = Node(kind, dtype, args, payload, total, frozenset(loops), len(self.nodes), cases)
            self.nodes.append(found)
            if len(self.nodes) > MAX_NODES:
                raise Refused("too-large", f"more than {MAX_NODES} scalar operations for one kernel")
            if cases > MAX_BRANCHES:
                raise Refused("too-large", f"more than {MAX_BRANCHES} concats or pads inside one another")
            self._interned[key] = found
        return found

    # --- sources

    def _param(self, instr: Instr, number: int, index: Index) -> Node:
        shape = instr.shape
        inside = all(expr.is_nonneg(i) and expr.is_less(i, d) for i, d in zip(index, shape, strict=True))
        address = linear(index, shape)
        return self.intern("load", instr.dtype, (), (instr.attr("index"), address), exprs=(address,), total=inside)

    def _const(self, instr: Instr, number: int, index: Index) -> Node:
        return self.const(instr.attr("value"), instr.dtype)

    def const(self, value: Number, dtype: DType) -> Node:
        """A literal."""
        return self.intern("const", dtype, (), value)

    def _extent(self, instr: Instr, number: int, index: Index) -> Node:
        return self._index_value(instr.attr("size"), instr.dtype)

    def _iota(self, instr: Instr, number: int, index: Index) -> Node:
        return self._index_value(index[instr.attr("axis")], instr.dtype)

    def _index_value(self, value: Dim, dtype: DType) -> Node:
        return self.const(value, dtype) if isinstance(value, int) else self.intern("index", dtype, (), value, exprs=(value,))

    # --- element-wise

    def _map(self, instr: Instr, number: int, index: Index) -> Steps:
        args = []
        for arg in instr.args:
            args.append((yield arg, index))
        return self.op(instr.attr("fn"), instr.dtype, tuple(args))

    def op(self, fn: str, dtype: DType, args: tuple[Node, ...]) -> Node:
        """An operation on nodes; adding 0 is never dropped (it would change -0.0)."""
        if fn == "div" and dtype.compute is dtypes.F32:
            return self._divide(dtype, *args)
        return self.intern("op", dtype, args, "exp_small" if fn == "exp" and self._small(dtype) else fn)

    def _small(self, dtype: DType) -> bool:
        """Whether an approximation will do for values of this type: nothing looks at them before their rounding hides it."""
        return dtype.is_small_float and not self._exact

    def _divide(self, dtype: DType, x: Node, by: Node) -> Node:
        """A quotient; a divisor that many elements share is inverted once, a power of 2 is multiplied by."""
        one = self.const(1.0, dtypes.F32)
        if by.kind == "const" and x.kind != "const":
            fraction, exponent = math.frexp(float(by.payload))
            if fraction in (0.5, -0.5) and -100 < exponent < 100:
                return self.intern("op", dtype, (x, self.const(1.0 / float(by.payload), dtype)), "mul")
        if x.vars - by.vars and by.vars < x.vars:
            inverse = self.intern("op", dtypes.F32, (one, by), "div")
            if self._small(dtype):
                return self.intern("op", dtype, (x, inverse), "mul")
            return self.intern("op", dtype, (x, by, inverse), "div_by")
        if x.kind == "const" and x.payload == 1.0:
            return self.intern("op", dtype, (by,), "rcp_small") if self._small(dtype) else self.intern("op", dtype, (one, by), "div")
        return self.intern("op", dtype, (x, by), "div")

    def _cast(self, instr: Instr, number: int, index: Index) -> Steps:
        return self.intern("cast", instr.dtype, ((yield instr.args[0], index),), None)

    def _round(self, instr: Instr, number: int, index: Index) -> Steps:
        return self.intern("round", instr.dtype, ((yield instr.args[0], index),), None)

    # --- views

    def _transpose(self, instr: Instr, number: int, index: Index) -> Steps:
        perm = instr.attr("perm")
        return (yield instr.args[0], tuple(index[perm.index(axis)] for axis in range(len(perm))))

    def _reshape(self, instr: Instr, number: int, index: Index) -> Steps:
        inner = reshape_index(index, instr.shape, self.program.body[instr.args[0]].shape)
        if any(expr.weight(i) > MAX_TERMS for i in inner):
            raise Refused("too-large", f"index arithmetic of more than {MAX_TERMS} terms, from reshapes that do not match")
        return (yield instr.args[0], inner)

    def _broadcast(self, instr: Instr, number: int, index: Index) -> Steps:
        source = self.program.body[instr.args[0]].shape
        own = index[len(index) - len(source) :]
        return (yield instr.args[0], tuple(0 if d == 1 else i for i, d in zip(own, source, strict=True)))

    def _slice(self, instr: Instr, number: int, index: Index) -> Steps:
        parts = zip(index, instr.attr("starts"), instr.attr("steps"), strict=True)
        return (yield instr.args[0], tuple(start + step * i for i, start, step in parts))

    def _pad(self, instr: Instr, number: int, index: Index) -> Steps:
        source = self.program.body[instr.args[0]].shape
        inner = tuple(i - low for i, low in zip(index, instr.attr("low"), strict=True))
        tests: list[tuple[Dim, Dim]] = []
        for i, dim in zip(inner, source, strict=True):
            if not expr.is_nonneg(i):
                tests.append((-1, i))
            if not expr.is_less(i, dim):
                tests.append(compare(i, dim))
        if any(expr.is_nonneg(left - right) for left, right in tests):
            return (yield instr.args[1], ())
        if not tests:
            return (yield instr.args[0], inner)
        branches = ((yield instr.args[0], inner), (yield instr.args[1], ()))
        return self._case(instr.dtype, branches, (tuple(tests),))

    def _concat(self, instr: Instr, number: int, index: Index) -> Steps:
        axis = instr.attr("axis")
        where, start = index[axis], 0
        branches: list[Node] = []
        conditions: list[Condition] = []
        end: Dim = start
        for number_, arg in enumerate(instr.args):
            begin, end = end, end + self.program.body[arg].shape[axis]
            if number_ < len(instr.args) - 1 and expr.is_nonneg(where - end):
                continue  # the index is past this part
            inner = tuple(i - begin if k == axis else i for k, i in enumerate(index))
            branches.append((yield arg, inner))
            if number_ == len(instr.args) - 1 or expr.is_less(where, end):
                break
            conditions.append((compare(where, end),))
        return branches[0] if len(branches) == 1 else self._case(instr.dtype, tuple(branches), tuple(conditions))

    def _case(self, dtype: DType, branches: tuple[Node, ...], conditions: tuple[Condition, ...]) -> Node:
        exprs = [side for condition in conditions for pair in condition for side in pair]
        total = all(b.total for b in branches)
        node = self.intern("case", dtype, branches, conditions, exprs=exprs, total=total)
        return node

    def _gather(self, instr: Instr, number: int, index: Index) -> Steps:
        data, indices = instr.args
        axis: int = instr.attr("axis")
        rank = len(self.program.body[indices].shape)
        size = self.program.body[data].shape[axis]
        position = self._position((yield indices, index[axis : axis + rank]), size)
        return (yield data, (*index[:axis], position, *index[axis + rank :]))

    def _position(self, node: Node, size: Dim) -> Dim:
        if node.kind == "const" and isinstance(size, int):
            value = int(node.payload)
            return min(max(value + size if value < 0 else value, 0), size - 1)
        if size == 1:
            return 0
        if node not in self._by_index:
            wide = node if node.dtype is dtypes.I64 else self.intern("cast", dtypes.I64, (node,), None)
            extent = self._index_value(size, dtypes.I64)
            wrapped = self.op("where", dtypes.I64, (self.op("lt", dtypes.BOOL, (wide, self.const(0, dtypes.I64))),
                                                    self.op("add", dtypes.I64, (wide, extent)), wide))  # fmt: skip
            last = self._index_value(size - 1, dtypes.I64)
            clamped = self.op("min", dtypes.I64, (self.op("max", dtypes.I64, (wrapped, self.const(0, dtypes.I64))), last))
            made = Var(f"g{len(self.gathers)}", size)
            self.gathers[made] = clamped
            self._by_index[node] = made
        found = self._by_index[node]
        return expr.var(found.name, found.extent)

    # --- reductions

    def _reduce(self, instr: Instr, number: int, index: Index) -> Node:
        return self.intern("reduce", instr.dtype, (), (number, index), exprs=index)


def _rounds_results(program: Program) -> bool:
    """Whether quotients or exponentials of small floats are rounded where they are made, so that each bit before it counts."""
    rounded = (program.body[i.args[0]] for i in program.body if i.op == "round")
    return any(i.op == "map" and i.attr("fn") in ("exp", "div") for i in rounded)


def slides(index: Index) -> bool:
    """Whether the lanes of a vector read neighbours along the last axis, and nothing else differs between them."""
    lanes = [v for item in index for v in expr.variables(item) if v.name == "j"]
    if not lanes or any(v.name == "j" for item in index[:-1] for v in expr.variables(item)):
        return False
    return expr.coefficient(index[-1], lanes[0]) == 1


def windows(program: Program) -> frozenset[int]:
    """Values that several slices read at places a few elements apart, nearly whole each: sliding windows along the last axis."""
    starts: dict[int, set[Dim]] = {}
    for instr in program.body:
        if instr.op == "slice" and instr.shape and set(instr.attr("steps")) == {1}:
            source = program.body[instr.args[0]].shape
            if isinstance(source[-1], int) and isinstance(instr.shape[-1], int) and source[-1] - instr.shape[-1] <= MAX_REACH:
                starts.setdefault(instr.args[0], set()).add(instr.attr("starts")[-1])
    return frozenset(number for number, places in starts.items() if len(places) > 1)


def linear(index: Index, shape: Sequence[Dim]) -> Dim:
    """The row-major position of ``index`` in a tensor of ``shape``."""
    total: Dim = 0
    for i, dim in zip(index, shape, strict=True):
        total = total * dim + i
    return total


def delinear(position: Dim, shape: Sequence[Dim]) -> Index:
    """The index at a row-major position; the outermost quotient needs no remainder."""
    if any(d == 0 for d in shape):
        return (0,) * len(shape)
    index: list[Dim] = []
    for axis, dim in enumerate(shape):
        if dim == 1:
            index.append(0)
            continue
        outermost = all(d == 1 for d in shape[:axis])
        stride = expr.product(shape[axis + 1 :])
        quotient = expr.floordiv(position, stride)
        index.append(quotient if outermost else expr.modulo(quotient, dim))
    return tuple(index)


def reshape_index(index: Index, shape: Sequence[Dim], source: Sequence[Dim]) -> Index:
    """The index in ``source`` of the element at ``index`` of the reshaped ``shape``; groups of axes that match stay apart."""
    if any(d == 0 for d in shape):
        return (0,) * len(source)
    result: list[Dim] = []
    for own, other in _groups(shape, source):
        position = linear(tuple(index[a] for a in own), [shape[a] for a in own])
        result += delinear(position, [source[a] for a in other])
    return tuple(result)


def _groups(shape: Sequence[Dim], source: Sequence[Dim]) -> list[tuple[list[int], list[int]]]:
    """Runs of axes of equal size on both sides: a split or merge of axes touches only its own run."""
    groups: list[tuple[list[int], list[int]]] = []
    own: list[int] = []
    other: list[int] = []
    left: Dim = 1
    right: Dim = 1
    i = j = 0
    while i < len(shape) or j < len(source):
        grow_left = j == len(source) or (i < len(shape) and _advance_left(left, right, own))
        if grow_left:
            left, own, i = left * shape[i], [*own, i], i + 1
        else:
            right, other, j = right * source[j], [*other, j], j + 1
        if left == right:
            groups.append((own, other))
            own, other, left, right = [], [], 1, 1
    if own or other:
        groups.append((own, other))
    return groups


def _advance_left(left: Dim, right: Dim, own: list[int]) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left <= right
    if expr.exact_quotient(right, left) is not None:
        return True
    return expr.exact_quotient(left, right) is None and not own


def compare(left: Dim, right: Dim) -> tuple[Dim, Dim]:
    """``left < right``, divided by a power of 2 that divides ``right`` where that drops a loop index: lanes then agree."""
    if isinstance(right, int) and isinstance(left, expr.Expr) and right > 1:
        for factor in (16, 8, 4, 2):
            if right % factor == 0:
                reduced = expr.floordiv(left, factor)
                if not any(isinstance(a, expr.Call) for a in expr.atoms(reduced) - expr.atoms(left)):
                    return reduced, right // factor
    return left, right


def vector_address(address: Dim, lanes: int) -> bool:
    """Whether lanes 0, 1... are neighbours in memory and lane 0 stands at a multiple of ``lanes``.

    No other than a power of two: a window of five elements is no vector, although every fifth address is a multiple of five.
    """
    lane = Var("j", lanes)
    if lanes & (lanes - 1) or expr.coefficient(address, lane) != 1:
        return False
    return expr.exact_quotient(expr.substitute(address, {lane: 0}), lanes) is not None
