from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphfuse.graph.load import load_model
from graphfuse.ir.errors import GraphfuseError
from tests.conftest import run_reference


def info(name, shape=(2, 3), dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def small_model(nodes=None, *, opset=17, domains=(), ir_version=8, inputs=None, weights=None) -> onnx.ModelProto:
    nodes = nodes or [helper.make_node("Add", ["x", "w"], ["y"], name="plus")]
    weights = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)} if weights is None else weights
    tensors = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs or [info("x")], [info("y")], tensors)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def refusal(model) -> str:
    with pytest.raises(GraphfuseError) as caught:
        load_model(model)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    return text


# --- what is accepted


def test_a_path_a_proto_and_an_ir_model_give_the_same(tmp_path: Path) -> None:
    proto = small_model()
    onnx.save(proto, tmp_path / "m.onnx")
    x = {"x": np.ones((2, 3), np.float32)}
    want = run_reference(proto, x)["y"]
    for source in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), proto, ir.from_proto(proto)):
        np.testing.assert_array_equal(run_reference(ir.to_proto(load_model(source)), x)["y"], want)


def test_an_object_that_is_handed_in_is_not_changed() -> None:
    proto = small_model()
    before = proto.SerializeToString()
    model = ir.from_proto(proto)
    for source in (proto, model):
        loaded = load_model(source)
        loaded.graph.remove(list(loaded.graph), safe=False)
        loaded.graph.inputs[0].name = "other"
        loaded.metadata_props["a"] = "b"
    assert proto.SerializeToString() == before
    assert [n.name for n in model.graph] == ["plus"]
    assert model.graph.inputs[0].name == "x"
    assert not model.metadata_props


