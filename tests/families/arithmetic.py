"""Neighbours of the reports about arithmetic, extrema, selection, casts and quantisation (R14, R16, R20 to R29, R37, R47)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.families.neighbour import TEXT, Neighbour, neighbour, rand, whole

NAN, INF = np.nan, np.inf
INTS = ("i4", "i8", "u1", "i1")


def r14_reciprocals_of_integers() -> Iterator[Neighbour]:
    for dtype, shape in itertools.product(("i4", "i8", "f4", "f8"), ((6,), (2, 3), ())):
        x, y = (whole(*shape, dtype=dtype, low=1), whole(*shape, dtype=dtype, low=2, high=90))
        weights = f"{TEXT[dtype]} one = {{1}}" if dtype[0] == "i" else f"{TEXT[dtype]} one = {{1.0}}"
        yield neighbour(
            f"R14-{dtype}-{shape}",
            "r = Div (one, x); m = Mul (r, y); y1 = Add (m, x)",
            {"x": x, "y": y},
            f"{TEXT[dtype]} y1",
            opset=14,
            weights=weights,
        )


def r16_division_toward_zero() -> Iterator[Neighbour]:
    for dtype in INTS:
        info = np.iinfo(dtype)
        a = np.array([7, info.min + 1, 9, info.max, 0, info.max - 1, 100, 5], dtype)
        b = np.array([2, 2, 3, 3, 5, 7, 9, 5], dtype)
        b = b * np.array([1, 1, -1, 1, 1, -1, 1, -1], dtype) if dtype[0] == "i" else b
        for shapes in (((8,), (8,)), ((2, 4), (4,)), ((8, 1), (8,))):
            left, right = (np.resize(v, s) for v, s in zip((a, b), shapes, strict=True))
            body = "q = Div (a, b); p = Mul (q, b); r = Sub (a, p); y = Add (q, r)"
            yield neighbour(f"R16-{dtype}-{shapes}", body, {"a": left, "b": right}, f"{TEXT[dtype]} y, {TEXT[dtype]} r", opset=14)


def r20_powers_of_negative_bases() -> Iterator[Neighbour]:
    bases = {
        "f4": [-2.0, -0.5, -3.0, 0.0, 1.5, -1.0],
        "f8": [-2.0, -0.5, -3.0, 0.0, 1.5, -1.0],
        "i4": [-2, -3, 0, 1, 5, -1],
        "i8": [-2, -3, 0, 1, 5, -1],
    }
    for base, exponent in itertools.product(bases, ("f4", "f8", "i4", "i8")):
        for values in ([2], [3], [0], [2, 3, 1, 0, 4, 5]):
            feeds = {"x": np.array(bases[base], base), "e": np.array(values, exponent)}
            yield neighbour(f"R20-{base}-{exponent}-{values}", "p = Pow (x, e); y = Add (p, x)", feeds, f"{TEXT[base]} y", opset=15)
            text = ", ".join(map(str, np.array(values, exponent).tolist()))
            weights = f"{TEXT[exponent]}[{len(values)}] e = {{{text}}}"
            yield neighbour(
                f"R20-{base}-{exponent}-{values}-known",
                "p = Pow (x, e); y = Add (p, x)",
                {"x": feeds["x"]},
                f"{TEXT[base]} y",
                opset=15,
                weights=weights,
            )


def r21_missing_bounds() -> Iterator[Neighbour]:
    for dtype, call in itertools.product(("f4", "f8", "f2", "i4", "i8", "u1", "i1"), ("x", "x, lo", "x, , hi", "x, lo, hi", "x, hi, lo")):
        x = (
            np.array([-INF, -1e30, -3, 0, 2, 1e30, INF], dtype)
            if dtype in ("f4", "f8")
            else whole(7, dtype=dtype, low=0 if dtype[0] == "u" else -100, high=100)
        )
        text = "{%s}" if dtype[0] != "f" else "{%s.0}"
        weights = ", ".join(f"{TEXT[dtype]} {n} = {text % v}" for n, v in (("lo", 1), ("hi", 4)) if n in call)
        body = f"c = Clip ({call.replace(', ,', chr(44) + ' ' + chr(34) * 2 + ',')}); y = Max (c, x)"
        yield (
            neighbour(
                f"R21-{dtype}-{call}", body, {"x": x}, f"{TEXT[dtype]} y", opset=13, weights="" if dtype == "f2" and weights else weights
            )
            if dtype != "f2" or not weights
            else _clip_by_inputs(call)
        )


def _clip_by_inputs(call: str) -> Neighbour:
    feeds = {"x": rand(7, dtype="f2", scale=5.0), "lo": np.array(1, "f2"), "hi": np.array(4, "f2")}
    body = f"c = Clip ({call.replace(', ,', chr(44) + ' ' + chr(34) * 2 + ',')}); y = Max (c, x)"
    return neighbour(f"R21-f2-{call}", body, {n: a for n, a in feeds.items() if n in call}, "float16 y", opset=13)


def r22_ranges_that_do_not_meet() -> Iterator[Neighbour]:
    for (a, b), (c, d), opset in itertools.product([(0, 1), (2, 3), (3, 2)], [(0, 1), (2, 3), (3, 2)], (6, 10, 13)):
        if opset < 11 and (a > b or c > d):
            continue  # ONNX Runtime refuses such attributes
        if opset < 11:
            body = f"p = Clip <min = {a}.0, max = {b}.0> (x); q = Clip <min = {c}.0, max = {d}.0> (p); y = Add (q, x)"
            weights = ""
        else:
            body = "p = Clip (x, a, b); q = Clip (p, c, d); y = Add (q, x)"
            weights = ", ".join(f"float {n} = {{{v}.0}}" for n, v in zip("abcd", (a, b, c, d), strict=True))
        yield neighbour(
            f"R22-{a}{b}{c}{d}-{opset}", body, {"x": np.array([-1, 0.5, 1.5, 2.5, 4], "f4")}, opset=max(opset, 9), weights=weights
        )


def r23_nan_through_extrema() -> Iterator[Neighbour]:
    for dtype, left, shape in itertools.product(("f4", "f8"), (True, False), ((8,), (2, 4), (4, 2))):
        x = np.array([NAN, 1, -INF, INF, -0.0, 2, NAN, -3], dtype).reshape(shape)
        b = np.array([1, NAN, 0, NAN, 0.0, 1, NAN, -4], dtype).reshape(shape)
        pair = "x, b" if left else "b, x"
        body = f"p = Max ({pair}); q = Min ({pair}); r = Relu (p); n = Neg (q); y = Mul (r, n)"
        yield neighbour(
            f"R23-{dtype}-{left}-{shape}", body, {"x": x, "b": b}, f"{TEXT[dtype]} y, {TEXT[dtype]} p, {TEXT[dtype]} q", opset=14
        )
        axis, t = 0 if left else -1, TEXT[dtype]
        for op, fold in (("ReduceMax", np.max), ("ReduceMin", np.min)):
            want = {"y": np.asarray(fold(-x, axis=axis, keepdims=True))}
            yield neighbour(
                f"R23-{op}-{dtype}-{left}-{shape}",
                f"m = Neg (x); y = {op} <axes = [{axis}]> (m)",
                {"x": x},
                f"{t} y",
                opset=13,
                wanted=want,
            )


def r24_branches_not_taken() -> Iterator[Neighbour]:
    values = np.array([-1.0, 0.0, -0.0, 4.0, INF, NAN], "f4")
    for dtype, shapes in itertools.product(("f4", "f8"), (((6,), (6,), (6,)), ((6, 1), (6,), (1,)), ((1,), (6,), (6, 6)))):
        c, a, b = (np.resize(values, s).astype(dtype) for s in shapes)
        t = TEXT[dtype]
        body = "g = Greater (c, zero); l = Log (a); w = Where (g, l, b); i = Div (one, a); n = Not (g); v = Where (n, i, w); y = Mul (v, w)"
        yield neighbour(
            f"R24-{dtype}-{shapes}", body, {"c": c, "a": a, "b": b}, f"{t} y", opset=16, weights=f"{t} zero = {{0.0}}, {t} one = {{1.0}}"
        )


def r26_casts_there_and_back() -> Iterator[Neighbour]:
    codes = {"i1": 3, "i2": 5, "i4": 6, "i8": 7, "u1": 2, "b1": 9, "f2": 10, "f8": 11, "f4": 1}
    data = np.array([-2.7, -0.5, 0.0, 0.4, 1.9, 100.6, -77.5], "f4")
    for first, middle in itertools.product(("f4", "f8", "i4"), codes):
        x = np.abs(data) if middle == "u1" else data
        body = f"a = Add (x, x); c = Cast <to = {codes[middle]}> (x); d = Cast <to = {codes[first]}> (c); y = Sub (a, d)"
        yield neighbour(f"R26-{first}-{middle}", body, {"x": x.astype(first)}, f"{TEXT[first]} y", opset=13)


def r28_quantisation() -> Iterator[Neighbour]:
    ties = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 300, -300, 0.25, 3.49], "f4")
    types = {"i1": (-128, 0, 5, 127), "u1": (0, 3, 128, 255), "i2": (0, -300), "u2": (0, 40000)}
    for dtype, opset in itertools.product(types, (10, 13, 19, 21)):
        for zero in types[dtype] if opset == 21 or dtype.endswith("1") else ():
            name = {**TEXT, "u2": "uint16"}[dtype]
            weights = f"float s = {{0.5}}, {name} z = {{{zero}}}"
            body = "m = Mul (x, x); n = Mul (x, s); q = QuantizeLinear (n, s, z); d = DequantizeLinear (q, s, z); y = Add (d, m)"
            yield neighbour(f"R28-{dtype}-{zero}-{opset}", body, {"x": ties}, opset=opset, weights=weights)
    for axis, opset in itertools.product((0, 1, -1, -2), (13, 19, 21)):
        size = (3, 4)[axis]
        scales, zeros = ", ".join(["0.5", "0.25", "2.0", "1.0"][:size]), ", ".join(["0", "3", "-7", "127"][:size])
        weights = f"float[{size}] s = {{{scales}}}, int8[{size}] z = {{{zeros}}}"
        body = f"q = QuantizeLinear <axis = {axis}> (x, s, z); d = DequantizeLinear <axis = {axis}> (q, s, z); y = Sub (d, x)"
        yield neighbour(f"R28-axis{axis}-{opset}", body, {"x": np.round(rand(3, 4, scale=40.0) * 4) / 4}, opset=opset, weights=weights)


def r29_narrowing_is_kept() -> Iterator[Neighbour]:
    codes = {"f2": 10, "bf": 16, "f4": 1, "f8": 11}
    for wide, narrow in (("f4", "f2"), ("f4", "bf"), ("f8", "f4"), ("f8", "f2")):
        x = np.array([1.0001, 1e-9, 70000, -70000, 0.1, 3e38], wide)
        body = f"m = Mul (x, x); c = Cast <to = {codes[narrow]}> (x); b = Cast <to = {codes[wide]}> (c); y = Sub (b, x); z = Add (y, m)"
        yield neighbour(f"R29-{wide}-{narrow}", body, {"x": x}, f"{TEXT[wide]} y, {TEXT[wide]} z", opset=13)


GELUS = {
    "erf": "a = Div (x, root2); e = Erf (a); p = Add (e, one); h = Mul (x, p); y = Mul (h, half)",
    "tanh": "c = Pow (x, three); k = Mul (c, coef); i = Add (x, k); j = Mul (i, rate); t = Tanh (j); p = Add (t, one); h = Mul (x, p); y = Mul (h, half)",
    "sigmoid": "j = Mul (x, rate); s = Sigmoid (j); y = Mul (x, s)",
    "twisted": "a = Div (x, root2); e = Erf (a); p = Add (e, half); h = Mul (x, p); y = Mul (h, one)",
}


def r37_r47_gelus_of_all_ranks() -> Iterator[Neighbour]:
    for form, shape, dtype in itertools.product(GELUS, ((), (1,), (5,), (2, 0), (2, 3, 4)), ("f4", "f8")):
        for coef, rate in (("0.044715", "0.7978845608"), ("0.04", "1.702"), ("0.044715", "1.5")):
            t = TEXT[dtype]
            numbers = {"root2": "1.41421356", "one": "1.0", "half": "0.5", "three": "3.0", "coef": coef, "rate": rate}
            used = {n: v for n, v in numbers.items() if n in GELUS[form].replace("(", " ").replace(")", " ").replace(",", " ").split()}
            weights = ", ".join(f"{t} {n} = {{{v}}}" for n, v in used.items())
            if ("rate" in used or coef == "0.04") and ("Erf" not in GELUS[form] or dtype == "f4"):  # ONNX Runtime has no Erf of doubles
                yield neighbour(
                    f"R47-{form}-{shape}-{dtype}-{coef}-{rate}",
                    GELUS[form],
                    {"x": rand(*shape, dtype=dtype)},
                    f"{t} y",
                    opset=13,
                    weights=weights,
                    loose=2e-5,
                )


FAMILIES = (
    r14_reciprocals_of_integers, r16_division_toward_zero, r20_powers_of_negative_bases, r21_missing_bounds, r22_ranges_that_do_not_meet,
    r23_nan_through_extrema, r24_branches_not_taken, r26_casts_there_and_back, r28_quantisation, r29_narrowing_is_kept,
    r37_r47_gelus_of_all_ranks,
)  # fmt: skip
