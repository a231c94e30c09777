"""Fused programs that exercise every instruction and schedule, for the kernel tests of all devices.

Each entry: a name, a program, and the sizes that its symbols take (several where the program is dynamic).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphfuse.codegen import KernelSource, generate
from graphfuse.ir import Builder, Program, Val, dtypes, expr, interpret, sym
from graphfuse.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, DType


@dataclass(frozen=True)
class Case:
    """A program and the values of its symbols to run it at."""

    name: str
    program: Program
    sizes: tuple[dict[str, int], ...] = ({},)


CASES: list[Case] = []
GUARD = 64  # bytes around an output that must stay as they were


def case(*sizes: dict[str, int]) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    """Registers the program that a function builds."""

    def register(make: Callable[[], Program]) -> Callable[[], Program]:
        CASES.append(Case(make.__name__, make(), sizes or ({},)))
        return make

    return register


def inputs_for(program: Program, env: dict[str, int], seed: int = 0) -> list[np.ndarray]:
    """Random inputs of the declared types; integers stay small so that indices and shifts make sense."""
    rng = np.random.default_rng(seed)
    return [_random(rng, t, [expr.evaluate(d, env) for d in s]) for t, s in program.params]


def _random(rng: np.random.Generator, dtype: DType, shape: list[int]) -> np.ndarray:
    if dtype is BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.is_integer:
        return np.asarray(rng.integers(0 if dtype.kind == "u" else -6, 7, shape)).astype(dtype.numpy)
    return np.asarray(rng.standard_normal(shape)).astype(dtype.numpy)


def expected(program: Program, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs by the NumPy interpreter; float32 programs are run in float64 and rounded, as a stricter judge."""
    return interpret.run(program, inputs)


def compare(program: Program, got: list[np.ndarray], want: list[np.ndarray], folded: int = 1) -> None:
    """Integers and bools exactly; floats within the rounding of ``folded`` additions and a transcendental or two."""
    for (dtype, _), a, b in zip(program.outputs, got, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if not dtype.is_float:
            np.testing.assert_array_equal(a, b)
            continue
        unit = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-50}[dtype.name]
        scale = unit * (16 + 2 * np.sqrt(folded))
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        finite = np.abs(wide_b[np.isfinite(wide_b)])
        np.testing.assert_allclose(wide_a, wide_b, rtol=scale, atol=scale * (finite.mean() if finite.size else 1.0), equal_nan=True)


def sources() -> dict[str, KernelSource]:
    """The kernels of all cases: by name in general, as ``name@k`` hardened to the k-th sizes."""
    plain = {c.name: generate(c.program) for c in CASES}
    hard = {f"{c.name}@{k}": generate(c.program.specialise(env)) for c in CASES for k, env in enumerate(c.sizes) if env}
    return {**plain, **hard}


Run = Callable[[str, Program, list[np.ndarray], dict[str, int]], list[np.ndarray]]


def check(case: Case, run: Run, *others: str) -> None:
    """Holds what ``run`` makes of a case against the interpreter, at all sizes: the general kernel (``others`` are more of them) and the hardened one."""
    for k, env in enumerate(case.sizes):
        inputs = inputs_for(case.program, env, seed=k)
        want = expected(case.program, inputs)
        folded = max((a.size for a in inputs), default=1)
        for name in (case.name, *others):
            compare(case.program, run(name, case.program, inputs, env), want, folded)
        if env:
            hard = case.program.specialise(env)
            compare(hard, run(f"{case.name}@{k}", hard, inputs, {}), want, folded)


def layer_norm(b: Builder, x: Val, width: int, eps: float = 1e-5) -> Val:
    """The decomposed form over the last axis."""
    mean = b.reduce("sum", x, [-1], keepdims=True) / float(width)
    centred = x - mean
    variance = b.reduce("sum", centred * centred, [-1], keepdims=True) / float(width)
    return centred / b.map("sqrt", variance + eps)


