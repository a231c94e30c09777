"""Bodies of If, Loop and Scan: where they hang, and what is known of their inputs and of what they hand out.

A branch of an If reads the values around it and nothing else. A Loop hands values from one run of its body to the next; they
have the same shape in every run only if that can be proven: ``Facts`` assumes it of the first run, walks through the body
and keeps what comes out as it went in. A Scan's state has one shape by its definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphfuse.graph.node_view import PartialShape
from graphfuse.ir.expr import Shape

BOOL, INT64 = ir.DataType.BOOL.value, ir.DataType.INT64.value
ShapeOf = Callable[[ir.Value], "Shape | None"]
CodeOf = Callable[[ir.Value], int]


@dataclass(frozen=True)
class Entry:
    """What is known of a body's input: type (0 if unknown), shape, and whether the shape is only assumed."""

    dtype: int = 0
    shape: PartialShape | None = None
    assumed: bool = False


def bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """The graphs in the attributes of ``node``, each with the attribute's name (and number, where it holds several)."""
    for name, attr in node.attributes.items():
        if attr.is_ref():
            continue
        if attr.type == ir.AttributeType.GRAPH:
            yield name, attr.as_graph()
        elif attr.type == ir.AttributeType.GRAPHS:
            yield from ((f"{name}.{number}", graph) for number, graph in enumerate(attr.as_graphs()))


def nested(graph: ir.Graph) -> Iterator[ir.Graph]:
    """The graph, and all bodies in it at any depth."""
    yield graph
    yield from graph.subgraphs()


def entries(node: ir.Node, body: ir.Graph, shape_of: ShapeOf, code_of: CodeOf) -> list[Entry]:
    """What is known of each input of ``body``."""
    makers = {"Loop": _loop_entries, "Scan": _scan_entries}
    maker = makers.get(node.op_type) if node.domain == "" else None
    found = maker(node, body, shape_of, code_of) if maker else []
    return [*found, *[Entry()] * len(body.inputs)][: len(body.inputs)]


def _loop_entries(node: ir.Node, body: ir.Graph, shape_of: ShapeOf, code_of: CodeOf) -> list[Entry]:
    """The counter and the condition have the rank that the body declares (0 or 1), the carried values any shape."""
    first = [Entry(code, _one(value)) for code, value in zip((INT64, BOOL), body.inputs, strict=False)]
    return first + [Entry() if v is None else Entry(code_of(v), shape_of(v), assumed=True) for v in node.inputs[2:]]


def _one(value: ir.Value) -> PartialShape:
    return (1,) * (len(value.shape) if value.shape is not None else 0)


def _scan_entries(node: ir.Node, body: ir.Graph, shape_of: ShapeOf, code_of: CodeOf) -> list[Entry]:
    count = node.attributes.get_int("num_scan_inputs", 0)
    axes = node.attributes.get_ints("scan_input_axes", ()) or (0,) * count
    states = len(node.inputs) - count
    found = []
    for index, value in enumerate(node.inputs):
        shape = None if value is None else shape_of(value)
        if index >= states and shape:
            axis = axes[index - states] % len(shape)
            shape = shape[:axis] + shape[axis + 1 :]
        found.append(Entry() if value is None else Entry(code_of(value), shape))
    return found


def exits(node: ir.Node, shape_of: ShapeOf, proven: Sequence[Shape | None]) -> list[PartialShape | None]:
    """Shapes of the outputs of an If, Loop or Scan as far as they follow from its bodies; ``proven``: of a Loop's carried values."""
    if node.op_type == "If":
        branches = [[shape_of(v) for v in graph.outputs] for _, graph in bodies(node)]
        return [_common(shapes) for shapes in zip(*branches, strict=False)]
    if node.op_type == "Loop":
        return list(proven)
    if node.op_type == "Scan":
        states = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
        return [None if v is None else shape_of(v) for v in node.inputs[:states]]
    return []


def _common(shapes: Sequence[Shape | None]) -> PartialShape | None:
    first, *rest = shapes
    if first is None or any(s is None or len(s) != len(first) for s in rest):
        return None
    return tuple(d if all(s is not None and s[axis] == d for s in rest) else None for axis, d in enumerate(first))
