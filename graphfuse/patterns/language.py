"""The words of the pattern language: matchers, each of which says what a value must be.

A matcher answers with the ways to go on, each a list of further questions, or with an ``Offence``: what was found instead.
It never walks the graph by itself; ``matching`` asks the questions and goes back to other ways when one fails. So
commutative operands and alternatives need no copies of a pattern. A matcher that stands at several places of a
pattern means the same value at all of them, or another computation of the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, Union

import onnx_ir as ir

from graphfuse.graph.facts import Facts, constant_tensor
from graphfuse.graph.node_view import attribute
from graphfuse.ir.dtypes import DType

COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min", "Sum", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"})
_EPSILON = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}
_MOST_LEAVES = 8


@dataclass(frozen=True)
class Offence:
    """What is wrong, and at which node (None: at an input or a constant)."""

    reason: str
    node: ir.Node | None = None


@dataclass(frozen=True)
class Found:
    """What is matched so far. ``nodes`` stand in order of matching; ``private`` are those that must serve nothing else."""

    values: Mapping[str, ir.Value] = field(default_factory=dict)
    named: Mapping[str, ir.Node] = field(default_factory=dict)
    seen: Mapping[Matcher, ir.Value] = field(default_factory=dict)
    nodes: tuple[ir.Node, ...] = ()
    shared: frozenset[ir.Node] = frozenset()

    def bind(self, name: str, value: ir.Value) -> Found:
        """With a name for ``value``."""
        return Found({**self.values, name: value}, self.named, self.seen, self.nodes, self.shared) if name else self

    def take(
        self, node: ir.Node, name: str = "", matcher: Matcher | None = None, value: ir.Value | None = None, *, shared: bool = False
    ) -> Found:
        """With one more node, under a name, and ``value`` as what ``matcher`` stands for."""
        return Found(
            self.values,
            {**self.named, name: node} if name else self.named,
            {**self.seen, matcher: value} if matcher is not None and value is not None else self.seen,
            self.nodes if node in self.nodes else (*self.nodes, node),
            self.shared | {node} if shared else self.shared,
        )


Goal = tuple["Matcher", Union["ir.Value", None]]
Step = tuple[Sequence[Goal], Found]
Answer = Union[Offence, "list[Step]"]


@dataclass(frozen=True)
class Scene:
    """The graph that is looked at."""

    facts: Facts

    def number(self, value: ir.Value | None) -> float | None:
        """The one element of a known value, else None."""
        if value is None or any(d != 1 for d in self.facts.shape(value) or ()) or constant_tensor(value) is None:
            return None
        known, dtype = self.facts.value(value), self.facts.dtype(value)
        return float(known.reshape(-1)[0]) if known is not None and known.size == 1 and dtype is not None else None

    def producer(self, value: ir.Value | None) -> ir.Node | None:
        """The node of ONNX's own domain that makes ``value``."""
        node = None if value is None else value.producer()
        return node if node is not None and node.domain in ("", "ai.onnx") else None


def near(wanted: float, dtype: DType | None, roundings: int = 2) -> Callable[[float], bool]:
    """Whether a number is ``wanted`` but for so many roundings to the type."""
    limit = abs(wanted) * roundings * _EPSILON.get(dtype.name if dtype else "", 0.0)
    return lambda number: abs(number - wanted) <= limit


class Matcher:
    """Base of all. Arithmetic between matchers, and with numbers, makes matchers of Add, Sub, Mul and Div nodes."""

    def steps(self, value: ir.Value | None, found: Found, scene: Scene) -> Answer:
        """The ways to go on at ``value``, or what is wrong with it."""
        raise NotImplementedError

    def __add__(self, other: Matcher | float) -> Matcher:
        return Op("Add", self, lift(other))

    def __sub__(self, other: Matcher | float) -> Matcher:
        return Op("Sub", self, lift(other))

    def __mul__(self, other: Matcher | float) -> Matcher:
        return Op("Mul", self, lift(other))

    def __truediv__(self, other: Matcher | float) -> Matcher:
        return Op("Div", self, lift(other))

    def __rtruediv__(self, other: float) -> Matcher:
        return Op("Div", lift(other), self)

    def __rsub__(self, other: float) -> Matcher:
        return Op("Sub", lift(other), self)

    __radd__, __rmul__ = __add__, __mul__

    def __or__(self, other: Matcher) -> Matcher:
        return Either(self, other)


