"""Neighbours of the reports about norms, softmax and reductions (R01, R03, R06, R08, R31, R32, R42, R45)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.families.neighbour import Neighbour, neighbour, rand

REDUCES = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")


def layer_norm(axes: list[int], keep: int = 1, *, sub: str = "x, m", div: str = "d, s", power: str = "d, two") -> str:
    """A decomposed layer norm of ``x`` into ``n``, axes as attributes; operands can be swapped."""
    mean = f"ReduceMean <axes = {axes}, keepdims = {keep}>"
    return f"m = {mean} (x); d = Sub ({sub}); q = Pow ({power}); v = {mean} (q); e = Add (v, eps); s = Sqrt (e); n = Div ({div})"


NUMBERS = "float two = {2.0}, float eps = {0.00001}"


def r01_scales_along_any_axis() -> Iterator[Neighbour]:
    body = "; u = Mul (n, scale); y = Add (u, bias)"
    shapes = {
        (4, 4): [(4,), (4, 1), (1, 4), (1,), ()],
        (2, 4, 4): [(4,), (4, 1), (2, 1, 1), (2, 4, 1), (1, 1, 4), (4, 4)],
        (3, 2, 4, 2): [(2, 1, 1), (4, 1), (2,)],
    }
    for shape, scales in shapes.items():
        for axes, scale in itertools.product(([-1], [-2], [-2, -1]), scales):
            feeds = {"x": rand(*shape), "scale": rand(*scale), "bias": rand(*scale, scale=1.0)}
            yield neighbour(f"R01-{shape}-{axes}-{scale}", layer_norm(axes) + body, feeds, opset=17, weights=NUMBERS)


def r03_kept_and_dropped_axes() -> Iterator[Neighbour]:
    for shape in ((4, 4), (4, 4, 4), (3, 3, 3, 3)):
        for axes, keep in itertools.product(([0], [-1], [1]), (0, 1)):
            yield neighbour(
                f"R03-{shape}-{axes}-{keep}", layer_norm(axes, keep) + "; y = Identity (n)", {"x": rand(*shape)}, opset=17, weights=NUMBERS
            )


def r06_where_axes_come_from() -> Iterator[Neighbour]:
    for op, axis, opset in itertools.product(REDUCES, (-2, 0, 1), (11, 13, 18)):
        attribute = opset < 18 and not (op == "ReduceSum" and opset == 13)
        call = f"{op} <axes = [{axis}]> (x)" if attribute else f"{op} (x, a)"
        x = np.abs(rand(2, 4, 3)) / 2 if "Log" in op else rand(2, 4, 3)
        for constant in (False, True) if not attribute else (False,):
            head = f"a = Constant <value_ints = [{axis}]> (); " if constant else ""
            weights = "" if attribute or constant else f"int64[1] a = {{{axis}}}"
            yield neighbour(
                f"R06-{op}-{axis}-{opset}-{constant}",
                f"{head}t = {call}; d = Sub (x, t); y = Mul (d, d)",
                {"x": x},
                opset=opset,
                weights=weights,
            )


def r08_empty_axes() -> Iterator[Neighbour]:
    for op, noop, given, keep in itertools.product(REDUCES, (0, 1), (False, True), (0, 1)):
        call = f"{op} <noop_with_empty_axes = {noop}, keepdims = {keep}> (x{', a' if given else ''})"
        weights = "int64[0] a = {}" if given else ""
        if noop and op in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"):
            continue  # ONNX says that these are applied to each element; ONNX Runtime returns the input
        yield neighbour(f"R08-{op}-{noop}-{given}-{keep}", f"t = {call}; y = Add (x, t)", {"x": rand(2, 3)}, opset=18, weights=weights)


def r31_softmax_of_old() -> Iterator[Neighbour]:
    for op, shape, opset in itertools.product(("Softmax", "LogSoftmax"), ((5,), (3, 4), (2, 3, 4), (2, 2, 3, 2)), (9, 11, 13)):
        for axis in range(-len(shape) if opset > 9 else 0, len(shape)):
            yield neighbour(
                f"R31-{op}-{shape}-{opset}-{axis}",
                f"a = Neg (x); s = {op} <axis = {axis}> (a); y = Add (s, x)",
                {"x": rand(*shape)},
                opset=opset,
            )


def r32_masked_softmax() -> Iterator[Neighbour]:
    for shape, axis in (((3, 4), -1), ((3, 4), 0), ((2, 3, 5), 1), ((2, 3, 5), -1), ((2, 70), -1)):
        x = rand(*shape, scale=60.0)
        x[..., -1] = -np.inf
        masked = x.copy()
        masked[0] = -np.inf
        big = x + np.float32(1e4)
        steps = f"m = ReduceMax <axes = [{axis}]> (x); d = Sub (x, m); e = Exp (d); s = ReduceSum (e, ax); y = Div (e, s); z = IsNaN (y)"
        for name, data in (("finite", rand(*shape, scale=60.0)), ("some", x), ("rows", masked), ("big", big)):
            outputs = "float y, bool z"
            yield neighbour(f"R32-steps-{shape}-{axis}-{name}", steps, {"x": data}, outputs, opset=13, weights=f"int64[1] ax = {{{axis}}}")
            yield neighbour(
                f"R32-op-{shape}-{axis}-{name}", f"y = Softmax <axis = {axis}> (x); z = IsNaN (y)", {"x": data}, outputs, opset=13
            )


def r42_swapped_operands() -> Iterator[Neighbour]:
    for sub, div, power in itertools.product(("x, m", "m, x"), ("d, s", "s, d"), ("d, two", "two, d")):
        body = layer_norm([-1], sub=sub, div=div, power=power)
        yield neighbour(f"R42-{sub}-{div}-{power}", body + "; y = Neg (n)", {"x": rand(3, 5) + 3}, opset=17, weights=NUMBERS, loose=1e-4)


def r45_float16_with_casts() -> Iterator[Neighbour]:
    for scale, axes, wide in itertools.product((300.0, 1.0, 1e-3), ([-1], [1, 2]), (1, 11)):
        kind, name = ("float", "float") if wide == 1 else ("double", "double")
        norm = layer_norm(axes).replace("(x)", "(c)").replace("x, m", "c, m")
        body = f"c = Cast <to = {wide}> (x); {norm}; h = Cast <to = 10> (n); y = Mul (h, g)"
        feeds = {"x": rand(2, 3, 8, dtype="f2", scale=scale), "g": rand(8, dtype="f2")}
        yield neighbour(
            f"R45-{scale}-{axes}-{wide}", body, feeds, "float16 y", opset=17, weights=f"{kind} two = {{2.0}}, {name} eps = {{0.00001}}"
        )


FAMILIES = (
    r01_scales_along_any_axis, r03_kept_and_dropped_axes, r06_where_axes_come_from, r08_empty_axes, r31_softmax_of_old, r32_masked_softmax,
    r42_swapped_operands, r45_float16_with_casts,
)  # fmt: skip
