from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphfuse.graph.load import load_model
from graphfuse.graph.save import save_model
from graphfuse.ir.errors import GraphfuseError
from tests.conftest import run_reference


def two_weights() -> ir.Model:
    """A model with 4 KB, 4 KB and 16 bytes of constants."""
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal((32, 32)).astype(np.float32) for n in ("a", "b")}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["g"]),
        helper.make_node("Reshape", ["g", "shape"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    tensors.append(numpy_helper.from_array(np.array([16, 64]), "shape"))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (32, 32))]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (16, 64))]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def result(path: Path) -> np.ndarray:
    return run_reference(path, {"x": np.eye(32, dtype=np.float32)})["y"]


def test_one_file_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    assert save_model(two_weights(), tmp_path / "m.onnx") == [tmp_path / "m.onnx"]
    save_model(load_model(tmp_path / "m.onnx"), tmp_path / "again.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.onnx", "m.onnx"]


def test_large_weights_go_into_a_file_beside_it_and_small_constants_stay(tmp_path: Path) -> None:
    model = two_weights()
    files = save_model(model, tmp_path / "m.onnx", external_threshold=4096)
    assert files == [tmp_path / "m.onnx", tmp_path / "m.onnx.data"]
    assert (tmp_path / "m.onnx").stat().st_size < 1024
    onnx.checker.check_model(str(tmp_path / "m.onnx"))
    loaded = load_model(tmp_path / "m.onnx")
    kinds = {n: isinstance(v.const_value, ir.ExternalTensor) for n, v in loaded.graph.initializers.items()}
    assert kinds == {"a": True, "b": True, "shape": False}
    assert not any(isinstance(v.const_value, ir.ExternalTensor) for v in model.graph.initializers.values())
    save_model(model, tmp_path / "whole.onnx")
    np.testing.assert_array_equal(result(tmp_path / "m.onnx"), result(tmp_path / "whole.onnx"))


def test_a_model_with_a_weight_file_keeps_one_wherever_it_is_saved(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    save_model(two_weights(), tmp_path / "one" / "m.onnx", external_threshold=0)
    save_model(load_model(tmp_path / "one" / "m.onnx"), tmp_path / "two" / "n.onnx")
    save_model(load_model(tmp_path / "one" / "m.onnx"), tmp_path / "three" / "n.onnx")
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == ["n.onnx", "n.onnx.data"]
    for name in ("n.onnx", "n.onnx.data"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "three" / name).read_bytes()
    np.testing.assert_array_equal(result(tmp_path / "one" / "m.onnx"), result(tmp_path / "two" / "n.onnx"))


def test_weights_still_being_read_are_not_overwritten(tmp_path: Path) -> None:
    save_model(two_weights(), tmp_path / "m.onnx", external_threshold=0)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(GraphfuseError, match="weights of the model being saved"):
        save_model(load_model(tmp_path / "m.onnx"), tmp_path / "m.onnx")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_failing_rename_leaves_the_old_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    save_model(two_weights(), tmp_path / "m.onnx", external_threshold=0)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    changed = two_weights()
    changed.graph.initializers["a"].const_value = ir.Tensor(np.zeros((32, 32), np.float32), name="a")
    calls = 0
    replace = Path.replace

    def failing(self: Path, target: Path) -> Path:
        nonlocal calls
        if self.name.endswith(".new"):
            calls += 1
            if calls == fails_at:
                raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(GraphfuseError, match="cannot be written: No space left"):
        save_model(changed, tmp_path / "m.onnx", external_threshold=0)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_failing_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> Iterator[bytes]:
        yield b"the first bytes"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("graphfuse.graph.save.pieces", failing)
    with pytest.raises(GraphfuseError, match="cannot be written"):
        save_model(two_weights(), tmp_path / "m.onnx", external_threshold=0)
    assert list(tmp_path.iterdir()) == []


def test_targets_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(GraphfuseError, match="is a directory"):
        save_model(two_weights(), tmp_path)
    with pytest.raises(GraphfuseError, match="no folder"):
        save_model(two_weights(), tmp_path / "none" / "m.onnx")


def test_files_get_the_permissions_of_new_files(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        save_model(two_weights(), tmp_path / "m.onnx")
    finally:
        os.umask(mask)
    assert (tmp_path / "m.onnx").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("dtype", [ir.DataType.BFLOAT16, ir.DataType.INT4, ir.DataType.FLOAT8E4M3FN])
def test_types_that_numpy_lacks_survive_the_weight_file(tmp_path: Path, dtype: ir.DataType) -> None:
    model = two_weights()
    array = np.random.default_rng(1).integers(-7, 7, (64, 64)).astype(dtype.numpy())
    model.graph.register_initializer(ir.Value(name="extra", const_value=ir.Tensor(array, dtype=dtype, name="extra")))
    save_model(model, tmp_path / "m.onnx", external_threshold=0)
    back = load_model(tmp_path / "m.onnx").graph.initializers["extra"].const_value
    assert isinstance(back, ir.ExternalTensor)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back.numpy(), array)


@pytest.mark.parametrize("opset", [17, 23])
def test_the_bytes_are_those_of_protobuf(tmp_path: Path, opset: int) -> None:
    """Written piece by piece: weights of every kind of storage, an initializer that is an input, metadata, a function, strings."""
    proto = ir.to_proto(two_weights())
    proto.graph.initializer.append(helper.make_tensor("typed", TensorProto.FLOAT, [400], list(range(400))))
    proto.graph.initializer.append(helper.make_tensor("words", TensorProto.STRING, [300], [b"word"] * 300))
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(900), "fed"))
    proto.graph.input.append(helper.make_tensor_value_info("fed", TensorProto.INT64, (900,)))
    proto.graph.doc_string, proto.producer_name, proto.opset_import[0].version = "documented", "a producer", opset
    proto.graph.metadata_props.add(key="inside", value="graph")
    proto.metadata_props.add(key="outside", value="model")
    proto.ir_version = 10
    function = helper.make_function("own", "twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], proto.opset_import)
    proto.functions.append(function)
    proto.opset_import.add(domain="own", version=1)
    model = ir.from_proto(proto)
    save_model(model, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == ir.to_proto(model).SerializeToString(deterministic=True)
