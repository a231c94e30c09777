"""The pattern language: what matches, what does not and why, and what rewriting does to a graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphfuse.graph.facts import Facts
from graphfuse.ir import GraphfuseError
from graphfuse.match import rewrite_model
from graphfuse.patterns import Either, Match, Matcher, Maybe, Number, Op, Pattern, Recognised, Tape, Times, Var, Weight, recognise
from graphfuse.patterns.apply import rewrite_patterns
from graphfuse.patterns.matching import MAX_STEPS
from tests.conftest import run_reference
from tests.texts import assert_law, feeds_of, model, op_types, proto

X, Y = Var("x"), Var("y")
WEIGHTS = "float one = {1}, float two = {2}, float three = {3}, float half = {0.5}, float[8] g = {1,2,3,4,5,6,7,8}, float[1,1,1] tall = {1}"


def look(body: str, *patterns: Pattern, **more: object) -> Recognised:
    given = model(body, weights=WEIGHTS, **more)  # type: ignore[arg-type]
    return recognise(list(given.graph), Facts(given), patterns)


def outputs(found: Recognised) -> list[str | None]:
    return [v.name for m in found.matches for v in m.outputs]


def pattern(*matchers: Matcher, **more: object) -> Pattern:
    return Pattern("p", matchers if len(matchers) > 1 else matchers[0], **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("matcher", "body"),
    [
        (X * Op("Sigmoid", X), "s = Sigmoid(x)\ny = Mul(s, x)"),
        (X * Op("Sigmoid", X), "s = Sigmoid(x)\ny = Mul(x, s)"),
        ((X + 1) * (X + 2), "a = Add(two, x)\nb = Add(x, one)\ny = Mul(a, b)"),
        (X - Op("Relu", X), "r = Relu(x)\ny = Sub(x, r)"),
        (1 / Op("Exp", X), "e = Exp(x)\ny = Div(one, e)"),
        (1 - X, "y = Sub(one, x)"),
        (Op("Exp|Log", X), "y = Log(x)"),
        (Either(Op("Exp", Op("Neg", X)), Op("Exp", Op("Abs", X))), "a = Abs(x)\ny = Exp(a)"),
        (Op("Exp", Maybe("Identity", Op("Abs", X))), "a = Abs(x)\ni = Identity(a)\ny = Exp(i)"),
        (Op("Exp", Maybe("Identity", Op("Abs", X))), "a = Abs(x)\ny = Exp(a)"),
        (X * Weight("w"), "y = Mul(g, x)"),
        (X * Number("c", test=lambda n: n > 1), "y = Mul(x, two)"),
        (Op("LeakyRelu", X, alpha=lambda a: a is not None and a > 0), "y = LeakyRelu<alpha = 0.25>(x)"),
        (Times(X, Op("Exp", X), scale=0.5), "e = Exp(x)\na = Mul(e, x)\ny = Mul(half, a)"),
        (Times(X, Op("Exp", X), scale=0.5), "e = Exp(x)\na = Mul(x, half)\ny = Mul(e, a)"),
        (Times(X, Op("Exp", X), scale=0.5), "e = Exp(x)\na = Div(x, two)\ny = Mul(e, a)"),
        (Times(X, X, X, scale=3), "a = Mul(x, x)\nb = Mul(a, x)\ny = Mul(three, b)"),
        (Times(X, X, X), "y = Pow(x, three)"),
        # the first operand fits in both orders at first: only with the second comes the contradiction
        ((X + Y) * Op("Exp", Y), "a = Add(x, g)\ne = Exp(x)\ny = Mul(a, e)"),
        # two nodes that compute the same are as good as one
        (Op("Exp", X) + Op("Sqrt", Op("Exp", X)), "a = Exp(x)\nb = Exp(x)\nc = Sqrt(b)\ny = Add(a, c)"),
    ],
)  # fmt: skip
def test_matches(matcher: Matcher, body: str) -> None:
    assert outputs(look(body, pattern(matcher))) == ["y"]


@pytest.mark.parametrize(
    ("matcher", "body", "node", "reason"),
    [
        (X - Op("Relu", X), "r = Relu(x)\ny = Sub(r, x)", "Sub", "'x' is an input or a constant, Relu is wanted"),
        (X * Op("Sigmoid", X), "t = Tanh(x)\ns = Sigmoid(t)\ny = Mul(s, x)", "Tanh", "'t' stands where 'x' is wanted"),
        (Op("Exp", X + 1), "a = Add(x, two)\ny = Exp(a)", "Add", "2 is not 1.0"),
        (Op("Exp", X * Weight("w")), "a = Mul(x, x)\ny = Exp(a)", "Mul", "'x' is no constant"),
        (Op("Exp", Op("Neg", X)), "s = Neg(x)\na = Abs(s)\ny = Exp(a)", "Abs", "Abs is not Neg"),
        (Op("Exp", Op("Neg", X)), "a = Neg(x)\ne = Exp(a)\ny = Add(a, e)", "Neg", "'a', an inner value, is also read by Add"),
        (Op("Exp", Op("LeakyRelu", X, alpha=0.5)), "a = LeakyRelu<alpha = 0.25>(x)\ny = Exp(a)", "LeakyRelu", "LeakyRelu has alpha = 0.25"),
        (Op("Exp", Times(X, X, scale=2)), "a = Mul(x, x)\nb = Mul(a, three)\ny = Exp(b)", "Mul", "constant factor is 3, 2 is wanted"),
        (Op("Exp", Op("Clip", X)), "a = Clip(x, one)\ny = Exp(a)", "Clip", "Clip has 2 inputs, 1 are wanted"),
        (Op("Exp", Op("Split", X, more=True)), "a, b = Split<axis = 1, num_outputs = 2>(x)\nc = Exp(b)\ny = Concat<axis = 1>(a, c)", "Split", "output 1 of Split is read, output 0 is wanted"),
    ],
)  # fmt: skip
def test_near_misses_name_the_offending_node(matcher: Matcher, body: str, node: str, reason: str) -> None:
    found = look(body, pattern(matcher), opset=18)
    assert not found.matches
    miss = found.nearest["p"]
    assert reason in miss.reason
    assert miss.node.op_type == node or node in miss.reason


def test_the_nearest_miss_is_the_one_with_most_nodes() -> None:
    body = "a = Exp(x)\nb = Neg(x)\nc = Abs(b)\nd = Exp(c)\ny = Add(a, d)"
    miss = look(body, pattern(Op("Exp", Op("Abs", Op("Sqrt", X))))).absent
    assert miss == {"p": "Sqrt"}
    body = "a = Exp(x)\nb = Neg(x)\nc = Abs(b)\nd = Exp(c)\ns = Sqrt(d)\ny = Add(a, s)"
    found = look(body, pattern(Op("Exp", Op("Abs", Op("Sqrt", X)))))
    assert (found.nearest["p"].root.outputs[0].name, found.nearest["p"].matched, found.nearest["p"].node.op_type) == ("d", 2, "Neg")


def test_shared_nodes_may_serve_others() -> None:
    body = "a = Neg(x)\ne = Exp(a)\ny = Add(a, e)"
    assert outputs(look(body, pattern(Op("Exp", Op("Neg", X, shared=True))))) == ["e"]


def test_a_check_refuses_with_its_reason() -> None:
    found = look("y = Exp(x)", pattern(Op("Exp", X, name="exp"), check=lambda m: m.wrong("exp", "not today")))
    assert (found.nearest["p"].reason, found.nearest["p"].node.op_type) == ("not today", "Exp")


def test_several_outputs() -> None:
    double = pattern(Op("Sin", X), Op("Cos", X))
    assert outputs(look("s = Sin(x)\nc = Cos(x)\ny = Add(s, c)", double)) == ["s", "c"]
    assert not look("n = Neg(x)\ns = Sin(x)\nc = Cos(n)\ny = Add(s, c)", double).matches


def test_a_node_goes_to_the_first_pattern_that_takes_it() -> None:
    first, second = Pattern("first", Op("Exp", Op("Neg", X))), Pattern("second", Op("Neg", X))
    assert [m.pattern.name for m in look("a = Neg(x)\ny = Exp(a)", first, second).matches] == ["first"]
    assert [m.pattern.name for m in look("a = Neg(x)\ny = Exp(a)", second, first).matches] == ["second"]


def test_a_search_without_end_ends() -> None:
    many: Matcher = X
    for _ in range(14):
        many = Either(*[Op("Add", many, Var("never") * 0) for _ in range(2)])
    body = "\n".join(["a0 = Add(x, x)", "m = Mul(x, x)", *(f"a{i} = Add(a{i - 1}, a{i - 1})" for i in range(1, 13)), "y = Add(a12, a12)"])
    assert MAX_STEPS < 2**14
    assert not look(body, pattern(many)).matches


# --- rewriting


def _sigmoid(match: Match, tape: Tape) -> ir.Value:
    return tape.op("Sigmoid", match["x"])


LOGISTIC = Pattern("logistic", 1 / (1 + Op("Exp", Op("Neg", X))), "", rewrite=_sigmoid)
BODY = "n = Neg(x)\ne = Exp(n)\na = Add(e, one)\ny = Div(one, a)"


def test_a_rewrite_keeps_the_names_of_outputs_and_removes_what_is_left() -> None:
    given = model(BODY, weights=WEIGHTS)
    (repair,) = rewrite_patterns(given, Facts(given), [LOGISTIC])
    assert repair.pattern is LOGISTIC
    assert op_types(given) == ["Sigmoid"]
    assert [v.name for v in given.graph.outputs] == ["y"]
    assert not given.graph.initializers
    feeds = feeds_of(proto(given))
    np.testing.assert_allclose(run_reference(proto(given), feeds)["y"], 1 / (1 + np.exp(-feeds["x"])), rtol=1e-6)


def test_a_rewrite_that_gives_an_input_back_goes_through_identity() -> None:
    given = model("n = Neg(x)\ny = Neg(n)")
    rewrite_patterns(given, Facts(given), [Pattern("twice", Op("Neg", Op("Neg", X)), rewrite=lambda m, t: m["x"])])
    assert op_types(given) == ["Identity"]
    assert [v.name for v in given.graph.outputs] == ["y"]


def test_a_rewrite_of_several_outputs_sorts_the_graph() -> None:
    def rewrite(match: Match, tape: Tape) -> list[ir.Value]:
        doubled = tape.op("Add", match["x"], match["x"])
        return [tape.op("Sin", doubled), tape.op("Cos", doubled)]

    given = model("s = Sin(x)\nr = Relu(s)\nc = Cos(x)\ny = Add(r, c)")
    rewrite_patterns(given, Facts(given), [Pattern("p", (Op("Sin", X), Op("Cos", X)), rewrite=rewrite)])
    assert sorted(op_types(given)) == ["Add", "Add", "Cos", "Relu", "Sin"]
    feeds = feeds_of(proto(given))
    want = np.maximum(np.sin(2 * feeds["x"]), 0) + np.cos(2 * feeds["x"])
    np.testing.assert_allclose(run_reference(proto(given), feeds)["y"], want, rtol=1e-5, atol=1e-6)


def test_outputs_that_depend_on_each_other_are_not_made_one() -> None:
    """``Cos`` reads what ``Sin`` makes: nodes that need both inputs at once would wait for themselves."""
    both = Pattern("p", (Op("Sin", X), Op("Cos", Y) + X), rewrite=lambda m, t: [t.op("Sin", m["x"]), t.op("Sub", m["x"], m["y"])])
    given = model("s = Sin(x)\nr = Relu(s)\nc = Cos(r)\ny = Add(c, x)")
    assert rewrite_patterns(given, Facts(given), [both]) == []
    assert op_types(given) == ["Sin", "Relu", "Cos", "Add"]


def test_names_of_new_nodes_collide_with_nothing() -> None:
    given = model("y_sigmoid = Neg(x)\ne = Exp(y_sigmoid)\na = Add(e, one)\nz = Div(one, a)\ny = Add(z, y_sigmoid)", weights=WEIGHTS)
    shared = Pattern("logistic", 1 / (1 + Op("Exp", Op("Neg", X, shared=True))), rewrite=_sigmoid)
    rewrite_patterns(given, Facts(given), [shared])
    names = [v.name for n in given.graph for v in n.outputs]
    assert len(set(names)) == len(names)
    assert names[-1] == "y"


def test_a_rewrite_of_another_type_or_shape_is_an_error() -> None:
    given = model("n = Neg(x)\ny = Exp(n)")
    wrong = Pattern("wrong", Op("Exp", Op("Neg", X)), rewrite=lambda m, t: t.op("ReduceMean", m["x"], axes=[1]))
    with pytest.raises(GraphfuseError, match="pattern 'wrong': its rewrite makes 'y'.*mend the pattern"):
        rewrite_patterns(given, Facts(given), [wrong])
    given = model("n = Neg(x)\ny = Exp(n)")
    with pytest.raises(GraphfuseError, match="makes 2 outputs, not 1"):
        rewrite_patterns(given, Facts(given), [Pattern("wrong", Op("Exp", Op("Neg", X)), rewrite=lambda m, t: [m["x"], m["x"]])])


def test_a_rewrite_that_makes_what_it_looks_for_is_an_error() -> None:
    endless = Pattern("endless", Op("Exp", X), rewrite=lambda m, t: t.op("Exp", t.op("Neg", t.op("Neg", m["x"]))))
    with pytest.raises(GraphfuseError, match="'endless' still fits after 8 rounds"):
        rewrite_model(model("y = Exp(x)"), patterns=[endless])


def test_rewrites_are_part_of_the_law_and_of_the_report() -> None:
    found = rewrite_model(model(BODY + "\n", weights=WEIGHTS), policy="aggressive", patterns=[LOGISTIC])
    assert found.report["patterns"] == {"rewritten": {"logistic": 1}, "recognised": {}}
    assert_law(found, "aggressive")
    plain = rewrite_model(model(BODY, weights=WEIGHTS), policy="aggressive", patterns=[LOGISTIC], skip=["logistic"])
    assert plain.report["patterns"] == {"rewritten": {}, "recognised": {}}
    exact = rewrite_model(model(BODY, weights=WEIGHTS), policy="aggressive", patterns=[LOGISTIC], exact_rounding=True)
    assert exact.report["patterns"]["rewritten"] == {}


def test_bodies_of_if_keep_what_they_read() -> None:
    body = "n = Neg(x)\ne = Exp(n)\na = Add(e, one)\nd = Div(one, a)\n" + (
        "y = If(c) <then_branch = t () => (float[N,8] u) { u = Abs(d) }, else_branch = f () => (float[N,8] v) { v = Neg(e) }>"
    )
    given = model(body, "float[N,8] x, bool c", weights=WEIGHTS)
    assert rewrite_patterns(given, Facts(given), [LOGISTIC]) == []  # e is read by a branch
    given = model(body.replace("Neg(e)", "Neg(d)"), "float[N,8] x, bool c", weights=WEIGHTS)
    assert len(rewrite_patterns(given, Facts(given), [LOGISTIC])) == 1
    feeds = {"x": np.ones((3, 8), np.float32), "c": np.array(False)}
    np.testing.assert_allclose(run_reference(proto(given), feeds)["y"], -1 / (1 + np.exp(-feeds["x"])), rtol=1e-6)
