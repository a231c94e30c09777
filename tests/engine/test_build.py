"""Real TensorRT for RTX engines with fused regions in them, built without a GPU."""

from __future__ import annotations

import signal
import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import graphfuse_plugin
from graphfuse.engine import Engine, build_engine, load_flavour, run_engine
from graphfuse.ir import GraphfuseError, ProgramError, ShapeError, dtypes, loads
from graphfuse_plugin import plugin as plugin_module
from graphfuse_plugin.driver import gpu_arch
from tests import regions
from tests.regions import fused, lone, model

FLOAT = TensorProto.FLOAT
ANY_ROWS = {"x": ((1, 8), (4, 8), (16, 8))}
NEWEST = ["sm_89"]


def cubins(engine: Engine) -> int:
    return engine.bytes.count(b"\x7fELF")


def check(engine: Engine, *specs: str) -> None:
    """Kernels of every spec lie in the plan as they were compiled."""
    for spec in specs:
        assert graphfuse_plugin.marker(spec) in engine.bytes
        assert spec.encode() in engine.bytes


def test_static_region() -> None:
    spec = regions.scale((4, 8))
    engine = build_engine(lone(spec, (4, 8)), targets=["sm_89"])
    assert (engine.plugin_layers, engine.flavour) == (["region"], "tensorrt_rtx")
    check(engine, spec)
    assert cubins(engine) >= 1


def test_dynamic_region_with_a_profile() -> None:
    spec = regions.scale()
    engine = build_engine(lone(spec), shapes=ANY_ROWS, targets=["sm_89"])
    check(engine, spec)
    assert b'"symbols":["n"]' in engine.bytes


def test_profile_of_one_size_hardens_the_kernel() -> None:
    engine = build_engine(lone(regions.scale()), shapes={"x": ((4, 8),) * 3}, targets=["sm_89"])
    assert b'"fixed":{"n":4}' in engine.bytes


def test_building_twice_gives_the_same_bytes() -> None:
    first, second = (build_engine(lone(regions.scale()), shapes=ANY_ROWS, targets=["sm_80", "sm_89"]) for _ in range(2))
    assert first.bytes == second.bytes


