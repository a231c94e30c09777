"""From a real build to a launch: real creators, fields and tensor descriptions; only the device is the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from graphfuse.engine import build_engine, load_flavour
from graphfuse.ir import interpret
from graphfuse_plugin import fields, guard
from tests import regions
from tests.conftest import compiler_absence
from tests.protocol import Context, HostDriver, Network, run_on_host

pytestmark = pytest.mark.skipif(compiler_absence() is not None, reason=compiler_absence() or "")


@pytest.fixture
def kept(monkeypatch) -> list[fields.FieldStore]:
    """What the plugins of the next builds serialise."""
    stores: list[fields.FieldStore] = []
    init = fields.FieldStore.__init__

    def spy(self, trt, parts):
        init(self, trt, parts)
        stores.append(self)

    monkeypatch.setattr(fields.FieldStore, "__init__", spy)
    return stores


@pytest.mark.parametrize(
    ("spec", "made", "shapes", "runs"),
    [
        (regions.scale(), regions.lone(regions.scale()), {"x": ((1, 8), (4, 8), (16, 8))}, [[(16, 8)], [(1, 8)]]),
        (regions.scale(()), regions.lone(regions.scale(()), ()), None, [[()]]),
        (regions.softmax(), regions.lone(regions.softmax(), ("r", 33)), {"x": ((1, 33), (4, 33), (9, 33))}, [[(9, 33)], [(2, 33)]]),
    ],
    ids=["scale", "scalar", "softmax"],
)
def test_fields_of_a_real_build_run(monkeypatch, kept, spec, made, shapes, runs) -> None:
    HostDriver(monkeypatch)
    trt = load_flavour("tensorrt_rtx").module
    engine = build_engine(made, shapes=shapes, targets=["sm_86"])
    parts = fields.read(kept[-1].collection)
    assert all(data in engine.bytes for data in parts.values())
    network = Network(trt, spec)
    context = Context(network, network.load(parts))
    for sizes in runs:
        arrays = [np.random.default_rng(3).standard_normal(s).astype(np.float32) for s in sizes]
        for got, want in zip(run_on_host(context, arrays), interpret.run(network.program, arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_negotiation_with_real_descriptions(monkeypatch) -> None:
    """The whole build side on real objects, but for expressions, which only TensorRT can make."""
    HostDriver(monkeypatch)
    network = Network(load_flavour("tensorrt_rtx").module, regions.pair())
    monkeypatch.setattr(
        network, "output_shapes", lambda plugin, shapes, dynamic: network.program.output_shapes(network.program.bind(shapes))
    )
    parts = network.build([((1, 8), (4, 8), (16, 8)), ((8,),) * 3], ["sm_86"])
    assert set(parts) == {"spec", "kernels"}
    context = Context(network, network.load(parts))
    arrays = [np.arange(24, dtype=np.float32).reshape(3, 8) - 9, np.full(8, 2, np.float32)]
    for got, want in zip(run_on_host(context, arrays), interpret.run(network.program, arrays), strict=True):
        np.testing.assert_array_equal(got, want)


def test_failed_serialisation_leaves_a_plan_that_does_not_load(monkeypatch) -> None:
    """Where nobody asks for stored errors, a plan without kernels must fail at load and not later."""
    HostDriver(monkeypatch)
    network = Network(load_flavour("tensorrt_rtx").module, regions.scale((4, 8)))
    assert network.load({"spec": network.spec.encode()}) is None
    with pytest.raises(fields.ProgramError, match="built without its kernels"):
        guard.reraise()
