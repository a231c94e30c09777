"""Writes scalar nodes as statements.

A node that depends on the lane index ``j`` of a vector becomes a small array with one loop over the lanes; the compiler
unrolls it into registers. A node is written where it is first needed, except that what several branches of a case
need is written before the case, provided that it is safe to compute everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from graphfuse.ir import dtypes, expr
from graphfuse.ir.builder import Number
from graphfuse.ir.dtypes import DType
from graphfuse.ir.expr import Atom, Call, Dim, Sym, Var
from graphfuse.ir.scalars import TABLE
from graphfuse.schedule.kernel import exprs_of, reachable
from graphfuse.schedule.scalar import MAX_REACH, Condition, Index, Node, Puller

INDENT = "  "
DEVICE = {"div_by": "gf_div_by({0}, {1}, {2})", "exp_small": "gf_exp_small({0})", "rcp_small": "gf_rcp_small({0})"}


@dataclass(frozen=True)
class Access:
    """How one load or store touches memory: ``lanes`` elements at once, or one by one."""

    pointer: str
    width: int  # bytes of a vector of elements
    bytes: float  # the same; less where only some elements take the branch it is in
    vector: bool
    window: bool = False  # read once for several neighbours


@dataclass
class Scope:
    """A block of statements; names found in it are seen by the blocks inside."""

    parent: Scope | None
    lane: bool  # whether ``j`` is bound, so that lane-dependent nodes are single values here
    lines: list[str] = field(default_factory=list)
    names: dict[Node, str] = field(default_factory=dict)
    integers: dict[Atom, str] = field(default_factory=dict)
    windows: dict[tuple[int, Index], str] = field(default_factory=dict)


class Emitter:
    """State of one entry point: its indices' type, its vectors' lanes and what is written so far.

    ``wide``: indices are 64 bits. ``lanes``: elements a vector. ``pinned``: nodes that already have a name (rows' reductions, values
    kept in registers).
    """

    def __init__(self, puller: Puller, *, wide: bool, lanes: int, symbols: Sequence[str]) -> None:
        self.puller = puller
        self.lanes = lanes
        self.wide = wide
        self.index_type = "gf_i64" if wide else "gf_i32"
        self.accesses: list[Access] = []
        self.scope = Scope(None, lane=lanes == 1)
        self.share = 1.0  # of the elements, those that take the branch being written
        self.loads = 0  # written so far
        self.kept = 0  # registers of a thread that hold a row between passes
        self.raw: dict[Node, str] = {}  # vectors as they were loaded, by node
        self._taps: dict[tuple[int, Index], list[int]] = {}
        self._in_window = False
        self._symbols = {name: f"s{k}" for k, name in enumerate(symbols)}
        self._count = 0

    # --- text

    def line(self, text: str) -> None:
        """A statement in the current block."""
        self.scope.lines.append(text)

    def fresh(self, prefix: str = "v") -> str:
        """A name that is not used yet."""
        self._count += 1
        return f"{prefix}{self._count}"

    @contextmanager
    def block(self, head: str, *, lane: bool | None = None, tail: str = "}") -> Iterator[Scope]:
        """A nested block; its lines go into the current one when it closes."""
        outer = self.scope
        inner = Scope(outer, lane=outer.lane if lane is None else lane)
        self.scope = inner
        try:
            yield inner
        finally:
            self.scope = outer
        outer.lines.append(head)
        outer.lines += [INDENT + text for text in inner.lines]
        outer.lines.append(tail)

    # --- nodes

    def ref(self, node: Node) -> str:
        """The C expression of a node's value; writes what it needs first. Lane-dependent ones mention ``j``."""
        pending = [node]  # and not Python's stack, which is not as deep as chains are long
        while pending:
            last = pending[-1]
            missing = [] if self._written(last) else [n for n in self._before(last) if not self._written(n)]
            pending += reversed(missing)
            if not missing:
                pending.pop()
                if not self._written(last):
                    self.scope.names[last] = self._write(last)
        return self._name(node)

    def _before(self, node: Node) -> list[Node]:
        """What is written before a node, in the same block; the branches of a case have their own."""
        if node.kind in ("tap", "reduce"):
            return []
        indices = {v for item in exprs_of(node) for v in expr.variables(item)}
        gathers = [self.puller.gathers[v] for v in sorted(indices, key=lambda v: v.name) if v in self.puller.gathers]
        return gathers if node.kind == "case" else [*node.args, *gathers]

    def _name(self, node: Node) -> str:
        """The C expression of a node that is written."""
        if node.kind == "const":
            return literal(node.payload, node.dtype)
        scope = self.scope
        while node not in scope.names:
            assert scope.parent is not None
            scope = scope.parent
        return scope.names[node]

    def is_array(self, node: Node) -> bool:
        """Whether the node is written as an array over the lanes here."""
        return not self.scope.lane and any(v.name == "j" for v in node.vars)

    def _write(self, node: Node) -> str:
        if node.kind == "case":
            return self._write_case(node)
        if node.kind == "load":
            return self._write_load(node)
        if node.kind == "tap":
            return self._write_tap(node)
        if node.kind == "reduce":
            raise AssertionError("a reduction is used before its pass")
        args = [self._name(a) for a in node.args]
        self.prepare(exprs_of(node))
        if node.payload in ("div", "div_by") and node.dtype.compute is dtypes.F32 and self.is_array(node):
            return self._divide_lanes(node, args)
        return self.define(node, self._operation(node, args))

    def _divide_lanes(self, node: Node, args: list[str]) -> str:
        """One branch a vector for the quotients that need care, instead of one an element."""
        x, by = args[0], args[1]
        rare = self.fresh("rare")
        self.line(f"bool {rare} = false;")
        inverse = args[2] if len(args) > 2 else self.define_as(dtypes.F32, f"gf_rcp_near({by}, {rare})", array=True)
        if node.args[0].kind == "const" and node.args[0].payload == 1.0:
            name = inverse
        else:
            name = self.define_as(dtypes.F32, f"gf_div_near({x}, {by}, {inverse}, {rare})", array=True)
        self.line(f"if ({rare}) {{ GF_LANES({self.lanes}) {name} = {x} / {by}; }}")
        return name

    def define(self, node: Node, text: str) -> str:
        """Names the value ``text`` of a node: a constant, or an array filled lane by lane."""
        return self.define_as(node.dtype, text, array=self.is_array(node))

    def define_as(self, dtype: DType, text: str, *, array: bool) -> str:
        """Names a value of the compute type of ``dtype``."""
        name, ctype = self.fresh(), compute_type(dtype)
        if array:
            self.line(f"{ctype} {name}[{self.lanes}]; GF_LANES({self.lanes}) {name}[j] = {text};")
            return f"{name}[j]"
        self.line(f"const {ctype} {name} = {text};")
        return name

    def _operation(self, node: Node, args: list[str]) -> str:
        if node.kind == "op":
            if node.payload in DEVICE:
                return DEVICE[str(node.payload)].format(*args)
            table = TABLE[str(node.payload)].device
            kind = node.args[-1].dtype.kind
            return table.get(kind, table.get("*", "")).format(*args)
        if node.kind == "cast":
            return f"gf_cast<{node.dtype.c}>({args[0]})"
        if node.kind == "round":
            return f"gf_round<{node.dtype.c}>({args[0]})"
        return f"({compute_type(node.dtype)}){self.index(node.payload)}"

    def _write_load(self, node: Node) -> str:
        number, address = node.payload
        self.loads += 1
        self.prepare([address])
        pointer, size = f"p{number}", node.dtype.size
        if not self.is_array(node):
            self._note(node, pointer)
            return self.define(node, f"gf_up({pointer}[{self.index(address)}])")
        if not vector_address(address, self.lanes):
            self.access(pointer, size, vector=False)
            return self.define(node, f"gf_up({pointer}[{self.index(address)}])")
        self.access(pointer, size, vector=True)
        raw, ctype = self.fresh("m"), node.dtype.c
        base = expr.substitute(address, {Var("j", self.lanes): 0})
        self.line(f"const auto {raw} = gf_load_vec<{ctype}, {self.lanes}>({pointer} + {self.index(base)});")
        self.raw[node] = raw
        if node.dtype.is_small_float:
            return self.define(node, f"gf_up({raw}.v[j])")
        return f"{raw}.v[j]"

    def _note(self, node: Node, pointer: str) -> None:
        if any(v.name == "j" for v in node.vars):  # inside a lane loop: one element at a time
            self.access(pointer, node.dtype.size, vector=False)

    def access(self, pointer: str, size: int, *, vector: bool) -> None:
        """Records that every lane touches ``size`` bytes through ``pointer``."""
        self.accesses.append(Access(pointer, size * self.lanes, size * self.lanes * self.share, vector, self._in_window))

    # --- sliding windows

    def find_windows(self, roots: Sequence[Node]) -> None:
        """Notes how far the windows among the nodes of ``roots`` reach; comes before the first of them is written."""
        for node in reachable(self.puller, roots):
            if node.kind == "tap":
                key, place = _window(node)
                self._taps.setdefault(key, []).append(place)

    def _write_tap(self, node: Node) -> str:
        """One place of a window: the elements of all places and lanes are computed once, into one array."""
        number, index = node.payload
        key, place = _window(node)
        first, reach = min(self._taps[key]), max(self._taps[key]) - min(self._taps[key])
        if self.scope.lane or reach == 0 or reach > MAX_REACH:
            return self.ref(self.puller.pull_through(number, index))
        array = self._find_window(key)
        if array is None:
            array = self._write_window(number, key, first, reach)
            self.scope.windows[key] = array
        return f"{array}[j + {place - first}]"

    def _write_window(self, number: int, key: tuple[int, Index], first: int, reach: int) -> str:
        *outer, last = key[1]
        array, width = self.fresh("w"), self.lanes + reach
        ctype = compute_type(self.puller.program.body[number].dtype)
        self._in_window = True
        aligned = next((p for p in range(first, first + reach + 1) if self._aligned(number, (*outer, last + p + self._lane()))), None)
        if aligned is None:  # no place stands at whole vectors: all elements one by one
            before, self.lanes = self.lanes, width
            value = self.ref(self.puller.pull_through(number, (*outer, last + first + self._lane())))
            self.line(f"{ctype} {array}[{width}]; GF_LANES({width}) {array}[j] = {value};")
            self.lanes = before
        else:  # one vector, and the elements on both sides of it
            value = self.ref(self.puller.pull_through(number, (*outer, last + aligned + self._lane())))
            self.line(f"{ctype} {array}[{width}]; GF_LANES({self.lanes}) {array}[j + {aligned - first}] = {value};")
            for k in [*range(aligned - first), *range(aligned - first + self.lanes, width)]:
                self.line(f"{array}[{k}] = {self.ref(self.puller.pull_through(number, (*outer, last + first + k)))};")
        self._in_window = False
        return array

    def _lane(self) -> Dim:
        return expr.var("j", self.lanes)

    def _aligned(self, number: int, index: Index) -> bool:
        """Whether every load behind this element is a whole vector."""
        loads = [n for n in reachable(self.puller, [self.puller.pull_through(number, index)]) if n.kind == "load"]
        return all(vector_address(n.payload[1], self.lanes) for n in loads if any(v.name == "j" for v in n.vars))

    def _find_window(self, key: tuple[int, Index]) -> str | None:
        scope: Scope | None = self.scope
        while scope is not None:
            if key in scope.windows:
                return scope.windows[key]
            scope = scope.parent
        return None

    # --- cases

    def load_early(self, roots: Sequence[Node]) -> None:
        """Begins the loads of branches that differ by lane before anything is computed, each under its own condition.

        Behind a chain of arithmetic they would wait for that and then for memory again.
        """
        if self.lanes == 1:
            return
        nodes = reachable(self.puller, roots)
        for node in nodes:
            if node.kind == "case" and self._splits(node) and not any(self.puller.gathers):
                self._load_branches(node, nodes)

    def _load_branches(self, node: Node, nodes: Sequence[Node]) -> None:
        conditions: Sequence[Condition] = node.payload
        own = [[n for n in reachable(self.puller, [b]) if n.kind == "load" and not n.total] for b in node.args]
        if any(n.kind in ("case", "tap") for b in node.args for n in reachable(self.puller, [b])) or not any(own):
            return
        self.prepare([*exprs_of(node), *(n.payload[1] for loads in own for n in loads)])
        before, self.share = self.share, self.share / len(node.args)
        for k, loads in enumerate(own):
            failed = [f"!({self._test(c)})" for c in conditions[:k]]
            test = " && ".join([*failed, *(self._test(c) for c in conditions[k : k + 1])])
            for load in loads:
                number, address = load.payload
                self.loads += 1
                self.access(f"p{number}", load.dtype.size, vector=False)
                text = f"{test} ? gf_up(p{number}[{self.index(address)}]) : ({compute_type(load.dtype)})0"
                self.scope.names[load] = self.define_as(load.dtype, text, array=self.is_array(load))
        self.share = before

    def _splits(self, node: Node) -> bool:
        """Whether the lanes of a case go different ways."""
        return self.is_array(node) and any("j" in self._names(item) for item in exprs_of(node))

    def _write_case(self, node: Node) -> str:
        conditions: Sequence[Condition] = node.payload
        self._hoist(node)
        self.prepare(exprs_of(node))
        array = self.is_array(node)
        split = self._splits(node)
        name, ctype = self.fresh(), compute_type(node.dtype)
        self.line(f"{ctype} {name}[{self.lanes}];" if array else f"{ctype} {name};")
        target = f"{name}[j]" if array else name
        if split:
            with self.block(f"GF_LANES({self.lanes}) {{", lane=True):
                self._branches(node, conditions, target, [])
        else:
            self._branches(node, conditions, target, self._one_load(node) if array else [])
        return target

    def _branches(self, node: Node, conditions: Sequence[Condition], target: str, loaded: Sequence[tuple[Node, str]]) -> None:
        """The branches, each assigning ``target``; ``loaded`` names a load that each of them needs."""
        prefix = f"GF_LANES({self.lanes}) " if self.is_array(node) else ""
        before, self.share = self.share, self.share / len(node.args)
        for k, branch in enumerate(node.args):
            head = f"if ({self._test(conditions[k])}) {{" if k < len(conditions) else "{"
            with self.block(head if k == 0 else f"else {head}") as scope:
                scope.names.update(loaded[k : k + 1])
                self.line(f"{prefix}{target} = {self.ref(branch)};")
        self.share = before

    def _one_load(self, node: Node) -> list[tuple[Node, str]]:
        """Where every branch needs one vector of the same input, the address is chosen and loaded before they part."""
        loads = [self._own_loads(branch) for branch in node.args]
        if any(len(found) != 1 for found in loads) or len({found[0].payload[0] for found in loads}) != 1:
            return []
        chosen = [found[0] for found in loads]
        number, ctype = chosen[0].payload[0], chosen[0].dtype.c
        bases = [expr.substitute(load.payload[1], {Var("j", self.lanes): 0}) for load in chosen]
        self.prepare(bases)
        address = self.index(bases[-1])
        for condition, base in reversed(list(zip(node.payload, bases[:-1], strict=True))):
            address = f"({self._test(condition)} ? {self.index(base)} : {address})"
        raw = self.fresh("m")
        self.line(f"const auto {raw} = gf_load_vec<{ctype}, {self.lanes}>(p{number} + {address});")
        self.loads += 1
        self.access(f"p{number}", chosen[0].dtype.size, vector=True)
        value = self.define_as(chosen[0].dtype, f"gf_up({raw}.v[j])", array=True)
        return [(load, value) for load in chosen]

    def _own_loads(self, branch: Node) -> list[Node]:
        """Vectors that a branch loads and that are not at hand yet; none where it has cases or windows of its own."""
        nodes = [n for n in reachable(self.puller, [branch]) if not self._written(n)]
        if any(n.kind in ("case", "tap") for n in nodes):
            return []
        loads = [n for n in nodes if n.kind == "load"]
        return loads if all(self.is_array(n) and vector_address(n.payload[1], self.lanes) for n in loads) else []

    def _written(self, node: Node) -> bool:
        if node.kind == "const":
            return True
        scope: Scope | None = self.scope
        while scope is not None:
            if node in scope.names:
                return True
            scope = scope.parent
        return False

    def _test(self, condition: Condition) -> str:
        return " && ".join(f"{self.index(left)} < {self.index(right)}" for left, right in condition)

    def _names(self, item: Dim) -> set[str]:
        found: set[str] = set()
        for v in expr.variables(item):
            found |= {w.name for w in self.puller.gathers[v].vars} if v in self.puller.gathers else {v.name}
        return found

    def _hoist(self, node: Node) -> None:
        """Writes before the case what more than one of its branches needs, if it is safe outside them."""
        uses: dict[Node, int] = {}
        for branch in node.args:
            for needed in reachable(self.puller, [branch]):
                uses[needed] = uses.get(needed, 0) + 1
        for needed in sorted(uses, key=lambda n: n.number):
            if uses[needed] > 1 and needed.total and needed.kind not in ("const", "index"):
                self.ref(needed)

    # --- integers

    def prepare(self, items: Sequence[Dim]) -> None:
        """Writes what index expressions need before they can be written: run-time indices, shared quotients."""
        for item in items:
            for v in sorted(expr.variables(item), key=lambda v: v.name):
                if v in self.puller.gathers:
                    self.ref(self.puller.gathers[v])
            for atom in _calls(item):
                self._name_call(atom)

    def _name_call(self, atom: Call) -> None:
        if not self.scope.lane and "j" in self._names(expr.Expr({(atom,): 1})):
            if self._neighbours(atom):  # differs by lane, but lane 0 is worth a name
                first = expr.substitute(atom.left, {Var("j", self.lanes): 0})
                for fn in ("//", "%"):
                    self._name_first(Call(fn, first, atom.right))
            return
        self._name_first(atom)

    def _name_first(self, atom: Call) -> None:
        if self._find_integer(atom) is None:
            text = self._call(atom)
            name = self.fresh("t")
            self.line(f"const {self.index_type} {name} = {text};")
            self.scope.integers[atom] = name

    def _find_integer(self, atom: Atom) -> str | None:
        scope: Scope | None = self.scope
        while scope is not None:
            if atom in scope.integers:
                return scope.integers[atom]
            scope = scope.parent
        return None

    def index(self, item: Dim) -> str:
        """An integer expression in C, of the index type."""
        if isinstance(item, int):
            return self.integer(item)
        parts: list[str] = []
        for mono, coef in sorted(item.terms.items(), key=lambda t: (not t[0], str(t[0]))):
            factors = [self._atom(a) for a in mono]
            if not factors or abs(coef) != 1:
                factors.append(self.integer(abs(coef)))
            parts.append((" - " if coef < 0 else " + " if parts else "") + " * ".join(factors))
        text = "".join(parts)
        return f"({text.strip() if not text.startswith(' - ') else '-' + text[3:]})" if len(parts) > 1 or text.startswith(" - ") else text

    def integer(self, value: int) -> str:
        """An integer literal of the index type."""
        return f"{value}LL" if self.wide else str(value)

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Sym):
            return self._symbols[atom.name]
        named = self._find_integer(atom)
        if named is not None:
            return named
        if isinstance(atom, Call):
            return self._call(atom)
        if atom in self.puller.gathers:
            return f"({self.index_type}){self.ref(self.puller.gathers[atom])}"
        return atom.name

    def _call(self, atom: Call) -> str:
        plain = expr.is_nonneg(atom.left)
        if plain and self._neighbours(atom):
            return self._stepped(atom)
        names: Mapping[str, str] = {
            "//": "gf_quot" if plain else "gf_floordiv",
            "%": "gf_rem" if plain else "gf_floormod",
            "max": "gf_larger",
            "min": "gf_smaller",
        }
        typed = "" if plain and atom.fn in ("//", "%") else f"<{self.index_type}>"
        return f"{names[atom.fn]}{typed}({self._typed(atom.left)}, {self._typed(atom.right)})"

    def _neighbours(self, atom: Call) -> bool:
        """Whether the lanes divide neighbouring numbers, so that at most one carry lies between them."""
        lane = Var("j", self.lanes)
        if atom.fn not in ("//", "%") or not isinstance(atom.right, int) or atom.right < self.lanes or self.lanes == 1:
            return False
        return expr.coefficient(atom.left, lane) == 1 and expr.is_nonneg(expr.substitute(atom.left, {lane: 0}))

    def _stepped(self, atom: Call) -> str:
        """The quotient or remainder of lane ``j`` from those of lane 0."""
        first = expr.substitute(atom.left, {Var("j", self.lanes): 0})
        rest = f"gf_rem({self._typed(first)}, {self.index(atom.right)})"
        stepped = f"<{self.index_type}>({self._first(first, '%', atom.right, rest)} + j, {self.index(atom.right)})"
        if atom.fn == "%":
            return f"gf_wrap{stepped}"
        quotient = f"gf_quot({self._typed(first)}, {self.index(atom.right)})"
        return f"({self._first(first, '//', atom.right, quotient)} + gf_carry{stepped})"

    def _first(self, left: Dim, fn: str, right: Dim, text: str) -> str:
        """The name of lane 0's quotient or remainder where it has one."""
        return self._find_integer(Call(fn, left, right)) or text

    def _typed(self, item: Dim) -> str:
        return self.index(item) if isinstance(item, int) else f"({self.index_type}){self.index(item)}"


