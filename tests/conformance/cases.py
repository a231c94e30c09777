"""The node cases of the ``onnx`` package as models that a rewriter meets: with axes, shapes and pads in the model, not fed to it."""

from __future__ import annotations

import functools
import hashlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from graphfuse.ops.table import lookup

OLDEST = 9  # the oldest opset that the loader takes
_EXPANDED = re.compile(r"_expanded(?:_ver\d+|_function_ver\d+)?$")


@dataclass(frozen=True)
class DataSet:
    """Inputs by name, and the expected outputs in the model's order."""

    feeds: dict[str, Any]
    wanted: tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """One case. ``op`` is what it is about; ``rtol`` and ``atol`` are the package's."""

    name: str
    op: str
    model: onnx.ModelProto
    data: tuple[DataSet, ...]
    rtol: float
    atol: float

    @property
    def part(self) -> int:
        """A number from 0 to 9 that depends on the name alone, to run a fixed tenth."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 10


@functools.cache
def load_cases() -> tuple[Case, ...]:
    """All cases of the installed package, in its order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        loaded = load_model_tests(kind="node")
    ops = {c.name: c.model.graph.node[0].op_type for c in loaded if len(c.model.graph.node) == 1}
    return tuple(_case(c, ops.get(_EXPANDED.sub("", c.name), "")) for c in loaded)


def _case(case: Any, op: str) -> Case:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    names = [v.name for v in model.graph.input]
    data = [(dict(zip(names, map(_array, inputs), strict=False)), tuple(map(_array, outputs))) for inputs, outputs in case.data_sets]
    fixed = _fixed_inputs(model.graph, [feeds for feeds, _ in data])
    _make_constant(model.graph, fixed)
    _raise_opset(model)
    sets = tuple(DataSet({n: v for n, v in feeds.items() if n not in fixed}, wanted) for feeds, wanted in data)
    return Case(case.name, op or _main_op(case.name, model.graph), model, sets, case.rtol, case.atol)


def _array(value: Any) -> Any:
    """Small types come as protos."""
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _main_op(name: str, graph: onnx.GraphProto) -> str:
    """Of a model of several nodes: the op whose name is in the case's name, else the last node's."""
    flat = name.replace("_", "")
    named = [n.op_type for n in graph.node if n.op_type.lower() in flat]
    return max(named, key=len, default=graph.node[-1].op_type)


def _fixed_inputs(graph: onnx.GraphProto, feeds: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Graph inputs that entries want known, directly or computed by other nodes, with their one value."""
    names: set[str] = set()
    for node in reversed(graph.node):
        names.update(_known_inputs(node))
        if node.op_type not in ("Shape", "Size") and names.intersection(node.output):
            names.update(node.input)
    values = {name: [np.asarray(f[name]) for f in feeds if name in f] for name in names}
    return {n: found[0] for n, found in values.items() if found and all(np.array_equal(found[0], v) for v in found)}


def _known_inputs(node: onnx.NodeProto) -> list[str]:
    entry = lookup(node.domain, node.op_type)
    return [node.input[i] for i in entry.known if i < len(node.input) and node.input[i]] if entry else []


def _make_constant(graph: onnx.GraphProto, fixed: dict[str, np.ndarray]) -> None:
    kept = [v for v in graph.input if v.name not in fixed]
    del graph.input[:]
    graph.input.extend(kept)
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in fixed.items())


def _raise_opset(model: onnx.ModelProto) -> None:
    """States a model of an older opset at the oldest one that is read, where its operators mean the same there."""
    for imported in model.opset_import:
        if imported.domain == "" and imported.version < OLDEST and all(_is_unchanged(n, imported.version) for n in model.graph.node):
            imported.version = OLDEST


def _is_unchanged(node: onnx.NodeProto, version: int) -> bool:
    now, then = (onnx.defs.get_schema(node.op_type, v, node.domain) for v in (OLDEST, version))
    return now.since_version == then.since_version
