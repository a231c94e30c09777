"""The text form of shapes."""

from __future__ import annotations

import pytest

from graphfuse.engine.shapes import parse_shapes
from graphfuse.ir import ShapeError


def test_three_shapes_or_one() -> None:
    assert parse_shapes("x:1x3x8,4x3x8,8x3x8") == {"x": ((1, 3, 8), (4, 3, 8), (8, 3, 8))}
    assert parse_shapes(["x:1x3", "y:5"]) == {"x": ((1, 3),) * 3, "y": ((5,),) * 3}
    assert parse_shapes([]) == {}


def test_names_with_colons_zero_sizes_and_scalars() -> None:
    assert parse_shapes(["input:0:2x0", "s:"]) == {"input:0": ((2, 0),) * 3, "s": ((),) * 3}


@pytest.mark.parametrize(
    "text", ["x", "1x2", ":1x2", "x:1x2,3x4", "x:1x2,1x2,1x2,1x2", "x:1xx2", "x:-1x2", "x:ax2", "x:1x2,1x3,1", "x:2,1,3", "x:1,5,4", ""]
)
def test_anything_else_is_refused_in_one_line(text) -> None:
    with pytest.raises(ShapeError) as caught:
        parse_shapes(text)
    assert "\n" not in str(caught.value)


def test_an_input_given_twice() -> None:
    with pytest.raises(ShapeError, match="given twice"):
        parse_shapes(["x:1", "x:2"])
