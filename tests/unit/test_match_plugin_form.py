"""The plugin form, and the way back from it."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphfuse.ir import GraphfuseError, interpret, loads
from graphfuse.ir.dtypes import F64
from graphfuse.match import export_plugin, is_fused, restore_model, rewrite_model
from graphfuse.match.names import PORTABLE_KEY
from tests.conftest import run_reference
from tests.texts import model, op_types, proto, reloaded, text

SHAPES = """s = Shape(x)
c = Constant <value = int64[1] {0}> ()
n = Gather <axis = 0> (s, c)
k = Constant <value = int64[2] {2, 4}> ()
t = Concat <axis = 0> (n, k)
a = Relu(x)
r = Reshape(a, t)
y = Mul(r, g)"""
G = "float[4] g = {1, 2, 3, 4}"


def shaped() -> ir.Model:
    return rewrite_model(model(SHAPES, outputs="float[N,2,4] y", weights=G)).model


def test_a_plugin_node_has_the_four_things_and_nothing_else() -> None:
    exported = export_plugin(shaped())
    (node,) = exported.model.graph
    assert (node.domain, node.op_type) == ("graphfuse", "FusedRegion")
    assert {k: a.type for k, a in node.attributes.items()} == dict.fromkeys(
        ("spec", "plugin_namespace", "plugin_version"), ir.AttributeType.STRING
    )
    assert node.attributes["plugin_namespace"].as_string() == "graphfuse"
    assert node.attributes["plugin_version"].as_string() == "1"
    assert node.attributes["spec"].as_string().isascii()
    assert exported.plugin_layers == 1
    assert exported.model.opset_imports["graphfuse"] == 1


def test_functions_shape_inputs_and_dead_arithmetic_are_gone() -> None:
    exported = export_plugin(shaped()).model
    assert not exported.functions
    assert op_types(exported) == ["FusedRegion"]
    assert [v.name for v in next(iter(exported.graph)).inputs if v] == ["x", "g"]
    assert list(exported.graph.initializers) == ["g"]
    onnx.checker.check_model(proto(exported))


def test_the_way_back_gives_the_same_portable_model() -> None:
    portable = shaped()
    exported = reloaded(export_plugin(portable).model)
    assert is_fused(exported)
    assert text(restore_model(exported)) == text(restore_model(portable))


def test_a_model_without_regions_is_left_as_it_is() -> None:
    plain = rewrite_model(model("y = Relu(x)")).model
    assert text(export_plugin(plain).model) == text(plain)


def test_types_that_no_plugin_takes_go_back_to_plain_nodes() -> None:
    given = model("a = Add(x, x)\ny = Neg(a)", "double[N,8] x", "double[N,8] y")
    exported = export_plugin(rewrite_model(given).model)
    assert op_types(exported.model) == ["Add", "Neg"]
    assert [r.rule for r in exported.inlined] == ["plugin-types"]
    assert "f64" in exported.inlined[0].reason
    assert text(restore_model(reloaded(exported.model))) == text(restore_model(rewrite_model(given).model))


def test_the_types_may_be_given() -> None:
    fused = rewrite_model(model("a = Add(x, x)\ny = Neg(a)", "double[N,8] x", "double[N,8] y")).model
    assert export_plugin(fused, [F64]).plugin_layers == 1


def test_uint8_at_the_edge_goes_through_a_cast() -> None:
    body = "f = Cast <to = 1> (x)\nd = Div(f, q)\nt = Transpose <perm = [0, 2, 1]> (d)\nm = Mul(t, q)\ny = Cast <to = 2> (m)"
    given = model(body, "uint8[N,3,8] x", "uint8[N,8,3] y", weights="float q = {7.0}")
    portable = rewrite_model(given)
    exported = export_plugin(portable.model).model
    assert op_types(exported) == ["Cast", "FusedRegion", "Cast"]
    first, plugin, last = exported.graph
    program = loads(plugin.attributes["spec"].as_string())
    assert [t.name for t, _ in (*program.params, *program.outputs)] == ["f16", "f16"]
    assert (first.attributes["to"].as_int(), last.attributes["to"].as_int()) == (onnx.TensorProto.FLOAT16, onnx.TensorProto.UINT8)
    assert last.outputs[0].name == "y"
    x = np.arange(2 * 3 * 8).reshape(2, 3, 8).astype(np.uint8) * 5
    (got,) = interpret.run(program, [x.astype(np.float16)])
    np.testing.assert_array_equal(got.astype(np.uint8), run_reference(proto(given), {"x": x})["y"])
    onnx.checker.check_model(proto(exported))
    assert text(restore_model(reloaded(exported))) == text(restore_model(portable.model))


def test_uint8_inside_the_network_goes_back_to_plain_nodes() -> None:
    body = "q = Cast <to = 2> (x)\nm = ScatterElements <axis = 3> (q, si, sv)\nf = Cast <to = 1> (m)\na = Exp(f)\ny = Neg(a)"
    weights = "int64[1,1,1,1] si = {0}, uint8[1,1,1,1] sv = {9}"
    given = model(body, "float[N,1,4,4] x", "float[N,1,4,4] y", weights=weights)
    exported = export_plugin(rewrite_model(given, policy="aggressive").model)
    assert exported.plugin_layers == 0
    assert len(exported.inlined) == 2


def test_weights_are_not_doubled_in_the_file() -> None:
    weights = "float[64] g = {" + ", ".join(["1.5"] * 64) + "}"
    portable = rewrite_model(model("a = Mul(x, g)\ny = Neg(a)", "float[N,64] x", "float[N,64] y", weights=weights)).model
    portable.graph.initializers["g"].const_value = ir.tensor(np.random.default_rng(0).standard_normal(64).astype(np.float32), name="g")
    exported = export_plugin(portable).model
    packed = zlib.decompress(base64.b64decode(exported.metadata_props[PORTABLE_KEY]))
    data = portable.graph.initializers["g"].const_value
    assert data is not None
    assert data.tobytes() not in packed
    restored = restore_model(reloaded(exported)).graph.initializers["g"].const_value
    assert restored is not None
    assert restored.tobytes() == data.tobytes()


def broken(how: str) -> ir.Model:
    exported = reloaded(export_plugin(shaped()).model)
    match how:
        case "removed":
            del exported.metadata_props[PORTABLE_KEY]
        case "damaged":
            exported.metadata_props[PORTABLE_KEY] = exported.metadata_props[PORTABLE_KEY][:-40] + "A" * 40
        case "no base64":
            exported.metadata_props[PORTABLE_KEY] = "..."
        case "other content":
            exported.metadata_props[PORTABLE_KEY] = base64.b64encode(zlib.compress(b"\xff" * 100)).decode()
        case "changed":
            next(iter(exported.graph)).outputs[0].name = "other"
    return exported


@pytest.mark.parametrize("how", ["removed", "damaged", "no base64", "other content", "changed"])
def test_what_does_not_hold_together_is_refused_in_one_line(how: str) -> None:
    with pytest.raises(GraphfuseError, match="restore from the portable model") as caught:
        restore_model(broken(how))
    assert "\n" not in str(caught.value)


def test_a_bomb_in_the_metadata_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphfuse.match import plugin_form

    monkeypatch.setattr(plugin_form, "MAX_PORTABLE", 1000)
    exported = reloaded(export_plugin(shaped()).model)
    exported.metadata_props[PORTABLE_KEY] = base64.b64encode(zlib.compress(b"\0" * 100_000)).decode()
    with pytest.raises(GraphfuseError, match="damaged"):
        restore_model(exported)


def test_a_broken_spec_is_refused_in_one_line() -> None:
    portable = shaped()
    next(iter(portable.functions.values())).metadata_props["graphfuse.spec"] = '{"version": 1}'
    with pytest.raises(GraphfuseError, match="rewrite the original model again"):
        export_plugin(portable)


def test_nodes_stand_in_topological_order() -> None:
    body = "a = Relu(x)\nu = Exp(a)\nm = MatMul(u, w)\nb = Neg(m)\nd = Add(b, u)\ny = Abs(d)"
    weights = "float[8,8] w = {" + ", ".join(["0.1"] * 64) + "}"
    exported = export_plugin(rewrite_model(model(body, weights=weights)).model).model
    done = {v.name for v in exported.graph.inputs} | set(exported.graph.initializers)
    for node in exported.graph:
        assert {v.name for v in node.inputs if v} <= done
        done |= {v.name for v in node.outputs}
