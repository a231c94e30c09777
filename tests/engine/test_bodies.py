"""Regions in bodies of If, Loop and Scan become plugin layers of a TensorRT-RTX engine."""

from __future__ import annotations

import pytest

import graphfuse
from graphfuse.match import rewrite_model
from tests.texts import model, proto
from tests.unit.test_match_bodies import EVERY

SHAPES = {"x": ((1, 8), (3, 8), (9, 8))}


@pytest.mark.parametrize("name", ["if", "loop", "scan"])  # TensorRT-RTX 1.7 builds no If in an If, fused or not
def test_every_region_of_a_body_is_a_layer(name: str) -> None:
    (body, inputs, outputs, weights), wanted = EVERY[name]
    if name == "loop":  # a trip count that is an input of the network would be a shape input of the profile
        body, inputs = f"m = Constant <value = int64 {{3}}> ()\n{body}", "float[N,8] x"
    found = rewrite_model(model(body, inputs, outputs, weights=weights))
    engine = graphfuse.build_engine(proto(found.model), shapes=SHAPES, flavour="tensorrt_rtx", targets=["sm_89"])
    assert len(engine.plugin_layers) == len(wanted) and len(engine.bytes) > 0
