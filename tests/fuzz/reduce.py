"""Makes a failing case small: fewer outputs, fewer nodes, inner values turned into inputs that hold what they held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphfuse.ir.dtypes import BY_NAME
from tests.fuzz.maker import dtype_name
from tests.fuzz.reference import Reference
from tests.fuzz.strategies import Case, Feeds

Fails = Callable[[Case], bool]


def reduced(case: Case, fails: Fails) -> Case:
    """The smallest case found that still fails; the case itself if nothing smaller does."""
    case = next((c for k in range(len(case.feeds)) if fails(c := Case(case.model, (case.feeds[k],)))), case)
    if len(case.feeds) > 1:
        return case
    try:
        values = _all_values(case)
    except Exception:  # the case fails because it cannot be run
        values = {}
    while True:
        smaller = next((c for c in _smaller(case, values) if fails(c)), None)
        if smaller is None:
            return case
        case = smaller


def _smaller(case: Case, values: Feeds) -> Sequence[Case]:
    """Candidates, the smallest first."""
    graph = case.model.graph
    made = [name for node in graph.node for name in node.output if name]
    found = [_cut(case, [name], {}) for name in made]
    found += [_cut(case, [o.name for o in graph.output if o.name != name.name], {}) for name in graph.output if len(graph.output) > 1]
    outputs = [o.name for o in graph.output]
    for name in made:
        if name in values and name not in outputs:
            found.append(_cut(case, outputs, {name: values[name]}))
    size = len(graph.node), len(graph.output)
    kept = [c for c in found if c is not None and (len(c.model.graph.node), len(c.model.graph.output)) < size]
    return sorted(kept, key=lambda c: len(c.model.graph.node))


def _cut(case: Case, outputs: Sequence[str], fed: Feeds) -> Case | None:
    """The part of the model that computes ``outputs``, with some inner values fed; None where their types are not known."""
    graph, types = case.model.graph, _types(case.model)
    nodes, wanted = [], set(outputs)
    for node in reversed(graph.node):
        if wanted & {*node.output} - {*fed}:
            nodes.insert(0, node)
            wanted |= _reads(node)
    if any(name not in types for name in outputs) or not nodes:
        return None
    feeds = {n: a for n, a in {**case.feeds[0], **fed}.items() if n in wanted}
    tensors = [t for t in graph.initializer if t.name in wanted]
    named = {v.name: v for v in graph.input}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) if n in fed else named[n]
        for n, a in feeds.items()
    ]
    ranks = {v.name: v for v in (*graph.output, *graph.value_info)}
    infos = [
        ranks[n] if n in ranks else helper.make_tensor_value_info(n, BY_NAME[types[n]].onnx, [None] * _rank(case.model, n)) for n in outputs
    ]
    made = helper.make_model(helper.make_graph(nodes, "fuzz", inputs, infos, tensors), opset_imports=case.model.opset_import, ir_version=10)
    return Case(made, (feeds,))


def _reads(node: onnx.NodeProto) -> set[str]:
    inner = {name for a in node.attribute if a.HasField("g") for n in a.g.node for name in _reads(n)}
    return {*filter(None, node.input), *inner}


_inferred: dict[bytes, dict[str, tuple[str, int]]] = {}


def _infer(model: onnx.ModelProto) -> dict[str, tuple[str, int]]:
    key = model.SerializeToString(deterministic=True)
    if key not in _inferred:
        graph = onnx.shape_inference.infer_shapes(model).graph
        infos = [*graph.input, *graph.output, *graph.value_info]
        _inferred[key] = {
            v.name: (dtype_name(v.type.tensor_type.elem_type), len(v.type.tensor_type.shape.dim))
            for v in infos
            if v.type.tensor_type.elem_type and v.type.tensor_type.HasField("shape")
        }
    return _inferred[key]


def _types(model: onnx.ModelProto) -> dict[str, str]:
    return {n: t for n, (t, _) in _infer(model).items()}


def _rank(model: onnx.ModelProto, name: str) -> int:
    return _infer(model)[name][1]


def _all_values(case: Case) -> Feeds:
    """Every value of the graph, in its own type."""
    model, types = onnx.ModelProto(), _types(case.model)
    model.CopyFrom(case.model)
    del model.graph.output[:]
    made = [name for node in model.graph.node for name in node.output if name in types and node.op_type != "Constant"]
    model.graph.output.extend(helper.make_tensor_value_info(n, BY_NAME[types[n]].onnx, None) for n in made)
    with np.errstate(all="ignore"):
        found, _ = Reference(model, exact=True).exact(case.feeds[0])
        return {n: np.asarray(a).astype(BY_NAME[types[n]].numpy) for n, a in found.items()}


# --- files


def save(case: Case, folder: Path, name: str) -> Path:
    """Writes the model and its inputs (``run<k>/<input>`` in the .npz); the path of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    path.write_bytes(case.model.SerializeToString(deterministic=True))
    arrays = {f"run{k}/{n}": _plain(a) for k, feeds in enumerate(case.feeds) for n, a in feeds.items()}
    np.savez(path.with_suffix(".npz"), runs=np.array(len(case.feeds)), **arrays)
    return path


def _plain(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def load(path: Path) -> Case:
    """A case that ``save`` wrote."""
    model = onnx.load(str(path))
    types = {v.name: BY_NAME[dtype_name(v.type.tensor_type.elem_type)].numpy for v in model.graph.input}
    with np.load(path.with_suffix(".npz")) as held:
        runs = int(held["runs"])
        feeds = tuple(
            {k.partition("/")[2]: held[k].astype(types[k.partition("/")[2]]) for k in held if k.startswith(f"run{r}/")} for r in range(runs)
        )
    return Case(model, feeds)


def described(case: Case) -> str:
    """The graph as text, with its small constants."""
    lines = [onnx.printer.to_text(case.model)]
    lines += [f"{t.name} = {numpy_helper.to_array(t).tolist()}" for t in case.model.graph.initializer if np.prod(t.dims) <= 16]
    return "\n".join(lines)
