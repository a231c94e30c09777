"""Neighbours of the reports about slices, concats, outputs, bodies, names, cycles and run-time sizes (R10, R12, R33 to R35, R40, R49 to R53)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir

from graphfuse.graph.load import load_model
from tests.families.neighbour import TEXT, Neighbour, neighbour, rand, whole

LOW, HIGH = -(1 << 63), (1 << 63) - 1
BOUNDS = (LOW, -100, -6, -5, -2, 0, 1, 4, 5, 100, (1 << 31) - 1, HIGH)


def r10_inner_values_are_outputs() -> Iterator[Neighbour]:
    body = "t1 = Mul (x, x); t2 = Sigmoid (t1); t3 = Add (t2, x); t4 = ReduceSum (t3, a); y = Sub (t3, t4)"
    for count in (1, 2, 3):
        for chosen in itertools.combinations(("y", "t1", "t2", "t3", "t4"), count):
            outputs = ", ".join(f"float {n}" for n in reversed(chosen))
            yield neighbour(f"R10-{'-'.join(chosen)}", body, {"x": rand(2, 5)}, outputs, weights="int64[1] a = {1}")


def r12_bodies_read_inner_values() -> Iterator[Neighbour]:
    for reads, dtype in itertools.product(("t1", "t2", "t1, t2", "x, t2"), ("f4", "i4")):
        first, *rest = reads.split(", ")
        other = rest[0] if rest else first
        t = TEXT[dtype]
        then = f"then_branch = a () => ({t}[2,3] u) {{ u = Mul ({first}, {other}) }}"
        orelse = f"else_branch = b () => ({t}[2,3] v) {{ w = Add ({other}, {first})\nv = Neg (w) }}"
        body = f"t1 = Mul (x, x); t2 = Add (t1, x); c = If (flag) <{then}, {orelse}>; y = Add (c, t2)"
        runs = [{"flag": np.array(f), "x": rand(2, 3) if dtype == "f4" else whole(2, 3, dtype="i4")} for f in (True, False)]
        yield neighbour(f"R12-{reads}-{dtype}", body, runs, f"{t} y", opset=18)


def r33_slices_of_all_kinds() -> Iterator[Neighbour]:
    for step, start, end in itertools.product((1, 2, -1, -3), BOUNDS, BOUNDS):
        if step < 0 and end >= (1 << 31) - 1:
            continue  # ONNX and ONNX Runtime do not agree: test_backward_slices_to_int_max_are_refused
        if (start, end) in ((0, HIGH), (LOW, HIGH)) or (start * 7 + end * 3 + step) % 4 == 0:
            weights = f"int64[1] s = {{{start}}}, int64[1] e = {{{end}}}, int64[1] a = {{-1}}, int64[1] p = {{{step}}}"
            yield neighbour(
                f"R33-{start}-{end}-{step}", "n = Neg (x); y = Slice (n, s, e, a, p)", {"x": rand(2, 5)}, opset=13, weights=weights
            )
    for axes in ((0, 1, 2), (2, 0), (-1, -3), (1,)):
        for steps in ([1] * len(axes), [-1] * len(axes), [2, -2, 1][: len(axes)]):
            starts, ends = [(3, 0)[s > 0] for s in steps], [(LOW, HIGH)[s > 0] for s in steps]
            rows = {"s": starts, "e": ends, "a": list(axes), "p": steps}
            weights = ", ".join(f"int64[{len(axes)}] {n} = {{{', '.join(map(str, v))}}}" for n, v in rows.items())
            yield neighbour(
                f"R33-{axes}-{steps}", "t = Slice (x, s, e, a, p); y = Mul (t, t)", {"x": rand(4, 3, 5)}, opset=13, weights=weights
            )


def r34_slices_of_run_time_sizes() -> Iterator[Neighbour]:
    for start, end, step in itertools.product((0, 2, -3, -100), (5, 100, -1, HIGH), (1, 2)):
        weights = f"int64[1] s = {{{start}}}, int64[1] e = {{{end}}}, int64[1] a = {{0}}, int64[1] p = {{{step}}}"
        runs = [{"x": rand(n, 3)} for n in (8, 3, 5, 1)]
        yield neighbour(
            f"R34-{start}-{end}-{step}",
            "t = Slice (x, s, e, a, p); m = Mul (t, t); y = Add (m, t)",
            runs,
            inputs="float[N,3] x",
            opset=13,
            weights=weights,
        )


def r35_concats_with_nothing() -> Iterator[Neighbour]:
    for axis, sizes in itertools.product((0, 1, -1), ((0, 2), (2, 0), (0, 0), (1, 0, 3), (0,))):
        parts = [rand(*[n if a == axis % 2 else 3 for a in range(2)]) for n in sizes]
        feeds = {f"x{i}": p for i, p in enumerate(parts)}
        body = "; ".join(f"n{i} = Neg (x{i})" for i in range(len(parts)))
        call = ", ".join(f"n{i}" for i in range(len(parts)))
        yield neighbour(f"R35-{axis}-{sizes}", f"{body}; c = Concat <axis = {axis}> ({call}); y = Abs (c)", feeds, opset=13)
    for op in ("ReduceSum", "ReduceProd"):
        yield neighbour(f"R35-{op}", f"n = Neg (x); s = {op} <keepdims = 0> (n); y = Add (s, s)", {"x": rand(0, 3)}, opset=18)


def r40_initializers_that_are_inputs() -> Iterator[Neighbour]:
    for shape, op in itertools.product(((), (1,), (3,)), ("Mul", "Div", "Add", "Pow")):
        size = int(np.prod(shape))
        text = ", ".join(["1.5"] * size)
        declared = f"float{list(shape) if shape else ''} gain"
        made = neighbour(
            f"R40-{shape}-{op}",
            f"a = {op} (x, gain); y = Neg (a)",
            {"x": np.abs(rand(2, 3)), "gain": np.full(shape, 2.5, "f4")},
            weights="",
        )
        proto = onnx_ir.to_proto(made.model)
        proto.graph.initializer.append(
            onnx.parser.parse_model(
                f'<ir_version: 8, opset_import: ["" : 18]> g () => (float q) <{declared} = {{{text}}}> {{ q = Neg (gain) }}'
            ).graph.initializer[0]
        )
        yield Neighbour(made.name, load_model(proto), (*made.runs, {"x": made.runs[0]["x"]}))


NAMES = ('a"b', "a/b:0", "weird name", "%s{0}", "int", "y\\n", "été", "*/ #", "gf_vec", "0")


def r49_r50_names() -> Iterator[Neighbour]:
    for name in NAMES:
        made = neighbour(f"R50-{name}", "t1 = Mul (x, x); t2 = Tanh (t1); y = Sub (t2, x)", {"x": rand(2, 3)})
        proto = onnx_ir.to_proto(made.model)
        for node in proto.graph.node:
            for names in (node.input, node.output):
                names[:] = [name if n == "t1" else name + "2" if n == "t2" else n for n in names]
        yield Neighbour(made.name, load_model(proto), made.runs)
    for name in ("graphfuse", "gf_region", "region_0", "gf_mul_add", "fused_0"):
        made = neighbour(
            f"R49-{name}", f"{name} = Mul (x, x); t = Add ({name}, x); m = MatMul (t, w); y = Neg (m)", {"x": rand(3, 3), "w": rand(3, 3)}
        )
        yield made


def r51_regions_around_a_wall() -> Iterator[Neighbour]:
    for wall in ("MatMul (b, w)", "MatMul (w, b)", "CumSum (b, one)"):
        for late in ("Add (m, a)", "Mul (b, m)", "Sub (m, x)"):
            body = f"a = Mul (x, x); b = Tanh (a); m = {wall}; d = {late}; e = Mul (d, b); n = MatMul (e, w); y = Sub (n, a)"
            yield neighbour(f"R51-{wall}-{late}", body, {"x": rand(3, 3), "w": rand(3, 3)}, weights="int64 one = {1}", loose=1e-4)


def r53_sizes_that_may_be_one() -> Iterator[Neighbour]:
    forms = (
        (("A", "B"), ("A", "B")),
        (("A", "B"), ("C", "B")),
        (("A", "B"), ("B",)),
        (("A", 3), ("C", 3)),
        (("A", "B"), ("C", "D")),
        (("A", 1), ("C", "B")),
    )
    sizes = (
        {"A": 2, "B": 3, "C": 2, "D": 3},
        {"A": 1, "B": 3, "C": 4, "D": 3},
        {"A": 2, "B": 1, "C": 2, "D": 5},
        {"A": 1, "B": 1, "C": 1, "D": 1},
        {"A": 5, "B": 3, "C": 1, "D": 1},
    )
    for left, right in forms:
        runs = []
        for table in sizes:
            shapes = [[table.get(d, d) for d in dims] for dims in (left, right)]
            pairs = zip(reversed(shapes[0]), reversed(shapes[1]), strict=False)
            if all(a == b or 1 in (a, b) for a, b in pairs):
                runs.append({"x": rand(*shapes[0]), "z": rand(*shapes[1])})
        inputs = f"float[{','.join(map(str, left))}] x, float[{','.join(map(str, right))}] z"
        yield neighbour(
            f"R53-{left}-{right}", "a = Add (x, z); s = Sigmoid (a); m = Mul (s, z); y = Sub (m, x)", runs, inputs=inputs, opset=13
        )


FAMILIES = (
    r10_inner_values_are_outputs, r12_bodies_read_inner_values, r33_slices_of_all_kinds, r34_slices_of_run_time_sizes, r35_concats_with_nothing,
    r40_initializers_that_are_inputs, r49_r50_names, r51_regions_around_a_wall, r53_sizes_that_may_be_one,
)  # fmt: skip
