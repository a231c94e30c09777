"""Engines of networks at the edges of what TensorRT takes: ranks, counts, sizes, types, profiles; each built twice."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import graphfuse_plugin
from graphfuse.engine import Engine, build_engine, load_flavour
from graphfuse.engine.shapes import parse_profiles
from graphfuse.ir import Builder, DType, GraphfuseError, ShapeError, dtypes, dumps, sym
from graphfuse_plugin import fields
from tests import regions
from tests.regions import fused, lone, model

FLOAT = TensorProto.FLOAT


def built(made: onnx.ModelProto, specs: Sequence[str], shapes: Any = None, *, computed: bool = False) -> Engine:
    """The engine, after a look at everything that can be seen of it without a GPU: twice the same bytes, its layers, its payload.

    Where sizes are ``computed`` from others, TensorRT for RTX numbers them anew in each build (also in a network of its own
    layers only: Tile by a Shape); then all that is ours must be the same.
    """
    first, second = (build_engine(made, shapes=shapes, targets=["sm_89"]) for _ in range(2))
    assert (len(first.bytes), [kernels(first, s) for s in specs]) == (len(second.bytes), [kernels(second, s) for s in specs])
    assert computed or first.bytes == second.bytes
    assert len(first.plugin_layers) == sum(node.op_type == "FusedRegion" for node in made.graph.node)
    for spec in specs:
        assert spec.encode() in first.bytes
        assert kernels(first, spec)
    return first


def kernels(engine: Engine, spec: str) -> list[tuple[fields.Kernel, ...]]:
    """The kernels of a region, one tuple for each different payload in the plan, read as a loading process would read them."""
    found = {}
    for match in re.finditer(re.escape(graphfuse_plugin.marker(spec)) + rb" ", engine.bytes):
        header = engine.bytes[match.end() : engine.bytes.index(b"\n", match.end())]
        size = sum(place[1] for row in json.loads(header)["kernels"] for place in row["cubins"].values())
        found[header] = fields.unpack(spec, engine.bytes[match.start() : match.end() + len(header) + 1 + size])[1]
    return list(found.values())


def hardened(engine: Engine, spec: str) -> list[list[dict[str, int]]]:
    return [[dict(k.fixed) for k in each] for each in kernels(engine, spec)]


def many(inputs: int, outputs: int) -> str:
    """Each output is the sum of some of the inputs."""
    b = Builder()
    xs = [b.param(dtypes.F32, (4, 8)) for _ in range(inputs)]
    results = []
    for k in range(outputs):
        total = xs[k % inputs] * (k + 1)
        for x in xs[k::outputs]:
            total = total + x
        results.append(total)
    return dumps(b.finish(results))


def wide(inputs: int, outputs: int) -> tuple[onnx.ModelProto, str]:
    spec = many(inputs, outputs)
    names_in, names_out = [f"x{i}" for i in range(inputs)], [f"y{i}" for i in range(outputs)]
    made = model(
        [fused(spec, names_in, names_out, "wide")], dict.fromkeys(names_in, (FLOAT, (4, 8))), dict.fromkeys(names_out, (FLOAT, (4, 8)))
    )
    return made, spec


def test_scalar_and_one_element() -> None:
    for shape in ((), (1,)):
        spec = regions.scale(shape)
        built(lone(spec, shape), [spec])


def test_sizes_of_zero() -> None:
    static = regions.scale((0, 8))
    built(lone(static, (0, 8)), [static])
    spec = regions.scale()
    engine = built(lone(spec), [spec], {"x": ((0, 8), (4, 8), (8, 8))})
    assert hardened(engine, spec) == [[{"n": 4}, {}]]
    built(lone(spec), [spec], {"x": ((0, 8), (0, 8), (8, 8))})


def test_rank_8_and_no_more() -> None:
    shape = (2, 1, 3, 1, 2, 1, 2, 4)
    spec = regions.scale(shape)
    built(lone(spec, shape), [spec])
    with pytest.raises(GraphfuseError, match="rank 9"):
        build_engine(lone(regions.scale((1, *shape)), (1, *shape)), targets=["sm_89"])


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 40), (64, 1), (64, 40)])
def test_many_inputs_and_outputs(inputs, outputs) -> None:
    made, spec = wide(inputs, outputs)
    engine = built(made, [spec])
    ((kernel,),) = kernels(engine, spec)
    assert len(kernel.variants[0].align) == inputs + outputs


@pytest.mark.parametrize("dtype", regions.PLUGIN_TYPES, ids=str)
def test_every_type_in_a_network_of_its_own_and_after_a_cast(dtype) -> None:
    spec = regions.same(dtype)
    built(lone(spec, (4, 6), dtype.onnx), [spec])
    to, back = conversions(dtype)
    made = model([to, fused(spec, ["a"], ["b"], "region"), back], {"x": (FLOAT, (4, 6))}, {"y": (FLOAT, (4, 6))})
    made.graph.initializer.extend([helper.make_tensor("s", FLOAT, [], [0.5]), helper.make_tensor("zero", dtype.onnx, [], [0])])
    built(made, [spec])


def conversions(dtype: DType) -> tuple[onnx.NodeProto, onnx.NodeProto]:
    """From a float ``x`` to ``a`` of this type, and from ``b`` to ``y``: TensorRT takes float8 from a quantisation, and no Cast to it."""
    if dtype in dtypes.FLOAT8:
        make = [helper.make_node(op, [a, "s", "zero"], [b]) for op, a, b in (("QuantizeLinear", "x", "a"), ("DequantizeLinear", "b", "y"))]
    else:
        make = [helper.make_node("Cast", [a], [b], to=to) for a, b, to in (("x", "a", dtype.onnx), ("b", "y", FLOAT))]
    return make[0], make[1]


@pytest.mark.parametrize("dtype", regions.PLUGIN_TYPES, ids=str)
def test_every_type_as_a_weight(dtype) -> None:
    """Weights reach a plugin as they are; their bytes are in the plan."""
    b = Builder()
    x, w = b.param(dtype, (4, 6)), b.param(dtype, (6,))
    spec = dumps(b.finish([b.map("and" if dtype is dtypes.BOOL else "max", x, w)]))
    values = np.array([0, 1, 1, 0, 1, 0]) if dtype is dtypes.BOOL else np.array([1, 2, 3, 4, 5, 93])
    weight = values.astype(dtype.numpy)
    made = model([fused(spec, ["x", "w"], ["y"], "region")], {"x": (dtype.onnx, (4, 6))}, {"y": (dtype.onnx, (4, 6))}, {"w": weight})
    assert weight.tobytes() in built(made, [spec]).bytes


def test_mixed_types_in_one_region() -> None:
    """Float data, float16 scale, int64 indices; bool and int8 results (report R70)."""
    b = Builder()
    x, s, i = b.param(dtypes.F32, (4, 8)), b.param(dtypes.F16, (8,)), b.param(dtypes.I64, (4, 3))
    scaled = x * b.cast(s, dtypes.F32)
    small = b.cast(b.map("max", b.map("min", scaled, 127.0), -128.0), dtypes.I8)
    spec = dumps(b.finish([b.map("gt", scaled, 0.5), small, b.cast(i, dtypes.I32)]))
    made = model(
        [fused(spec, ["x", "s", "i"], ["p", "q", "r"], "mixed")],
        {"x": (FLOAT, (4, 8)), "s": (TensorProto.FLOAT16, (8,)), "i": (TensorProto.INT64, (4, 3))},
        {"p": (TensorProto.BOOL, (4, 8)), "q": (TensorProto.INT8, (4, 8)), "r": (TensorProto.INT32, (4, 3))},
    )
    built(made, [spec])


def chain(count: int) -> onnx.ModelProto:
    """Regions between matrix products, with ten different specs among them."""
    nodes, last = [], "x"
    for k in range(count):
        b = Builder()
        spec = dumps(b.finish([b.param(dtypes.F32, (sym("n"), 8)) * (k % 10 + 1) + 0.5]))
        nodes += [fused(spec, [last], [f"a{k}"], f"region{k}"), helper.make_node("MatMul", [f"a{k}", "m"], [f"b{k}"])]
        last = f"b{k}"
    nodes[-1].output[0] = "y"
    return model(nodes, {"x": (FLOAT, ("n", 8))}, {"y": (FLOAT, ("n", 8))}, {"m": np.eye(8, dtype=np.float32)})


def test_three_hundred_regions() -> None:
    made = chain(300)
    specs = sorted(
        {node.attribute[i].s.decode() for node in made.graph.node for i in range(len(node.attribute)) if node.attribute[i].name == "spec"}
    )
    engine = built(made, specs, {"x": ((1, 8), (4, 8), (16, 8))})
    assert len(set(engine.plugin_layers)) == 300
    assert all(hardened(engine, spec) == [[{"n": 4}, {}]] for spec in specs)


# --- profiles


def test_two_profiles_each_with_a_kernel_for_its_usual_shape() -> None:
    spec = regions.scale()
    engine = built(lone(spec), [spec], [{"x": ((1, 8), (4, 8), (8, 8))}, {"x": ((16, 8), (32, 8), (64, 8))}])
    assert sorted(map(str, hardened(engine, spec))) == ["[{'n': 32}, {}]", "[{'n': 4}, {}]"]
    with_one = built(lone(spec), [spec], [{"x": ((1, 8), (4, 8), (8, 8))}])
    assert len(engine.bytes) > len(with_one.bytes)


def test_a_profile_of_one_shape_beside_one_of_many() -> None:
    spec = regions.scale()
    engine = built(lone(spec), [spec], [{"x": ((4, 8),) * 3}, {"x": ((1, 8), (32, 8), (64, 8))}])
    assert sorted(map(str, hardened(engine, spec))) == ["[{'n': 32}, {}]", "[{'n': 4}]"]


def test_two_profiles_of_two_inputs_and_computed_sizes() -> None:
    spec = regions.joined()
    outputs = [f"y{i}" for i in range(5)]
    made = model(
        [fused(spec, ["x", "z", "s"], outputs, "joined")],
        {"x": (FLOAT, ["n"]), "z": (FLOAT, ["k"]), "s": (FLOAT, [])},
        {o: (FLOAT, [f"o{i}"]) for i, o in enumerate(outputs)},
    )
    profiles = parse_profiles(["x:0,5,9", "z:3,7,17", "x:10,20,30", "z:19,21,23"])
    engine = built(made, [spec], profiles, computed=True)
    assert sorted(map(str, hardened(engine, spec))) == ["[{'m': 2, 'n': 5}, {}]", "[{'m': 9, 'n': 20}, {}]"]


def test_kernels_of_all_profiles_are_compiled_ahead_together(monkeypatch) -> None:
    """Where the model's names tell the sizes, configuring compiles nothing any more."""
    from graphfuse_plugin import kernels as kernels_module

    batches: list[int] = []
    original = kernels_module.compile_kernels

    def spy(regions_, *more):
        batches.append(len(regions_))
        return original(regions_, *more)

    monkeypatch.setattr(kernels_module, "compile_kernels", spy)
    build_engine(chain(12), shapes=[{"x": ((1, 8), (4, 8), (16, 8))}, {"x": ((1, 8), (5, 8), (16, 8))}], targets=["sm_89"])
    assert Counter(batches) == Counter({30: 1, 0: batches.count(0)})  # ten specs, each for 4, for 5, and for any


