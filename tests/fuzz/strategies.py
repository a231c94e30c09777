"""Random models with inputs for one or more runs: ``cases()`` for hypothesis, ``first_cases`` for runs that can be repeated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from graphfuse.ir.dtypes import BY_NAME, DType, from_numpy
from tests.fuzz import composed, folds, movement, pointwise
from tests.fuzz.maker import FLOATS, INTS, MAX_ELEMENTS, Maker, Shape, Size, V, moderate
from tests.ort_faults import is_judge

NEWEST_OPSET = min(onnx.defs.onnx_opset_version(), 25)
LONG = (65, 130, 257, 300, 513, 1025) * 2  # rows that teams of threads share
Feeds = dict[str, np.ndarray]

# How often each family is drawn, out of their sum.
FAMILIES: tuple[tuple[int, Callable[[Maker], None]], ...] = (
    (16, pointwise.unary), (10, pointwise.activation), (22, pointwise.arithmetic), (7, pointwise.comparison), (4, pointwise.logic),
    (3, pointwise.bits), (7, pointwise.select), (4, pointwise.clip), (8, pointwise.cast),
    (6, movement.transpose), (9, movement.slice_), (4, movement.split), (6, movement.concat), (6, movement.reshape), (5, movement.squeeze),
    (1, movement.flatten), (3, movement.expand), (3, movement.tile), (4, movement.pad), (4, movement.gather), (1, movement.gather_elements),
    (1, movement.blocks), (2, movement.made_up),
    (9, folds.reduce), (3, folds.arg_extremum), (4, folds.softmax), (4, folds.layer_norm), (2, folds.other_norm), (3, folds.quantise),
    (3, folds.matmul), (2, folds.branch), (1, folds.running),
    (4, composed.norm), (4, composed.gate), (4, composed.window), (4, composed.pool), (3, composed.function), (1, composed.loop),
)  # fmt: skip
_DEALT = tuple(family for weight, family in FAMILIES for _ in range(weight))


@dataclass(frozen=True)
class Case:
    """A model, and the inputs of each of its runs."""

    model: onnx.ModelProto
    feeds: tuple[Feeds, ...]


def make_case(random: Random, most_nodes: int = 25) -> Case:
    """A model of 1 to about ``most_nodes`` nodes of one opset, whose unread values are outputs."""
    opset = random.randint(9, NEWEST_OPSET)
    m = Maker(random, opset, 1 if random.random() < 0.8 else random.randint(2, 3), _types(random, opset))
    m.wild = m.chance(12)
    sizes, symbols = _sizes(m)
    for _ in range(m.integer(1, 4)):
        _input(m, sizes)
    count = m.integer(1, most_nodes - 3)
    for _ in range(4 * most_nodes):  # some draws fit nothing and add no node
        if len(m.nodes) >= count:
            break
        m.choose(_DEALT)(m)
    return _finish(m, symbols)


def _types(random: Random, opset: int) -> Sequence[str]:
    """The element types of a graph: float32 and a few others, so that values of the same type meet."""
    others = ["f64", "f16", *(t for t in INTS if t != "i64"), *(["bf16"] if opset >= 16 else [])]
    return ["f32", "bool", "i64", *random.sample(others, random.randint(0, 2))]


def _sizes(m: Maker) -> tuple[list[Size], dict[Size, str]]:
    """The sizes that this graph's inputs have, last axis first to broadcast, and the names of run-time ones."""
    sizes: list[Size] = []
    symbols: dict[Size, str] = {}
    for axis in range(4):
        if m.runs > 1 and m.chance(50):
            size = tuple(m.choose((3, 5, 1, 8, 2, 16, *((0,) if m.chance(10) else ()))) for _ in range(m.runs))
            symbols.setdefault(size, f"n{axis}")
        else:
            long = LONG if axis == 0 and m.chance(15) else ()
            size = (m.choose((3, 4, 2, 5, 8, 1, 7, 12, 33, *((0,) if m.chance(6) else ()), *long)),) * m.runs
        sizes.append(size)
    return sizes, symbols


def _input(m: Maker, sizes: list[Size]) -> V:
    rank = m.integer(0, 4)
    shape: Shape = tuple((1,) * m.runs if m.chance(15) else sizes[i] for i in reversed(range(rank)))
    while V("", "f32", shape).elements > MAX_ELEMENTS // 2:
        shape = shape[1:]
    made = V(m.fresh(), m.choose(m.types), shape)
    m.inputs.append(made)
    m.values.append(made)
    return made


