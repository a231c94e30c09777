"""Regions in bodies of If, Loop and Scan: what they may take in, both forms, restoring, ids and plans."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphfuse.check.run import check
from graphfuse.graph.facts import Facts
from graphfuse.ir import loads
from graphfuse.match import export_plugin, restore_model, rewrite_model
from graphfuse.match.explain import explain_model
from graphfuse.match.planfile import parse_plan, plan_text
from graphfuse.session import Session
from tests.texts import assert_law, assert_same_results, feeds_of, model, proto, region_errors, regions, text

BRANCHES = """h = Relu(x)
y = If (c) <
  then_branch = t () => (float[u,v] o1) {
    one = Constant <value = float {1.0}> ()
    k = Add(h, one)
    s = Sigmoid(k)
    o1 = Mul(s, k)
  },
  else_branch = e () => (float[u,v] o2) {
    one = Constant <value = float {2.0}> ()
    k = Mul(h, one)
    s = Tanh(k)
    o2 = Sub(s, g)
  }
>"""
IF = (BRANCHES, "float[N,8] x, bool c", "float[P,Q] y", "float[8] g = {1,2,3,4,5,6,7,8}")
LOOP = (
    """go = Constant <value = bool {1}> ()
y, z = Loop (m, go, x) <
  body = b (int64 i, bool ci, float[k,l] v) => (bool co, float[k2,l2] w, float[k3,l3] row) {
    co = Identity(ci)
    s = Sigmoid(v)
    p = Mul(s, v)
    w = Add(p, x)
    row = Neg(w)
  }
>""",
    "float[N,8] x, int64 m",
    "float[P,Q] y, float[R,P,Q] z",
    "",
)
SCAN = (
    """y, z = Scan <num_scan_inputs = 1, body = b (float[k] st, float[l] v) => (float[k2] nx, float[l2] o) {
    s = Tanh(v)
    nx = Add(s, st)
    o = Mul(nx, g)
  }> (a, x)""",
    "float[N,8] x, float[8] a",
    "float[8] y, float[N,8] z",
    "float[8] g = {1,2,3,4,5,6,7,8}",
)
NESTED = (
    """h = Exp(x)
y = If (c) <
  then_branch = t () => (float[u,v] o1) {
    k = Neg(h)
    q = Exp(k)
    o1 = If (d) <
      then_branch = tt () => (float[u,v] o3) { r = Add(q, h)
        o3 = Tanh(r) },
      else_branch = te () => (float[u,v] o4) { o4 = Identity(q) }
    >
  },
  else_branch = e () => (float[u,v] o2) { o2 = Identity(h) }
>""",
    "float[N,8] x, bool c, bool d",
    "float[P,Q] y",
    "",
)
EVERY = {
    "if": (IF, ["Add Sigmoid Mul", "Mul Tanh Sub"]),
    "loop": (LOOP, ["Sigmoid Mul Add Neg"]),
    "scan": (SCAN, ["Tanh Add Mul"]),
    "nested": (NESTED, ["Neg Exp", "Add Tanh"]),
}


def made(case: tuple[str, str, str, str]) -> ir.Model:
    body, inputs, outputs, weights = case
    return model(body, inputs, outputs, weights=weights)


@pytest.mark.parametrize("name", EVERY)
def test_regions_in_bodies(name: str) -> None:
    given, wanted = EVERY[name]
    original = made(given)
    found = rewrite_model(original)
    assert regions(found) == wanted
    assert {r.rule for r in found.refusals} <= {"single-op"}
    reference = proto(original)
    for seed in range(4):
        feeds = feeds_of(reference, seed=seed)
        assert_same_results(reference, found, feeds)
        assert max(region_errors(found, feeds).values()) < 1e-6
        assert check(reference, found.model, device="numpy", inputs=feeds).passed


@pytest.mark.parametrize("name", EVERY)
def test_the_law_of_restoring(name: str) -> None:
    given, wanted = EVERY[name]
    found = rewrite_model(made(given))
    assert_law(found, "auto")
    restored = restore_model(found.model)
    assert not restored.functions and all(n.domain != "graphfuse" for n in restored.graph.all_nodes())
    exported = export_plugin(found.model)
    assert exported.plugin_layers == len(wanted) and not exported.inlined
    assert all(n.domain == "" or n.op_type == "FusedRegion" for n in exported.model.graph.all_nodes())


@pytest.mark.parametrize("name", EVERY)
def test_a_session_runs_either_form(name: str) -> None:
    original = made(EVERY[name][0])
    found = rewrite_model(original)
    reference = proto(original)
    feeds = feeds_of(reference, seed=1)
    want = Session(reference, "numpy").run(feeds)
    for form in (found.model, export_plugin(found.model).model):
        got = Session(proto(form), "numpy").run(feeds)
        assert all(np.array_equal(want[k], got[k]) for k in want)


def test_check_says_how_bodies_ran() -> None:
    original = made(IF)
    notes = check(proto(original), rewrite_model(original).model, device="numpy", inputs=feeds_of(proto(original))).notes
    assert any("2 regions in bodies of If, Loop or Scan ran as their original nodes" in n for n in notes)


def test_ids_name_the_way_in_and_plans_take_them() -> None:
    original = made(NESTED)
    found = rewrite_model(original)
    assert [r.nodes for r in found.regions] == [
        ["##1 If/then_branch/#0 Neg", "##1 If/then_branch/#1 Exp"],
        ["##1 If/then_branch/#2 If/then_branch/#0 Add", "##1 If/then_branch/#2 If/then_branch/#1 Tanh"],
    ]
    plan = parse_plan(plan_text(found.plan))
    assert text(rewrite_model(original, plan=plan).model) == text(found.model)
    plan.regions[0].enabled = False
    assert regions(rewrite_model(original, plan=plan)) == ["Add Tanh"]
    said = explain_model(original, "##1 If/then_branch/#1 Exp")[0]
    assert (said.rule, said.region, said.together) == ("fused", 1, ["##1 If/then_branch/#0 Neg"])


def test_counts_hold_bodies() -> None:
    report = rewrite_model(made(IF)).report
    assert (report["nodes_before"], report["nodes_after"]) == (8, 4)
    assert (report["small_ops"], report["small_ops_fused"]) == (7, 6)


def test_nothing_merges_across_the_edge_of_a_body() -> None:
    """The value that a branch captures, and the branch's own ops, would be one chain without the If between."""
    found = rewrite_model(made(IF), policy="aggressive")
    assert regions(found) == ["Relu", "Add Sigmoid Mul", "Mul Tanh Sub"]