def test_misleading_names_only_cost_time() -> None:
    """A region whose size bears the name of another one of the model's still gets the kernels that TensorRT's sizes ask for."""
    spec = regions.scale()  # its n is the model's k
    made = model(
        [fused(spec, ["x"], ["y"], "region"), helper.make_node("Relu", ["z"], ["w"])],
        {"x": (FLOAT, ("k", 8)), "z": (FLOAT, ("n",))},
        {"y": (FLOAT, ("k", 8)), "w": (FLOAT, ("n",))},
    )
    engine = built(made, [spec], {"x": ((1, 8), (4, 8), (8, 8)), "z": ((100,), (200,), (300,))})
    assert hardened(engine, spec) == [[{"n": 4}, {}]]


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ([{"x": ((1, 8), (4, 8), (8, 8))}, {}], "'x' has dynamic sizes"),
        ([{"x": ((1, 8), (4, 8), (8, 8))}, {"x": ((1, 9),) * 3}], "1x9 does not fit"),
        ([{"x": ((1, 8), (4, 8), (8, 8))}, {"q": ((1, 8),) * 3}], "shapes are given for 'q'"),
    ],
)
def test_a_bad_second_profile_is_found_before_the_build(profiles, message) -> None:
    with pytest.raises(ShapeError, match=message):
        build_engine(lone(regions.scale()), shapes=profiles, targets=["sm_89"])


