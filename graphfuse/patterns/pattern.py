"""Patterns, what they find, and the nodes that they put in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from graphfuse.graph.facts import Facts
from graphfuse.graph.node_view import NodeView
from graphfuse.ir.dtypes import DType
from graphfuse.ir.expr import Shape
from graphfuse.patterns.language import Found, Matcher, Offence, Scene


@dataclass(frozen=True)
class Match:
    """A place in a graph where a pattern fits. ``nodes`` in the order of the graph, ``outputs`` as the pattern names them."""

    pattern: Pattern
    nodes: tuple[ir.Node, ...]
    outputs: tuple[ir.Value, ...]
    values: Mapping[str, ir.Value]
    named: Mapping[str, ir.Node]
    facts: Facts

    def __getitem__(self, name: str) -> ir.Value:
        """The value that a variable stands for. Raises KeyError where the matched alternative has none of this name."""
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values or name in self.named

    def dtype(self, name: str) -> DType | None:
        """The element type of a variable's value."""
        return self.facts.dtype(self.values[name])

    def shape(self, name: str) -> Shape | None:
        """The shape of a variable's value."""
        return self.facts.shape(self.values[name])

    def number(self, name: str) -> float:
        """The one element of a constant."""
        number = Scene(self.facts).number(self.values[name])
        assert number is not None, "only a Number binds this name"
        return number

    def view(self, name: str) -> NodeView:
        """A named node with what is known of its inputs and attributes."""
        node = self.named[name]
        return NodeView(node, self.facts.opset(node), self.facts.shape, self.facts.value)

    def wrong(self, name: str, reason: str) -> Offence:
        """A check's answer that names the offending node."""
        return Offence(reason, self.named.get(name))

    @property
    def opset(self) -> int:
        """The version of ONNX's own ops in this model."""
        return self.facts.opset(self.nodes[-1])


Check = Callable[[Match], "Offence | str | None"]
Rewrite = Callable[[Match, "Tape"], "ir.Value | Sequence[ir.Value]"]


@dataclass(frozen=True)
class Pattern:
    """Something worth knowing in a graph.

    ``outputs`` are matchers of the values that it makes; the first one is what a search begins at. ``check`` gives None where
    all conditions hold, else the reason. ``rewrite`` builds the same values in a better way; without one a pattern only
    recognises: regions are named after it by ``label``. A rewrite must not make anything that its pattern matches again.
    """

    name: str
    outputs: Matcher | tuple[Matcher, ...]
    summary: str = ""
    check: Check | None = None
    rewrite: Rewrite | None = None
    label: str = ""

    @property
    def roots(self) -> tuple[Matcher, ...]:
        """The matchers of the outputs."""
        return self.outputs if isinstance(self.outputs, tuple) else (self.outputs,)


@dataclass(frozen=True)
class Miss:
    """A place where a pattern nearly fits: ``matched`` nodes (and ``fitted`` questions) did, at ``node`` something is wrong."""

    pattern: str
    root: ir.Node
    node: ir.Node
    reason: str
    matched: int
    fitted: int = 0


@dataclass
class Tape:
    """Takes down the nodes of a rewrite, in order, under names that nothing else has."""

    stem: str
    taken: set[str]
    node_names: set[str]
    nodes: list[ir.Node] = field(default_factory=list)
    constants: list[ir.Value] = field(default_factory=list)
    moved: list[ir.Node] = field(default_factory=list)

    def op(self, op_type: str, *inputs: ir.Value | None, **attrs: int | float | str | Sequence[int]) -> ir.Value:
        """The output of a new node."""
        output = ir.Value(name=self._fresh(f"{self.stem}_{op_type.lower()}", self.taken))
        name = self._fresh(f"{self.stem}_{op_type.lower()}", self.node_names)
        made = ir.Node("", op_type, list(inputs), ir.convenience.convert_attributes(attrs), outputs=[output], name=name)
        self.nodes.append(made)
        return output

    def move(self, node: ir.Node) -> ir.Value:
        """The first output of a node that the graph has, at this place of the rewrite: all that it reads must come before."""
        self.nodes.append(node)
        self.moved.append(node)
        return node.outputs[0]

    def constant(self, array: np.ndarray) -> ir.Value:
        """A new initializer."""
        name = self._fresh(f"{self.stem}_constant", self.taken)
        tensor = ir.Tensor(array, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self.constants.append(value)
        return value

    def _fresh(self, wanted: str, taken: set[str]) -> str:
        name, count = wanted, 1
        while name in taken:
            count += 1
            name = f"{wanted}_{count}"
        taken.add(name)
        return name


def as_match(pattern: Pattern, found: Found, outputs: Sequence[ir.Value], facts: Facts, place: Mapping[ir.Node, int]) -> Match:
    """A finished search as a match."""
    nodes = sorted(found.nodes, key=lambda n: place.get(n, 0))
    return Match(pattern, tuple(nodes), tuple(outputs), found.values, found.named, facts)
