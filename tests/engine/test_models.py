"""Every model's fused form becomes a TensorRT-RTX engine with exactly the planned plugin layers and kernels, twice the same."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import graphfuse
from graphfuse.engine.build import fused_nodes
from graphfuse.engine.contents import regions_in
from graphfuse.ir import GraphfuseError
from graphfuse_plugin.fields import Kernel
from tests.corpus import EVERY_MODEL, engine_shapes, fused

# The original does not build either: TensorRT-RTX takes no int32 bias of a convolution through DequantizeLinear.
REFUSED = {"qdq_conv_net_ts13": "DequantizeLinear"}


def contents_of(plan: bytes) -> list[tuple[str, tuple[Kernel, ...]]]:
    """All of ours that is in a plan."""
    return [(region.spec, kernels) for region, kernels in regions_in(plan)]


def specs_of(portable: onnx.ModelProto) -> set[str]:
    """The specs that the parser is given."""
    made = graphfuse.export_plugin(portable)
    return {node.spec for node in fused_nodes(made)}


@pytest.mark.parametrize("path", EVERY_MODEL, ids=lambda p: p.stem)
def test_engine_holds_every_region(path: Path) -> None:
    result = fused(path)
    if path.stem in REFUSED:
        with pytest.raises(GraphfuseError, match=REFUSED[path.stem]):
            graphfuse.build_engine(result.model, shapes=engine_shapes(path), flavour="tensorrt_rtx", targets=["sm_89"])
        return
    engines = [
        graphfuse.build_engine(result.model, shapes=engine_shapes(path), flavour="tensorrt_rtx", targets=["sm_89"]) for _ in range(2)
    ]
    assert len(engines[0].plugin_layers) == len(result.regions)
    contents = [contents_of(e.bytes) for e in engines]
    assert contents[0] == contents[1]
    assert {spec for spec, _ in contents[0]} == specs_of(result.model)
    if not engine_shapes(path):  # run-time sizes TensorRT numbers anew in each build, in mobilenetv3_timm_dyn, which has no region, too
        assert engines[0].bytes == engines[1].bytes