def test_the_text_of_profiles() -> None:
    assert parse_profiles([]) == [{}]
    assert parse_profiles(["x:1x2", "y:3"]) == [{"x": ((1, 2),) * 3, "y": ((3,),) * 3}]
    assert parse_profiles(["x:1", "y:3", "x:2"]) == [{"x": ((1,),) * 3, "y": ((3,),) * 3}, {"x": ((2,),) * 3, "y": ((3,),) * 3}]
    with pytest.raises(ShapeError, match="'y' has shapes for 2 profiles, another input for 3"):
        parse_profiles(["x:1", "x:2", "x:3", "y:1", "y:2"])


# --- reports


def test_graphsurgeon_keeps_the_plugin_form() -> None:
    """Its strings must be text: GraphSurgeon decodes them (report R73); what it writes builds the same engine."""
    import onnx_graphsurgeon as gs

    spec = regions.pair((4, 8))
    made = model(
        [fused(spec, ["x", "w"], ["y", "less"], "region")],
        {"x": (FLOAT, (4, 8)), "w": (FLOAT, (8,))},
        {"y": (FLOAT, (4, 8)), "less": (TensorProto.BOOL, (4, 8))},
    )
    again = gs.export_onnx(gs.import_onnx(made))
    again.ir_version = made.ir_version
    assert built(made, [spec]).plugin_layers == built(again, [spec]).plugin_layers


def test_all_that_the_creator_reads_it_declares() -> None:
    """TensorRT hands over only what is declared (report R61); name, version and namespace stand in one place (report R64)."""
    module = load_flavour("tensorrt_rtx").module
    graphfuse_plugin.register(module)
    creator = module.get_plugin_registry().get_creator(graphfuse_plugin.NAME, graphfuse_plugin.VERSION, graphfuse_plugin.NAMESPACE)
    assert [field.name for field in creator.field_names] == ["spec"]
    declared: Mapping[str, str] = {"plugin_namespace": graphfuse_plugin.NAMESPACE, "plugin_version": graphfuse_plugin.VERSION}
    node = fused(regions.scale(), ["x"], ["y"])
    assert declared.items() <= {a.name: a.s.decode() for a in node.attribute}.items()
