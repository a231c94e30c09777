"""The portable form: functions, names, order, values; and the structural cases from public bug reports."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphfuse.graph.load import load_model
from graphfuse.ir import GraphfuseError, loads
from graphfuse.match import Rewritten, export_plugin, is_fused, restore_model, rewrite_model
from graphfuse.match.names import ORIGIN_KEY, PARAMS_KEY, SPEC_KEY, onnx_op_names
from tests.conftest import SHARED_CASES, shared_cases
from tests.reports import case_runs
from tests.texts import assert_law, assert_same_results, feeds_of, model, op_types, proto, region_errors, regions, reloaded, text

LAYER = "a{i} = Neg({x})\nb{i} = Exp(a{i})\nm{i} = MatMul(b{i}, w)\n"
W = "float[8,8] w = {" + ", ".join(str((i * 7 % 13 - 6) / 32) for i in range(64)) + "}"


def test_equal_regions_share_one_function() -> None:
    body = LAYER.format(i=0, x="x") + LAYER.format(i=1, x="m0") + "y = Relu(m1)"
    found = rewrite_model(model(body, weights=W))
    assert regions(found) == ["Neg Exp", "Neg Exp"]
    assert len(found.model.functions) == 1
    calls = [n for n in found.model.graph if n.domain == "graphfuse"]
    assert calls[0].op_type == calls[1].op_type
    assert calls[0].name != calls[1].name


def test_regions_of_other_shapes_have_functions_of_their_own() -> None:
    body = "a = Relu(x)\ny = Exp(a)\nc = Relu(q)\nz = Exp(c)"
    found = rewrite_model(model(body, "float[N,8] x, float[N,9] q", "float[N,8] y, float[N,9] z"))
    assert len(found.model.functions) == 2


def test_bodies_hold_their_constants_and_axes() -> None:
    body = "a = Mul(x, two)\nr = Reshape(a, s)\nt = ReduceSum(r, ax)\ny = Neg(t)"
    weights = "float two = {2.0}, int64[3] s = {-1, 2, 4}, int64[1] ax = {2}"
    found = rewrite_model(model(body, outputs="float[N,2,1] y", weights=weights))
    assert regions(found) == ["Mul Reshape ReduceSum Neg"]
    (function,) = found.model.functions.values()
    assert [n.op_type for n in function].count("Constant") == 3
    assert len(function.inputs) == 1
    assert not found.model.graph.initializers, "constants that only the region reads are gone from the graph"


def test_weights_stay_in_the_graph_and_come_in_as_inputs() -> None:
    found = rewrite_model(model("a = Mul(x, g)\ny = Neg(a)", weights="float[8] g = {1,2,3,4,5,6,7,8}"))
    assert found.regions[0].inputs == ["x", "g"]
    assert list(found.model.graph.initializers) == ["g"]


def test_constants_that_others_read_too_stay() -> None:
    body = "a = Mul(x, two)\nc = Neg(a)\nm = MatMul(c, w)\nu = ScatterElements <axis = 1> (m, si, sv)\ny = Mul(u, two)"
    found = rewrite_model(model(body, weights=f"{W}, float two = {{2.0}}, int64[1,1] si = {{0}}, float[1,1] sv = {{9}}"))
    assert regions(found) == ["Mul Neg"]
    assert "two" in found.model.graph.initializers


def test_run_time_shapes_are_extra_inputs_of_the_function_only() -> None:
    body = """s = Shape(q)
