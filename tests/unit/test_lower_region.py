"""Sets of ONNX nodes as programs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from graphfuse.graph.facts import Facts
from graphfuse.ir import Program, interpret, pretty
from graphfuse.ir.errors import Refused
from graphfuse.lower import Lowered, NodeRefused, lower_region
from tests.texts import model


def lowered(body: str, *args: str, exact_rounding: bool = False, **more: object) -> Lowered:
    """All nodes of the graph in one region."""
    given = model(body, *args, **more)  # type: ignore[arg-type]
    nodes = [n for n in given.graph if n.op_type != "Constant"]
    return lower_region(nodes, Facts(given), list(given.graph.outputs), exact_rounding=exact_rounding)


def ops(program: Program) -> list[str]:
    return [i.attr("fn") if i.op in ("map", "reduce") else i.op for i in program.body]


def test_parameters_stand_in_order_of_first_use() -> None:
    made = lowered("a = Mul(q, x)\ny = Add(a, g)", "float[N,8] x, float[N,8] q", weights="float[8] g = {1,2,3,4,5,6,7,8}")
    assert [v.name for v in made.inputs] == ["q", "x", "g"]
    assert [tuple(map(str, s)) for _, s in made.program.params] == [("N", "8"), ("N", "8"), ("8",)]


def test_results_stand_in_the_order_asked_for() -> None:
    given = model("a = Relu(x)\ny = Neg(a)", outputs="float[N,8] y, float[N,8] a")
    nodes = list(given.graph)
    values = [nodes[1].outputs[0], nodes[0].outputs[0]]
    made = lower_region(nodes, Facts(given), values)
    assert list(made.outputs) == values
    x = np.array([[-1, 2, 3, 4, 5, 6, 7, 8]], np.float32)
    first, second = interpret.run(made.program, [x])
    np.testing.assert_array_equal(first, -np.maximum(x, 0))
    np.testing.assert_array_equal(second, np.maximum(x, 0))


@pytest.mark.parametrize("weight", ["float two = {2.0}", "float[1] two = {2.0}", "float[1,1] two = {2.0}"])
def test_constants_of_one_element_are_in_the_program(weight: str) -> None:
    made = lowered("y = Mul(x, two)", weights=weight)
    assert [v.name for v in made.inputs] == ["x"]
    assert "const" in ops(made.program)


def test_larger_constants_are_parameters() -> None:
    made = lowered("y = Mul(x, g)", weights="float[8] g = {1,2,3,4,5,6,7,8}")
    assert [v.name for v in made.inputs] == ["x", "g"]


def test_known_inputs_leave_no_trace() -> None:
    made = lowered("r = Reshape(x, s)\ny = Neg(r)", outputs="float[M,4] y", weights="int64[2] s = {-1, 4}")
    assert [v.name for v in made.inputs] == ["x"]
    assert pretty(made.program).count("reshape") == 1


def test_an_initializer_that_may_be_fed_is_a_parameter() -> None:
    given = model("y = Mul(x, gain)", "float[N,8] x, float[1] gain", weights="float[1] gain = {2.0}")
    made = lower_region(list(given.graph), Facts(given), list(given.graph.outputs))
    assert [v.name for v in made.inputs] == ["x", "gain"]


def test_a_size_that_no_input_tells_is_refused() -> None:
    body = "s = Shape(q)\ny = Expand(x, s)"
    given = model(body, "float[1,8] x, float[N,8] q")
    expand = [n for n in given.graph if n.op_type == "Expand"]
    with pytest.raises(NodeRefused) as caught:
        lower_region(expand, Facts(given), list(given.graph.outputs))
    assert caught.value.rule == "unbound-size"


def test_a_size_that_another_node_brings_in_is_fine() -> None:
    body = "s = Shape(q)\na = Expand(x, s)\ny = Add(a, q)"
    given = model(body, "float[1,8] x, float[N,8] q")
    nodes = [n for n in given.graph if n.op_type != "Shape"]
    made = lower_region(nodes, Facts(given), list(given.graph.outputs))
    assert [v.name for v in made.inputs] == ["x", "q"]


class Bad(NamedTuple):
    name: str
    body: str
    rule: str
    inputs: str = "float[N,8] x"
    weights: str = ""


@pytest.mark.parametrize(
    "bad",
    [
        Bad(
            "not in the table",
            "y = ScatterElements <axis = 1> (x, si, sv)",
            "unknown-op",
            weights="int64[1,1] si = {0}, float[1,1] sv = {9}",
        ),
        Bad("unequal sizes", "y = Add(x, q)", "not-provable", "float[N,8] x, float[M,8] q"),
        Bad("shape known at run time only", "y = Reshape(x, s)", "unknown-value", "float[N,8] x, int64[2] s"),
        Bad("strings", "y = Identity(x)", "unknown-shape", "string[N,8] x"),
    ],
    ids=lambda b: b.name,
)
def test_refusals_carry_the_node(bad: Bad) -> None:
    kind = "string" if "string" in bad.inputs else "float"
    with pytest.raises(NodeRefused) as caught:
        lowered(bad.body, bad.inputs, f"{kind}[A,B] y", weights=bad.weights)
    assert caught.value.rule == bad.rule
    assert caught.value.node is not None
    assert isinstance(caught.value, Refused)
    assert "\n" not in str(caught.value)


def test_a_broken_attribute_is_a_refusal_too() -> None:
    import onnx_ir as ir

    given = model("y = Softmax <axis = -1> (x)")
    node = next(iter(given.graph))
    node.attributes["axis"] = ir.AttrString("axis", "last")
    with pytest.raises(NodeRefused):
        lower_region([node], Facts(model("y = Softmax <axis = -1> (x)")), list(node.outputs))


def test_a_parameter_that_is_read_for_its_values_only_goes_away() -> None:
    """A gather by constant indices may become slices; the index tensor is then no input."""
    made = lowered("y = Gather <axis = 1> (x, i)", outputs="float[N,2] y", weights="int64[2] i = {3, 5}")
    used = {a for instr in made.program.body for a in instr.args} | set(made.program.results)
    assert all(n in used for n, instr in enumerate(made.program.body) if instr.op == "param")


def test_sizes_without_a_name_in_the_model_get_canonical_ones() -> None:
    body = "f = NonZero(x)\nt = Transpose <perm = [1, 0]> (f)\nc = Cast <to = 1> (t)\ny = Neg(c)"
    given = model(body, outputs="float[M,2] y")
    nodes = [n for n in given.graph if n.op_type in ("Cast", "Neg")]
    made = lower_region(nodes, Facts(given), list(given.graph.outputs))
    assert made.program.symbols == ("d0",)


def test_named_sizes_keep_their_names() -> None:
    assert lowered("y = Relu(x)").program.symbols == ("N",)


def test_exact_rounding_rounds_after_every_node() -> None:
    body = "a = Mul(x, x)\nc = Mul(a, a)\ny = Mul(c, x)"
    args = ("float16[N,8] x", "float16[N,8] y")
    plain, exact = lowered(body, *args), lowered(body, *args, exact_rounding=True)
    assert "round" not in ops(plain.program)
    assert ops(exact.program).count("round") == 3
    x = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float16)
    squared = x * x  # NumPy rounds after each operation; ONNX Runtime on a CPU does not
    want = squared * squared * x
    np.testing.assert_array_equal(interpret.run(exact.program, [x])[0], want)
    assert (interpret.run(plain.program, [x])[0] != want).any(), "unrounded values must differ somewhere, or this tests nothing"
