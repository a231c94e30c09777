"""The same graph in float64, node by node in ONNX Runtime, as the truth that fused graphs are judged against.

Every float value is held in float64 and rounded to its own type where the model rounds it, so that the reference has one
rounding a node and no approximations of its own. ONNX Runtime computes each node in float64 where it has a kernel for it, else
in float32; integers for whose type it has none are computed in a wider one and cut off.

Two readings of small floats (float16, bfloat16), as ``docs/numbers.md`` has them:

- ``exact``: rounded after every node, which is what the model says and what ``exact_rounding=True`` must give;
- otherwise: kept in float32, and rounded only at Cast, before what is not continuous, and at the graph's outputs.

What a rewrite leaves to ONNX Runtime (``left_alone``) follows its kernels: they keep small floats in float32 between nodes.

*Sites* are inputs added to inexact values: -0.0, which changes nothing, or noise as large as the errors that a correct
computation may make there. What noise does to the outputs is how far a correct result may be off (``oracle.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graphfuse.ir.dtypes import BY_NAME
from tests.fuzz.kernels import MOVES, computing_types, session
from tests.fuzz.maker import FLOATS, INTS, dtype_name

SMALL = ("f16", "bf16")
# Results are some of the operands' elements, or whole numbers: nothing is rounded.
EXACT = frozenset(
    "Transpose Slice Split Concat Reshape Squeeze Unsqueeze Flatten Expand Tile Pad Gather GatherElements DepthToSpace SpaceToDepth Resize "
    "Trilu EyeLike OneHot Identity Where Min Max Clip Relu Neg Abs Sign Floor Ceil Round IsNaN IsInf Not And Or Xor Equal Less Greater "
    "LessOrEqual GreaterOrEqual ReduceMax ReduceMin ArgMax ArgMin GlobalMaxPool Hardmax ThresholdedRelu QuantizeLinear BitwiseAnd BitwiseOr "
    "BitwiseXor BitwiseNot BitShift Mod MaxPool".split()
)
# What a little more or less at the input may change wholly.
STEPS = frozenset(
    "Sign Floor Ceil Round IsNaN IsInf Equal Less Greater LessOrEqual GreaterOrEqual ArgMax ArgMin Hardmax ThresholdedRelu Shrink "
    "PRelu QuantizeLinear Mod".split()
)
# Sums of many terms err by the size of the terms, not of the sum.
SUMS = frozenset(
    "ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp Softmax LogSoftmax LayerNormalization "
    "BatchNormalization InstanceNormalization LpNormalization GlobalAveragePool MatMul CumSum Sum Mean AveragePool LRN "
    "SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss".split()
)
# Ops that are computed from parts which nearly cancel: they err by the size of 1, or of their operand.
BY_ONE = frozenset("Elu Selu Celu Softplus LogSoftmax ReduceLogSumExp ReduceLogSum HardSigmoid Erf Sigmoid SoftmaxCrossEntropyLoss".split())
# In float64 ONNX Runtime's own kernels err by the size of 1 where the result is near 0.
BY_ONE_IN_FLOAT64 = frozenset(["Sin", "Cos"])
BY_OPERAND = frozenset("Gelu HardSwish Mish Swish HardSigmoid Shrink".split())
# The division of the first three is meant in float32, whose ties are not those of float64. Shrink computes in float32 anyway.
IN_FLOAT32 = frozenset(["QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Shrink"])
# ONNX defines them by functions whose constants are float32, for float64 too.
ROUGH = frozenset("Gelu HardSwish Swish".split())


class Unsupported(Exception):
    """ONNX Runtime has no kernel for a node in any type."""


@dataclass(frozen=True)
class Site:
    """Where noise is added: ``value`` (float64) stands for one of type ``dtype``; ``floor`` is the least size that errors go by.

    ``rounds`` says that a small float may or may not be rounded here, ``narrow`` that a float64 went through a float32 kernel.
    """

    noise: str
    value: str
    dtype: str
    floor: float = 0.0
    operand: str = ""
    rounds: bool = False
    narrow: bool = False


@dataclass(frozen=True)
class Products:
    """The largest and the smallest products (float64) of some elements of a ReduceProd, which computes in type ``dtype``."""

    largest: str
    smallest: str
    dtype: str


def left_alone(fused: onnx.ModelProto, *, exact: bool) -> frozenset[str]:
    """The values that ONNX Runtime, which runs what is not fused, computes otherwise than ONNX has it.

    Its MeanVarianceNormalization adds no epsilon; what one of its nodes hands to another (``exact``) need not be rounded.
    """
    plain = [n for n in fused.graph.node if n.domain != "graphfuse"]
    read = {name for n in plain for name in n.input} if exact else set()
    return frozenset(o for n in plain for o in n.output if o in read or n.op_type == "MeanVarianceNormalization")


class Reference:
    """The float64 graph of a model, ready to run. Raises Unsupported."""

    def __init__(self, model: onnx.ModelProto, *, exact: bool, left: frozenset[str] = frozenset()) -> None:
        made = _Widening(model, exact, left)
        self.keeps_small = not made.rounds_all
        self.sites: list[Site] = made.sites
        self.products: list[Products] = made.products
        self.outputs: list[str] = [o.name for o in model.graph.output]
        self._wide = [made.results[name] for name in self.outputs]
        self._inputs = {v.name for v in model.graph.input} & made.read
        self._session = session(made.model())
        self._fetch = list(dict.fromkeys([*self._wide, *made.watched()]))

    def exact(self, feeds: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The outputs by name, and the values at the sites by their own names; floats in float64."""
        quiet = {s.noise: np.array(-0.0) for s in self.sites}
        got = dict(zip(self._fetch, self._session.run(self._fetch, {**self._given(feeds), **quiet}), strict=True))
        return dict(zip(self.outputs, (got[n] for n in self._wide), strict=True)), got

    def noisy(self, feeds: Mapping[str, np.ndarray], noise: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs in order, with noise added at the sites."""
        return list(self._session.run(self._wide, {**self._given(feeds), **noise}))

    def _given(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Inputs as the session takes them; a bfloat16 is fed as the float32 of the same value."""
        return {n: a.astype(np.float32) if a.dtype.name == "bfloat16" else a for n, a in feeds.items() if n in self._inputs}


class _Widening:
    def __init__(self, model: onnx.ModelProto, exact: bool, left: frozenset[str]) -> None:
        self.exact, self.left = exact, left
        self.rounds_all = exact and not left
        self.opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.sites: list[Site] = []
        self.products: list[Products] = []
        self.read: set[str] = set()
        self.results: dict[str, str] = {}
        self._wide: dict[str, str] = {}  # of a value of the model: that of the reference which holds it
        self._type: dict[str, str] = {}
        self._numbers: dict[str, float] = {}  # what numbers are, unless something else is fed
        self._count = 0
        self._enter(model.graph)
        for node in model.graph.node:
            self._node(node)
        for output in model.graph.output:
            self.results[output.name] = self._rounded(output.name)

    def model(self) -> onnx.ModelProto:
        fetched = dict.fromkeys([*self.results.values(), *self.watched()])
        outputs = [helper.make_empty_tensor_value_info(n) for n in fetched]
        graph = helper.make_graph(self.nodes, "reference", self.inputs, outputs, self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def watched(self) -> list[str]:
        """The values inside that judging needs."""
        sites = [n for s in self.sites for n in (s.value, s.operand) if n]
        return [*sites, *(n for p in self.products for n in (p.largest, p.smallest))]

    # --- sources

    def _enter(self, graph: onnx.GraphProto) -> None:
        constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        for value in graph.input:
            default = constants.pop(value.name, None)
            self._source(value.name, dtype_name(value.type.tensor_type.elem_type), default)
        for name, array in constants.items():
            self._constant(name, array)
        self._numbers.update((t.name, float(numpy_helper.to_array(t))) for t in graph.initializer if not t.dims)

    def _source(self, name: str, dtype: str, default: np.ndarray | None = None) -> None:
        fed = "f32" if dtype == "bf16" else dtype
        self.read.add(name)
        if default is not None:
            self.initializers.append(numpy_helper.from_array(default.astype(BY_NAME[fed].numpy), name))
        self.inputs.append(helper.make_tensor_value_info(name, BY_NAME[fed].onnx, None))
        self._hold(name, dtype, self._cast(name, fed, "f64") if dtype in FLOATS else name)

    def _constant(self, name: str, array: np.ndarray) -> None:
        dtype = dtype_name(helper.np_dtype_to_tensor_dtype(array.dtype))
        if dtype in FLOATS:
            array = array.astype(np.float64)
        if not array.shape:
            self._numbers[name] = float(array)
        own = self._fresh()
        self.initializers.append(numpy_helper.from_array(array, own))
        self._hold(name, dtype, own)

    def _hold(self, name: str, dtype: str, wide: str) -> None:
        self._wide[name], self._type[name] = wide, dtype

    # --- nodes

    def _node(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Constant":
            self._constant(node.output[0], numpy_helper.to_array(node.attribute[0].t))
        elif node.op_type == "Cast":
            self._convert(node)
        elif node.op_type == "If":
            self._branches(node)
        elif node.op_type == "Loop":
            self._steps(node)
        elif node.op_type == "InstanceNormalization":
            self._instance_norm(node)
        elif node.op_type == "MeanVarianceNormalization":
            self._moments(node)
        elif node.op_type == "Mish":
            self._mish(node)
        else:
            self._compute(node)

    def _convert(self, node: onnx.NodeProto) -> None:
        """Casts are exact where they can be; a small float is rounded before and after in both readings."""
        name, to = node.input[0], dtype_name(node.attribute[0].i)
        made = self._cast(self._rounded(name), _held(self._type[name]), to)
        self._hold(node.output[0], to, self._cast(made, to, "f64") if to in FLOATS else made)

    def _branches(self, node: onnx.NodeProto) -> None:
        """Both are computed, one is chosen."""
        ends: list[list[str]] = []
        for graph in (next(a.g for a in node.attribute if a.name == n) for n in ("then_branch", "else_branch")):
            self._enter(graph)
            for inner in graph.node:
                self._node(inner)
            ends.append([o.name for o in graph.output])
        for output, then, other in zip(node.output, *ends, strict=True):
            self._compute(helper.make_node("Where", [node.input[0], then, other], [output]))

    def _steps(self, node: onnx.NodeProto) -> None:
        """A Loop of a known number of steps, one after the other."""
        body = node.attribute[0].g
        steps = int(self._numbers[node.input[0]])
        carried = list(node.input[2:])
        for _ in range(steps):
            for value, name in zip(body.input[2:], carried, strict=True):
                self._hold(value.name, self._type[name], self._wide[name])
            for inner in body.node[:-1]:  # the last one hands the condition on
                self._node(inner)
            carried = [o.name for o in body.output[1:]]
        for name, last in zip(node.output, carried, strict=True):
            self._hold(name, self._type[last], self._wide[last])

    def _instance_norm(self, node: onnx.NodeProto) -> None:
        """From its parts: ONNX Runtime has it in float32 only, with the mean subtracted last, where it cancels."""
        x, scale, bias = (self._site(self._wide[n], "f32") for n in node.input)
        epsilon = float(np.float32(next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)))
        rows = self._emit("Reshape", x, self._fixed([0, 0, -1]))
        centred = self._emit("Sub", rows, self._row_mean(rows))
        variance = self._row_mean(self._emit("Mul", centred, centred))
        root = self._emit("Sqrt", self._emit("Add", variance, self._fixed(epsilon)))
        column = self._fixed([-1, 1])
        y = self._emit("Mul", self._emit("Div", centred, root), self._emit("Reshape", scale, column))
        y = self._emit("Add", y, self._emit("Reshape", bias, column))
        made = self._emit("Reshape", y, self._emit("Shape", x))
        self._finish(node, node.output[0], made, self._type[node.input[0]], "f64", ())

    def _moments(self, node: onnx.NodeProto) -> None:
        """From its parts: ONNX's function takes the root of a difference that may be negative."""
        x = self._site(self._wide[node.input[0]], "f32")
        axes = next((list(a.ints) for a in node.attribute if a.name == "axes"), [0, 2, 3])
        centred = self._emit("Sub", x, self._mean(x, axes))
        root = self._emit("Sqrt", self._mean(self._emit("Mul", centred, centred), axes))
        epsilon = self._fixed(1e-9)
        if node.output[0] in self.left:  # ONNX Runtime's kernel has none: from 0 to 2e-9
            noisy = self._site(epsilon, "f32", floor=1e-9 * 2**22)
            epsilon = self._emit("Min", self._emit("Max", noisy, self._fixed(0.0)), self._fixed(2e-9))
        made = self._emit("Div", centred, self._emit("Add", root, epsilon))
        self._finish(node, node.output[0], made, self._type[node.input[0]], "f64", ())

    def _mish(self, node: onnx.NodeProto) -> None:
        """``tanh(log(1 + e))`` as ``e(e + 2) / (e(e + 2) + 2)``: the kernel adds what is small to 1, and so loses it."""
        x = self._wide[node.input[0]]
        e = self._emit("Exp", self._emit("Min", x, self._fixed(40.0)))
        part = self._emit("Mul", e, self._emit("Add", e, self._fixed(2.0)))
        made = self._emit("Mul", x, self._emit("Div", part, self._emit("Add", part, self._fixed(2.0))))
        self._finish(node, node.output[0], made, self._type[node.input[0]], "f64", ())

    def _row_mean(self, rows: str) -> str:
        return self._mean(rows, [2])

    def _mean(self, value: str, axes: list[int]) -> str:
        if self.opset >= 18:
            return self._emit("ReduceMean", value, self._fixed(axes))
        return self._emit("ReduceMean", value, axes=axes)

    def _fixed(self, value: float | list[int]) -> str:
        name = self._fresh()
        self.initializers.append(numpy_helper.from_array(np.array(value, np.int64 if isinstance(value, list) else np.float64), name))
        return name

    def _emit(self, op: str, *inputs: str, **attrs: object) -> str:
        made = self._fresh()
        self.nodes.append(helper.make_node(op, list(inputs), [made], **attrs))
        return made

    def _compute(self, node: onnx.NodeProto) -> None:
        op, types = node.op_type, [self._type[n] if n else "" for n in node.input]
        floats = ("f32",) if op in IN_FLOAT32 or (op == "Clip" and not _has_both_bounds(node)) else ("f64", "f32")
        chosen = computing_types(node, self.opset, types, floats)
        if chosen is None or (op in EXACT and "f64" in types and "f32" in chosen):
            raise Unsupported(f"{op}({', '.join(types)}) at opset {self.opset}")
        inputs = [self._operand(n, op, t) if n else "" for n, t in zip(node.input, chosen, strict=True)]
        real = next((t for t in chosen if t in FLOATS), "f64")
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        outputs = [self._fresh() for _ in node.output]
        del copy.input[:], copy.output[:]
        copy.input.extend(inputs)
        copy.output.extend(outputs)
        self.nodes.append(copy)
        if op == "ReduceProd" and types[0] in FLOATS:
            self._partial_products(copy, real, types[0])
        for name, made, dtype in zip(node.output, outputs, _result_types(node, types), strict=True):
            self._finish(node, name, made, dtype, real, chosen)

    def _partial_products(self, node: onnx.NodeProto, real: str, dtype: str) -> None:
        """Of all factors above 1, and of all below it: no order of multiplying leaves these bounds."""
        one = self._fixed(1.0)
        size = self._emit("Abs", self._cast(node.input[0], real, "f64"))
        size = self._emit("Where", self._emit("Greater", size, self._fixed(0.0)), size, one)
        ends = []
        for pick in ("Max", "Min"):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[0], copy.output[0] = self._cast(self._emit(pick, size, one), "f64", real), self._fresh()
            self.nodes.append(copy)
            ends.append(self._cast(copy.output[0], real, "f64"))
        self.products.append(Products(*ends, "f32" if dtype in SMALL else dtype))

    def _operand(self, name: str, op: str, computed: str) -> str:
        dtype = self._type[name]
        wide = self._rounded(name) if op in STEPS else self._wide[name]
        if dtype in FLOATS and (op in SUMS or (dtype == "f64" and computed == "f32")):
            wide = self._site(wide, "f32" if dtype in SMALL or computed == "f32" else dtype)
        return self._cast(wide, _held(dtype), computed)

    def _finish(self, node: onnx.NodeProto, name: str, made: str, dtype: str, real: str, chosen: tuple[str, ...]) -> None:
        op = node.op_type
        if dtype not in FLOATS:
            computed = next((t for t in chosen if t in INTS), dtype)
            computed = chosen[1 if op == "Where" else 0] if op in MOVES else computed
            whole = (dtype in INTS or op in MOVES) and op not in (
                "ArgMax",
                "ArgMin",
                "QuantizeLinear",
                "DynamicQuantizeLinear",
                "EyeLike",
                "OneHot",
            )
            self._hold(name, dtype, self._cast(made, computed, dtype) if whole else made)
            return
        wide = self._cast(made, _own_float(op, dtype) or real, "f64")
        if op in EXACT:
            self._hold(name, dtype, wide)
            return
        operand = self._wide[node.input[0]] if op in BY_OPERAND else ""
        known = "f32" if dtype == "f64" and (real == "f32" or op in ROUGH) else dtype  # the reference itself is no better than its kernel
        by_one = op in BY_ONE or (dtype == "f64" and op in BY_ONE_IN_FLOAT64)
        kept = dtype in SMALL and (not self.exact or name in self.left)
        wide = self._site(wide, known, 1.0 if by_one else 0.0, operand, rounds=kept, narrow=known != dtype)
        self._hold(name, dtype, self._through(wide, "f32" if kept else dtype))

    def _site(self, value: str, dtype: str, floor: float = 0.0, operand: str = "", **how: bool) -> str:
        noise, made = f"noise{len(self.sites)}", self._fresh()
        self.sites.append(Site(noise, value, dtype, floor, operand, **how))
        self.inputs.append(helper.make_tensor_value_info(noise, TensorProto.DOUBLE, None))
        self.nodes.append(helper.make_node("Add", [value, noise], [made]))
        return made

    def _rounded(self, name: str) -> str:
        """The value as its own type holds it, in float64."""
        dtype = self._type[name]
        return self._through(self._wide[name], dtype) if dtype in SMALL and not self.rounds_all else self._wide[name]

    def _through(self, wide: str, dtype: str) -> str:
        return wide if dtype == "f64" else self._cast(self._cast(wide, "f64", dtype), dtype, "f64")

    def _cast(self, name: str, now: str, to: str) -> str:
        if now == to:
            return name
        made = self._fresh()
        self.nodes.append(helper.make_node("Cast", [name], [made], to=BY_NAME[to].onnx))
        return made

    def _fresh(self) -> str:
        self._count += 1
        return f"r{self._count}"


def _held(dtype: str) -> str:
    return "f64" if dtype in FLOATS else dtype


def _own_float(op: str, dtype: str) -> str | None:
    """The type that an op's float result has whatever its operands are; None where it follows them."""
    return dtype if op in ("EyeLike", "OneHot") else "f32" if op in ("DequantizeLinear", "DynamicQuantizeLinear") else None


def _has_both_bounds(node: onnx.NodeProto) -> bool:
    return len([n for n in node.input if n]) == 3 or {a.name for a in node.attribute} >= {"min", "max"}


def _result_types(node: onnx.NodeProto, types: list[str]) -> list[str]:
    """The element types of a node's outputs in the model."""
    op, count = node.op_type, len(node.output)
    if op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "IsNaN", "IsInf", "Not", "And", "Or", "Xor"):
        return ["bool"] * count
    if op in ("ArgMax", "ArgMin"):
        return ["i64"] * count
    if op == "EyeLike":
        return [next((dtype_name(a.i) for a in node.attribute if a.name == "dtype"), types[0])]
    if op == "DynamicQuantizeLinear":
        return ["u8", "f32", "u8"]
    return [types[{"Where": 1, "OneHot": 2, "QuantizeLinear": 2, "DequantizeLinear": 1}.get(op, 0)]] * count
