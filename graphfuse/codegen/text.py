"""Lines of a kernel in the making: nested blocks, the names that are seen in them, and what was done to memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from graphfuse.ir import dtypes
from graphfuse.ir.builder import Number
from graphfuse.ir.dtypes import DType
from graphfuse.ir.expr import Atom
from graphfuse.schedule.scalar import Index, Node

INDENT = "  "


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


class Writer:
    """Writes statements into nested blocks."""

    def __init__(self, *, lane: bool) -> None:
        self.scope = Scope(None, lane=lane)
        self._count = 0

    def scopes(self) -> Iterator[Scope]:
        """The current block and those around it."""
        scope: Scope | None = self.scope
        while scope is not None:
            yield scope
            scope = scope.parent

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
