"""Cuts a graph into stages: groups of unfused nodes for ONNX Runtime, and the fused nodes between them.

A node's stage number is even where ONNX Runtime runs it and odd where a device does, and at least that of everything
it reads; crossing from one kind to the other adds one. Nodes of one number can run together, because a path that leaves
the group and comes back would have raised the number. One walk in topological order finds them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir

from graphfuse.session.fused import is_fused

Reads = Callable[[onnx_ir.Node], Sequence[onnx_ir.Value]]


@dataclass(frozen=True)
class Stage:
    """Nodes that run together, in topological order. ``fused`` says whether a device runs them or ONNX Runtime."""

    fused: bool
    nodes: tuple[onnx_ir.Node, ...]


def read_values(node: onnx_ir.Node) -> Iterator[onnx_ir.Value]:
    """Every value that a node reads, those that its subgraphs capture from around it included."""
    yield from (v for v in node.inputs if v is not None)
    for graph in _subgraphs(node):
        for inner in graph:
            yield from read_values(inner)
        yield from graph.outputs  # a branch may hand out a captured value without a node


def walk(node: onnx_ir.Node) -> Iterator[onnx_ir.Node]:
    """The node, and every node of its subgraphs."""
    yield node
    for graph in _subgraphs(node):
        for inner in graph:
            yield from walk(inner)


def _subgraphs(node: onnx_ir.Node) -> Iterator[onnx_ir.Graph]:
    for attr in node.attributes.values():
        if isinstance(attr, onnx_ir.Attr) and not attr.is_ref():
            if attr.type == onnx_ir.AttributeType.GRAPH:
                yield attr.as_graph()
            elif attr.type == onnx_ir.AttributeType.GRAPHS:
                yield from attr.as_graphs()


def outer_reads(node: onnx_ir.Node, graph: onnx_ir.Graph) -> list[onnx_ir.Value]:
    """The values of ``graph`` that a node of it reads, each once, in order of first use."""
    return list(dict.fromkeys(v for v in read_values(node) if v.name and v.graph is graph))


def live_nodes(graph: onnx_ir.Graph, reads: Reads) -> list[onnx_ir.Node]:
    """The nodes that an output needs, in order. What only a fused node's function body reads (a shape, say) is not needed."""
    needed = set(graph.outputs)
    live = []
    for node in reversed(graph):
        if any(v in needed for v in node.outputs):
            live.append(node)
            needed.update(reads(node))
    return live[::-1]


def split(nodes: Iterable[onnx_ir.Node], reads: Reads) -> list[Stage]:
    """The stages in the order in which they run. ``nodes`` are in topological order."""
    number: dict[onnx_ir.Node, int] = {}
    groups: dict[int, list[onnx_ir.Node]] = {}
    for node in nodes:
        parity = int(is_fused(node))
        before = [number[p] for v in reads(node) if (p := v.producer()) is not None]
        own = max((b + (b % 2 != parity) for b in before), default=parity)
        number[node] = own
        groups.setdefault(own, []).append(node)
    return [Stage(n % 2 == 1, tuple(groups[n])) for n in sorted(groups)]


def last_uses(stages: list[Stage], graph: onnx_ir.Graph, reads: Reads) -> list[list[str]]:
    """For each stage the names of values that nothing reads after it, so that they can be dropped."""
    kept = {v.name for v in graph.outputs}
    last: dict[str, int] = {}
    for index, stage in enumerate(stages):
        for node in stage.nodes:
            for value in (*reads(node), *node.outputs):
                if value.name and value.name not in kept:
                    last[value.name] = index
    drops: list[list[str]] = [[] for _ in stages]
    for name, index in last.items():
        drops[index].append(name)
    return drops