def _calls(item: Dim) -> list[Call]:
    """The calls in an expression, inner ones first."""
    found: list[Call] = []
    if isinstance(item, expr.Expr):
        for mono in sorted(item.terms, key=str):
            for atom in mono:
                if isinstance(atom, Call):
                    found += _calls(atom.left) + _calls(atom.right) + [atom]
    return found


def _window(node: Node) -> tuple[tuple[int, Index], int]:
    """The window that a tap belongs to (its index without lane and place), and its place in it."""
    number, index = node.payload
    last = index[-1] - sum((expr.var(v.name, v.extent) for v in expr.variables(index[-1]) if v.name == "j"), 0)
    place = last if isinstance(last, int) else last.terms.get((), 0)
    return (number, (*index[:-1], last - place)), place


def vector_address(address: Dim, lanes: int) -> bool:
    """Whether lanes 0, 1... are neighbours in memory and lane 0 stands at a multiple of ``lanes``."""
    lane = Var("j", lanes)
    if expr.coefficient(address, lane) != 1:
        return False
    return expr.exact_quotient(expr.substitute(address, {lane: 0}), lanes) is not None


def compute_type(dtype: DType) -> str:
    """The C type that values of ``dtype`` are computed in."""
    return dtype.compute.c


def literal(value: Number, dtype: DType) -> str:
    """A constant of the compute type of ``dtype`` in C."""
    kind = dtype.compute
    if kind is dtypes.BOOL:
        return "true" if value else "false"
    if kind.is_integer:
        number = int(value)
        if number == -(1 << 63):
            return "(-9223372036854775807LL - 1)"
        return (
            f"({kind.c}){number}{'ULL' if kind.kind == 'u' else 'LL'}" if kind is not dtypes.I32 or number == -(1 << 31) else f"({number})"
        )
    real = float(value)
    suffix = "f" if kind is dtypes.F32 else ""
    if math.isfinite(real):
        text = float.hex(real) + suffix
        return f"({text})" if text.startswith("-") else text
    bits = "0x7fc00000u" if math.isnan(real) else "0x7f800000u" if real > 0 else "0xff800000u"
    return f"gf_bits_float({bits})" if suffix else f"(double)gf_bits_float({bits})"