def test_a_path_through_a_body_keeps_regions_apart() -> None:
    body = """a = Exp(x)
b = Neg(a)
t = If (c) <
  then_branch = tb () => (float[N,8] o1) { o1 = Conv(i, k) },
  else_branch = eb () => (float[N,8] o2) { o2 = Identity(b) }
>
y = Add(t, a)"""
    body = body.replace("o1 = Conv(i, k)", "o1 = MatMul(b, k)")
    original = model(body, "float[N,8] x, bool c", weights="float[8,8] k = {" + ",".join(["0.1"] * 64) + "}")
    found = rewrite_model(original, policy="aggressive")
    assert sorted(regions(found)) == ["Add", "Exp Neg", "Identity"]
    for seed in range(4):
        assert_same_results(proto(original), found, feeds_of(proto(original), seed=seed))


GROWING = (
    """go = Constant <value = bool {1}> ()
e = Constant <value = float[1] {1.0}> ()
y = Loop (m, go, e) <
  body = b (int64 i, bool ci, float[k] v) => (bool co, float[l] w) {
    co = Identity(ci)
    n = Neg(v)
    s = Exp(n)
    w = Concat <axis = 0> (s, e)
  }
>""",
    "int64 m",
    "float[P] y",
    "",
)


def test_a_carried_shape_that_changes_is_not_assumed() -> None:
    """The first run sees one element; each run adds one. A kernel for one element would be wrong from the second run on."""
    original = made(GROWING)
    found = rewrite_model(original)
    assert regions(found) == ["Neg Exp Concat"]
    ((dtype, shape),) = loads(found.regions[0].spec).params
    assert dtype.name == "f32" and [str(d) for d in shape] == ["d0"]
    reference = proto(original)
    assert_same_results(reference, found, {"m": np.array(4, np.int64)})


def test_a_carried_shape_that_stays_is_proven() -> None:
    original = made(LOOP)
    facts = Facts(original)
    carried = next(n for n in original.graph if n.op_type == "Loop").attributes["body"].as_graph().inputs[2]
    assert facts.shape(carried) == facts.shape(original.graph.inputs[0])


def test_a_branch_that_is_not_taken_implies_nothing() -> None:
    """``min(N, 4)`` meets ``N`` in the branch alone: outside they stay two sizes."""
    body = """s = Shape(x)
four = Constant <value = int64[1] {4}> ()
m = Min(s, four)
z = Constant <value = int64[1] {0}> ()
p = Slice(x, z, m)
q = Neg(p)
t = If (c) <
  then_branch = tb () => (float[u] o1) { o1 = Add(p, x) },
  else_branch = eb () => (float[u] o2) { o2 = Identity(p) }
>
y = Exp(q)"""
    original = model(body, "float[N] x, bool c", "float[u] y, float[u] t")
    facts = Facts(original)
    sliced = next(n for n in original.graph if n.op_type == "Slice").outputs[0]
    assert str(facts.shape(sliced)) != str(facts.shape(original.graph.inputs[0]))
    found = rewrite_model(original, policy="aggressive")
    assert_same_results(proto(original), found, {"x": np.arange(9, dtype=np.float32), "c": np.array(False)})


def test_constants_of_two_branches_may_share_a_name() -> None:
    found = rewrite_model(made(IF))
    restored = restore_model(found.model)
    onnx.checker.check_model(proto(restored), full_check=True)
    assert_same_results(proto(made(IF)), rewrite_model(restored), feeds_of(proto(made(IF)), seed=2))