def softmax(b: Builder, x: Val, axis: int) -> Val:
    """The stable form."""
    e = b.map("exp", x - b.reduce("max", x, [axis], keepdims=True))
    return e / b.reduce("sum", e, [axis], keepdims=True)


def sigmoid(b: Builder, x: Val) -> Val:
    """By its definition."""
    return 1.0 / (b.map("exp", -x) + 1.0)


# --- pointwise

for _t in (F32, F16, BF16, F64, I8, I32, I64, U8):

    def _arithmetic(t: DType = _t) -> Program:
        b = Builder()
        x, y = b.param(t, (3, 40)), b.param(t, (40,))
        z = (x + y) * x - y
        return b.finish([z, b.map("max", z, x), b.map("lt", x, b.broadcast(y, (3, 40))), b.map("abs", z)])

    CASES.append(Case(f"arithmetic_{_t}", _arithmetic()))


@case()
def odd_sizes_and_scalars() -> Program:
    b = Builder()
    x, s = b.param(F32, (7, 13)), b.param(F32, ())
    return b.finish([b.map("exp", x) * s, s + 1.0])


@case()
def zero_size() -> Program:
    b = Builder()
    x, y = b.param(F32, (4, 0)), b.param(F32, (4, 3))
    return b.finish([b.concat([x, y], 1) * 2.0, x + 1.0, b.reduce("sum", x, [1])])


@case()
def head() -> Program:
    b = Builder()
    x, grid, stride = b.param(F32, (2, 84, 85)), b.param(F32, (84, 2)), b.param(F32, (84, 1))
    s = sigmoid(b, x)
    part = lambda at, n: b.slice(s, (0, 0, at), (2, 84, n))  # noqa: E731
    wh = part(2, 2) * 2.0
    return b.finish([b.concat([(part(0, 2) * 2.0 - 0.5 + grid) * stride, wh * wh, part(4, 81)], 2)])


@case({"B": 3}, {"B": 1})
def rows_of_parts() -> Program:
    b = Builder()
    B = sym("B")
    x, y, m = b.param(F16, (B, 5, 75)), b.param(F16, (5, 20)), b.param(F32, (B, 1, 1))
    far = b.cast(b.slice(x, (0, 0, 40), (B, 5, 35)), F32) * m
    near = b.broadcast(b.cast(y, F32), (B, 5, 20))
    joined = b.concat([near, b.map("exp", far), -near, b.cast(b.slice(x, (0, 0, 0), (B, 5, 8)), F32)], 2)
    return b.finish([joined, joined * 2.0])


