"""The plugin in TensorRT's order of calls, with stand-in TensorRT objects and the kernels on the CPU."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

import graphfuse_plugin
from graphfuse.ir import GraphfuseError, ProgramError, ShapeError, dtypes, interpret, loads
from graphfuse.jit import cache as caches
from graphfuse_plugin import adapt
from graphfuse_plugin.fields import KERNELS, SPEC
from tests import regions, stand_in_trt
from tests.protocol import Context, HostDriver, Network, describe, fixed, run_on_host

RNG = np.random.default_rng(7)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    return HostDriver(monkeypatch)


@pytest.fixture
def trt():
    return stand_in_trt.make()


def array(shape, dtype=np.float32) -> np.ndarray:
    if np.dtype(dtype) == np.dtype(bool):
        return RNG.random(shape) < 0.5
    return RNG.integers(-100, 100, shape).astype(dtype)


def check(network: Network, context: Context, arrays) -> None:
    for got, want in zip(run_on_host(context, arrays), interpret.run(network.program, arrays), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def opened(trt, spec, profile, targets=("sm_80",)) -> tuple[Network, Context]:
    network = Network(trt, spec)
    return network, Context(network, network.load(network.build(profile, targets)))


def test_dynamic_region_serves_every_size_of_its_profile(trt, host) -> None:
    network, context = opened(trt, regions.pair(), [((1, 8), (8, 8), (64, 8)), ((8,), (8,), (8,))])
    for rows in (64, 3, 1, 64):
        check(network, context, [array((rows, 8)), array((8,))])


def test_static_region_is_hardened(trt, host) -> None:
    network = Network(trt, regions.scale())
    fields = network.build(fixed(network.program, [(4, 8)]), ["sm_80"])
    assert b'"fixed":{"n":4}' in fields[KERNELS]
    assert b'"symbols":[]' in fields[KERNELS]
    context = Context(network, network.load(fields))
    check(network, context, [array((4, 8))])
    with pytest.raises(RuntimeError, match="no kernel of this engine serves"):
        context.set_shapes([(5, 8)])
    with pytest.raises(ShapeError):
        graphfuse_plugin.reraise()
    x = array((5, 8))
    with pytest.raises(RuntimeError, match="without being told its shapes"):  # never the kernel of the shapes before
        context.enqueue([x.ctypes.data], [x.ctypes.data])
    with pytest.raises(GraphfuseError):
        graphfuse_plugin.reraise()


@pytest.mark.parametrize("dtype", regions.PLUGIN_TYPES, ids=str)
def test_every_plugin_type(trt, host, dtype) -> None:
    network, context = opened(trt, regions.same(dtype), fixed(loads(regions.same(dtype)), [(4, 6)]))
    check(network, context, [array((4, 6), dtype.numpy)])


def test_reduction_and_zero_rows(trt, host) -> None:
    network, context = opened(trt, regions.softmax(), [((0, 33), (4, 33), (16, 33))])
    for rows in (4, 16):
        x = array((rows, 33))
        (got,) = run_on_host(context, [x])
        np.testing.assert_allclose(got, interpret.run(network.program, [x])[0], rtol=1e-5)
    before = len(host.launches)
    (empty,) = run_on_host(context, [array((0, 33))])
    assert empty.shape == (0, 33)
    assert len(host.launches) == before


def test_scalar_region(trt, host) -> None:
    network, context = opened(trt, regions.scale(shape=()), [((), (), ())])
    check(network, context, [np.array(3, np.float32)])


def test_output_shapes_are_expressions_of_input_sizes(trt, host) -> None:
    network = Network(trt, regions.joined())
    plugin = network.parse()
    for n, m in ((5, 2), (8, 0), (1, 7), (0, 0)):
        want = [(n + 2 * m + 3,), (n // 2 + m,), (n % 3,), (max(n, m),), (min(n, m),)]
        assert network.output_shapes(plugin, [(n,), (2 * m + 3,), ()], [(-1,), (-1,), ()]) == want
    _, context = opened(trt, regions.joined(), [((0,), (5,), (9,)), ((3,), (7,), (17,)), ((),) * 3])
    check(network, context, [array((5,)), array((7,)), array(())])
    with pytest.raises(RuntimeError):
        context.plugin.on_shape_change([describe(trt, dtypes.F32, s) for s in ((5,), (8,), ())], [])  # 2*m + 3 is never even
    with pytest.raises(ShapeError):
        graphfuse_plugin.reraise()


def test_misaligned_addresses_take_the_scalar_variant(trt, host) -> None:
    _, context = opened(trt, regions.scale(), [((1, 8), (4, 8), (8, 8))])
    context.set_shapes([(4, 8)])
    store = np.zeros(2 * 33 + 8, np.float32)
    start = (-store.ctypes.data // 4) % 4  # elements up to a multiple of 16 bytes
    x = store[start : start + 32]
    x[:] = np.arange(32)
    want = x * 2 + 1
    entries = []
    for shift in (0, 1):
        y = store[start + 32 + shift : start + 64 + shift]
        context.enqueue([x.ctypes.data], [y.ctypes.data])
        np.testing.assert_array_equal(y, want)
        entries.append(host.launches[-1])
    assert entries[0] != entries[1]


def test_contexts_share_nothing_that_changes(trt, host) -> None:
    network = Network(trt, regions.scale())
    loaded = network.load(network.build([((1, 8), (4, 8), (256, 8))], ["sm_80"]))
    contexts = [Context(network, loaded) for _ in range(3)]
    failures: list[BaseException] = []

    def work(context: Context, rows: int) -> None:
        try:
            for step in range(20):
                check(network, context, [np.full((rows + step % 3, 8), rows + step, np.float32)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(c, 10 * (i + 1))) for i, c in enumerate(contexts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_clones_are_equal_and_serialise_alike(trt, host) -> None:
    network = Network(trt, regions.pair())
    fields = network.build([((1, 8), (8, 8), (64, 8)), ((8,),) * 3], ["sm_80", "sm_120"])
    loaded = network.load(fields)
    again = loaded.clone().attach_to_context(None).clone()
    copies = {f.name: np.asarray(f.data).tobytes() for f in again.get_fields_to_serialize()}
    assert copies == fields
    assert (again.num_outputs, again.region, again.kernels) == (loaded.num_outputs, loaded.region, loaded.kernels)


def test_fields_outlive_the_plugin_during_a_build(trt, host) -> None:
    network = Network(trt, regions.scale())
    with graphfuse_plugin.building(["sm_80"]):
        plugin = network.parse()
        desc = stand_in_trt.DynamicPluginTensorDesc(stand_in_trt.PluginTensorDesc((4, 8)))
        plugin.configure_plugin([desc], [desc])
        collection = plugin.get_fields_to_serialize()
        views = [np.asarray(f.data) for f in collection]
        before = [v.tobytes() for v in views]
        del plugin, collection
        gc.collect()
        _ = [np.full(1 << 14, 7, np.int8) for _ in range(64)]
        assert [v.tobytes() for v in views] == before


def test_equal_regions_of_a_build_share_what_is_written(trt, host) -> None:
    """A thousand layers of ten kinds take the memory of ten."""
    networks = [Network(trt, spec) for spec in (regions.scale(), regions.pair((4, 8)))]
    desc = stand_in_trt.DynamicPluginTensorDesc(stand_in_trt.PluginTensorDesc((4, 8)))
    vector = stand_in_trt.DynamicPluginTensorDesc(stand_in_trt.PluginTensorDesc((8,)))
    with graphfuse_plugin.building(["sm_80"]):
        found = []
        for network, inputs in zip(networks, ([desc], [desc, vector]), strict=True):
            plugins = [network.parse().clone() for _ in range(20)]
            assert len({id(p.region) for p in plugins}) == 1
            for plugin in plugins:
                plugin.configure_plugin(inputs, [])
            found.append({id(p.get_fields_to_serialize()) for p in plugins})
        assert [len(ids) for ids in found] == [1, 1]
        assert found[0] != found[1]
        (first,) = (p for p in plugins[:1])
        first.configure_plugin([stand_in_trt.DynamicPluginTensorDesc(stand_in_trt.PluginTensorDesc((4, 8))), vector], [])
        assert id(first.get_fields_to_serialize()) in found[1]
        general = networks[0].parse().clone()
        general.configure_plugin([stand_in_trt.DynamicPluginTensorDesc(stand_in_trt.PluginTensorDesc((-1, 8)), (1, 8), (3, 8), (9, 8))], [])
        assert id(general.get_fields_to_serialize()) not in found[0]  # other kernels


def test_nothing_is_compiled_once_an_engine_is_loaded(trt, host, monkeypatch) -> None:
    network = Network(trt, regions.scale())
    fields = network.build([((1, 8), (4, 8), (8, 8))], ["sm_80"])
    monkeypatch.setattr("graphfuse.jit.compile_many", lambda *a, **k: pytest.fail("compiled at run time"))
    monkeypatch.setattr("graphfuse.codegen.generate", lambda *a, **k: pytest.fail("generated at run time"))
    context = Context(network, network.load(fields))
    check(network, context, [array((4, 8))])


@pytest.fixture
def empty_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("GRAPHFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(caches, "_caches", {})
    return tmp_path / "cache"


def unavailable(*args, **more):
    raise GraphfuseError("NVRTC is not installed")


def test_another_architecture_takes_what_was_compiled_before(trt, host, monkeypatch, empty_cache) -> None:
    """No second time, unless the entry is damaged, or something that the code depends on has changed since."""
    network = Network(trt, regions.scale())
    fields = network.build([((1, 8), (4, 8), (8, 8))], ["sm_120"])

    def load() -> int:
        before = len(compiled)
        check(network, Context(network, network.load(fields)), [array((4, 8))])
        return len(compiled) - before

    compiled: list[int] = []
    original = adapt.compile_kernels
    monkeypatch.setattr(adapt, "compile_kernels", lambda *args: compiled.append(1) or original(*args))
    assert [load(), load()] == [2, 0]  # one for the usual size, one for every size
    monkeypatch.setattr(adapt, "_tuned", lambda: "a new table")
    assert [load(), load()] == [2, 0]
    monkeypatch.setattr(adapt, "_code", lambda: "another release")
    assert [load(), load()] == [2, 0]
    cache = caches.default_cache()
    for entry in cache.stored():
        if (cache.peek(entry.name) or b"").startswith(b"graphfuse-region:"):
            cache.put(entry.name, b"graphfuse-region: something else")
    assert [load(), load()] == [2, 0]
    monkeypatch.setattr("graphfuse.jit.compile_many", unavailable)
    assert load() == 0


def test_another_architecture_compiles_anew_or_says_what_to_build(trt, host, monkeypatch, empty_cache) -> None:
    network = Network(trt, regions.scale())
    fields = network.build([((1, 8), (4, 8), (8, 8))], ["sm_120"])
    monkeypatch.setattr("graphfuse.jit.compile_many", unavailable)
    plugin = network.load(fields).attach_to_context(None)
    assert plugin is not None
    with pytest.raises(GraphfuseError, match=r"holds kernels for sm_120, not for sm_86.*--target sm_86"):
        graphfuse_plugin.reraise()


@pytest.mark.parametrize(
    "spec", ["", "{", '{"version":99}', regions.same(dtypes.F64), regions.same(dtypes.U8)], ids=["none", "cut", "new", "f64", "u8"]
)
def test_bad_specs_make_no_plugin_and_one_error(trt, spec) -> None:
    creator_of = Network(trt, regions.scale())
    creator_of.spec = spec
    with graphfuse_plugin.building() as build:
        assert creator_of.parse() is None
        with pytest.raises(ProgramError) as caught:
            build.reraise()
        assert "\n" not in str(caught.value)
        build.reraise()


@pytest.mark.parametrize("change", ["cut", "flip", "spec", "lost", "empty"])
def test_damaged_fields_do_not_load(trt, host, change) -> None:
    network = Network(trt, regions.scale())
    fields = dict(network.build([((1, 8), (4, 8), (8, 8))], ["sm_80"]))
    data = bytearray(fields[KERNELS])
    if change == "cut":
        fields[KERNELS] = bytes(data[:-1])
    elif change == "flip":
        data[-40] ^= 1
        fields[KERNELS] = bytes(data)
    elif change == "spec":
        fields[SPEC] = regions.scale((4, 8)).encode()
    elif change == "lost":
        del fields[KERNELS]
    else:
        fields = {}
    assert network.load(fields or {"other": b"x"}) is None
    with pytest.raises(ProgramError):
        graphfuse_plugin.reraise()


def test_network_types_and_shapes_that_do_not_fit_are_refused(trt) -> None:
    network = Network(trt, regions.scale())
    plugin = network.parse()
    with pytest.raises(RuntimeError, match="made for inputs of type FLOAT; the network gives HALF"):
        plugin.get_output_data_types([trt.DataType.HALF])
    with pytest.raises(RuntimeError, match="made for"):
        network.output_shapes(plugin, [(4, 9)])
    with pytest.raises(GraphfuseError):
        graphfuse_plugin.reraise()