def test_an_ir_model_whose_nodes_are_not_in_order() -> None:
    model = ir.from_proto(small_model([helper.make_node("Add", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]))
    first, second = model.graph
    model.graph.remove(first)
    model.graph.insert_after(second, first)
    assert "graph.sort()" in refusal(model)
    model.graph.sort()
    assert [n.op_type for n in load_model(model).graph] == ["Add", "Relu"]


def test_operators_of_onnx_runtime_and_of_the_models_own_functions_are_known() -> None:
    load_model(small_model([helper.make_node("FastGelu", ["x", "v"], ["y"], domain="com.microsoft")],
                           domains=["com.microsoft"], weights={"v": np.ones(3, np.float32)}))  # fmt: skip
    own = small_model([helper.make_node("Twice", ["x"], ["y"], domain="mine")], domains=["mine"], weights={})
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    own.functions.append(helper.make_function("mine", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    assert len(load_model(own).functions) == 1


def test_before_ir_version_4_initializers_are_constants_though_listed_as_inputs() -> None:
    proto = small_model(opset=9, ir_version=3, inputs=[info("x"), info("w")])
    loaded = load_model(proto)
    assert [v.name for v in loaded.graph.inputs] == ["x"]
    assert [v.name for v in load_model(small_model(inputs=[info("x"), info("w")])).graph.inputs] == ["x", "w"]


# --- external data


def external_model(folder: Path, location: str = "weights.bin") -> Path:
    proto = small_model()
    tensor = proto.graph.initializer[0]
    (folder / "weights.bin").write_bytes(b"\0" * 16 + tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "16"), ("length", "24")):
        tensor.external_data.add(key=key, value=value)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_weights_are_found_beside_the_file_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = external_model(tmp_path)
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(other)
    model = load_model(path)
    loaded_by_relative_path = load_model(Path("..") / "m.onnx")
    monkeypatch.chdir("/")
    for made in (model, loaded_by_relative_path):
        tensor = made.graph.initializers["w"].const_value
        assert isinstance(tensor, ir.ExternalTensor)
        np.testing.assert_array_equal(tensor.numpy(), np.arange(6, dtype=np.float32).reshape(2, 3))


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", "sub/../../weights.bin"])
def test_weights_outside_the_models_folder_are_refused(tmp_path: Path, location: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = external_model(inner, location)
    (tmp_path / "weights.bin").write_bytes(b"\0" * 64)
    assert "outside the model's folder" in refusal(path)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = external_model(inner)
    (inner / "weights.bin").rename(tmp_path / "weights.bin")
    (inner / "weights.bin").symlink_to(tmp_path / "weights.bin")
    assert "link out of" in refusal(path)


def test_missing_and_short_weight_files_are_named(tmp_path: Path) -> None:
    path = external_model(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"\0" * 39)
    assert "does not fit its file 'weights.bin'" in refusal(path)
    (tmp_path / "weights.bin").unlink()
    assert "'weights.bin' is missing" in refusal(path)


def test_a_proto_cannot_find_its_weight_files(tmp_path: Path) -> None:
    assert "give the path instead" in refusal(onnx.load(external_model(tmp_path), load_external_data=False))


def test_external_tensors_of_constant_nodes_are_read(tmp_path: Path) -> None:
    proto = onnx.load(external_model(tmp_path), load_external_data=False)
    node = helper.make_node("Constant", [], ["w"], value=proto.graph.initializer[0])
    del proto.graph.initializer[:]
    proto.graph.node.insert(0, node)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    tensor = load_model(tmp_path / "m.onnx").graph[0].attributes["value"].as_tensor()
    assert not isinstance(tensor, ir.ExternalTensor)
    np.testing.assert_array_equal(tensor.numpy().reshape(-1), np.arange(6))


# --- bad input


def test_bad_paths(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.onnx")
    assert "is a directory" in refusal(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_read_permission(tmp_path: Path) -> None:
    onnx.save(small_model(), tmp_path / "m.onnx")
    (tmp_path / "m.onnx").chmod(0)
    assert "cannot be read" in refusal(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "content", [b"", b"hello, this is text\n", b"\x08\x07", bytes(range(256)) * 8, b"\0" * 100], ids=lambda b: str(len(b))
)
def test_files_that_are_no_models(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    assert "not an ONNX model" in refusal(tmp_path / "m.onnx")


def test_a_truncated_model(tmp_path: Path) -> None:
    whole = small_model().SerializeToString()
    (tmp_path / "m.onnx").write_bytes(whole[: len(whole) // 2])
    refusal(tmp_path / "m.onnx")


def test_things_that_are_no_model_at_all() -> None:
    assert "not int" in refusal(3)
    assert "not an ONNX model" in refusal(onnx.ModelProto())


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("Add", ["x", "nowhere"], ["y"])],
        [helper.make_node("Relu", ["h"], ["y"]), helper.make_node("Relu", ["x"], ["h"])],
        [helper.make_node("Add", ["x"], ["y"])],
        [helper.make_node("Add", ["x", "w"], ["x"]), helper.make_node("Relu", ["x"], ["y"])],
        [helper.make_node("Cast", ["x"], ["c"], to=TensorProto.INT64), helper.make_node("Add", ["x", "c"], ["y"])],
    ],
    ids=["undefined", "unordered", "arity", "twice", "types"],
)
def test_invalid_models(tmp_path: Path, nodes) -> None:
    proto = small_model(nodes)
    onnx.save(proto, tmp_path / "m.onnx")
    assert "invalid model" in refusal(proto)
    assert "invalid model" in refusal(tmp_path / "m.onnx")


def test_unknown_domains_name_the_node_the_operator_and_the_domain() -> None:
    node = helper.make_node("Wavelet", ["x"], ["y"], name="strange", domain="acme.ops")
    proto = small_model([node], domains=["acme.ops"])
    for source in (proto, ir.from_proto(proto)):
        text = refusal(source)
        assert "unknown op domain" in text
        assert "acme.ops::Wavelet" in text
        assert "'strange'" in text
    inner = helper.make_graph([helper.make_node("Wavelet", ["x"], ["b"], domain="acme.ops")], "then", [], [info("b")])
    other = helper.make_graph([helper.make_node("Relu", ["x"], ["b"])], "else", [], [info("b")])
    nested = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=other)
    assert "that makes 'b'" in refusal(small_model([nested], domains=["acme.ops"], inputs=[info("x"), info("c", (), TensorProto.BOOL)]))


def test_unknown_operators_of_known_domains() -> None:
    assert "com.microsoft::NoSuchOp" in refusal(
        small_model([helper.make_node("NoSuchOp", ["x"], ["y"], domain="com.microsoft")], domains=["com.microsoft"])
    )
    fused = helper.make_node("gf_add_123", ["x"], ["y"], domain="graphfuse")
    assert "has no function" in refusal(small_model([fused], domains=["graphfuse"]))


def test_old_opsets() -> None:
    assert "opset 8 is not supported" in refusal(small_model(opset=8))
    load_model(small_model(opset=9))


def test_sparse_initializers_are_refused() -> None:
    proto = small_model()
    values, indices = numpy_helper.from_array(np.ones(1, np.float32), "s"), numpy_helper.from_array(np.zeros(1, np.int64), "i")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    assert "sparse" in refusal(proto)


def test_sizes_that_exporters_do_not_know_are_not_one_size() -> None:
    """PaddlePaddle writes -1 and "?": the two "?" of an image are its height and its width."""
    info = helper.make_tensor_value_info
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph(
        [node], "g", [info("x", TensorProto.FLOAT, [-1, 3, "?", "?"])], [info("y", TensorProto.FLOAT, [-1, 3, "h", "?"])]
    )
    model = load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert [d if isinstance(d, int) else d.value for d in model.graph.inputs[0].shape] == [None, 3, None, None]
    assert [d if isinstance(d, int) else d.value for d in model.graph.outputs[0].shape] == [None, 3, "h", None]