c = Constant <value = int64[1] {0}> ()
n = Gather <axis = 0> (s, c)
k = Constant <value = int64[2] {2, 4}> ()
t = Concat <axis = 0> (n, k)
a = Relu(x)
r = Reshape(a, t)
y = Exp(r)"""
    given = model(body, "float[N,8] x, float[N,3] q", "float[N,2,4] y")
    found = rewrite_model(given)
    assert regions(found) == ["Relu Reshape Exp"]
    (function,) = found.model.functions.values()
    (call,) = [n for n in found.model.graph if n.domain == "graphfuse"]
    assert len(call.inputs) == len(function.inputs) == 2
    assert json.loads(function.metadata_props[PARAMS_KEY]) == [0]
    assert len(loads(function.metadata_props[SPEC_KEY]).params) == 1
    assert_same_results(proto(given), found, feeds_of(proto(given)))
    assert_law(found, "auto")


def test_names_and_order_of_inputs_and_outputs_stay() -> None:
    body = "z = Relu(x)\nu = Exp(q)\ny = Add(z, u)"
    given = model(body, "float[N,8] q, float[N,8] x", "float[N,8] y, float[N,8] z, float[N,8] u")
    found = rewrite_model(given)
    assert [v.name for v in found.model.graph.inputs] == ["q", "x"]
    assert [v.name for v in found.model.graph.outputs] == ["y", "z", "u"]
    assert [str(v.shape) for v in found.model.graph.outputs] == [str(v.shape) for v in given.graph.outputs]


def test_the_spec_of_a_function_is_canonical() -> None:
    from graphfuse.ir import dumps

    found = rewrite_model(model("a = Relu(x)\ny = Exp(a)"))
    assert dumps(loads(found.regions[0].spec)) == found.regions[0].spec


def test_names_of_fused_ops_are_no_onnx_ops_and_identifiers() -> None:
    found = rewrite_model(model("a = Relu(x)\ny = LayerNormalization(a, g)", weights="float[8] g = {1,2,3,4,5,6,7,8}"))
    name = found.regions[0].function
    assert re.fullmatch(r"gf_relu_layernorm_[0-9a-f]{10}", name)
    assert name not in onnx_op_names()


def test_a_taken_name_is_not_used_again() -> None:
    given = model("a = Relu(x)\ny = Exp(a)")
    name = rewrite_model(given).regions[0].function
    body = ir.Function("mine", name, graph=ir.Graph([v := ir.Value(name="p")], [], nodes=[], opset_imports={"": 13}), attributes=[])
    node = ir.Node("", "Neg", [v])  # an opset other than the model's, so that it is not opened
    node.outputs[0].name = "r"
    body.append(node)
    body.outputs.append(node.outputs[0])
    given.functions[body.identifier()] = body
    given.opset_imports["mine"] = 1
    found = rewrite_model(given)
    assert found.regions[0].function == f"{name}_2"


def test_own_functions_are_opened() -> None:
    source = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
g (float[N,8] x) => (float[N,8] y) { a = Relu(x)
 c = mine.twice(a)
 y = Exp(c) }
<domain: "mine", opset_import: ["" : 17]> twice (p) => (q) { q = Add(p, p) }"""
    found = rewrite_model(load_model(onnx.parser.parse_model(source)))
    assert regions(found) == ["Relu Add Exp"]
    assert_law(found, "auto")


def test_rewriting_a_fused_model_starts_from_the_plain_one() -> None:
    given = model("a = Relu(x)\nb = Exp(a)\ny = Neg(b)")
    once = rewrite_model(given)
    assert text(rewrite_model(reloaded(once.model)).model) == text(once.model)


def test_restore_gives_back_names_and_order() -> None:
    body = "a = Relu(x)\nu = Relu(q)\nb = Exp(a)\nv = Exp(u)\nm = MatMul(b, w)\nn = MatMul(v, w)\ny = Add(m, n)"
    given = model(body, "float[N,8] x, float[N,8] q", weights=W)
    for number, node in enumerate(given.graph):
        node.name = f"node {number}"
    found = rewrite_model(given)
    assert regions(found) == ["Relu Exp", "Relu Exp"]
    restored = restore_model(reloaded(found.model))
    assert not is_fused(restored)
    assert [(n.name, n.op_type, [v.name for v in n.outputs]) for n in restored.graph] == [
        (n.name, n.op_type, [v.name for v in n.outputs]) for n in given.graph
    ]
    assert restored.ir_version == given.ir_version
    assert "graphfuse" not in restored.opset_imports


@pytest.mark.parametrize("damage", ["", "no JSON", "[]", '{"at":[7],"nodes":["a"],"values":[],"constants":[]}', '{"at":null}'])
def test_restore_does_without_the_metadata(damage: str) -> None:
    given = model("a = Relu(x)\nb = Mul(a, two)\ny = Neg(b)", weights="float two = {2.0}")
    found = rewrite_model(given).model
    for node in found.graph:
        node.metadata_props[ORIGIN_KEY] = damage
    restored = restore_model(found)
    assert op_types(restored) == ["Relu", "Mul", "Neg"]
    feeds = feeds_of(proto(given))
    from tests.conftest import run_reference

    np.testing.assert_array_equal(run_reference(proto(restored), feeds)["y"], run_reference(proto(given), feeds)["y"])


