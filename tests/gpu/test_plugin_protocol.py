"""The plugin in TensorRT's order of calls on a real GPU: device pointers, a stream of its own, capture, threads.

TensorRT itself may be absent (stand-in objects take its place); the kernels, the driver and the addresses are real.
"""

from __future__ import annotations

import statistics
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import graphfuse_plugin
from graphfuse.ir import interpret, loads
from graphfuse_plugin.driver import gpu_arch
from tests import regions, stand_in_trt
from tests.protocol import Context, Network, fixed

RNG = np.random.default_rng(11)
ROWS = [((0, 8), (8, 8), (4096, 8))]


class Gpu:
    """Memory and streams in the primary context, through the driver."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.api: Any = driver
        self("cuInit", 0)
        self.device = self("cuDeviceGet", 0)
        self.context = self("cuDevicePrimaryCtxRetain", self.device)
        self.make_current()
        self.memory: list[Any] = []

    def __call__(self, name: str, *args: Any) -> Any:
        status, *values = getattr(self.api, name)(*args)
        assert status == self.api.CUresult.CUDA_SUCCESS, f"{name}: {status.name}"
        return values[0] if values else None

    def make_current(self) -> None:
        self("cuCtxSetCurrent", self.context)

    def stream(self) -> Any:
        return self("cuStreamCreate", int(self.api.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def allocate(self, size: int) -> int:
        self.memory.append(self("cuMemAlloc", max(size, 16) + 256))
        return int(self.memory[-1])

    def upload(self, array: np.ndarray, shift: int = 0) -> int:
        address = self.allocate(array.nbytes) + shift
        self.write(address, array)
        return address

    def write(self, address: int, array: np.ndarray) -> None:
        if array.nbytes:
            self("cuMemcpyHtoD", address, np.ascontiguousarray(array).ctypes.data, array.nbytes)

    def read(self, address: int, like: np.ndarray) -> np.ndarray:
        found = np.empty_like(like)
        if found.nbytes:
            self("cuMemcpyDtoH", found.ctypes.data, address, found.nbytes)
        return found

    def close(self) -> None:
        self("cuCtxSynchronize")
        for address in self.memory:
            self("cuMemFree", address)
        self("cuCtxSetCurrent", self.api.CUcontext(0))
        self("cuDevicePrimaryCtxRelease", self.device)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    gpu = Gpu()
    yield gpu
    gpu.close()


@pytest.fixture
def trt() -> Any:
    return stand_in_trt.make()


def opened(trt: Any, spec: str, profile) -> tuple[Network, Context]:
    network = Network(trt, spec)
    return network, Context(network, network.load(network.build(profile)))


def array(shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
    if np.dtype(dtype) == np.dtype(bool):
        return RNG.random(tuple(shape)) < 0.5
    return RNG.integers(-100, 100, tuple(shape)).astype(dtype)


def check(gpu: Gpu, context: Context, arrays: Sequence[np.ndarray], stream: Any, shift: int = 0) -> None:
    wanted = interpret.run(context.program, arrays)
    context.set_shapes([a.shape for a in arrays])
    inputs = [gpu.upload(a, shift * a.itemsize) for a in arrays]
    guard = np.full(64, 0xA5, np.uint8)
    outputs = []
    for want in wanted:  # bytes before and behind each output that no kernel may touch
        base = gpu.allocate(want.nbytes + 128)
        gpu.write(base, np.full(want.nbytes + 128, 0xA5, np.uint8))
        outputs.append(base + 64 + shift * want.itemsize)
    context.enqueue(inputs, outputs, int(stream))
    gpu("cuStreamSynchronize", stream)
    for address, want in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(gpu.read(address, want).astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-6)
        assert (gpu.read(address - 32, guard[:32]) == 0xA5).all()
        assert (gpu.read(address + want.nbytes, guard[:32]) == 0xA5).all()


def test_changing_shapes_and_misaligned_addresses(gpu, trt) -> None:
    _, context = opened(trt, regions.scale(), ROWS)
    stream = gpu.stream()
    for rows in (4096, 3, 1, 0, 4096, 17):
        for shift in (0, 1, 3):
            check(gpu, context, [array((rows, 8))], stream, shift)


@pytest.mark.parametrize("dtype", regions.PLUGIN_TYPES, ids=str)
def test_every_plugin_type(gpu, trt, dtype) -> None:
    _, context = opened(trt, regions.same(dtype), fixed(loads(regions.same(dtype)), [(4, 6)]))
    check(gpu, context, [array((4, 6), dtype.numpy)], gpu.stream())


def test_reductions_several_outputs_and_scalars(gpu, trt) -> None:
    stream = gpu.stream()
    _, softmax = opened(trt, regions.softmax(), [((0, 33), (4, 33), (512, 33))])
    for rows in (1, 511):
        check(gpu, softmax, [array((rows, 33)) / 10], stream)
    _, pair = opened(trt, regions.pair(), [*ROWS, ((8,),) * 3])
    check(gpu, pair, [array((100, 8)), array((8,))], stream)
    _, scalar = opened(trt, regions.scale(()), [((),) * 3])
    check(gpu, scalar, [array(())], stream)
    _, joined = opened(trt, regions.joined(), [((0,), (5,), (99,)), ((3,), (7,), (99,)), ((),) * 3])
    check(gpu, joined, [array((50,)), array((7,)), array(())], stream)


def test_capture_from_the_first_enqueue_on(gpu, trt) -> None:
    """A CUDA graph of the very first launch, replayed on new values."""
    network, context = opened(trt, regions.scale(), ROWS)
    stream, x = gpu.stream(), array((64, 8))
    context.set_shapes([x.shape])
    source, target = gpu.upload(x), gpu.allocate(x.nbytes)
    gpu("cuStreamBeginCapture", stream, gpu.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    context.enqueue([source], [target], int(stream))
    graph = gpu("cuStreamEndCapture", stream)
    run = gpu("cuGraphInstantiate", graph, 0)
    context.set_shapes([(1, 8)])  # what is captured has its own copy of the arguments
    for _ in range(3):
        x = array((64, 8))
        gpu.write(source, x)
        gpu("cuGraphLaunch", run, stream)
        gpu("cuStreamSynchronize", stream)
        np.testing.assert_array_equal(gpu.read(target, x), interpret.run(network.program, [x])[0])
    gpu("cuGraphExecDestroy", run)
    gpu("cuGraphDestroy", graph)


def test_the_launch_waits_for_work_on_its_stream_only(gpu, trt) -> None:
    """A copy ahead on the same stream must have landed when the kernel reads; nothing runs on the legacy stream."""
    network, context = opened(trt, regions.scale(), [((1, 8), (8, 8), (1 << 20, 8))])
    stream, x = gpu.stream(), array((1 << 18, 8))
    context.set_shapes([x.shape])
    first, second, target = gpu.upload(x), gpu.upload(x * 0), gpu.allocate(x.nbytes)
    for _ in range(20):
        gpu("cuMemsetD8Async", second, 0, x.nbytes, stream)
        gpu("cuMemcpyDtoDAsync", second, first, x.nbytes, stream)
        context.enqueue([second], [target], int(stream))
    gpu("cuStreamSynchronize", stream)
    np.testing.assert_array_equal(gpu.read(target, x), interpret.run(network.program, [x])[0])


def test_many_threads_with_contexts_of_their_own(gpu, trt) -> None:
    """16 threads, each with its context, stream and sizes, 1,000 enqueues each."""
    network = Network(trt, regions.scale())
    loaded = network.load(network.build(ROWS))
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            gpu.make_current()
            context, stream = Context(network, loaded), gpu.stream()
            buffers = {
                rows: (gpu.upload(np.full((rows, 8), number, np.float32)), gpu.allocate(rows * 32)) for rows in (8 + number, 300 - number)
            }
            for step in range(1000):
                rows = (8 + number, 300 - number)[step // 10 % 2]
                if step % 10 == 0:
                    context.set_shapes([(rows, 8)])
                source, target = buffers[rows]
                context.enqueue([source], [target], int(stream))
            gpu("cuStreamSynchronize", stream)
            for rows, (_, target) in buffers.items():
                assert (gpu.read(target, np.zeros((rows, 8), np.float32)) == number * 2 + 1).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_enqueue_compiles_and_keeps_nothing(gpu, trt, monkeypatch) -> None:
    _, context = opened(trt, regions.pair(), [*ROWS, ((8,),) * 3])
    context.set_shapes([(64, 8), (8,)])
    stream = gpu.stream()
    inputs = [gpu.upload(array((64, 8))), gpu.upload(array((8,)))]
    outputs = [gpu.allocate(64 * 32), gpu.allocate(64 * 8)]
    monkeypatch.setattr("graphfuse.jit.compile_many", lambda *a, **k: pytest.fail("compiled in enqueue"))
    for _ in range(100):
        context.enqueue(inputs, outputs, int(stream))
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    for _ in range(1000):
        context.enqueue(inputs, outputs, int(stream))
    grown = sum(
        s.size_diff for s in tracemalloc.take_snapshot().compare_to(before, "filename") if "graphfuse_plugin" in s.traceback[0].filename
    )
    tracemalloc.stop()
    gpu("cuStreamSynchronize", stream)
    assert grown < 2048


@pytest.mark.parametrize("bindings", ["the same", "changing"])
def test_enqueue_is_quick(gpu, trt, record_property, bindings) -> None:
    """Entry to return of the callback, four inputs and two outputs, at the same addresses or at others in every call."""
    from graphfuse.ir import Builder, dtypes, dumps

    b = Builder()
    w, x, y, z = (b.param(dtypes.F32, (16, 8)) for _ in range(4))
    _, context = opened(trt, dumps(b.finish([w + x * y, y - z])), [((16, 8),) * 3] * 4)
    context.set_shapes([(16, 8)] * 4)
    stream = gpu.stream()
    sides = [([gpu.upload(array((16, 8))) for _ in range(4)], [gpu.allocate(512) for _ in range(2)]) for _ in range(2)]
    plugin, descs, handle = context.plugin, context.descs, int(stream)
    times = []
    for step in range(6000):
        inputs, outputs = sides[step % 2 if bindings == "changing" else 0]
        start = time.perf_counter_ns()
        plugin.enqueue(*descs, inputs, outputs, 0, handle)
        times.append(time.perf_counter_ns() - start)
        if step % 200 == 199:
            gpu("cuStreamSynchronize", stream)
    median = statistics.median(times) / 1000
    record_property("enqueue_us", median)
    print(f"enqueue at {bindings} addresses: {median:.2f} us median")
    assert median < 8


def test_sizes_met_at_run_time_get_a_kernel_of_their_own(gpu, trt) -> None:
    _, context = opened(trt, regions.scale(), ROWS)
    asked = graphfuse_plugin.specialise(4)
    try:
        stream, x = gpu.stream(), array((33, 8))
        for want in ({}, {"n": 33}):
            check(gpu, context, [x], stream)
            assert dict(context.plugin.launcher.current.kernel.fixed) == want
            asked.wait()
        check(gpu, context, [array((8, 8))], stream)  # the usual shape: the engine's own kernel for it
        assert dict(context.plugin.launcher.current.kernel.fixed) == {"n": 8}
    finally:
        graphfuse_plugin.specialise(None)


def test_loading_while_a_capture_is_going_on(gpu, trt) -> None:
    """A global capture forbids what may allocate, in every thread; a context may still be made, and shapes be met."""
    network = Network(trt, regions.scale())
    loaded = network.load(network.build(ROWS))
    other = Network(trt, regions.pair((16, 8)))
    late = other.load(other.build([((16, 8),) * 3, ((8,),) * 3]))
    context = Context(network, loaded)
    stream, x = gpu.stream(), array((64, 8))
    context.set_shapes([x.shape])
    source, target = gpu.upload(x), gpu.allocate(x.nbytes)
    gpu("cuStreamBeginCapture", stream, gpu.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    context.enqueue([source], [target], int(stream))
    Context(other, late).set_shapes([(16, 8), (8,)])  # loads its kernels now
    graph = gpu("cuStreamEndCapture", stream)
    run = gpu("cuGraphInstantiate", graph, 0)
    gpu("cuGraphLaunch", run, stream)
    gpu("cuStreamSynchronize", stream)
    np.testing.assert_array_equal(gpu.read(target, x), interpret.run(network.program, [x])[0])


def test_kernels_stay_loaded_when_everything_of_python_is_gone(gpu, trt) -> None:
    network, context = opened(trt, regions.scale(), [((1, 8), (8, 8), (1 << 20, 8))])
    stream, x = gpu.stream(), array((1 << 20, 8))
    context.set_shapes([x.shape])
    source, target = gpu.upload(x), gpu.allocate(x.nbytes)
    for _ in range(50):
        context.enqueue([source], [target], int(stream))
    program = network.program
    del context, network
    gpu("cuStreamSynchronize", stream)
    np.testing.assert_array_equal(gpu.read(target, x), interpret.run(program, [x])[0])


def test_default_target_is_this_gpu(gpu, trt) -> None:
    arch = gpu_arch()
    assert graphfuse_plugin.default_targets() == (arch,)
    network = Network(trt, regions.scale((4, 8)))
    assert f'"{arch}":['.encode() in network.build([((4, 8),) * 3])["kernels"]
