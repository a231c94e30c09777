"""Programs: what the builder accepts, what a spec can and cannot do, how shapes bind."""

from __future__ import annotations

import json

import numpy as np
import pytest

from graphfuse.ir import Builder, ProgramError, ShapeError, dumps, interpret, loads, pretty, sym
from graphfuse.ir.dtypes import BF16, BOOL, F16, F32, I32, I64
from tests.programs import CASES, expected, inputs_for


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_spec_is_canonical_and_reads_back(case) -> None:
    text = dumps(case.program)
    assert text.isascii() and dumps(loads(text)) == text
    env = case.sizes[0]
    inputs = inputs_for(case.program, env)
    for a, b in zip(interpret.run(loads(text), inputs), expected(case.program, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    assert pretty(case.program, case.name).startswith(f"program {case.name}")


def _spec(**changes: object) -> str:
    b = Builder()
    x = b.param(F32, (2, sym("S")))
    document = json.loads(dumps(b.finish([x + 1.0])))
    return json.dumps({**document, **changes})


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", "null", "not json", _spec(version=2), _spec(params=[["f33", [2]]]), _spec(params=[["f32", [-1]]]),
        _spec(params=[["f32", ["S; int x"]]]), _spec(params=[["f32", [1 << 60]]]), _spec(results=[99]), _spec(results=[-1]), _spec(results=[]),
        _spec(body=[["map", [0, 0], {"fn": "system"}]]), _spec(body=[["map", [0], {"fn": "add"}]]), _spec(body=[["map", [7, 0], {"fn": "add"}]]),
        _spec(body=[["const", [], {"value": "0x1p9999999"}, "f32"]]), _spec(body=[["const", [], {"value": 300}, "i8"]], results=[1]),
        _spec(body=[["slice", [0], {"starts": [0, 1], "steps": [1, 1]}, [2, "S"]]], results=[1]),
        _spec(body=[["slice", [0], {"starts": [0, 0], "steps": [1, 0]}, [2, 1]]], results=[1]),
        _spec(body=[["reshape", [0], {}, [3, "S"]]], results=[1]), _spec(body=[["broadcast", [0], {}, ["T"]]], results=[1]),
        _spec(body=[["transpose", [0], {"perm": [0, 0]}]], results=[1]), _spec(body=[["reduce", [0], {"fn": "sum", "axes": [5]}]], results=[1]),
        _spec(body=[["extent", [], {"size": "T"}, "i64"]], results=[1]), _spec(body=[["nonsense", [0], {}]], results=[1]),
        _spec(body=[["transpose", [0], {"perm": [1.0, 0.0]}]], results=[1]), _spec(body=[["gather", [0, 0], {"axis": 0}]], results=[1]),
        "[" * 100_000,
    ],
)  # fmt: skip
def test_a_hostile_spec_is_one_clear_error(text: str) -> None:
    with pytest.raises(ProgramError) as caught:
        loads(text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_symbols_bind_from_shapes() -> None:
    b = Builder()
    B, S = sym("B"), sym("S")
    x = b.param(F32, (2 * S + 1, B * S, B))
    program = b.finish([x + 1.0])
    assert program.bind([(7, 6, 2)]) == {"B": 2, "S": 3}
    for shape in [(7, 5, 2), (8, 6, 2), (7, 6), (7, 6, 2, 1)]:
        with pytest.raises(ShapeError):
            program.bind([shape])


def test_a_dimension_must_come_from_an_input() -> None:
    b = Builder()
    x = b.param(F32, (sym("B") * sym("S"),))
    with pytest.raises(ProgramError, match="cannot be read off"):
        b.finish([b.reshape(x, (sym("B"), sym("S"))) + 1.0])


def test_broadcast_of_sizes_that_may_differ_is_refused() -> None:
    b = Builder()
    x, y = b.param(F32, (sym("A"),)), b.param(F32, (sym("B"),))
    with pytest.raises(ProgramError, match="not provably equal"):
        b.map("add", x, y)


def test_small_floats_round_where_results_jump() -> None:
    b = Builder()
    x = b.param(F16, (4,))
    y = x * 3.0
    ops = [b.body[v.id].op for v in (b.map("floor", y), b.map("lt", y, x))]
    assert ops == ["map", "map"] and sum(i.op == "round" for i in b.body) == 1
    assert b.round(x) is x or b.round(x).id == x.id
    narrow = b.finish([b.cast(b.cast(b.param(F32, (3,)), F16), F32)])
    np.testing.assert_array_equal(interpret.run(narrow, [np.zeros(4, "f2"), np.array([70000, 1e-9, 1.0002], "f4")])[0], [np.inf, 0, 1])


def test_exact_rounding_rounds_after_every_operation() -> None:
    values = []
    for exact in (False, True):
        b = Builder(exact_rounding=exact)
        x = b.param(F16, (1,))
        values.append(interpret.run(b.finish([(x * x) / x]), [np.array([300.0], "f2")])[0][0])
    assert values[0] == 300 and np.isinf(values[1])


def test_types_are_checked() -> None:
    b = Builder()
    x, i, m, h = b.param(F32, (2,)), b.param(I64, (2,)), b.param(BOOL, (2,)), b.param(BF16, (2,))
    for bad in (lambda: b.map("add", x, i), lambda: b.map("and", x, x), lambda: b.map("where", x, x, x), lambda: b.map("exp", i),
                lambda: b.map("add", x, h), lambda: b.const(3.5, I32), lambda: b.reduce("sum", m, [0])):  # fmt: skip
        with pytest.raises(ProgramError):
            bad()
