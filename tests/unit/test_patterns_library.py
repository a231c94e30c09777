"""Each of our patterns: what it matches, what it must not match, and that a rewrite is at least as accurate as what it replaces."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphfuse.graph.facts import Facts
from graphfuse.graph.load import load_model
from graphfuse.match import restore_model, rewrite_model
from graphfuse.match.normalise import normalise
from graphfuse.patterns import Recognised, recognise
from graphfuse.patterns.library import LIBRARY
from tests.conftest import SHARED_CASES, run_reference
from tests.real_models import REAL_MODELS
from tests.texts import assert_law, model, op_types, proto, regions

Array = np.ndarray
NUMBERS = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "six": 6, "half": 0.5, "mhalf": -0.5, "eps": 1e-5, "c044": 0.044715, "c04": 0.04, "s2pi": math.sqrt(2 / math.pi),
    "r2": math.sqrt(2), "ir2": math.sqrt(0.5), "r3": 1.5, "eight": 8, "eighth": 0.125, "ninth": 1 / 9, "sixth": 1 / 6, "alpha": 1.702,
}  # fmt: skip
VECTORS = {"g": 8, "b": 8}


def weights() -> str:
    scalars = [f"float {name} = {{{value!r}}}" for name, value in NUMBERS.items()]
    vectors = [f"float[{n}] {name} = {{{', '.join(str(1 + i / 4) for i in range(n))}}}" for name, n in VECTORS.items()]
    more = [f"int64[1] {name} = {{{n}}}" for name, n in (("last", -1), ("first", 0), ("i0", 0), ("i4", 4), ("i5", 5), ("far", 2**63 - 1))]
    return ", ".join([*scalars, *vectors, *more, "float[1,1,1] tall = {1}"])


def build(body: str, *, dtype: str = "float32", opset: int = 17, outputs: str = "N,8") -> ir.Model:
    """The model in float32, then with all floats in it as ``dtype``."""
    lines = body.replace("; ", "\n")
    given = proto(model(lines, "float[N,8] x", f"float[{outputs}] y", opset=opset, weights=weights()))
    given.graph.ClearField("value_info")
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for tensor in given.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    for value in (*given.graph.input, *given.graph.output):
        value.type.tensor_type.elem_type = code
    return load_model(given)


def looked(given: ir.Model) -> Recognised:
    facts = normalise(given, ()).facts
    return recognise(list(given.graph), facts, LIBRARY)


MEAN, MEAN18 = "m = ReduceMean<axes = [-1]>(x)", "m = ReduceMean(x, last)"
LN = f"{MEAN}; d = Sub(x, m); q = Pow(d, two); v = ReduceMean<axes = [-1]>(q); a = Add(v, eps); r = Sqrt(a); "
RMS = "q = Mul(x, x); v = ReduceMean<axes = [-1]>(q); a = Add(v, eps); r = Sqrt(a); "
VAR = f"{MEAN}; q = Mul(x, x); s = ReduceMean<axes = [-1]>(q); p = Mul(m, m); y = Sub(s, p)"
ERF = "i = Div(x, r2); e = Erf(i); o = Add(e, one); "
TANH = "c = Pow(x, three); k = Mul(c, c044); s = Add(x, k); i = Mul(s, s2pi); t = Tanh(i); o = Add(t, one); "
SOFT = "e = Exp(x); s = ReduceSum(e, last); y = Div(e, s)"
ROPE = "h = Slice(x, i4, far, last); l = Slice(x, i0, i4, last); n = Neg(h); c = Concat<axis = -1>(n, l); a = Mul(x, g); s = Mul(c, b); y = Add(a, s)"

MATCHES = [
    ("layer-norm", LN + "n = Div(d, r); k = Mul(n, g); y = Add(k, b)"),
    ("layer-norm", LN + "n = Div(d, r); y = Mul(g, n)"),
    ("layer-norm", LN + "y = Div(d, r)"),
    ("layer-norm", LN + "u = Reciprocal(r); y = Mul(u, d)"),
    ("layer-norm", LN + "u = Div(one, r); n = Mul(d, u); k = Mul(n, g); y = Add(b, k)"),
    ("layer-norm", f"{MEAN}; d = Sub(x, m); e = Sub(x, m); q = Mul(e, e); v = ReduceMean<axes = [-1]>(q); a = Add(v, eps); r = Pow(a, half); y = Div(d, r)"),
    ("layer-norm", "s = ReduceSum(x, last); m = Div(s, eight); d = Sub(x, m); q = Mul(d, d); t = ReduceSum(q, last); v = Mul(t, eighth); a = Add(v, eps); r = Sqrt(a); y = Div(d, r)"),
    ("rms-norm", RMS + "n = Div(x, r); y = Mul(n, g)"),
    ("rms-norm", RMS + "u = Reciprocal(r); y = Mul(x, u)"),
    ("rms-norm", "q = Pow(x, two); v = ReduceMean<axes = [1]>(q); a = Add(eps, v); u = Pow(a, mhalf); n = Mul(x, u); y = Mul(g, n)"),
    ("rms-norm", "t = ReduceSumSquare<axes = [1]>(x); v = Div(t, eight); a = Add(eps, v); r = Sqrt(a); y = Div(x, r)"),
    ("gelu-erf", ERF + "p = Mul(x, o); y = Mul(p, half)"),
    ("gelu-erf", ERF + "p = Mul(x, half); y = Mul(p, o)"),
    ("gelu-erf", ERF + "p = Mul(o, half); y = Mul(p, x)"),
    ("gelu-erf", "i = Mul(x, ir2); e = Erf(i); o = Add(one, e); p = Div(x, two); y = Mul(p, o)"),
    ("gelu-tanh", TANH + "p = Mul(x, half); y = Mul(p, o)"),
    ("gelu-tanh", "q = Mul(x, x); c = Mul(q, x); k = Mul(c044, c); s = Add(k, x); i = Mul(s2pi, s); t = Tanh(i); o = Add(one, t); p = Mul(o, half); y = Mul(x, p)"),
    ("gelu-tanh", "q = Mul(x, x); k = Mul(c044, q); s = Add(k, one); p = Mul(x, s2pi); i = Mul(s, p); t = Tanh(i); o = Add(one, t); z = Mul(x, o); y = Mul(z, half)"),
    ("softmax-by-parts", "h = ReduceMax<axes = [-1]>(x); d = Sub(x, h); e = Exp(d); s = ReduceSum(e, last); y = Div(e, s)"),
    ("rope", ROPE),
    ("rope", "l, h = Split<axis = -1>(x); n = Neg(h); c = Concat<axis = 1>(n, l); a = Mul(x, g); s = Mul(b, c); y = Add(s, a)"),
    ("swish", "s = Sigmoid(x); y = Mul(s, x)"),
    ("swish", "k = Mul(x, alpha); s = Sigmoid(k); y = Mul(x, s)"),
    ("swiglu", "u = Tanh(x); s = Sigmoid(x); w = Mul(x, s); y = Mul(w, u)"),
    ("hard-swish", "t = Add(x, three); c = Clip(t, zero, six); p = Mul(x, c); y = Div(p, six)"),
    ("hard-swish", "t = Add(x, three); c = Clip(t, zero, six); d = Div(c, six); y = Mul(x, d)"),
    ("hard-swish", "t = Add(three, x); h = Max(t, zero); c = Min(six, h); p = Mul(c, x); y = Mul(p, sixth)"),
    ("hard-swish", "h = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x); y = Mul(h, x)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body"), MATCHES)
def test_recognised_and_left_as_it_is(name: str, body: str) -> None:
    given = build(body)
    before = op_types(given)
    found = looked(given)
    assert [m.pattern.name for m in found.matches if "y" in [v.name for v in m.outputs]] == [name], found.nearest
    assert normalise(given, LIBRARY).repairs == []
    assert op_types(given) == before
    fused = rewrite_model(given, policy="aggressive")
    assert_law(fused, "aggressive")
    assert fused.report["patterns"]["recognised"][name] == 1


NEAR_MISSES = [
    ("layer-norm", LN.replace("Sub(x, m)", "Sub(m, x)") + "y = Div(d, r)", "is an input or a constant, ReduceMean"),
    ("layer-norm", LN.replace("v = ReduceMean<axes = [-1]>", "v = ReduceMean<axes = [0]>") + "y = Div(d, r)", "different axes: [1] and [0]"),
    ("layer-norm", LN.replace("axes = [-1]", "axes = [0]") + "y = Div(d, r)", "over axes [0] of 2"),
    ("layer-norm", LN.replace("two", "three") + "y = Div(d, r)", "3 is not 2.0"),
    ("layer-norm", LN.replace("d = Sub(x, m); q = Pow(d", "d = Sub(x, m); h = Neg(x); k = Sub(h, m); q = Pow(k") + "y = Div(d, r)", "'h' stands where 'x' is wanted"),
    ("layer-norm", LN.replace("Add(v, eps)", "Add(v, x)") + "y = Div(d, r)", "is no constant of one element"),
    ("layer-norm", LN + "n = Div(d, r); y = Add(n, v)", "an inner value, is also read by"),
    ("layer-norm", "s = ReduceSum(x, last); m = Mul(s, ninth); d = Sub(x, m); q = Mul(d, d); v = ReduceMean<axes = [-1]>(q); a = Add(v, eps); r = Sqrt(a); y = Div(d, r)", "8 elements are summed up"),
    ("rms-norm", RMS.replace("Mul(x, x)", "Mul(x, g)") + "y = Div(x, r)", "stands where"),
    ("rms-norm", RMS.replace("axes = [-1]", "axes = [0]") + "y = Div(x, r)", "over axes [0] of 2"),
    ("rms-norm", RMS + "y = Div(r, x)", "Sqrt is wanted"),
    ("gelu-erf", "i = Div(x, r3); e = Erf(i); o = Add(e, one); p = Mul(x, o); y = Mul(p, half)", "constant factor is 0.666666667, 0.707106781 is wanted"),
    ("gelu-erf", ERF.replace("one", "two") + "p = Mul(x, o); y = Mul(p, half)", "2 is not 1.0"),
    ("gelu-erf", ERF + "p = Mul(x, o); y = Mul(p, two)", "constant factor is 2, 0.5 is wanted"),
    ("gelu-erf", ERF + "u = Abs(x); p = Mul(u, o); y = Mul(p, half)", "stands where"),
    ("gelu-tanh", TANH.replace("c044", "c04") + "p = Mul(x, half); y = Mul(p, o)", "0.0399999991, 0.044715 is wanted"),
    ("gelu-tanh", TANH.replace("s2pi", "r3") + "p = Mul(x, half); y = Mul(p, o)", "constant factor is 1.5"),
    ("gelu-tanh", TANH.replace("three", "two") + "p = Mul(x, half); y = Mul(p, o)", "a product of 2 factors, 3 are wanted"),
    ("softmax-by-parts", "h = ReduceMax<axes = [0]>(x); d = Sub(x, h); e = Exp(d); s = ReduceSum(e, last); y = Div(e, s)", "another axis"),
    ("rope", ROPE.replace("i4", "i5"), "does not read elements"),
    ("rope", ROPE.replace("n, l", "l, n"), "is not Neg"),
    ("rope", ROPE.replace("Slice(x, i0", "Slice(g, i0").replace("(x, i4, far, last)", "(x, i4, far, last)").replace("Slice(g, i0, i4, last)", "Slice(a0, i0, i4, last)").replace("h = ", "a0 = Abs(x); h = ", 1), "stands where"),
    ("swish", "t = Tanh(x); s = Sigmoid(t); y = Mul(x, s)", ""),
    ("swiglu", "s = Sigmoid(x); w = Mul(x, s); y = Mul(w, g)", "is not of the gate's own shape"),
    ("hard-swish", "t = Add(x, three); c = Clip(t, one, six); p = Mul(x, c); y = Div(p, six)", "clips to 1.0 and 6.0"),
    ("hard-swish", "t = Add(x, two); c = Clip(t, zero, six); p = Mul(x, c); y = Div(p, six)", "2 is not 3.0"),
    ("hard-swish", "h = HardSigmoid<alpha = 0.2, beta = 0.5>(x); y = Mul(h, x)", "alpha = 0.2"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body", "reason"), NEAR_MISSES)
def test_look_alikes_are_not_recognised(name: str, body: str, reason: str) -> None:
    found = looked(build(body))
    assert name not in {m.pattern.name for m in found.matches if "y" in [v.name for v in m.outputs]}
    if name not in {m.pattern.name for m in found.matches}:
        assert reason in found.nearest[name].reason


def test_casts_to_a_wider_type_are_seen_through() -> None:
    ln = "w = Cast<to = 1>(x); m = ReduceMean<axes = [-1]>(w); d = Sub(w, m); q = Pow(d, two); v = ReduceMean<axes = [-1]>(q); a = Add(v, eps); r = Sqrt(a); n = Div(d, r); h = Cast<to = 10>(n); k = Mul(h, g); y = Add(k, b)"
    assert [m.pattern.name for m in looked(_mixed(ln)).matches] == ["layer-norm"]
    rms = "w = Cast<to = 1>(x); q = Pow(w, two); v = ReduceMean<axes = [-1]>(q); a = Add(v, eps); r = Sqrt(a); n = Div(w, r); h = Cast<to = 10>(n); y = Mul(h, g)"
    assert [m.pattern.name for m in looked(_mixed(rms)).matches] == ["rms-norm"]


def _mixed(body: str) -> ir.Model:
    vectors = "float16[8] g = {1,2,3,4,5,6,7,8}, float16[8] b = {1,2,3,4,5,6,7,8}"
    return model(
        body.replace("; ", "\n"), "float16[N,8] x", "float16[N,8] y", weights=f"float two = {{2}}, float eps = {{1e-5}}, {vectors}"
    )


GROUP = "r = Reshape(x, gr); i = InstanceNormalization<epsilon = 1e-5>(r, ones, zeros); s = Shape(x); k = Reshape(i, s); q = Mul(k, sc); y = Add(q, bi)"


def group(body: str = GROUP, ones: str = "1,1", gr: str = "0,2,-1", sc: str = "8,1,1") -> Recognised:
    eight = ", ".join(["0.5"] * 8)
    extra = f"int64[3] gr = {{{gr}}}, float[2] ones = {{{ones}}}, float[2] zeros = {{0,0}}, float[{sc}] sc = {{{eight}}}, float[8,1,1] bi = {{{eight}}}"
    return looked(model(body.replace("; ", "\n"), "float[N,8,4,4] x", "float[N,8,4,4] y", weights=extra))


def test_group_norm_hidden_in_instance_norm() -> None:
    assert [m.pattern.name for m in group().matches] == ["group-norm"]
    own = group(ones="1,2")
    assert (own.matches, own.nearest["group-norm"].reason) == ([], "InstanceNormalization has a scale or a bias of its own")
    rows = group(gr="2,-1,64")
    assert rows.matches == []
    assert "batch is not kept" in rows.nearest["group-norm"].reason
    wide = group(
        sc="1,1,8",
        body=GROUP.replace("Mul(k, sc)", "Mul(k, k2)").replace("q = ", "t = Transpose<perm = [2, 1, 0]>(sc); k2 = Identity(t); q = "),
    )
    assert [m.pattern.name for m in wide.matches] == ["group-norm"]  # the scale is folded to one a channel
    assert [v.name for m in group(GROUP.replace("y = Add(q, bi)", "y = Add(q, x)")).matches for v in m.outputs] == ["q"]


def test_gelu_look_alikes_of_the_bug_reports() -> None:
    path = next((p for p in SHARED_CASES if p.stem.startswith("R47")), None)
    if path is None:
        pytest.skip("the bug-report models are not beside the checkout")
    found = looked(load_model(path))
    assert {m.pattern.name: m.outputs[0].name for m in found.matches} == {"gelu-erf": "y_erf", "gelu-tanh": "v21", "swish": "y_sig"}


# --- rewrites: what becomes of them, and how accurate they are


def _softmax(x: Array) -> Array:
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def _log_softmax(x: Array) -> Array:
    moved = x - x.max(-1, keepdims=True)
    return moved - np.log(np.exp(moved).sum(-1, keepdims=True))


def _variance(x: Array) -> Array:
    return ((x - x.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True)


FLAT_VAR = VAR.replace("axes = [-1]", "axes = [-1], keepdims = 0").replace("y = ", "v = ") + "; y = Unsqueeze(v, last)"
NEW_VAR = ["ReduceMean", "Sub", "Mul", "ReduceMean"]
TINY = 0.0  # digits of every element count; 1.0: an element near 0 is what is left of larger ones
Rewrite = tuple[str, str, list[str], Callable[[Array], Array], float]
REWRITES: list[Rewrite] = [
    ("variance", VAR, NEW_VAR, _variance, TINY),
    ("variance", VAR.replace("Mul(x, x)", "Pow(x, two)").replace("Mul(m, m)", "Pow(m, two)"), NEW_VAR, _variance, TINY),
    ("variance", VAR.replace("q = Mul(x, x); s = ReduceMean<axes = [-1]>(q)", "q = ReduceSumSquare<axes = [1]>(x); s = Mul(q, eighth)"), NEW_VAR, _variance, TINY),
    ("variance", VAR.replace(MEAN, "t = ReduceSum(x, last); m = Div(t, eight)"), ["ReduceSum", "Div", "Sub", "Mul", "ReduceMean"], _variance, TINY),
    ("variance", VAR.replace("y = ", "v = ") + "; z = Sub(x, m); w = ReduceMax<axes = [-1]>(z); k = Mul(w, zero); y = Add(v, k)", ["ReduceMean", "Sub", "Mul", "ReduceMean", "ReduceMax", "Mul", "Add"], _variance, TINY),
    ("variance", f"{MEAN}; z = Sub(x, m); w = ReduceMax<axes = [-1]>(z); k = Mul(w, zero); " + VAR.replace(MEAN + "; ", "").replace("y = ", "v = ") + "; y = Add(v, k)", ["ReduceMean", "Sub", "ReduceMax", "Mul", "Mul", "ReduceMean", "Add"], _variance, TINY),
    ("softmax", SOFT, ["Softmax"], _softmax, 1.0),
    ("log-softmax", "s = Softmax(x); y = Log(s)", ["LogSoftmax"], _log_softmax, 1.0),
    ("sigmoid", "e = Exp(x); o = Add(one, e); y = Div(e, o)", ["Neg", "Exp", "Add", "Div"], lambda x: 1 / (1 + np.exp(-x)), TINY),
    ("softplus", "e = Exp(x); o = Add(e, one); y = Log(o)", ["Softplus"], lambda x: np.logaddexp(0, x), TINY),
    ("variance", FLAT_VAR, ["ReduceMean", "Unsqueeze", "Sub", "Mul", "ReduceMean", "Unsqueeze"], _variance, TINY),
    ("variance", FLAT_VAR.replace("s = ReduceMean<axes = [-1], keepdims = 0>(q)", "u = ReduceSum<keepdims = 0>(q, last); s = Mul(u, eighth)"), ["ReduceMean", "Unsqueeze", "Sub", "Mul", "ReduceMean", "Unsqueeze"], _variance, TINY),
]  # fmt: skip
RANGES = [(1.0, 0.0), (1.0, 1000.0), (60.0, 0.0), (200.0, 0.0), (0.01, -30.0)]  # spread and middle


def built(rewrite: Rewrite, dtype: str = "float32") -> ir.Model:
    return build(rewrite[1], dtype=dtype, outputs="N,1" if rewrite[0] == "variance" else "N,8")


@pytest.mark.parametrize(
    ("rewrite", "dtype"),
    [
        pytest.param(r, t, id=f"{r[0]}-{t}")
        for r in REWRITES
        for t in ("float32", "float16", "float64")
        if (r[0], t) != ("softplus", "float64")  # ONNX Runtime has none, so it is left alone
    ],
)
def test_rewritten_and_at_least_as_accurate(rewrite: Rewrite, dtype: str) -> None:
    name, _, after, truth, floor = rewrite
    given = built(rewrite, dtype)
    found = rewrite_model(given, policy="aggressive")
    assert found.report["patterns"]["rewritten"] == {name: 1}
    assert_law(found, "aggressive")
    plain = restore_model(found.model)
    assert op_types(plain) == after
    assert [v.name for v in plain.graph.outputs] == ["y"]
    info = np.finfo(dtype)
    for spread, middle in RANGES:
        x = (np.random.default_rng(0).standard_normal((64, 8)) * spread + middle).astype(dtype)
        want = truth(x.astype(np.float64))
        before, now = (
            _error(run_reference(proto(m), {"x": x})["y"], want, floor + float(info.tiny) / float(info.eps)) for m in (given, plain)
        )
        assert now <= max(2 * before, 16 * float(info.eps)), (spread, middle, before, now)


def _error(got: Array, want: Array, floor: float) -> float:
    """The largest error of an element against its size; infinite where there is none, unless the type is too small for the truth."""
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = want.astype(got.dtype).astype(np.float64)
        apart = np.where(got == rounded, 0.0, np.abs(got.astype(np.float64) - want) / (np.abs(want) + floor))
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max())


@pytest.mark.parametrize(
    ("index", "middle", "broken"),
    [(0, 4096.0, 0.02), (6, 96.0, np.inf), (6, -120.0, np.inf), (7, 0.0, np.inf), (8, 100.0, np.inf), (9, 100.0, np.inf), (9, -20.0, 1.0)],
)
def test_what_the_rewrites_mend(index: int, middle: float, broken: float) -> None:
    """The faults themselves, in float32: digits lost in a difference, exponentials that overflow or vanish."""
    x = (np.random.default_rng(1).standard_normal((4, 8)) + middle).astype(np.float32)
    x[0, 0] -= 150 if index == 7 else 0
    given = built(REWRITES[index])
    plain = restore_model(rewrite_model(given, policy="aggressive").model)
    want = REWRITES[index][3](x.astype(np.float64))
    before, now = (_error(run_reference(proto(m), {"x": x})["y"], want, 0.0) for m in (given, plain))
    assert before >= broken
    assert now < 1e-5


REFUSED = [
    ("variance", VAR.replace("s = ReduceMean<axes = [-1]>", "s = ReduceMean<axes = [0]>"), "different axes"),
    ("variance", VAR.replace("ReduceMean<axes = [-1]>(q)", "ReduceMean<axes = [-1], keepdims = 0>(q)").replace("(s, p)", "(s, p0)").replace("y = ", "p0 = Squeeze(p, last); v = ") + "; y = Unsqueeze(v, last)", "is not"),
    ("variance", VAR.replace("Sub(s, p)", "Sub(p, s)"), "is not"),
    ("variance", VAR.replace("p = Mul(m, m)", "p = Mul(m, x)"), "'x' is an input or a constant, ReduceMean is wanted"),
    ("variance", VAR.replace("y = ", "v = ") + "; y = Add(v, s)", "an inner value"),
    ("variance", VAR.replace(MEAN, "t = ReduceSum(x, last); m = Mul(t, ninth)"), "8 elements are summed up"),
    ("softmax", SOFT.replace("Div(e, s)", "Div(s, e)"), "is not Exp"),
    ("softmax", SOFT.replace("s = ReduceSum(e, last)", "a = Abs(x); f = Exp(a); s = ReduceSum(f, last)"), "stands where"),
    ("softmax", SOFT.replace("ReduceSum", "ReduceSum<keepdims = 1>").replace("(e, last)", "(e)"), "over axes [0, 1]"),
    ("softmax", SOFT.replace("y = Div(e, s)", "a = Add(s, eps); y = Div(e, a)"), "is not ReduceSum"),
    ("softmax", SOFT.replace("y = Div(e, s)", "z = Div(e, s); y = Add(z, s)"), "an inner value"),
    ("sigmoid", "e = Exp(x); o = Add(two, e); y = Div(e, o)", "2 is not 1.0"),
    ("sigmoid", "e = Exp(x); n = Neg(x); f = Exp(n); o = Add(one, f); y = Div(e, o)", "stands where"),
    ("softplus", "e = Exp(x); o = Add(e, half); y = Log(o)", "0.5 is not 1.0"),
    ("log-softmax", "s = Softmax(x); l = Log(s); y = Add(l, s)", "an inner value"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body", "reason"), REFUSED)
def test_rewrites_refused(name: str, body: str, reason: str) -> None:
    given = build(body, outputs="N,1" if name == "variance" else "N,8")
    before = op_types(given)
    assert normalise(given, LIBRARY).repairs == []
    assert len(op_types(given)) <= len(before)
    found = recognise(list(given.graph), Facts(given), LIBRARY)
    assert reason in found.nearest[name].reason, found.nearest[name]


def test_a_constant_with_more_axes_adds_its_own() -> None:
    given = model("e = Exp(x)\no = Add(tall, e)\ny = Div(e, o)", "float[N,8] x", "float[1,N,8] y", weights=weights())
    assert normalise(given, LIBRARY).repairs == []
    assert "is not of the shape of" in looked(given).nearest["sigmoid"].reason


def test_softmax_before_opset_13_is_rewritten_over_the_last_axis_only() -> None:
    body = "e = Exp(x); s = ReduceSum<axes = [{}]>(e); y = Div(e, s)"
    assert [r.pattern.name for r in normalise(build(body.format(-1), opset=12), LIBRARY).repairs] == ["softmax"]
    assert normalise(build(body.format(0), opset=12), LIBRARY).repairs == []
    rows = build("e = Exp(x); s = ReduceSum(e, first); y = Div(e, s)")
    assert [r.pattern.name for r in normalise(rows, LIBRARY).repairs] == ["softmax"]
    x = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    np.testing.assert_allclose(run_reference(proto(rows), {"x": x})["y"], np.exp(x) / np.exp(x).sum(0), rtol=1e-5)


def test_softplus_of_float64_is_left_alone() -> None:
    given = built(REWRITES[9], "float64")
    assert normalise(given, LIBRARY).repairs == []
    assert looked(given).nearest["softplus"].reason == "it is in float64"


def test_integers_are_left_alone() -> None:
    given = build(VAR, dtype="int32", outputs="N,1")
    assert normalise(given, LIBRARY).repairs == []
    assert "is i32, a float is wanted" in looked(given).nearest["variance"].reason


def test_layer_norm_with_cancelling_variance_becomes_a_layer_norm() -> None:
    body = VAR.replace("y = ", "v = ").replace(
        "Sub(s, p)", "Sub(s, p); c = Sub(x, m); a = Add(v, eps); r = Sqrt(a); n = Div(c, r); k = Mul(n, g); y = Add(k, b)"
    )
    found = rewrite_model(build(body), policy="aggressive")
    assert found.report["patterns"] == {"rewritten": {"variance": 1}, "recognised": {"layer-norm": 1}}
    assert [r.name.rpartition("_")[0] for r in found.regions] == ["gf_layernorm"]
    assert [r.patterns for r in found.regions] == [["layer-norm"]]
    assert len(regions(found)) == 1


def test_new_opsets_take_axes_as_an_input() -> None:
    body = VAR.replace("<axes = [-1]>(x)", "(x, last)").replace("<axes = [-1]>(q)", "(q, last)")
    given = build(body, opset=20, outputs="N,1")
    assert [r.pattern.name for r in normalise(given, LIBRARY).repairs] == ["variance"]
    x = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    np.testing.assert_allclose(run_reference(proto(given), {"x": x})["y"], _variance(x), rtol=1e-5)


def test_every_pattern_has_a_match_and_a_near_miss_here() -> None:
    names = {p.name for p in LIBRARY}
    assert names == {n for n, *_ in MATCHES} | {n for n, *_ in REWRITES} | {"group-norm"}
    assert names == {n for n, *_ in NEAR_MISSES} | {n for n, *_ in REFUSED} | {"group-norm"}


def test_the_norms_of_a_model_exported_from_jax() -> None:
    """Means that drop their axes, by sums and the inverse count; a maximum with 0 behind the difference."""
    path = REAL_MODELS["magika"].path
    if path is None:
        pytest.skip("magika is not installed")
    assert rewrite_model(load_model(path)).report["patterns"]["rewritten"] == {"variance": 2}