def lift(item: Matcher | float) -> Matcher:
    """A number as the matcher of that constant."""
    return item if isinstance(item, Matcher) else Number(wanted=float(item))


@dataclass(frozen=True, eq=False)
class Var(Matcher):
    """Any value; under one name always the same one."""

    name: str

    def steps(self, value: ir.Value | None, found: Found, scene: Scene) -> Answer:
        """Binds the name, or compares with what it is bound to."""
        if value is None:
            return Offence(f"input {self.name} is left out")
        bound = found.values.get(self.name)
        if bound is None:
            return [((), found.bind(self.name, value))]
        return [((), found)] if bound is value else Offence(f"{value.name!r} stands where {bound.name!r} is wanted", value.producer())


@dataclass(frozen=True, eq=False)
class Number(Matcher):
    """A constant of one element: ``wanted``, or any that ``test`` likes."""

    name: str = ""
    wanted: float | None = None
    test: Callable[[float], bool] | None = None

    def steps(self, value: ir.Value | None, found: Found, scene: Scene) -> Answer:
        """Compares as exactly as the constant's type allows."""
        number = scene.number(value)
        reader = None if value is None else value.producer()
        what = repr(self.wanted) if self.wanted is not None else self.name or "a number"
        if value is None or number is None:
            return Offence(f"{getattr(value, 'name', None)!r} is no constant of one element, {what} is wanted", reader)
        fits = near(self.wanted, scene.facts.dtype(value)) if self.wanted is not None else self.test or math.isfinite
        return [((), found.bind(self.name, value))] if fits(number) else Offence(f"{number:.9g} is not {what}", reader)


@dataclass(frozen=True, eq=False)
class Weight(Matcher):
    """A constant of any shape, the same in every run."""

    name: str

    def steps(self, value: ir.Value | None, found: Found, scene: Scene) -> Answer:
        """Asks whether nobody can feed the value."""
        if value is None or constant_tensor(value) is None:
            return Offence(f"{getattr(value, 'name', None)!r} is no constant", None if value is None else value.producer())
        return Var(self.name).steps(value, found, scene)


class Op(Matcher):
    """Output ``output`` of a node of one of ``op_types`` whose inputs match; operands of commutative ops in any order.

    ``attrs`` are values of attributes, or tests of them (a test is given None for an absent one). ``more`` allows further
    inputs, such as axes. A node that is ``shared`` may serve others, too: it stays when the pattern's nodes go.
    """

    def __init__(
        self,
        op_types: str,
        *inputs: Matcher | float,
        name: str = "",
        output: int = 0,
        more: bool = False,
        shared: bool = False,
        **attrs: Any,
    ) -> None:
        self.op_types = frozenset(op_types.split("|"))
        self.inputs = tuple(lift(i) for i in inputs)
        self.name, self.output, self.more, self.shared, self.attrs = name, output, more, shared, attrs

    def steps(self, value: ir.Value | None, found: Found, scene: Scene) -> Answer:
        """The same value as before, or the node's inputs in each order."""
        if found.seen.get(self) is value and value is not None:
            return [((), found)]
        node = scene.producer(value)
        wrong = self._wrong(node, value)
        if wrong or node is None or value is None:
            return Offence(wrong, None if value is None else value.producer())
        now = found.take(node, self.name, self, value, shared=self.shared)
        given = [*node.inputs, *[None] * (len(self.inputs) - len(node.inputs))]
        swaps = node.op_type in COMMUTATIVE and len(self.inputs) == 2 and len(node.inputs) == 2 and given[0] is not given[1]
        orders = [given, given[::-1]] if swaps else [given]
        return [(list(zip(self.inputs, order, strict=False)), now) for order in orders]

    def _wrong(self, node: ir.Node | None, value: ir.Value | None) -> str:
        wanted = " or ".join(sorted(self.op_types))
        if node is None or value is None:
            return f"{getattr(value, 'name', None)!r} is an input or a constant, {wanted} is wanted"
        if node.op_type not in self.op_types:
            return f"{node.op_type} is not {wanted}"
        if value.index() != self.output:
            return f"output {value.index()} of {node.op_type} is read, output {self.output} is wanted"
        if len(node.inputs) > len(self.inputs) and not self.more:
            return f"{node.op_type} has {len(node.inputs)} inputs, {len(self.inputs)} are wanted"
        return next((f"{node.op_type} has {k} = {got!r}" for k, got, fits in self._attributes(node) if not fits), "")

    def _attributes(self, node: ir.Node) -> list[tuple[str, Any, bool]]:
        rows = []
        for name, wanted in self.attrs.items():
            attr = node.attributes.get(name)
            got = None if attr is None or attr.is_ref() else attribute(attr)
            rows.append((name, got, bool(wanted(got)) if callable(wanted) else got == wanted))
        return rows


