"""Sessions on the host device: the generated kernels inside whole models, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import pytest

import graphfuse
from graphfuse.check.inputs import make_inputs
from graphfuse.session import Session
from graphfuse.session.values import is_native
from tests.conftest import OWN_MODELS, run_reference
from tests.portable import call, info, model
from tests.unit.test_session import scale_relu_function, two_layers


def test_host_numpy_and_onnx_runtime_agree():
    proto = two_layers()
    x = np.random.default_rng(1).standard_normal((5, 4)).astype("f")
    host, plain, want = Session(proto, "host"), Session(proto, "numpy"), run_reference(proto, {"x": x})
    assert host.device == "host"
    for name, expected in want.items():
        np.testing.assert_array_equal(host.run({"x": x})[name], plain.run({"x": x})[name])
        np.testing.assert_allclose(host.run({"x": x})[name], expected, rtol=1e-5, atol=1e-6)


def test_auto_takes_the_host_where_there_is_no_gpu(has_gpu):
    assert Session(two_layers(), "auto").device == ("cuda" if has_gpu else "host")


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_other_sizes_need_no_other_session(rows):
    session = Session(two_layers(), "host")
    for n in (rows, rows + 3):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype("f")
        np.testing.assert_allclose(session.run({"x": x})["b"], run_reference(two_layers(), {"x": x})["b"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[::-1],
        lambda x: np.asfortranarray(x),
        lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view("f").reshape(x.shape),
    ],
)
def test_inputs_of_any_layout(change):
    x = np.random.default_rng(1).standard_normal((6, 4)).astype("f")
    proto = model(
        [call("gf_scale_relu_1", ["x", "s"], ["y"])],
        [info("x", shape=["n", 4]), info("s", shape=[4])],
        [info("y", shape=["n", 4])],
        functions=[scale_relu_function()],
    )
    session, s = Session(proto, "host"), np.array([1, -2, 3, -4], "f")
    np.testing.assert_array_equal(session.run({"x": change(x), "s": s})["y"], np.maximum(change(x) * s, 0))


@pytest.mark.parametrize("path", OWN_MODELS, ids=lambda p: p.stem)
def test_our_models(path):
    feeds = make_inputs(onnx_ir.load(path))
    fused = graphfuse.rewrite(path)
    assert fused.regions
    got, want = Session(fused.model, "host").run(feeds), run_reference(path, feeds)
    assert list(got) == list(want)
    result = graphfuse.check(path, fused.model, device="host", inputs=feeds)
    assert result.passed, result.to_json()
    assert all(is_native(a.dtype) for a in got.values())


def test_a_model_proto_is_not_changed_by_being_run():
    proto = two_layers()
    before = proto.SerializeToString()
    Session(proto, "host").run({"x": np.ones((2, 4), "f")})
    assert isinstance(proto, onnx.ModelProto)
    assert proto.SerializeToString() == before