@pytest.mark.parametrize("how", ["a call inside", "a body inside", "an attribute to fill in", "a constant without value", "another output"])
def test_functions_that_are_not_ours_are_refused_in_one_line(how: str) -> None:
    found = rewrite_model(model("a = Mul(x, two)\ny = Neg(a)", weights="float two = {2.0}")).model
    function = next(iter(found.functions.values()))
    constant, node, last = function
    match how:
        case "a call inside":
            node.domain, node.op_type = "graphfuse", function.name
        case "a body inside":
            node.attributes["body"] = ir.AttrGraph("body", ir.Graph([], [], nodes=[], name="g"))
        case "an attribute to fill in":
            node.attributes["alpha"] = ir.RefAttr("alpha", "beta", ir.AttributeType.FLOAT)
        case "a constant without value":
            del constant.attributes["value"]
        case "another output":
            function.outputs.append(last.outputs[0])
    with pytest.raises(GraphfuseError, match="rewrite the original model again") as caught:
        restore_model(found)
    assert "\n" not in str(caught.value)


# --- cases from public bug reports -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["auto", "aggressive"])
@pytest.mark.parametrize("path", shared_cases())
def test_cases_from_bug_reports(path: Path, policy: str) -> None:
    found = rewrite_model(load_model(path), policy=policy)
    loose = path.stem.startswith("R45")
    for feeds, want in case_runs(path):
        from tests.conftest import run_reference

        got = run_reference(proto(found.model), feeds)
        assert list(got) == list(want)
        for name, array in want.items():
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
            np.testing.assert_allclose(got[name], array, rtol=2e-3 if loose else 1e-5, atol=2e-3 if loose else 1e-6, equal_nan=True)
        assert max(region_errors(found, feeds).values()) < (2e-3 if loose else 2e-6)
    onnx.checker.check_model(proto(found.model), full_check=True)
    assert_law(found, policy)


def case(number: str, policy: str = "aggressive") -> Rewritten:
    paths = [p for p in SHARED_CASES if p.stem.startswith(number)]
    if not paths:
        pytest.skip("the collection of cases is not beside the checkout")
    return rewrite_model(load_model(paths[0]), policy=policy)


def test_r10_inner_values_that_are_outputs() -> None:
    (region,) = case("R10").regions
    assert region.outputs == ["t2", "t3", "y"]


def test_r12_what_branches_read_is_an_output_of_the_region() -> None:
    found = case("R12")
    assert {"t1", "t2"} <= set(found.regions[0].outputs)


def test_r40_a_constant_that_may_be_fed_stays_an_input() -> None:
    found = case("R40")
    assert "gain" in [v.name for v in found.model.graph.inputs]
    assert any("gain" in r.inputs for r in found.regions)


@pytest.mark.parametrize("number", ["R49", "R50"])
def test_r49_r50_nothing_of_the_model_is_in_identifiers(number: str) -> None:
    found = case(number)
    names = [n.name for f in found.model.functions.values() for n in f] + [f.name for f in found.model.functions.values()]
    names += [v.name for f in found.model.functions.values() for v in (*f.inputs, *(o for n in f for o in n.outputs))]
    names += [r.name for r in found.regions]
    assert all(re.fullmatch(r"[xyvscn]\d+|gf_[a-z0-9_]+", str(n)) for n in names), names
    given_names = {n.name for n in found.model.graph} | {v.name for n in found.model.graph for v in n.outputs}
    assert len(given_names & {r.name for r in found.regions}) == len(found.regions)
    for spec in (r.spec for r in found.regions):
        assert spec.isascii()
        assert "µ" not in spec
        assert "blk" not in spec


def test_r51_regions_leave_no_cycle() -> None:
    found = case("R51")
    assert len(found.regions) == 3
    restored = restore_model(found.model)
    assert sum(n.op_type == "MatMul" for n in restored.graph) == 2


def test_r53_sizes_that_may_be_one_are_never_taken_as_equal() -> None:
    found = case("R53")
    assert {r.rule for r in found.refusals} == {"not-provable"}


def test_weights_in_other_files_are_neither_read_nor_moved(tmp_path: Path) -> None:
    """A weight file that is there but holds nothing: reading it would fail, so nobody reads it."""
    big = "float[80,80] w = {" + ", ".join(["0.5"] * 6400) + "}"
    given = model("a = MatMul(x, w)\nb = Add(a, x)\ny = Exp(b)", "float[N,80] x", "float[N,80] y", weights=big)
    ir.save(given, tmp_path / "m.onnx", external_data="m.data", size_threshold_bytes=0)
    loaded = load_model(tmp_path / "m.onnx")
    (tmp_path / "m.data").write_bytes(b"")
    found = rewrite_model(loaded)
    assert regions(found) == ["Add Exp"]
    assert isinstance(found.model.graph.initializers["w"].const_value, ir.ExternalTensor)
    assert isinstance(export_plugin(found.model).model.graph.initializers["w"].const_value, ir.ExternalTensor)
    assert isinstance(restore_model(export_plugin(found.model).model).graph.initializers["w"].const_value, ir.ExternalTensor)