class Either(Matcher):
    """One of several, tried in order; the others are come back to when what follows fails."""

    def __init__(self, *ways: Matcher) -> None:
        self.ways = ways

    def steps(self, value: ir.Value | None, found: Found, scene: Scene) -> Answer:
        """Each way."""
        return [([(way, value)], found) for way in self.ways]


class Maybe(Matcher):
    """``inner``, seen through one optional node of ``op_types`` with one input, such as a Cast."""

    def __init__(self, op_types: str, inner: Matcher, name: str = "") -> None:
        self.through = Op(op_types, inner, name=name)
        self.inner = inner

    def steps(self, value: ir.Value | None, found: Found, scene: Scene) -> Answer:
        """Through the node if there is one, then without."""
        node = scene.producer(value)
        direct: list[Step] = [([(self.inner, value)], found)]
        return [([(self.through, value)], found), *direct] if node is not None and node.op_type in self.through.op_types else direct


class Times(Matcher):
    """The product of ``factors`` and the constant ``scale``, however it is multiplied out.

    Mul, Div by constants and Pow by small whole numbers are taken apart as far as they serve nothing else.
    """

    def __init__(self, *factors: Matcher, scale: float = 1.0) -> None:
        self.factors, self.scale = factors, scale

    def steps(self, value: ir.Value | None, found: Found, scene: Scene) -> Answer:
        """The factors in every order, if the constants agree."""
        if value is None:
            return Offence("a factor is left out")
        leaves, scale, roundings, nodes = _taken_apart(value, scene)
        if len(leaves) != len(self.factors):
            return Offence(f"a product of {len(leaves)} factors, {len(self.factors)} are wanted", value.producer())
        now = found
        for node in nodes:
            now = now.take(node)
        orders = dict.fromkeys(permutations(leaves))
        last = (_Scale(scale, self.scale, roundings + 1), value)
        return [([*zip(self.factors, order, strict=True), last], now) for order in orders]


@dataclass(frozen=True, eq=False)
class _Scale(Matcher):
    """The constant factor of a product; asked about when the others are known to fit."""

    got: float
    wanted: float
    roundings: int

    def steps(self, value: ir.Value | None, found: Found, scene: Scene) -> Answer:
        """Compares as exactly as the type of the product allows."""
        dtype = None if value is None else scene.facts.dtype(value)
        if near(self.wanted, dtype, self.roundings)(self.got):
            return [((), found)]
        return Offence(f"the constant factor is {self.got:.9g}, {self.wanted:.9g} is wanted", None if value is None else value.producer())


def _taken_apart(value: ir.Value, scene: Scene) -> tuple[list[ir.Value], float, int, list[ir.Node]]:
    """The factors that are no constants, the product of the constants, how many they are, and the nodes between."""
    leaves: list[ir.Value] = []
    nodes: list[ir.Node] = []
    scale, roundings, pending = 1.0, 0, [value]
    while pending:
        item = pending.pop()
        number = scene.number(item)
        node = scene.producer(item)
        inner = [] if node is None or len(leaves) > _MOST_LEAVES else _inner_factors(node, scene)
        if number is not None:
            scale, roundings = scale * number, roundings + 1
        elif node is None or not inner or (item is not value and not _serves_one(item)):
            leaves.append(item)
        else:
            nodes.append(node)
            divisor = scene.number(node.inputs[1]) if node.op_type == "Div" else None
            if divisor:
                scale, roundings = scale / divisor, roundings + 1
            pending += inner[::-1]
    return leaves, scale, roundings, nodes


def _inner_factors(node: ir.Node, scene: Scene) -> list[ir.Value]:
    """The values whose product, but for a constant divisor, the node's output is; [] where it is none."""
    left, right = (*node.inputs, None, None)[:2]
    if len(node.inputs) != 2 or left is None or right is None:
        return []
    if node.op_type == "Mul":
        return [left, right]
    number = scene.number(right)
    if node.op_type == "Div" and number:
        return [left]
    return [left] * int(number) if node.op_type == "Pow" and number in (2.0, 3.0, 4.0) else []


def _serves_one(value: ir.Value) -> bool:
    return not value.is_graph_output() and len({use.node for use in value.uses()}) == 1