# --- the finished model


def _finish(m: Maker, symbols: dict[Size, str]) -> Case:
    while not m.nodes:
        pointwise.cast(m)
    read = _reads(m.nodes)
    made = {name for node in m.nodes for name in node.output}
    outputs = [v for v in m.values if v.name in made and (v.name not in read or m.chance(8))]
    names = dict(symbols) if m.runs > 1 else {}
    inputs = [helper.make_tensor_value_info(v.name, BY_NAME[v.dtype].onnx, _dims(v.shape, names)) for v in m.inputs]
    also_inputs = {n: a for n, a in m.initializers.items() if m.chance(12 if n in m.feedable else 3)}
    inputs += [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in also_inputs.items()]
    infos = [helper.make_tensor_value_info(v.name, BY_NAME[v.dtype].onnx, _free_dims(m, v)) for v in outputs]
    tensors = [numpy_helper.from_array(a, n) for n, a in m.initializers.items()]
    graph = helper.make_graph(m.nodes, "fuzz", inputs, infos, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", m.opset)], ir_version=10)
    return Case(model, tuple(_feeds(m, k, also_inputs) for k in range(m.runs)))


def _reads(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        found |= set(node.input)
        for attr in node.attribute:
            found |= _reads(attr.g.node) if attr.HasField("g") else set()
    return found


def _dims(shape: Shape, names: dict[Size, str]) -> list[int | str]:
    return [names.get(s, s[0]) for s in shape]


def _free_dims(m: Maker, v: V) -> list[int | str]:
    """What is stated of an output: its sizes, or of a run-time model only its rank."""
    return [s[0] if m.runs == 1 else f"{v.name}_{i}" for i, s in enumerate(v.shape)]


def _feeds(m: Maker, run: int, also_inputs: Feeds) -> Feeds:
    """Inputs of one run; some of the initializers that are inputs get other values, unless something depends on theirs."""
    rng = m.rng()
    given = {v.name: draw_array(rng, BY_NAME[v.dtype], [s[run] for s in v.shape], wild=m.wild) for v in m.inputs}
    changed = {n: a for n, a in also_inputs.items() if n in m.feedable and m.chance(50)}
    return given | {n: draw_array(rng, from_numpy(a.dtype), a.shape, wild=False) for n, a in changed.items()}


def draw_array(rng: np.random.Generator, dtype: DType, shape: Sequence[int], *, wild: bool) -> np.ndarray:
    """An input: moderate numbers, in wild graphs with NaN, infinities, negative zero and extremes among them."""
    x = np.asarray(moderate(rng, dtype, shape)).astype(dtype.numpy)
    if not wild or dtype.kind == "b":
        return x
    if dtype.is_float:
        top, tiny = (3e4, 6e-8) if dtype.name == "f16" else (3e38, 1e-40)
        special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, top, -top, tiny, 1.0, 0.5]).astype(dtype.numpy)
    else:
        info = np.iinfo(dtype.numpy)
        special = np.array([info.min, info.max, 0, 1], dtype.numpy)
    return np.where(rng.random(shape) < 0.2, rng.choice(special, shape), x).astype(dtype.numpy)


def numbered_case(seed: int, number: int) -> Case:
    """Case ``number`` of a seed: always the same one."""
    return make_case(Random(f"{seed}/{number}"))


def first_cases(seed: int, count: int) -> list[Case]:
    """The first cases of a seed that the installed ONNX Runtime can judge: the newest can judge all."""
    numbered = (numbered_case(seed, number) for number in itertools.count())
    return list(itertools.islice((c for c in numbered if is_judge(c.model)), count))


def cases() -> st.SearchStrategy[Case]:
    """Cases for property tests.

    Hypothesis draws the source of randomness, not each number: drawn one by one, half of its graphs repeat others and most have
    five nodes. What fails is made smaller as a graph (``reduce.py``), which also works for what is compared in batches.
    """
    return st.randoms(use_true_random=True).map(make_case).filter(lambda case: is_judge(case.model))


__all__ = ["FLOATS", "Case", "Feeds", "cases", "draw_array", "first_cases", "make_case", "numbered_case"]
