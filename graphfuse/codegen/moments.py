"""Mean and variance from one walk over a row.

The sum of the squares of ``x - m`` over a thread's elements is that about their own mean, plus their number times the square of
that mean's distance from ``m``. So a thread needs no ``m`` while it reads, and squares are summed in the pass that sums ``x``: the
row is not read again, or not computed on again. No digits are lost: a vector's squares are taken about its own mean, and vectors
are put together by Chan's formula, which only adds what is not negative; what all elements have in common is left out of that.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphfuse.codegen.text import compute_type
from graphfuse.schedule.kernel import direct_reductions
from graphfuse.schedule.rows import ROW
from graphfuse.schedule.scalar import Node, Puller

LEAST = 4  # lanes of a vector, so that putting it together with others costs little an element


@dataclass(frozen=True)
class Squares:
    """A sum of squares of ``x - about``, where ``about`` depends on the row alone."""

    x: Node
    about: Node


def squares(puller: Puller, root: Node) -> Squares | None:
    """What is summed, if it is the square of a difference from something of the row, and the rest needs no reduction."""
    if root.kind != "op" or root.payload != "mul" or root.args[0] is not root.args[1]:
        return None
    difference = root.args[0]
    if difference.kind != "op" or difference.payload != "sub" or not difference.dtype.is_float:
        return None
    x, about = difference.args
    if not _of_columns(x) or _of_columns(about) or direct_reductions(puller, x):
        return None
    return Squares(x, about)


def _of_columns(node: Node) -> bool:
    return any(v.name != ROW for v in node.vars)


class Moments:
    """The text of what one thread knows of its elements."""

    def __init__(self, x: Node, name: str, lanes: int) -> None:
        self.x = x
        self.name = name
        self.lanes = lanes
        self.ctype = compute_type(x.dtype)

    def start(self) -> str:
        """Declares it, of no elements."""
        return f"gf_moments<{self.ctype}, {self.lanes}> {self.name};"

    def step(self, value: str, number: str) -> str:
        """Takes in a vector, the thread's ``number``-th (in C)."""
        return f"{{ {self.ctype} x[{self.lanes}]; GF_LANES({self.lanes}) x[j] = {value}; {self.name}.add(x, {number}); }}"

    @property
    def total(self) -> str:
        """The sum of the thread's elements, in C."""
        return f"{self.name}.sum()"

    @property
    def count(self) -> str:
        """How many vectors there were, in C."""
        return f"{self.name}.vectors"

    def about(self, value: str) -> str:
        """The sum of squares of their differences from ``value``, in C."""
        return f"{self.name}.squares_about({value})"
