"""Index expressions in C: shared quotients get a name, lanes that divide neighbouring numbers share one division."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from graphfuse.codegen.text import Writer
from graphfuse.ir import expr
from graphfuse.ir.expr import Atom, Call, Dim, Sym, Var
from graphfuse.schedule.scalar import Node, Puller


class IntegerWriter(Writer, ABC):
    """Writes index expressions. ``wide``: they are 64 bits. ``lanes``: elements of a vector."""

    def __init__(self, puller: Puller, *, wide: bool, lanes: int, symbols: Sequence[str]) -> None:
        super().__init__(lane=lanes == 1)
        self.puller = puller
        self.lanes = lanes
        self.wide = wide
        self.index_type = "gf_i64" if wide else "gf_i32"
        self._symbols = {name: f"s{k}" for k, name in enumerate(symbols)}

    @abstractmethod
    def ref(self, node: Node) -> str:
        """The C expression of a node's value: run-time indices are read from memory."""

    def names_in(self, item: Dim) -> set[str]:
        """The loop indices that an index expression depends on, through run-time indices too."""
        found: set[str] = set()
        for v in expr.variables(item):
            found |= {w.name for w in self.puller.gathers[v].vars} if v in self.puller.gathers else {v.name}
        return found

    def prepare(self, items: Sequence[Dim]) -> None:
        """Writes what index expressions need before they can be written: run-time indices, shared quotients."""
        for item in items:
            for v in sorted(expr.variables(item), key=lambda v: v.name):
                if v in self.puller.gathers:
                    self.ref(self.puller.gathers[v])
            for atom in _calls(item):
                self._name_call(atom)

    def _name_call(self, atom: Call) -> None:
        if not self.scope.lane and "j" in self.names_in(expr.Expr({(atom,): 1})):
            if self._neighbours(atom):  # differs by lane, but lane 0 is worth a name
                first = expr.substitute(atom.left, {Var("j", self.lanes): 0})
                for fn in ("//", "%"):
                    self._name_first(Call(fn, first, atom.right))
            return
        self._name_first(atom)

    def _name_first(self, atom: Call) -> None:
        if self._find(atom) is None:
            text = self._call(atom)
            name = self.fresh("t")
            self.line(f"const {self.index_type} {name} = {text};")
            self.scope.integers[atom] = name

    def _find(self, atom: Atom) -> str | None:
        """The name of a quotient that is written already."""
        return next((s.integers[atom] for s in self.scopes() if atom in s.integers), None)

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
        named = self._find(atom)
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
        return self._find(Call(fn, left, right)) or text

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
