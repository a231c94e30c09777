"""Which element types ONNX Runtime's CPU kernels compute an op in, found out by asking for a session of the one node."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnxruntime as ort
from onnx import helper

from graphfuse.ir.dtypes import BY_NAME
from tests.fuzz.maker import FLOATS, INTS

# They only move elements, so these may travel as others that hold the same bits.
MOVES = frozenset(
    "Where Transpose Slice Split Concat Reshape Squeeze Unsqueeze Flatten Expand Tile Pad Gather GatherElements Trilu".split()
)
_DISGUISES = {"bool": "u8", "u64": "i64"}
_WIDER_INTS = ("i32", "i64", "u32", "u64")
_known: dict[tuple[object, ...], tuple[str, ...] | None] = {}


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    """A session on the CPU, with graph optimisation off and one thread."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def computing_types(node: onnx.NodeProto, opset: int, types: Sequence[str], floats: Sequence[str]) -> tuple[str, ...] | None:
    """The types to give the node's inputs (of ``types``; "" for one omitted) so that ONNX Runtime has a kernel; None if it has none.

    Floats become the first of ``floats`` that works. Integers keep their type, or get a wider one of which every value of
    theirs is a value: sums and products of it, cut off to their own width again, are what they would have been.
    """
    words = tuple(sorted((a.name, a.s) for a in node.attribute))  # of Gelu's two forms, which are functions, one has kernels in float64
    key = (node.op_type, words, opset, tuple(types), tuple(floats), len(node.output))
    if key not in _known:
        _known[key] = next((c for c in _candidates(node.op_type, types, floats) if _runs(node, opset, c)), None)
    return _known[key]


def _candidates(op: str, types: Sequence[str], floats: Sequence[str]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    if op in MOVES and types[data := 1 if op == "Where" else 0] in _DISGUISES:
        found += [tuple(types), (*types[:data], *(_DISGUISES.get(t, t) for t in types[data:]))]
    for real in floats if any(t in FLOATS for t in types) else ("",):
        for whole in ("", *_WIDER_INTS):
            wide = tuple(real if t in FLOATS else whole if whole and t in INTS and _holds(whole, t) else t for t in types)
            if wide not in found:
                found.append(wide)
    return found


def _holds(wide: str, own: str) -> bool:
    a, b = BY_NAME[wide], BY_NAME[own]
    return a.size > b.size and (a.kind == "i" or b.kind == "u")


def _runs(node: onnx.NodeProto, opset: int, types: Sequence[str]) -> bool:
    lone = onnx.NodeProto()
    lone.CopyFrom(node)
    del lone.input[:]
    lone.input.extend(f"x{i}" if t else "" for i, t in enumerate(types))
    inputs = [helper.make_tensor_value_info(f"x{i}", BY_NAME[t].onnx, None) for i, t in enumerate(types) if t]
    outputs = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
    graph = helper.make_graph([lone], "one", inputs, outputs)
    try:
        session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10))
    except Exception:  # ONNX Runtime's errors have no common class
        return False
    return True
