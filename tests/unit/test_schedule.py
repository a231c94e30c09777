"""Which kernel a program becomes, and why some become none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from graphfuse.codegen import generate
from graphfuse.ir import Builder, Program, Val, loads, sym
from graphfuse.ir.dtypes import F16, F32, I64
from graphfuse.ir.errors import Refused
from graphfuse.schedule.kernel import Pointwise, Rows, plan
from tests.programs import CASES, layer_norm, softmax

SEGMENTS = {
    "head": ["Pointwise"], "horizontal": ["Pointwise"] * 3, "norm_64": ["Rows"], "group_norm": ["Rows"], "softmax_channels": ["Rows"],
    "two_norms_of_different_sizes": ["Rows", "Rows", "Pointwise"], "whole_tensor": ["Rows"], "norm_then_split": ["Rows"],
}  # fmt: skip


@pytest.mark.parametrize("name", SEGMENTS)
def test_segments(name: str) -> None:
    program = next(c.program for c in CASES if c.name == name)
    assert [type(s).__name__ for s in plan(program).segments] == SEGMENTS[name]


def _nested() -> Program:
    b = Builder()
    y = layer_norm(b, b.param(F32, (4, 64)), 64)
    return b.finish([b.reduce("sum", y, [0])])


def _some_rows() -> Program:
    b = Builder()
    y = layer_norm(b, b.param(F32, (8, 64)), 64)
    return b.finish([b.slice(y, (2, 0), (3, 64))])


def _again_for_many_rows() -> Program:
    b = Builder()
    top = b.reduce("max", b.param(F32, (64, 4096)), [1])
    total = b.reduce("sum", b.param(F32, (64, 300, 64)), [2])
    return b.finish([b.broadcast(b.reshape(top, (64, 1)), (64, 300)) + total])


def _few_long_rows() -> Program:
    b = Builder()
    return b.finish([b.reduce("sum", b.param(F32, (2, 1 << 20)), [1])])


def _costly_broadcast() -> Program:
    b = Builder()
    x, y = b.param(F32, (1, 4096)), b.param(F32, (4096, 4096))
    return b.finish([b.map("erf", b.map("exp", b.map("sin", x))) * y])


@pytest.mark.parametrize(
    ("make", "rule"),
    [(_nested, "reduction-nesting"), (_some_rows, "reduction-rows"), (_again_for_many_rows, "recompute"), (_few_long_rows, "few-rows"),
     (_costly_broadcast, "recompute")],
)  # fmt: skip
def test_refusals(make, rule: str) -> None:
    with pytest.raises(Refused) as caught:
        plan(make())
    assert caught.value.rule == rule


def test_vectors_only_where_extents_allow() -> None:
    def lanes(width: int) -> int:
        b = Builder()
        return generate(b.finish([b.param(F32, (3, width)) + b.param(F32, (width,))])).variants[0].align[0] // 4

    assert [lanes(w) for w in (64, 63, 62, 61)] == [4, 1, 2, 1]


def test_a_dynamic_program_has_narrow_and_wide_entries() -> None:
    b = Builder()
    source = generate(b.finish([b.param(F32, (sym("B"), 64)) * 2.0]))
    assert [v.entry.rsplit("_", 1)[1] for v in source.variants] == ["32", "32", "64", "64"]
    assert source.pick([0, 0], {"B": 1 << 20}).entry.endswith("vector_32")
    assert source.pick([0, 0], {"B": 1 << 26}).entry.endswith("vector_64")
    assert source.pick([4, 0], {"B": 1 << 20}).entry.endswith("scalar_32")


def test_long_rows_of_open_length_have_a_block_each() -> None:
    b = Builder()
    source = generate(b.finish([softmax(b, b.param(F32, (8, sym("T"))), 1)]))
    short, long = (source.pick([0, 0], {"T": n}) for n in (1024, 1025))
    assert (short.blocks({"T": 1024}), long.blocks({"T": 1025})) == (1, 8) and long.at_least


def test_approximations_only_where_a_rounding_hides_them() -> None:
    def text(exact: bool, compared: bool = False) -> str:
        b = Builder(exact_rounding=exact)
        y = b.map("exp", b.param(F16, (64,)))
        return generate(b.finish([b.map("lt", y, 2.0) if compared else y])).text.split('extern "C"', 1)[1]

    assert "gf_exp_small(" in text(False)
    assert "gf_exp_small(" not in text(True) and "gf_exp_small(" not in text(False, compared=True)


def test_names_from_a_spec_never_reach_the_source() -> None:
    spec = '{"version":1,"params":[["f32",["int_main_return","ヽ"]]],"body":[["map",[0,0],{"fn":"add"}]],"results":[1]}'
    text = generate(loads(spec)).text
    assert "int_main_return" not in text and "ヽ" not in text


def _sum_of_products(b: Builder, x: Val) -> Val:
    y = x
    for _ in range(1500):
        y = y * 1.5 + x
    return y


def _transposed(b: Builder, x: Val) -> Val:
    for _ in range(10_000):
        x = b.transpose(x, (1, 0))
    return x


def _looked_up(b: Builder, x: Val) -> Val:
    rows = b.param(I64, (8,))
    for _ in range(300):
        x = b.gather(x, rows, 0)
    return x


def _shifted(b: Builder, x: Val) -> Val:
    for _ in range(5000):
        x = b.slice(b.pad(x, (1, 0), (0, 0), 0.5), (0, 0), (8, 8))
    return x


def _normalised(b: Builder, x: Val) -> Val:
    for _ in range(60):
        x = x - b.broadcast(b.reduce("max", x, (1,), keepdims=True), (8, 8))
    return x


def _swapped(b: Builder, x: Val) -> Val:
    for _ in range(300):
        x = b.concat([b.slice(x, (4, 0), (4, 8)), b.slice(x, (0, 0), (4, 8)) * 2.0], 0)
    return x


def _reshaped(b: Builder, x: Val) -> Val:
    for _ in range(12):
        x = b.slice(b.reshape(b.transpose(b.reshape(b.pad(x, (1, 0), (0, 0), 0.0), (6, 12)), (1, 0)), (9, 8)), (0, 0), (8, 8))
    return x


CHAINS = {
    _sum_of_products: "graphfuse_kernel", _transposed: "graphfuse_kernel", _looked_up: "graphfuse_kernel", _shifted: "graphfuse_kernel",
    _normalised: "graphfuse_kernel", _swapped: "inside one another", _reshaped: "index arithmetic",
}  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
def test_long_chains_need_no_deep_stack(chain: Callable[[Builder, Val], Val]) -> None:
    """However long a chain is, a thread with a small stack writes its kernel, or refuses it, soon."""
    b = Builder()
    program = b.finish([chain(b, b.param(F32, (8, 8)))])
    before = threading.stack_size(256 << 10)
    try:
        with ThreadPoolExecutor(1) as pool:
            assert CHAINS[chain] in pool.submit(_text_or_reason, program).result()
    finally:
        threading.stack_size(before)


def _text_or_reason(program: Program) -> str:
    try:
        return generate(program).text
    except Refused as refused:
        return str(refused)


def test_rows_walk_columns_of_a_transposed_output() -> None:
    b = Builder()
    p = softmax(b, b.param(F32, (2, 3, 8, 64)), 3)
    (segment,) = plan(b.finish([b.transpose(p, (0, 2, 1, 3))])).segments
    assert isinstance(segment, Rows) and segment.outputs[0].columns == 64


def test_plain_outputs_of_the_same_shape_join_the_rows() -> None:
    b = Builder()
    x = b.param(F32, (16, 64))
    z = x + 1.0
    assert [type(s) for s in plan(b.finish([layer_norm(b, z, 64), z])).segments] == [Rows]
    assert [type(s) for s in plan(b.finish([z, b.cast(b.param(I64, (4,)), F32)])).segments] == [Pointwise, Pointwise]


def test_few_long_rows_have_clusters_where_there_are_some() -> None:
    b = Builder()
    source = generate(b.finish([softmax(b, b.param(F32, (16, 1 << 17)), 1)]))
    new, old = source.on("sm_90").variants, source.on("sm_89").variants
    assert [(v.entry.rsplit("_", 1)[1], v.cluster, v.grid) for v in new] == [("cluster", 8, 128), ("scalar", 1, 16)]
    assert [(v.entry.rsplit("_", 1)[1], v.cluster, v.grid) for v in old] == [("vector", 1, 16), ("scalar", 1, 16)]
    assert source.on("sm_120") == source.on("sm_90") == source.on("compute_100a") and source.on("sm_75") == source.on("sm_89")
    many = Builder()
    assert all(v.cluster == 1 for v in generate(many.finish([softmax(many, many.param(F32, (4096, 4096)), 1)])).variants)


def test_a_variance_needs_no_walk_of_its_own() -> None:
    b = Builder()
    text = generate(b.finish([layer_norm(b, b.param(F32, (64, sym("T") * 8)), 64)])).text.split('extern "C"', 1)[1].split('extern "C"')[0]
    assert text.count("for (gf_i32 u") == 2 and ".squares_about(" in text
