from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from graphfuse.check.inputs import check_inputs, load_inputs, make_inputs
from graphfuse.check.recipe import read_recipe
from graphfuse.ir.errors import GraphfuseError
from tests.conftest import run_reference, shared_models


def model_of(inputs, nodes, initializers=(), outputs=(), props=None) -> ir.Model:
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(a, n) for n, a in initializers])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for key, value in (props or {}).items():
        proto.metadata_props.add(key=key, value=value)
    return ir.from_proto(proto)


def tensor(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def relu(shape, **more) -> ir.Model:
    return model_of([tensor("x", shape)], [helper.make_node("Relu", ["x"], ["y"])], outputs=[tensor("y", shape)], **more)


def embedding(*, rows=7, steps=(), index=TensorProto.INT64) -> ir.Model:
    """``ids`` through ``steps`` (nodes from ids to at) into a Gather of ``rows`` rows."""
    last = steps[-1].output[0] if steps else "ids"
    nodes = [*steps, helper.make_node("Gather", ["table", last], ["y"])]
    constants = [("table", np.zeros((rows, 3), np.float32)), ("two", np.int64(2)), ("axes", np.array([0], np.int64))]
    return model_of([tensor("ids", ["n", "m"], index)], nodes, constants, [tensor("y", None)])


# --- the recipe of a file ---------------------------------------------------------------------------------------------


def recipe_by_hand(proto: onnx.ModelProto, alt: bool, seed: int) -> dict[str, np.ndarray]:
    """The recipe as the collection's documentation tells it, written apart from the code under test."""
    props = {p.key: p.value for p in proto.metadata_props}
    dims = json.loads(props["corpus.dims"]) | (json.loads(props["corpus.alt_dims"]) if alt else {})
    rng, feeds = np.random.default_rng(seed), {}
    for row in json.loads(props["corpus.inputs"]):
        shape = [dims.get(d, d) for d in row["shape"]]
        if row["kind"] == "normal":
            array = rng.standard_normal(shape) * row.get("scale", 1.0) + row.get("offset", 0.0)
        elif row["kind"] == "uniform":
            array = rng.uniform(row.get("low", 0.0), row.get("high", 1.0), shape)
        elif row["kind"] == "int":
            array = rng.integers(row["low"], row["high"], shape)
        elif row["kind"] == "mask":
            array = np.ones(shape)
            array[..., shape[-1] - shape[-1] // 4 :] = 0
        else:
            array = np.arange(shape[-1]) + row.get("start", 0) + np.zeros(shape)
        feeds[row["name"]] = array.astype(row["dtype"])
    return {v.name: feeds[v.name] for v in proto.graph.input}


@pytest.mark.parametrize("alt", [False, True], ids=["main", "alt"])
@pytest.mark.parametrize("path", shared_models())
def test_shared_recipes_are_followed_to_the_bit(path: Path, alt: bool) -> None:
    expected = recipe_by_hand(onnx.load(path, load_external_data=False), alt, seed=3)
    made = make_inputs(ir.load(path), alt=alt, seed=3)
    assert list(made) == list(expected)
    for name, array in expected.items():
        assert made[name].dtype == array.dtype
        np.testing.assert_array_equal(made[name], array)


RECIPE = {"name": "x", "kind": "normal", "dtype": "float32", "shape": ["n", 4]}


def with_recipe(row: object, dims: object = None) -> ir.Model:
    props = {"corpus.inputs": json.dumps([row]), "corpus.dims": json.dumps({"n": 5} if dims is None else dims)}
    return relu(["n", 4], props=props)


def test_sizes_go_before_the_recipe() -> None:
    assert make_inputs(with_recipe(RECIPE))["x"].shape == (5, 4)
    assert make_inputs(with_recipe(RECIPE), sizes={"n": 9})["x"].shape == (9, 4)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "__import__"}, {"kind": None}, {"dtype": "object"}, {"dtype": "float64"}, {"shape": ["n"]}, {"shape": ["n", 5]},
        {"shape": [-1, 4]}, {"shape": [True, 4]}, {"shape": "n4"}, {"name": 1}, {"name": "other"}, {"scale": float("nan")},
        {"scale": "2"}, {"kind": "int"}, {"kind": "int", "low": 3, "high": 3}, {"kind": "int", "low": 0, "high": 10**400},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_recipe_is_left_alone_with_a_warning(change: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    made = make_inputs(with_recipe(RECIPE | change))
    assert made["x"].shape == (2, 4)
    assert "input recipe" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", "[[]]", "[" * 5000, '[{"name": "x"}, {"name": "x"}]'], ids=lambda t: t[:20])
def test_recipe_text_is_not_trusted(text: str) -> None:
    with pytest.raises(GraphfuseError, match="input recipe"):
        read_recipe({"corpus.inputs": text})


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda s: st.lists(s) | st.dictionaries(st.text(), s)))
def test_any_json_is_read_or_refused(value: object) -> None:
    try:
        read_recipe({"corpus.inputs": json.dumps([value])})
    except GraphfuseError as error:
        assert "\n" not in str(error)


def test_huge_inputs_are_refused() -> None:
    with pytest.raises(GraphfuseError, match="over the limit"):
        make_inputs(with_recipe(RECIPE, {"n": 1 << 26}))
    with pytest.raises(GraphfuseError, match="over the limit"):
        make_inputs(relu(["n", 4]), sizes={"n": 1 << 40})


# --- made up ----------------------------------------------------------------------------------------------------------


def test_sizes_differ_between_symbols_and_agree_within_one() -> None:
    inputs = [tensor("a", ["b", "s", 8]), tensor("c", ["b", "t", 8]), tensor("d", ["b", "s"])]
    made = make_inputs(model_of(inputs, [], outputs=[]))
    shapes = [made[k].shape for k in "acd"]
    assert shapes[0][0] == shapes[1][0] == shapes[2][0]
    assert shapes[0][1] == shapes[2][1] != shapes[1][1]
    assert len({shapes[0][0], shapes[0][1], shapes[1][1]}) == 3


def test_alt_changes_every_symbol_and_the_seed_every_value() -> None:
    model = relu(["b", 3, "h", "w"])
    main, alt = make_inputs(model)["x"], make_inputs(model, alt=True)["x"]
    assert all(a != b for a, b in zip(main.shape, alt.shape, strict=True) if a != 3)
    np.testing.assert_array_equal(main, make_inputs(model)["x"])
    assert not np.array_equal(main, make_inputs(model, seed=1)["x"])


def test_unnamed_axes_get_a_place_name() -> None:
    assert make_inputs(relu([None, 4]), sizes={"x[0]": 6})["x"].shape == (6, 4)


def test_sizes_must_name_a_dimension() -> None:
    with pytest.raises(GraphfuseError, match=r"size m=3: .* no dimension of that name; it has n"):
        make_inputs(relu(["n", 4]), sizes={"m": 3})


def test_each_type_has_a_range() -> None:
    codes = {"f": TensorProto.FLOAT16, "b": TensorProto.BOOL, "u": TensorProto.UINT8, "i": TensorProto.INT32, "h": TensorProto.BFLOAT16}
    made = make_inputs(model_of([tensor(n, [400], c) for n, c in codes.items()], []))
    assert made["f"].dtype == np.float16
    assert 0.5 < made["f"].std() < 1.5
    assert made["h"].dtype == ml_dtypes.bfloat16
    assert set(made["b"].tolist()) == {False, True}
    assert made["u"].max() > 200
    assert made["u"].min() < 50
    assert set(made["i"].tolist()) == {0, 1}


PATHS = {
    "straight": (),
    "views": (
        helper.make_node("Cast", ["ids"], ["a"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["a", "axes"], ["c"]),
        helper.make_node("Identity", ["c"], ["d"]),
    ),
    "plus": (helper.make_node("Add", ["ids", "two"], ["a"]),),
    "minus": (helper.make_node("Sub", ["ids", "two"], ["a"]),),
}


@pytest.mark.parametrize(("path", "low", "high"), [("straight", 0, 7), ("views", 0, 7), ("plus", -2, 5), ("minus", 2, 9)])
def test_indices_span_the_axis_and_stay_inside(path: str, low: int, high: int) -> None:
    model = embedding(steps=PATHS[path])
    ids = make_inputs(model, sizes={"n": 30, "m": 30})["ids"]
    assert (ids.min(), ids.max()) == (low, high - 1)
    assert run_reference(ir.to_proto(model), {"ids": ids})["y"].shape[-1] == 3


def test_an_index_of_a_dynamic_axis_follows_its_size() -> None:
    nodes = [helper.make_node("Gather", ["x", "ids"], ["y"], axis=1)]
    model = model_of([tensor("x", ["b", "s"]), tensor("ids", [200], TensorProto.INT64)], nodes, outputs=[tensor("y", None)])
    made = make_inputs(model, sizes={"s": 6})
    assert made["ids"].max() == 5


def test_defaults_stay_defaults() -> None:
    node = helper.make_node("Mul", ["x", "gain"], ["y"])
    model = model_of([tensor("x", [3]), tensor("gain", [3])], [node], [("gain", np.ones(3, np.float32))], [tensor("y", [3])])
    assert list(make_inputs(model)) == ["x"]
    assert list(check_inputs({"gain": np.ones(3, np.float32), "x": np.ones(3, np.float32)}, model)) == ["x", "gain"]


def test_strings_and_sequences_are_refused() -> None:
    with pytest.raises(GraphfuseError, match="input s: .* not supported"):
        make_inputs(model_of([tensor("s", [2], TensorProto.STRING)], []))
    sequence = helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, [2])
    with pytest.raises(GraphfuseError, match="input q: .* not supported"):
        make_inputs(model_of([sequence], []))


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    inputs = [tensor("x", ["n", 4]), tensor("h", ["n"], TensorProto.BFLOAT16)]
    arrays = {"h": np.arange(5).astype(ml_dtypes.bfloat16), "x": np.ones((5, 4), np.float32)}
    np.savez(tmp_path / "in.npz", **arrays)
    loaded = load_inputs(tmp_path / "in.npz", model_of(inputs, []))
    assert list(loaded) == ["x", "h"]
    assert loaded["h"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(loaded["h"], arrays["h"])


F32 = np.float32
MISFITS = {
    "no such input": ({"x": np.zeros((2, 4), F32), "z": np.zeros((2, 4), F32), "y": np.zeros(2, F32)}, "z: the model has no such input"),
    "not given": ({"x": np.zeros((2, 4), F32)}, "y: the model needs it"),
    "dtype": ({"x": np.zeros((2, 4)), "y": np.zeros(2, F32)}, "x: has dtype float64, the model wants float32"),
    "rank": ({"x": np.zeros((2, 4, 1), F32), "y": np.zeros(2, F32)}, r"x: has shape \[2, 4, 1\], the model wants \[n, 4\]"),
    "size": ({"x": np.zeros((2, 5), F32), "y": np.zeros(2, F32)}, r"x: has shape \[2, 5\], the model wants \[n, 4\]"),
    "symbol": ({"x": np.zeros((2, 4), F32), "y": np.zeros(3, F32)}, r"y: has shape \[3\], .* where n is 2"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_misfits_are_told(case: str, tmp_path: Path) -> None:
    arrays, message = MISFITS[case]
    np.savez(tmp_path / "in.npz", **arrays)
    with pytest.raises(GraphfuseError, match=message):
        load_inputs(tmp_path / "in.npz", model_of([tensor("x", ["n", 4]), tensor("y", ["n"])], []))


def test_files_that_are_not_inputs(tmp_path: Path) -> None:
    model = relu(["n", 4])
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "bare.npy", np.zeros((2, 4), F32))
    np.savez(tmp_path / "pickle.npz", x=np.array([{}], dtype=object))
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "pickle.npz").read_bytes()[:90])
    for name in ("text.npz", "bare.npy", "pickle.npz", "empty.npz", "cut.npz", "absent.npz", "."):
        with pytest.raises(GraphfuseError) as caught:
            load_inputs(tmp_path / name, model)
        assert "\n" not in str(caught.value)
