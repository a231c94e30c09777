"""Every model's fused form becomes a TensorRT-RTX engine with exactly the planned plugin layers."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphfuse
from graphfuse.ir import GraphfuseError
from tests.corpus import EVERY_MODEL, engine_shapes, fused

# The original does not build either: TensorRT-RTX takes no int32 bias of a convolution through DequantizeLinear.
REFUSED = {"qdq_conv_net_ts13": "DequantizeLinear"}


@pytest.mark.parametrize("path", EVERY_MODEL, ids=lambda p: p.stem)
def test_engine_holds_every_region(path: Path) -> None:
    result = fused(path)
    if path.stem in REFUSED:
        with pytest.raises(GraphfuseError, match=REFUSED[path.stem]):
            graphfuse.build_engine(result.model, shapes=engine_shapes(path), flavour="tensorrt_rtx", targets=["sm_89"])
        return
    engine = graphfuse.build_engine(result.model, shapes=engine_shapes(path), flavour="tensorrt_rtx", targets=["sm_89"])
    assert len(engine.plugin_layers) == len(result.regions) and len(engine.bytes) > 0