@case()
def parts_that_share_loads() -> Program:
    b = Builder()
    outputs = []
    for width in (16, 40):  # as vectors, and a warp for each row
        a, q, s = b.param(F32, (6, width)), b.param(F32, (6, width // 2)), b.param(F32, (6, width))
        half = b.slice(a, (0, width // 2), (6, width // 2))
        outputs += [b.concat([a, s], 1), b.concat([q, half, s], 1) * 2.0, b.concat([b.map("exp", half), q, a], 1)]
    return b.finish(outputs)


@case({"B": 1, "S": 3}, {"B": 2, "S": 5})
def rope() -> Program:
    b = Builder()
    B, S = sym("B"), sym("S")
    x, c, s = b.param(F16, (B, 4, S, 16)), b.param(F32, (S, 16)), b.param(F32, (S, 16))
    f = b.cast(x, F32)
    half = lambda at: b.slice(f, (0, 0, 0, at), (B, 4, S, 8))  # noqa: E731
    turned = b.concat([-half(8), half(0)], 3)
    return b.finish([b.cast(f * c + turned * s, F16)])


@case()
def transposes_and_reshapes() -> Program:
    b = Builder()
    x = b.param(F32, (2, 6, 4, 8))
    y = b.transpose(b.reshape(x, (2, 2, 3, 32)), (0, 3, 2, 1))
    return b.finish([y * 2.0, b.reshape(b.transpose(x, (0, 2, 3, 1)), (64, 6)) + 1.0])


@case()
def dilate() -> Program:
    b = Builder()
    x = b.param(I32, (1, 12, 16))
    padded = b.pad(x, (0, 1, 1), (0, 1, 1), -(1 << 31))
    best = None
    for dy in range(3):
        for dx in range(3):
            window = b.slice(padded, (0, dy, dx), (1, 12, 16))
            best = window if best is None else b.map("max", best, window)
    assert best is not None
    return b.finish([best])


@case()
def windows_of_computed_values() -> Program:
    b = Builder()
    x, y = b.param(F32, (3, 2, 24)), b.param(F16, (4, 40))
    twice = b.map("abs", x) * 2.0
    window = lambda v, at, n: b.slice(v, (0,) * (v.rank - 1) + (at,), (*v.shape[:-1], n))  # noqa: E731
    total = window(twice, 0, 20) + window(twice, 3, 20) * window(twice, 4, 20)
    return b.finish([total, window(y, 0, 32) - window(y, 8, 32), window(twice, 1, 16)])


@case()
def window_of_a_window() -> Program:
    b = Builder()
    x = b.param(F32, (6, 32))
    wide = b.pad(x, (1, 2), (1, 2), 0.5)
    blur = b.slice(wide, (0, 0), (8, 34)) + b.slice(wide, (0, 1), (8, 34)) + b.slice(wide, (0, 2), (8, 34))
    return b.finish([b.slice(blur, (1, 0), (6, 32)) * b.slice(blur, (0, 2), (6, 32)) - b.slice(blur, (2, 1), (6, 32))])


@case()
def windows_of_3_and_6_elements() -> Program:
    """Whole rows of the inputs, which are no vectors all the same."""
    b = Builder()
    outputs = []
    for wide, reach in ((3, 1), (6, 2)):
        x, y = b.param(F32, (3, wide)), b.param(F32, (3, wide + 2))
        z = b.map("max", x, b.slice(y, (0, 1), (3, wide)))
        outputs.append(b.slice(z, (0, 0), (3, wide - reach)) - b.slice(z, (0, reach), (3, wide - reach)))
    return b.finish(outputs)


@case()
def windows_across_threads() -> Program:
    """Rows of whole warps, two and more, so that what is beside a vector comes from another thread, or from another warp's part."""
    b = Builder()
    x, y, z = b.param(I32, (1, 4, 256)), b.param(F16, (3, 512)), b.param(F64, (2, 2, 128))
    edged = b.pad(x, (0, 1, 1), (0, 1, 1), 7)
    best = b.slice(edged, (0, 0, 0), (1, 4, 256))
    for dy in range(3):
        for dx in range(3):
            best = b.map("max", best, b.slice(edged, (0, dy, dx), (1, 4, 256)))
    wide = b.pad(b.map("abs", y) * 0.5, (0, 2), (0, 2), 3.0)
    blur = b.slice(wide, (0, 0), (3, 512))
    for dx in range(1, 5):
        blur = blur - b.slice(wide, (0, dx), (3, 512)) * float(dx)
    far = b.pad(z, (0, 0, 3), (0, 0, 0), -1.0)
    return b.finish([best, blur, b.slice(far, (0, 0, 0), (2, 2, 128)) - b.slice(far, (0, 0, 3), (2, 2, 128)) * 2.0])


@case()
def steps_and_pads() -> Program:
    b = Builder()
    x, fill = b.param(F32, (5, 11)), b.const(-1.5, F32)
    back = b.slice(x, (4, 10), (5, 4), (-1, -3))
    return b.finish([b.pad(back, (1, 2), (0, 3), fill), b.slice(x, (0, 1), (2, 5), (2, 2)) * 3.0])


@case()
def gathers() -> Program:
    b = Builder()
    table, ids, x = b.param(F32, (9, 8)), b.param(I64, (2, 5)), b.param(F32, (2, 5, 8))
    cols = b.param(I32, (3,))
    return b.finish([b.gather(table, ids, 0) + x, b.gather(x * 2.0, cols, 2)])


@case()
def preprocess() -> Program:
    b = Builder()
    x, mean, std = b.param(U8, (1, 6, 8, 3)), b.param(F32, (3,)), b.param(F32, (3,))
    f = (b.cast(x, F32) / 255.0 - mean) / std
    return b.finish([b.transpose(f, (0, 3, 1, 2))])


@case()
def quantise() -> Program:
    b = Builder()
    x, scale = b.param(F32, (4, 33)), b.const(0.037, F32)
    q = b.map("rint", x / b.broadcast(scale, (4, 33))) + 3.0
    q8 = b.cast(b.map("min", b.map("max", q, -128.0), 127.0), I8)
    return b.finish([q8, (b.cast(q8, F32) - 3.0) * b.broadcast(scale, (4, 33))])


@case()
def special_values() -> Program:
    b = Builder()
    x, mask = b.param(F32, (6, 8)), b.param(BOOL, (8,))
    masked = b.map("where", b.broadcast(mask, (6, 8)), b.const(float("-inf"), F32), x)
    bad = b.map("log", x)
    return b.finish(
        [masked, b.map("max", bad, x), b.map("isnan", bad), b.map("where", b.map("isnan", bad), 0.0, bad), b.map("pow", x, 3.0)]
    )


@case()
def integer_corners() -> Program:
    b = Builder()
    x, y = b.param(I64, (50,)), b.param(I64, (50,))
    big = x * (1 << 40) + 1
    return b.finish(
        [b.map("div", big, y), b.map("mod", x, y), b.map("fmod", x, y), b.map("pow", x, y), b.map("neg", big), b.cast(big, I32)]
    )


@case()
def horizontal() -> Program:
    b = Builder()
    x, y, z = b.param(F32, (3, 8)), b.param(F32, (5, 7)), b.param(F16, (64,))
    return b.finish([sigmoid(b, x), sigmoid(b, y), sigmoid(b, z), x + 1.0])


# --- rows

for _width in (1, 5, 16, 33, 64, 200, 1024, 1500, 4096, 40000):

    def _norm(width: int = _width) -> Program:
        b = Builder()
        rows = 3 if width > 1000 else 11
        x, r, g = b.param(F32, (rows, width)), b.param(F32, (rows, width)), b.param(F32, (width,))
        z = x + r
        return b.finish([layer_norm(b, z, width) * g, z])

    CASES.append(Case(f"norm_{_width}", _norm()))


@case({"B": 2, "S": 3}, {"B": 1, "S": 17})
def norm_heads() -> Program:
    b = Builder()
    B, S = sym("B"), sym("S")
    x = b.param(F16, (B, S, 64))
    y = layer_norm(b, b.reshape(x, (B, S, 4, 16)), 16)
    return b.finish([b.transpose(y, (0, 2, 1, 3)), b.reshape(y, (B * S, 64))])


@case({"S": 5, "T": 9}, {"S": 1, "T": 300}, {"S": 3, "T": 2500})
def masked_softmax() -> Program:
    b = Builder()
    S, T = sym("S"), sym("T")
    x, mask = b.param(F32, (2, S, T)), b.param(BOOL, (S, T))
    scores = b.map("where", b.broadcast(mask, (2, S, T)), x * 0.125, b.const(float("-inf"), F32))
    p = softmax(b, scores, 2)
    return b.finish([p, b.map("where", b.map("isnan", p), 0.0, p)])


@case()
def softmax_channels() -> Program:
    b = Builder()
    x = b.param(F32, (2, 7, 6, 10))
    p = softmax(b, x, 1)
    best = b.reduce("argmax", p, [1])
    entropy = -b.reduce("sum", p * b.map("log", p), [1])
    return b.finish([p, best, b.reduce("max", p, [1]), entropy, b.reduce("argmin", x, [1], last=True)])


@case()
def group_norm() -> Program:
    b = Builder()
    x, g, t = b.param(F16, (2, 32, 8, 4)), b.param(F16, (32,)), b.param(F16, (32,))
    y = b.reshape(layer_norm(b, b.reshape(x, (2, 8, 128)), 128), (2, 32, 8, 4))
    y = y * b.reshape(g, (32, 1, 1)) + b.reshape(t, (32, 1, 1))
    return b.finish([y * sigmoid(b, y)])


@case()
def arg_corners() -> Program:
    b = Builder()
    x, y = b.param(I32, (9, 70)), b.param(F32, (9, 70))
    nan = b.map("log", y)
    return b.finish(
        [b.reduce("argmax", x, [1]), b.reduce("argmax", x, [1], last=True), b.reduce("argmin", nan, [1]), b.reduce("max", nan, [1])]
    )


@case()
def reductions_of_integers() -> Program:
    b = Builder()
    x, y = b.param(I64, (4, 50)), b.param(I8, (4, 50))
    return b.finish([b.reduce("sum", x, [1]), b.reduce("prod", x, [1]), b.reduce("max", y, [1]), b.reduce("min", y, [1])])


@case()
def whole_tensor() -> Program:
    b = Builder()
    x = b.param(F32, (5, 6, 7))
    top = b.reduce("max", x, [0, 1, 2])
    return b.finish([b.map("max", x, top - 1.0) * 0.25, top])


@case()
def norm_then_split() -> Program:
    b = Builder()
    x = b.param(F32, (6, 48))
    y = layer_norm(b, x, 48)
    part = lambda at: b.slice(y, (0, at), (6, 16))  # noqa: E731
    return b.finish([part(0) * 2.0, part(16) + part(32), b.concat([part(32), part(0)], 1)])


@case()
def two_norms_of_different_sizes() -> Program:
    b = Builder()
    x, y = b.param(F32, (6, 48)), b.param(F32, (2, 2000))
    return b.finish([layer_norm(b, x, 48), layer_norm(b, y, 2000), x * 3.0 - 1.0, b.param(F32, (5,)) + 1.0])


@case()
def rows_inside_columns() -> Program:
    b = Builder()
    x = b.param(F32, (2, 3, 4, 8))  # mean over two axes in the middle, kept axes on both sides
    mean = b.reduce("sum", x, [1, 2], keepdims=True) / 12.0
    return b.finish([x - mean, b.transpose(x - mean, (0, 3, 1, 2))])


@case({"H": 3, "W": 5}, {"H": 8, "W": 8})
def pool_symbolic() -> Program:
    b = Builder()
    H, W = sym("H"), sym("W")
    x = b.param(F32, (2, 3, H, W))
    count = b.cast(b.extent(H * W), F32)
    mean = b.reduce("sum", x, [2, 3]) / count
    return b.finish([mean, x - b.reshape(mean, (2, 3, 1, 1))])


FOLDED = 40_000  # the longest reduction above
__all__ = ["CASES", "FOLDED", "Case", "compare", "dtypes", "expected", "inputs_for"]


@case()
def rows_of_clusters() -> Program:
    b = Builder()
    x, w = b.param(F32, (3, 8192)), b.param(F32, (8192,))
    y = layer_norm(b, x, 8192) * w
    return b.finish([y, b.reduce("argmax", x, [1]), b.reduce("min", b.cast(x, I8), [1])])


@case()
def rows_of_clusters_without_vectors() -> Program:
    b = Builder()
    x = b.param(F64, (2, 8191))
    return b.finish([softmax(b, layer_norm(b, x, 8191), 1), b.reduce("sum", x, [1])])


@case({"T": 40}, {"T": 5000})
def norm_of_open_length() -> Program:
    b = Builder()
    x = b.param(F16, (3, sym("T")))
    wide = b.cast(x, F32) * 3.0 + 500.0
    middle = b.reduce("sum", wide, [1], keepdims=True) / 64.0
    away = wide - middle  # from what is not the mean
    return b.finish([b.reduce("sum", away * away, [1]), b.reduce("sum", (wide - 1.0) * (wide - 1.0), [1])])
