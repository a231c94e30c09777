"""Names of run-time dimensions: valid identifiers, unique in a model, the same on every run."""

from __future__ import annotations

import keyword
import re

from graphfuse.ir import expr
from graphfuse.ir.expr import Expr

_RESERVED = frozenset({"max", "min"})  # functions in the text of expressions
_LONGEST = 40


class Names:
    """Hands out symbols. A model's own name for a dimension always gives the same symbol, no two names share one."""

    def __init__(self) -> None:
        self._by_text: dict[str, Expr] = {}
        self._taken: set[str] = set()

    def named(self, text: str) -> Expr:
        """The symbol of a dim_param."""
        if text not in self._by_text:
            self._by_text[text] = self.fresh(text)
        return self._by_text[text]

    def fresh(self, hint: str) -> Expr:
        """A symbol that equals no other, named after ``hint``."""
        base = identifier(hint)
        name, count = base, 0
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return expr.sym(name)

    def find(self, text: str) -> Expr | None:
        """The symbol of a dim_param that a graph input had, else None."""
        return self._by_text.get(text)


def identifier(text: str) -> str:
    """``text`` as a Python identifier of ASCII letters that is no keyword."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")[:_LONGEST] or "d"
    if name[0].isdigit() or keyword.iskeyword(name) or name in _RESERVED:
        name = f"d_{name}"
    return name
