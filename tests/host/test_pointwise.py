"""What a thread of a pointwise kernel shares with its neighbours or does several times: small programs, made to do it."""

from __future__ import annotations

import pytest

from graphfuse.codegen import generate, pointwise
from graphfuse.codegen.config import Config
from graphfuse.ir.builder import Builder
from graphfuse.ir.dtypes import F32, U8
from graphfuse.ir.program import Program
from graphfuse.jit.host import HostDevice
from tests.host.test_kernels import _run
from tests.programs import CASES, compare, expected, inputs_for, sigmoid

PROGRAMS = {case.name: case.program for case in CASES}


def check(program: Program, config: Config = Config()) -> str:  # noqa: B008
    """Compares the kernel with the interpreter, on addresses that suit vectors and on others; its source."""
    source = generate(program, config)
    (loaded,) = HostDevice().load([source])
    inputs = inputs_for(program, {})
    for skew in (0, 1):
        compare(program, _run(loaded, program, inputs, {}, skew), expected(program, inputs))
    return source.text


def bytes_turned(height: int, width: int) -> Program:
    b = Builder()
    x = b.param(U8, (3, height, width))
    return b.finish([b.map("max", b.transpose(x, (1, 2, 0)), b.const(9, U8))])


def boxes(batch: int, places: int, classes: int) -> Program:
    b = Builder()
    x, grid = b.param(F32, (batch, places, 4 + classes)), b.param(F32, (places, 4))
    s = sigmoid(b, x)
    box = (b.slice(s, (0, 0, 0), (batch, places, 4)) + grid) * 8.0
    return b.finish([b.concat([box, b.slice(s, (0, 0, 4), (batch, places, classes))], 2), s * 2.0])


def test_neighbouring_threads_hand_over_what_is_beside_their_vectors() -> None:
    assert check(PROGRAMS["windows_across_threads"]).split('extern "C"')[1].count("gf_beside(") >= 2 * 6 + 4
    assert "gf_beside(" not in generate(PROGRAMS["dilate"]).text.split('extern "C"')[1]  # rows of half a warp


@pytest.mark.parametrize(("height", "width"), [(32, 64), (31, 67), (1, 1), (5, 129)])
def test_a_thread_that_moves_few_bytes_has_several_elements(monkeypatch, height: int, width: int) -> None:
    monkeypatch.setattr(pointwise, "BUSY", 1)
    text = check(bytes_turned(height, width))
    assert ("k < 8" in text) == (height * width > 8)
    check(bytes_turned(height, width), Config(items=4, threads=64))


@pytest.mark.parametrize(("batch", "places", "classes"), [(2, 84, 81), (4, 12, 41), (6, 5, 8), (3, 84, 81), (2, 3, 80)])
def test_what_two_images_need_is_found_once(monkeypatch, batch: int, places: int, classes: int) -> None:
    monkeypatch.setattr(pointwise, "BUSY", 1)
    text = check(boxes(batch, places, classes))
    splits = (4 + classes) % 4 != 0  # else each vector lies in one part
    assert ("g = gf_quot(u, " in text) == (splits and batch % 2 == 0 and places % 4 == 0)
