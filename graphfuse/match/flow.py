"""How data flows between the nodes of a graph, by position: who feeds whom, and which values leave a set of nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir

from graphfuse.graph.bodies import bodies, nested


class Flow:
    """The nodes of a graph in order, then those of the bodies in it, and the edges between them all.

    ``preds[i]`` are the positions of the nodes that node ``i`` needs, in order of first use and without repeats. A node with
    bodies needs whatever they capture. ``scope[i]`` is the number of the node's graph in ``graphs``, of which 0 is the main
    one; graph ``k`` has the positions from ``starts[k]`` on.
    """

    def __init__(self, graph: onnx_ir.Graph) -> None:
        self.graphs: list[onnx_ir.Graph] = [graph]
        self.starts: list[int] = []
        self.scope: list[int] = []
        self.nodes: list[onnx_ir.Node] = []
        for number, own in enumerate(self.graphs):  # which grows meanwhile
            self.starts.append(len(self.nodes))
            self.nodes += own
            self.scope += [number] * len(own)
            self.graphs += [body for node in own for _, body in bodies(node)]
        self.place = {node: i for i, node in enumerate(self.nodes)}
        self.graph_outputs = {v for g in self.graphs for v in g.outputs}
        self.readers: dict[onnx_ir.Value, list[int]] = {}
        self.preds: list[list[int]] = [self._connect(i, node) for i, node in enumerate(self.nodes)]
        self.succs: list[list[int]] = [[] for _ in self.nodes]
        for i, before in enumerate(self.preds):
            for p in before:
                self.succs[p].append(i)

    def _connect(self, index: int, node: onnx_ir.Node) -> list[int]:
        needed: dict[int, None] = {}
        for value in dict.fromkeys(outer_reads(node)):
            self.readers.setdefault(value, []).append(index)
            producer = value.producer()
            if producer is not None and producer in self.place:
                needed[self.place[producer]] = None
        return list(needed)

    def of_graph(self, number: int) -> range:
        """The positions of the nodes of one graph."""
        ends = [*self.starts[1:], len(self.nodes)]
        return range(self.starts[number], ends[number])

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


def outer_reads(node: onnx_ir.Node) -> Iterator[onnx_ir.Value]:
    """The inputs of ``node``, then the values from around its bodies that those read."""
    own = {graph for _, body in bodies(node) for graph in nested(body)}
    return (v for v in read_values(node) if not own or v.graph not in own)


def read_values(node: onnx_ir.Node) -> Iterator[onnx_ir.Value]:
    """The inputs of ``node``, then the values that its subgraphs read (their own among them)."""
    yield from (v for v in node.inputs if v is not None)
    for _, graph in bodies(node):
        yield from _read_by_graph(graph)


def _read_by_graph(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    for node in graph:
        yield from read_values(node)
    yield from (v for v in graph.outputs if v is not None)


def node_ids(nodes: list[onnx_ir.Node]) -> list[str]:
    """A stable, unique name for each node of a ``Flow``: its own where that is unique in its graph, else ``#<position> <op_type>``.

    Before the name of a node in a body stand that of the node with the body and the attribute: ``#loop/body/add``.
    """
    count: dict[tuple[onnx_ir.Graph | None, str], int] = {}
    for node in nodes:
        key = (_graph(node), node.name or "")
        count[key] = count.get(key, 0) + 1
    ids: list[str] = []
    inside: dict[onnx_ir.Graph | None, str] = {}
    seen: dict[onnx_ir.Graph | None, int] = {}
    for node in nodes:
        graph = _graph(node)
        position = seen[graph] = seen.get(graph, -1) + 1
        name = node.name or ""
        own = name and count[graph, name] == 1 and not name.startswith("#")
        plain = name if own else f"#{position} {node.op_type}"
        ids.append(f"{inside[graph]}/{plain}" if graph in inside else plain)
        inside.update((body, f"{'' if graph in inside else '#'}{ids[-1]}/{label}") for label, body in bodies(node))
    return ids if len(set(ids)) == len(ids) else [f"#{i} {name}" for i, name in enumerate(ids)]


def _graph(node: onnx_ir.Node) -> onnx_ir.Graph | None:
    return node.graph if isinstance(node.graph, onnx_ir.Graph) else None