def test_two_regions_around_a_matrix_product_and_a_convolution() -> None:
    before, after = regions.pair((1, 3, 8, 8)), regions.softmax(64)
    nodes = [
        fused(before, ["x", "w"], ["a", "less"], "before"),
        helper.make_node("Conv", ["a", "k"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["c", "to"], ["r"]),
        helper.make_node("MatMul", ["r", "m"], ["p"]),
        fused(after, ["p"], ["y"], "after"),
    ]
    weights = {
        "w": np.ones(8, np.float32), "k": np.ones((4, 3, 3, 3), np.float32), "to": np.array([4, 64]), "m": np.eye(64, dtype=np.float32),
    }  # fmt: skip
    made = model(nodes, {"x": (FLOAT, (1, 3, 8, 8))}, {"y": (FLOAT, (4, 64)), "less": (TensorProto.BOOL, (1, 3, 8, 8))}, weights)
    engine = build_engine(made, targets=["sm_89"])
    assert sorted(engine.plugin_layers) == ["after", "before"]
    check(engine, before, after)


@pytest.mark.parametrize("dtype", regions.PLUGIN_TYPES, ids=str)
def test_every_plugin_type(dtype) -> None:
    spec = regions.same(dtype)
    check(build_engine(lone(spec, (4, 6), dtype.onnx), targets=NEWEST), spec)


@pytest.mark.parametrize("dtype", [t for t in dtypes.ALL if t not in regions.PLUGIN_TYPES], ids=str)
def test_other_types_are_refused_by_name(dtype) -> None:
    spec = regions.same(dtype)
    assert f"input 0 is {dtype}" in (graphfuse_plugin.unsupported_io(loads(spec)) or "")
    with pytest.raises(ProgramError, match=f"input 0 is {dtype}; TensorRT plugins take"):
        build_engine(lone(spec, (4, 6), dtype.onnx))


def test_scalar_region_and_several_outputs_of_computed_sizes() -> None:
    check(build_engine(lone(regions.scale(()), ()), targets=["sm_89"]), regions.scale(()))
    spec = regions.joined()
    outputs = [f"y{i}" for i in range(5)]
    made = model(
        [fused(spec, ["x", "z", "s"], outputs, "joined")],
        {"x": (FLOAT, ["n"]), "z": (FLOAT, ["k"]), "s": (FLOAT, [])},
        {o: (FLOAT, [f"o{i}"]) for i, o in enumerate(outputs)},
    )
    engine = build_engine(made, shapes={"x": ((0,), (5,), (9,)), "z": ((3,), (7,), (17,))}, targets=["sm_89"])
    check(engine, spec)


def test_output_sizes_reach_tensorrt(monkeypatch) -> None:
    """TensorRT evaluates our expressions for the profile's three shapes; it must find what the program says."""
    seen = []
    configure = plugin_module.FusedRegionPlugin.configure_plugin

    def spy(self, inputs, outputs):
        seen.append([tuple(tuple(part) for part in (o.min, o.opt, o.max)) for o in outputs])
        configure(self, inputs, outputs)

    monkeypatch.setattr(plugin_module.FusedRegionPlugin, "configure_plugin", spy)
    test_scalar_region_and_several_outputs_of_computed_sizes()
    program = loads(regions.joined())
    assert [usual for _, usual, _ in seen[-1]] == program.output_shapes({"n": 5, "m": 2})
    assert seen[-1][0] == ((0 + 3,), (5 + 7,), (9 + 17,))


def test_equal_regions_and_unnamed_nodes() -> None:
    spec = regions.scale((4, 8))
    nodes = [fused(spec, ["x"], ["a"]), helper.make_node("MatMul", ["a", "m"], ["b"]), fused(spec, ["b"], ["y"])]
    made = model(nodes, {"x": (FLOAT, (4, 8))}, {"y": (FLOAT, (4, 8))}, {"m": np.eye(8, dtype=np.float32)})
    engine = build_engine(made, targets=["sm_89"])
    assert len(engine.plugin_layers) == 2
    check(engine, spec)


def test_regions_in_branches_are_counted() -> None:
    spec = regions.scale((4, 8))
    branches = {}
    for side in ("then", "else"):
        out = helper.make_tensor_value_info(f"{side}_y", FLOAT, (4, 8))
        branches[f"{side}_branch"] = helper.make_graph([fused(spec, ["x"], [f"{side}_y"], side)], side, [], [out])
    made = model(
        [helper.make_node("If", ["c"], ["y"], **branches)], {"x": (FLOAT, (4, 8)), "c": (TensorProto.BOOL, ())}, {"y": (FLOAT, (4, 8))}
    )
    assert sorted(build_engine(made, targets=["sm_89"]).plugin_layers) == ["else", "then"]


def test_kernels_for_every_target_and_the_default() -> None:
    asked = build_engine(lone(regions.scale((4, 8)), (4, 8)), targets=["sm_86", "sm_89", "sm_120"])
    assert all(f'"sm_{n}":['.encode() in asked.bytes for n in (86, 89, 120))
    default = build_engine(lone(regions.scale((4, 8)), (4, 8)))
    assert all(f'"{arch}":['.encode() in default.bytes for arch in graphfuse_plugin.COVERING)


def test_saving_replaces_the_file_in_one_step(tmp_path) -> None:
    engine = build_engine(lone(regions.scale((4, 8)), (4, 8)), targets=["sm_89"])
    target = tmp_path / "model.engine"
    target.write_bytes(b"old")
    engine.save(target)
    assert target.read_bytes() == engine.bytes
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(GraphfuseError, match="cannot be written"):
        engine.save(tmp_path / "none" / "model.engine")


def test_from_a_file_with_external_data(tmp_path) -> None:
    made = model(
        [fused(regions.pair((4, 8)), ["x", "w"], ["y", "less"], "region")],
        {"x": (FLOAT, (4, 8))},
        {"y": (FLOAT, (4, 8)), "less": (TensorProto.BOOL, (4, 8))},
        {"w": np.arange(8, dtype=np.float32)},
    )
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert build_engine(tmp_path / "m.onnx", targets=["sm_89"]).plugin_layers == ["region"]


# --- what must fail, and how ------------------------------------------------------------------------------------------


def refused(match: str, made: onnx.ModelProto | bytes | str, kind: type[Exception] = GraphfuseError, **options) -> None:
    with pytest.raises(kind, match=match) as caught:
        build_engine(made, **options)
    assert "\n" not in str(caught.value)


def test_bad_shapes() -> None:
    made = lone(regions.scale())
    refused(r"'x' has dynamic sizes; add --shapes x:1x8,4x8,8x8", made)
    refused("shapes are given for 'z', but the model's inputs are 'x'", made, ShapeError, shapes={"z": ((1, 8),) * 3})
    refused(r"has rank 2, the shapes given have rank 3", made, ShapeError, shapes={"x": ((1, 2, 8),) * 3})
    refused(r"is \?x8 in the model; 1x9 does not fit", made, ShapeError, shapes={"x": ((1, 9),) * 3})
    refused("do not grow", made, ShapeError, shapes={"x": ((4, 8), (2, 8), (8, 8))})
    refused("must be three shapes", made, ShapeError, shapes={"x": (4, 8)})


def test_sizes_of_one_name_must_agree() -> None:
    spec = regions.pair((8,))
    made = model(
        [fused(spec, ["x", "z"], ["y", "less"]), helper.make_node("Add", ["d", "e"], ["f"])],
        {"x": (FLOAT, (8,)), "z": (FLOAT, (8,)), "d": (FLOAT, ("n",)), "e": (FLOAT, ("n",))},
        {"y": (FLOAT, (8,)), "less": (TensorProto.BOOL, (8,)), "f": (FLOAT, ("n",))},
    )
    refused("size 'n' is 2 in input 'd' and 3 in input 'e'", made, ShapeError, shapes={"d": ((2,),) * 3, "e": ((3,),) * 3})


def test_targets_that_rtx_does_not_know() -> None:
    for target in ("sm_90", "sm_100"):
        refused(f"cannot build for {target}; it knows sm_75", lone(regions.scale((4, 8)), (4, 8)), targets=[target])
    refused("not a GPU architecture", lone(regions.scale((4, 8)), (4, 8)), targets=["8.9"])


def test_bad_models(tmp_path) -> None:
    refused("not an ONNX model", b"\xff\xfe nothing of the kind")
    refused("cannot be read", str(tmp_path / "none.onnx"))
    made = lone(regions.scale((4, 8)), (4, 8))
    made.graph.node[0].op_type = "NoSuchOp"
    refused("node 'region' .NoSuchOp.: .*Plugin not found", made)


def test_a_fused_node_that_does_not_reach_the_plugin_is_an_error() -> None:
    made = lone(regions.scale((4, 8)), (4, 8))
    refused("made 1 fused layers of the model, not 2", made, expected_plugins=2)
    refused("Plugin not found", lone(regions.scale((4, 8)), (4, 8), plugin_namespace="other", domain="other"))
    body = helper.make_node("Relu", ["x"], ["y"])
    inlined = lone(regions.scale((4, 8)), (4, 8), plugin_version="9")  # with a function of its name: inlined, and nobody says so
    inlined.functions.append(helper.make_function("graphfuse", "FusedRegion", ["x"], ["y"], [body], [helper.make_opsetid("", 20)]))
    refused("made 0 fused layers of the model, not 1", inlined)


@pytest.mark.parametrize("spec", ["", "{}", '{"version":1,"params":[["f32",["os.system"]]],"body":[],"results":[0]}', "é"])
def test_bad_specs_are_one_clean_error(spec, capfd) -> None:
    refused("^fused node 'region': ", lone(spec, (4, 8)), ProgramError)
    assert capfd.readouterr().err == ""


def test_bad_specs_that_only_the_plugin_sees(monkeypatch, capfd) -> None:
    monkeypatch.setattr("graphfuse.engine.build._check_specs", lambda nodes: None)
    refused("not a graphfuse spec", lone("{}", (4, 8)), ProgramError)
    refused("not ASCII", lone("é", (4, 8)), ProgramError)
    assert capfd.readouterr().err == ""


def test_network_that_does_not_fit_the_spec() -> None:
    refused("made for inputs of type FLOAT; the network gives HALF", lone(regions.scale((4, 8)), (4, 8), TensorProto.FLOAT16))
    refused(r"has the shape \[4, 9\] in the network", lone(regions.scale((4, 8)), (4, 9)))


def test_an_interrupt_during_a_build_is_raised_after_it(monkeypatch) -> None:
    original = plugin_module.FusedRegionPlugin.configure_plugin

    def pressed(self, inputs, outputs):
        signal.raise_signal(signal.SIGINT)
        original(self, inputs, outputs)

    monkeypatch.setattr(plugin_module.FusedRegionPlugin, "configure_plugin", pressed)
    with pytest.raises(KeyboardInterrupt):
        build_engine(lone(regions.scale((4, 8)), (4, 8)), targets=["sm_89"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_builds_in_several_threads_keep_their_errors_apart() -> None:
    good, bad = lone(regions.scale((4, 8)), (4, 8)), lone("{}", (4, 8))
    results: dict[int, object] = {}

    def work(number: int) -> None:
        try:
            results[number] = build_engine(bad if number % 2 else good, targets=["sm_89"])
        except ProgramError as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(results[i]) for i in range(4)] == [Engine, ProgramError, Engine, ProgramError]


def test_running_an_engine_says_why_it_cannot() -> None:
    engine = build_engine(lone(regions.scale((4, 8)), (4, 8)), targets=["sm_89"])
    if gpu_arch() is None:
        with pytest.raises(GraphfuseError, match="needs an NVIDIA GPU"):
            run_engine(engine.bytes, {"x": np.ones((4, 8), np.float32)})
    with pytest.raises(GraphfuseError, match=r"does not run on this GPU \(compute capability 9.0\)"):
        load_flavour("tensorrt_rtx").check_run((9, 0))
