"""How data flows between the nodes of a graph, by position: who feeds whom, and which values leave a set of nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir


class Flow:
    """The nodes of one graph in order, and the edges between them.

    ``preds[i]`` are the positions of the nodes that node ``i`` needs, in order of first use and without repeats. A node with
    subgraphs needs whatever they capture.
    """

    def __init__(self, graph: onnx_ir.Graph) -> None:
        self.nodes: list[onnx_ir.Node] = list(graph)
        self.place = {node: i for i, node in enumerate(self.nodes)}
        self.graph_outputs = set(graph.outputs)
        self.readers: dict[onnx_ir.Value, list[int]] = {}
        self.preds: list[list[int]] = [self._connect(i, node) for i, node in enumerate(self.nodes)]
        self.succs: list[list[int]] = [[] for _ in self.nodes]
        for i, before in enumerate(self.preds):
            for p in before:
                self.succs[p].append(i)

    def _connect(self, index: int, node: onnx_ir.Node) -> list[int]:
        needed: dict[int, None] = {}
        for value in dict.fromkeys(read_values(node)):
            self.readers.setdefault(value, []).append(index)
            producer = value.producer()
            if producer is not None and producer in self.place:
                needed[self.place[producer]] = None
        return list(needed)

    def outputs(self, members: Collection[int]) -> list[onnx_ir.Value]:
        """Values made inside ``members`` (positions) that the graph or a node outside needs, in order of making."""
        inside = members if isinstance(members, (set, frozenset)) else set(members)
        return [v for i in sorted(inside) for v in self.nodes[i].outputs if self.escapes(v, inside)]

    def shared_readers(self) -> list[list[int]]:
        """For each run-time value that several nodes read, those nodes in order; values in order of their first reader."""
        live = (r for v, r in self.readers.items() if len(r) > 1 and not v.is_initializer() and v.const_value is None)
        return sorted(live)

    def escapes(self, value: onnx_ir.Value, inside: Collection[int]) -> bool:
        """Whether ``value`` is a graph output or read outside ``inside``."""
        return value in self.graph_outputs or value.is_graph_output() or any(r not in inside for r in self.readers.get(value, ()))


def read_values(node: onnx_ir.Node) -> Iterator[onnx_ir.Value]:
    """The inputs of ``node``, then the values that its subgraphs read (their own among them)."""
    yield from (v for v in node.inputs if v is not None)
    for attribute in node.attributes.values():
        if attribute.type == onnx_ir.AttributeType.GRAPH:
            yield from _read_by_graph(attribute.as_graph())
        elif attribute.type == onnx_ir.AttributeType.GRAPHS:
            for graph in attribute.as_graphs():
                yield from _read_by_graph(graph)


def _read_by_graph(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    for node in graph:
        yield from read_values(node)
    yield from (v for v in graph.outputs if v is not None)


def node_ids(nodes: list[onnx_ir.Node]) -> list[str]:
    """A stable, unique name for each node: its own where that is unique, else ``#<position> <op_type>``."""
    count: dict[str, int] = {}
    for node in nodes:
        count[node.name or ""] = count.get(node.name or "", 0) + 1
    own = [bool(n.name) and count[n.name or ""] == 1 and not (n.name or "").startswith("#") for n in nodes]
    return [str(n.name) if mine else f"#{i} {n.op_type}" for i, (n, mine) in enumerate(zip(nodes, own, strict=True))]
