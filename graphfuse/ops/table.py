"""Where ONNX ops meet the fused program: one entry each, looked up by domain and op_type.

An entry's lowering *is* the op's type rule, shape rule and meaning: it builds the outputs with ``ir.Builder``. Families
register their entries with ``@op`` (a function) or ``register`` (rows of data) when they are imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from graphfuse.ir.builder import Val
from graphfuse.ir.errors import ProgramError, Refused
from graphfuse.ops.call import OpCall

Lowering = Callable[[OpCall], "Sequence[Val] | Val"]
KINDS = ("pointwise", "movement", "reduction", "norm", "quant")
FAMILIES = ("pointwise", "activations", "movement", "enlarge", "indexing", "reductions", "norms", "pools", "scans", "quant")


@dataclass(frozen=True)
class Entry:
    """One ONNX op.

    ``known`` lists the inputs that must be known when the graph is rewritten (axes, shapes, pads...): a lowering reads them
    with ``call.value`` and they never become inputs of a program. ``kind`` is one of ``KINDS``.
    """

    op_type: str
    kind: str
    rule: Lowering
    known: tuple[int, ...] = ()
    domain: str = ""

    def lower(self, call: OpCall) -> list[Val]:
        """The outputs of a node. Raises Refused, and no other GraphfuseError, when this node cannot be built.

        With ``exact_rounding`` small floats are rounded where the node ends, not at each step inside it.
        """
        builder = call.b
        exact, builder.exact_rounding = builder.exact_rounding, False
        try:
            made = self.rule(call)
        except ProgramError as error:
            raise Refused("not-provable", f"{self.op_type}: {error}") from error
        finally:
            builder.exact_rounding = exact
        results = [made] if isinstance(made, Val) else list(made)
        return [builder.round(r) for r in results] if exact else results

    build = lower


_TABLE: dict[tuple[str, str], Entry] = {}


def register(op_type: str, kind: str, rule: Lowering, *, known: Iterable[int] = (), domain: str = "") -> None:
    """Adds an entry; an op is entered once."""
    assert kind in KINDS, kind
    assert (domain, op_type) not in _TABLE, op_type
    _TABLE[domain, op_type] = Entry(op_type, kind, rule, tuple(known), domain)


def is_new(op_type: str) -> bool:
    """Whether no family so far has entered this op of the standard domain."""
    return ("", op_type) not in _TABLE


def op(*op_types: str, kind: str, known: Iterable[int] = (), domain: str = "") -> Callable[[Lowering], Lowering]:
    """Registers the function below it as the lowering of ``op_types``."""

    def add(rule: Lowering) -> Lowering:
        for op_type in op_types:
            register(op_type, kind, rule, known=known, domain=domain)
        return rule

    return add


@cache
def _loaded() -> dict[tuple[str, str], Entry]:
    for family in FAMILIES:
        importlib.import_module(f"graphfuse.ops.{family}")
    importlib.import_module("graphfuse.ops.functions").enter_functions()
    return _TABLE


def lookup(domain: str, op_type: str) -> Entry | None:
    """The entry of an op, None for one that is not in the table. The domains "" and "ai.onnx" are the same."""
    return _loaded().get(("" if domain == "ai.onnx" else domain, op_type))


def entries() -> tuple[Entry, ...]:
    """All entries, by domain and name."""
    return tuple(entry for _, entry in sorted(_loaded().items()))


__all__ = ["Entry", "OpCall", "entries", "lookup", "op", "register"]
