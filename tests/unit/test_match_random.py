"""Random graphs: regions are convex, the results stay, restoring is lossless."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from graphfuse.graph.load import load_model
from graphfuse.match import rewrite_model
from graphfuse.match.convex import Clusters
from graphfuse.match.flow import Flow, node_ids
from graphfuse.match.rewrite import prepare, select
from tests.texts import assert_law, assert_same_results, feeds_of, region_errors

UNARY = ("Relu", "Neg", "Tanh", "Abs", "Sigmoid", "Identity")
BINARY = ("Add", "Mul", "Sub", "Max")
WALLS = ("MatMul", "CumSum")


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """A graph over tensors of one shape, with walls, views, reductions, inner outputs and dead ends."""
    import numpy as np

    values, nodes = ["x", "q"], []
    for i in range(draw(st.integers(3, 22))):
        kind = draw(st.sampled_from(("unary", "unary", "binary", "binary", "binary", "wall", "turn", "rows", "columns", "halves")))
        pick = lambda: draw(st.sampled_from(values[-6:]))  # noqa: E731
        made = f"t{i}"
        if kind == "unary":
            nodes.append(helper.make_node(draw(st.sampled_from(UNARY)), [pick()], [made]))
        elif kind == "binary":
            nodes.append(helper.make_node(draw(st.sampled_from(BINARY)), [pick(), pick()], [made]))
        elif kind == "wall":
            op_type = draw(st.sampled_from(WALLS))
            nodes.append(helper.make_node(op_type, [pick(), "w" if op_type == "MatMul" else "one"], [made]))
        elif kind == "turn":
            nodes.append(helper.make_node("Transpose", [pick()], [made], perm=[1, 0]))
        elif kind in ("rows", "columns"):
            nodes.append(helper.make_node("ReduceMean", [pick()], [f"{made}m"], axes=[1 if kind == "rows" else 0]))
            nodes.append(helper.make_node("Sub", [pick(), f"{made}m"], [made]))
        else:
            source = pick()
            nodes.append(helper.make_node("Split", [source], [f"{made}l", f"{made}h"], axis=1))
            nodes.append(helper.make_node("Concat", [f"{made}h", f"{made}l"], [made], axis=1))
        values.append(made)
    outputs = sorted({values[-1], *draw(st.lists(st.sampled_from(values[2:]), max_size=3))})
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [6, 6])  # noqa: E731
    weights = [
        numpy_helper.from_array((np.arange(36).reshape(6, 6) % 7 - 3).astype(np.float32) / 8, "w"),
        numpy_helper.from_array(np.int64(1), "one"),
    ]
    graph = helper.make_graph(nodes, "g", [info("x"), info("q")], [info(o) for o in outputs], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@settings(max_examples=60)
@given(graphs(), st.sampled_from(["auto", "aggressive"]))
def test_random_graphs(proto: onnx.ModelProto, policy: str) -> None:
    given_model = load_model(proto)
    found = rewrite_model(given_model, policy=policy)
    assert_regions_are_legal(given_model, policy)
    feeds = feeds_of(proto)
    assert_same_results(proto, found, feeds)
    assert max(region_errors(found, feeds).values(), default=0.0) < 1e-5
    assert_law(found, policy)


def assert_regions_are_legal(given_model: ir.Model, policy: str) -> None:
    """Regions are disjoint, each is convex in the graph, and shrunk to points they leave no cycle."""
    prepared = prepare(given_model)
    selection = select(prepared, policy=policy)
    flow = prepared.context.flow
    groups = [set(r.members) for r in selection.regions]
    assert sum(map(len, groups)) == len(set().union(*groups))
    for group in groups:
        below: set[int] = set()
        for i in range(len(flow.nodes)):
            if any(p in below or p in group for p in flow.preds[i]) and i not in group:
                below.add(i)
        assert not any(p in below for i in group for p in flow.preds[i]), "a path leaves the region and comes back"
    Clusters(flow.preds, groups)
    assert len(set(node_ids(flow.nodes))) == len(flow.nodes)
    assert all(flow.outputs(g) for g in groups)


def test_flow_knows_what_subgraphs_capture() -> None:
    import onnx.parser

    source = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x, bool f) => (float[2] y) { a = Relu(x)
 y = If(f) <then_branch = t () => (float[2] b) { b = Neg(a) }, else_branch = e () => (float[2] c) { c = Exp(x) }> }"""
    flow = Flow(load_model(onnx.parser.parse_model(source)).graph)
    assert [n.op_type for n in flow.nodes] == ["Relu", "If", "Neg", "Exp"] and flow.scope == [0, 0, 1, 2]
    assert flow.preds == [[], [0], [0], []]
    assert [v.name for v in flow.outputs([0])] == ["a"]
