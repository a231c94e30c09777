"""Sessions and bindings on a real GPU, with arrays of our own, of PyTorch and of CuPy where they are installed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphfuse
from graphfuse.check.inputs import make_inputs
from graphfuse.ir import Builder, GraphfuseError, sym
from graphfuse.ir.dtypes import BF16, F32
from graphfuse.jit import CudaDevice, DeviceBuffer, driver, to_device
from graphfuse.session import Session
from tests.conftest import OWN_MODELS, ROOT, run_reference
from tests.portable import call, function, info, model
from tests.unit.test_session import scale_relu_function, two_layers

N = sym("n")
node = helper.make_node


def wholly_fused():
    """x, s -> Mul, Relu -> the same with a weight -> y; the value between them is an output, too."""
    w = numpy_helper.from_array(np.array([1, -1, 2, -2], "f"), "w")
    nodes = [call("gf_scale_relu_1", ["x", "s"], ["a"]), call("gf_scale_relu_1", ["a", "w"], ["y"])]
    outputs = [info("y", shape=["n", 4]), info("a", shape=["n", 4])]
    return model(nodes, [info("x", shape=["n", 4]), info("s", shape=[4])], outputs, [w], [scale_relu_function()])


def expected(x, s):
    a = np.maximum(x * s, 0)
    return {"y": np.maximum(a * np.array([1, -1, 2, -2], "f"), 0), "a": a}


@pytest.fixture(scope="module")
def gpu() -> CudaDevice:
    return CudaDevice()


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((1000, 4)).astype("f"), "s": rng.standard_normal(4).astype("f")}


def test_cuda_and_numpy_and_onnx_runtime_agree(gpu):
    proto = two_layers()
    session = Session(proto, "cuda")
    assert session.device == Session(proto, "auto").device == "cuda"
    for n in (0, 1, 5, 1000):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype("f")
        got, plain, want = session.run({"x": x}), Session(proto, "numpy").run({"x": x}), run_reference(proto, {"x": x})
        for name in want:
            np.testing.assert_array_equal(got[name], plain[name])
            np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("path", OWN_MODELS, ids=lambda p: p.stem)
@pytest.mark.parametrize("alt", [False, True])
def test_our_models(gpu, path, alt):
    feeds = make_inputs(onnx_ir.load(path), alt=alt)
    fused = graphfuse.rewrite(path)
    result = graphfuse.check(path, fused.model, device="cuda", inputs=feeds)
    assert result.passed, result.to_json()
    assert result.device == "cuda"
    assert all(r.compared for r in result.regions)


def test_bfloat16(gpu):
    b = Builder()
    double = b.finish([b.param(BF16, (N,)) * 2.0])
    nodes = [node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16), call("gf_double_1", ["h"], ["d"])]
    made = function("gf_double_1", double, [node("Add", ["x", "x"], ["y"])], ["x"], ["y"])
    proto = model(nodes, [info("x", shape=["n"])], [info("d", TensorProto.BFLOAT16, ["n"])], functions=[made])
    got = Session(proto, "cuda").run({"x": np.array([1.5, 1.001, -3], "f")})["d"]
    np.testing.assert_array_equal(got, np.array([3, 2, -6], ml_dtypes.bfloat16))


def test_weights_are_uploaded_once(gpu, arrays, monkeypatch):
    from graphfuse.session import cuda

    session = Session(wholly_fused(), "cuda")
    session.run(arrays)
    copies = []
    monkeypatch.setattr(cuda, "to_device", lambda device, array: copies.append(array.shape) or to_device(device, array))
    session.run(arrays)
    assert sorted(copies) == [(4,), (1000, 4)]  # the inputs, and nothing else


# --- bindings ---------------------------------------------------------------------------------------------------------


def test_binding_runs_again_on_new_data_in_place(gpu, arrays):
    buffers = {n: to_device(gpu, a) for n, a in arrays.items()}
    binding = Session(wholly_fused(), "cuda").bind(buffers)
    assert list(binding.outputs) == ["y", "a"]
    assert binding.kernels == 2
    for step in range(3):
        x = arrays["x"] + np.float32(step)
        buffers["x"].copy_from(x)
        binding.launch()
        for name, want in expected(x, arrays["s"]).items():
            np.testing.assert_array_equal(binding.outputs[name].to_host(), want)


def test_binding_keeps_what_it_needs(gpu, arrays):
    binding = Session(wholly_fused(), "cuda").bind({n: to_device(gpu, a) for n, a in arrays.items()})
    gc.collect()
    binding.launch()
    np.testing.assert_array_equal(binding.outputs["y"].to_host(), expected(**arrays)["y"])


def test_launch_on_a_stream_and_inside_a_graph(gpu, arrays):
    """Only kernels are launched: a capture, which forbids everything else, holds exactly those."""
    buffers = {n: to_device(gpu, a) for n, a in arrays.items()}
    binding = Session(wholly_fused(), "cuda").bind(buffers)
    stream = driver.call("cuStreamCreate", 1)
    api = driver.api()
    driver.call("cuStreamBeginCapture", stream, api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    binding.launch(int(stream))
    graph = driver.call("cuStreamEndCapture", stream)
    nodes = driver.call("cuGraphGetNodes", graph, binding.kernels + 5)
    kinds = [driver.call("cuGraphNodeGetType", n) for n in nodes[0][: nodes[1]]]
    assert kinds == [api.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL] * binding.kernels
    ready = driver.call("cuGraphInstantiate", graph, 0)
    buffers["x"].copy_from(arrays["x"] * 2)
    driver.call("cuGraphLaunch", ready, stream)
    gpu.synchronize(int(stream))
    np.testing.assert_array_equal(binding.outputs["y"].to_host(), expected(arrays["x"] * 2, arrays["s"])["y"])


def test_launch_compiles_allocates_and_copies_nothing(gpu, arrays, monkeypatch):
    binding = Session(wholly_fused(), "cuda").bind({n: to_device(gpu, a) for n, a in arrays.items()})

    def forbidden(name: str, *_: object) -> None:
        raise AssertionError(f"{name} inside launch")

    monkeypatch.setattr(driver, "call", forbidden)
    binding.launch()
    monkeypatch.undo()
    gpu.synchronize()
    np.testing.assert_array_equal(binding.outputs["a"].to_host(), expected(**arrays)["a"])


def test_empty_arrays(gpu, arrays):
    arrays["x"] = arrays["x"][:0]
    binding = Session(wholly_fused(), "cuda").bind({n: to_device(gpu, a) for n, a in arrays.items()})
    binding.launch()
    assert binding.outputs["y"].to_host().shape == (0, 4)


def test_an_input_that_is_an_output_comes_back_as_it_is(gpu):
    b = Builder()
    program = b.finish([b.param(F32, (4,)) + 1.0])
    made = function("gf_one_1", program, [node("Identity", ["x"], ["y"])], ["x"], ["y"])
    proto = model([call("gf_one_1", ["x"], ["y"])], [info("x", shape=[4])], [info("x", shape=[4]), info("y", shape=[4])], functions=[made])
    x = to_device(gpu, np.ones(4, "f"))
    binding = Session(proto, "cuda").bind({"x": x})
    binding.launch()
    assert binding.outputs["x"] is x
    np.testing.assert_array_equal(binding.outputs["y"].to_host(), np.full(4, 2))


def test_torch_arrays_come_in_and_go_out(gpu, arrays):
    torch = pytest.importorskip("torch")
    given = {n: torch.from_numpy(a).cuda() for n, a in arrays.items()}
    binding = Session(wholly_fused(), "cuda").bind(given)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    binding.launch(stream.cuda_stream)
    by_dlpack = torch.from_dlpack(binding.outputs["y"])
    by_interface = torch.as_tensor(binding.outputs["y"], device="cuda")
    for tensor in (by_dlpack, by_interface):
        assert tensor.data_ptr() == binding.outputs["y"].pointer
        np.testing.assert_array_equal(tensor.cpu().numpy(), expected(**arrays)["y"])
    given["x"].mul_(2)
    torch.cuda.synchronize()
    binding.launch(stream.cuda_stream)
    stream.synchronize()
    np.testing.assert_array_equal(by_dlpack.cpu().numpy(), expected(arrays["x"] * 2, arrays["s"])["y"])


def test_cupy_arrays_come_in_and_go_out(gpu, arrays):
    cupy = pytest.importorskip("cupy")
    binding = Session(wholly_fused(), "cuda").bind({n: cupy.asarray(a) for n, a in arrays.items()})
    binding.launch()
    np.testing.assert_array_equal(cupy.asarray(binding.outputs["y"]).get(), expected(**arrays)["y"])


def test_a_thread_that_has_not_used_cuda(gpu, arrays):
    import threading

    session = Session(wholly_fused(), "cuda")
    found: list[object] = []

    def work() -> None:
        found.append(session.run(arrays)["y"])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], expected(**arrays)["y"])


class Strided:
    """An array whose rows are further apart than they are long."""

    def __init__(self, buffer: DeviceBuffer) -> None:
        self.buffer = buffer
        self.__cuda_array_interface__ = {**buffer.__cuda_array_interface__, "shape": (500, 4), "strides": (32, 4)}


REFUSED = {
    "not contiguous": (lambda gpu, a: {**a, "x": Strided(a["x"])}, "input 'x': .*contiguous"),
    "another dtype": (lambda gpu, a: {**a, "x": to_device(gpu, np.ones((3, 4)))}, "input 'x' is float64; the model wants float32"),
    "another rank": (lambda gpu, a: {**a, "x": to_device(gpu, np.ones(4, "f"))}, r"input 'x' has the shape \[4\]"),
    "another size": (lambda gpu, a: {**a, "s": to_device(gpu, np.ones(5, "f"))}, r"input 's' has the shape \[5\]"),
    "an unknown name": (lambda gpu, a: {**a, "t": a["x"]}, "no input 't'"),
    "a missing one": (lambda gpu, a: {"x": a["x"]}, "needs the input 's'"),
    "memory of the host": (lambda gpu, a: {**a, "x": np.ones((3, 4), "f")}, "input 'x': "),
    "no array": (lambda gpu, a: {**a, "x": [1.0]}, "input 'x': "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_bound_is_one_clear_line(gpu, arrays, case):
    change, message = REFUSED[case]
    session = Session(wholly_fused(), "cuda")
    with pytest.raises(GraphfuseError, match=message) as caught:
        session.bind(change(gpu, {n: to_device(gpu, a) for n, a in arrays.items()}))
    assert "\n" not in str(caught.value)


def test_partly_fused_models_cannot_be_bound(gpu):
    with pytest.raises(GraphfuseError, match="wholly fused models, and node MatMul"):
        Session(two_layers(), "cuda").bind({"x": to_device(gpu, np.ones((2, 4), "f"))})


LIFE = """
import sys
import numpy as np, onnx
from cuda.bindings import driver
from graphfuse.session import Session

def call(name, *args):
    status, *values = getattr(driver, name)(*args)
    assert not int(status), (name, status)
    return values[0] if values else None

call("cuInit", 0)
device = call("cuDeviceGet", 0)
call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", device))
if sys.argv[2] == "before":
    call("cuDevicePrimaryCtxRelease", device)
session = Session(onnx.load(sys.argv[1]), "cuda")
if sys.argv[2] == "after":
    call("cuDevicePrimaryCtxRelease", device)
x = np.arange(8, dtype="f").reshape(2, 4)
print(float(session.run({"x": x})[session.outputs[0].name].sum()))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_another_library_gives_the_primary_context_back(when, tmp_path):
    """It was current here, made by another, and its count falls to nothing but our own."""
    proto = two_layers()
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins"), *filter(None, sys.path)])}
    command = [sys.executable, "-c", LIFE, str(tmp_path / "model.onnx"), when]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    (want, *_) = run_reference(proto, {"x": np.arange(8, dtype="f").reshape(2, 4)}).values()
    np.testing.assert_allclose(float(found.stdout), want.sum(), rtol=1e-5)
