"""Writes scalar nodes as statements.

A node that depends on the lane index ``j`` of a vector becomes a small array with one loop over the lanes; the compiler
unrolls it into registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphfuse.codegen.cases import write_case
from graphfuse.codegen.integers import IntegerWriter
from graphfuse.codegen.text import Access, compute_type, literal
from graphfuse.codegen.windows import write_tap
from graphfuse.ir import dtypes, expr
from graphfuse.ir.dtypes import DType
from graphfuse.ir.expr import Var
from graphfuse.ir.scalars import TABLE
from graphfuse.schedule.kernel import exprs_of
from graphfuse.schedule.scalar import Index, Node, Puller, vector_address

DEVICE = {"div_by": "gf_div_by({0}, {1}, {2})", "exp_small": "gf_exp_small({0})", "rcp_small": "gf_rcp_small({0})"}


class Emitter(IntegerWriter):
    """State of one segment of an entry point: what is written so far, and what it does to memory."""

    def __init__(self, puller: Puller, *, wide: bool, lanes: int, symbols: Sequence[str]) -> None:
        super().__init__(puller, wide=wide, lanes=lanes, symbols=symbols)
        self.accesses: list[Access] = []
        self.share = 1.0  # of the elements, those that take the branch being written
        self.kept = 0  # registers of a thread that hold a row between passes
        self.scratch = 0  # 8-byte words of shared memory for its folds, each in a place of its own
        self.raw: dict[Node, str] = {}  # vectors as they were loaded, by node
        self.taps: dict[tuple[int, Index], list[int]] = {}  # the places of each window
        self.in_window = False
        self.sides: list[str] | None = None  # while windows are exchanged: the statements that take elements from neighbours
        self.compact = False  # whether to rather write loops: the entry is for what seldom happens
        self.early = False  # whether loads are to be asked for here and not where they are used

    def ref(self, node: Node) -> str:
        """The C expression of a node's value; writes what it needs first. Lane-dependent ones mention ``j``."""
        pending = [node]  # and not Python's stack, which is not as deep as chains are long
        while pending:
            last = pending[-1]
            missing = [] if self.written(last) else [n for n in self._before(last) if not self.written(n)]
            pending += reversed(missing)
            if not missing:
                pending.pop()
                if not self.written(last):
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
        return next(s.names[node] for s in self.scopes() if node in s.names)

    def is_array(self, node: Node) -> bool:
        """Whether the node is written as an array over the lanes here."""
        return not self.scope.lane and any(v.name == "j" for v in node.vars)

    def _write(self, node: Node) -> str:
        if node.kind == "case":
            return write_case(self, node)
        if node.kind == "load":
            return self._write_load(node)
        if node.kind == "tap":
            return write_tap(self, node)
        if node.kind == "reduce":
            raise AssertionError("a reduction is used before its pass")
        args = [self._name(a) for a in node.args]
        self.prepare(exprs_of(node))
        if node.payload in ("div", "div_by") and node.dtype.compute is dtypes.F32:
            if self.is_array(node):
                return self._divide_lanes(node, args)
            if _is_one(node.args[0]) and node.vars:
                return self.define(node, f"gf_rcp({args[1]})")
        return self.define(node, self._operation(node, args))

    def _divide_lanes(self, node: Node, args: list[str]) -> str:
        """One branch a vector for the quotients that need care, instead of one an element."""
        x, by = args[0], args[1]
        rare = self.fresh("rare")
        self.line(f"bool {rare} = false;")
        inverse = args[2] if len(args) > 2 else self.define_as(dtypes.F32, f"gf_rcp_near({by}, {rare})", array=True)
        quotient = f"gf_div_near({x}, {by}, {inverse}, {rare})"
        name = inverse if _is_one(node.args[0]) else self.define_as(dtypes.F32, quotient, array=True)
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
        self.prepare([address])
        pointer, size = f"p{number}", node.dtype.size
        if not self.is_array(node):
            self._note(node, pointer)
            return self.define(node, f"gf_up({self._element(node, pointer)})")
        if not vector_address(address, self.lanes):
            self.access(pointer, size, vector=False)
            return self.define(node, f"gf_up({pointer}[{self.index(address)}])")
        self.access(pointer, size, vector=True)
        raw, ctype = self.fresh("m"), node.dtype.c
        base = expr.substitute(address, {Var("j", self.lanes): 0})
        how = "early" if self.early else "vec"
        self.line(f"const auto {raw} = gf_load_{how}<{ctype}, {self.lanes}>({pointer} + {self.index(base)});")
        self.raw[node] = raw
        if node.dtype.is_small_float:
            return self.define(node, f"gf_up({raw}.v[j])")
        return f"{raw}.v[j]"

    def _element(self, node: Node, pointer: str) -> str:
        place = self.index(node.payload[1])
        return f"gf_load_early<{node.dtype.c}, 1>({pointer} + {place}).v[0]" if self.early else f"{pointer}[{place}]"

    def _note(self, node: Node, pointer: str) -> None:
        if any(v.name == "j" for v in node.vars) or (self.lanes == 1 and node.vars):  # one element at a time
            self.access(pointer, node.dtype.size, vector=False)

    def access(self, pointer: str, size: int, *, vector: bool) -> None:
        """Records that every lane touches ``size`` bytes through ``pointer``."""
        self.accesses.append(Access(pointer, size * self.lanes, size * self.lanes * self.share, vector, self.in_window))

    def written(self, node: Node) -> bool:
        """Whether a node's expression is at hand: a literal, or a name seen here."""
        return node.kind == "const" or any(node in s.names for s in self.scopes())


def _is_one(node: Node) -> bool:
    return node.kind == "const" and node.payload == 1.0
