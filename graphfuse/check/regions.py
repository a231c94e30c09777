"""A verdict for each fused region: its program, fed with the values that the original computes there.

So a fault is pinned on the region that makes it, not on those after it that pass it on. The original runs once, with
every value that a region reads or makes handed out as an output; ``rewrite`` keeps the names of those values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir

from graphfuse.check.compare import compare_output
from graphfuse.check.exact import distance, in_float64
from graphfuse.check.tolerance import Limits, Tolerance, choose, is_float
from graphfuse.check.verdict import RegionVerdict
from graphfuse.ir import Program
from graphfuse.ir.errors import GraphfuseError
from graphfuse.session.devices import Region
from graphfuse.session.fused import FusedNode
from graphfuse.session.ort_stage import OrtStage, known_types
from graphfuse.session.values import Value


def original_values(original: onnx_ir.Model, names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> dict[str, Value]:
    """The named values of the original for these inputs; names that it does not have are left out."""
    graph = original.graph
    values = {str(v.name): Value(array=v.const_value.numpy()) for v in graph.initializers.values() if v.const_value is not None}
    values.update((name, Value(array=array)) for name, array in feeds.items())
    made = {v.name for node in graph for v in node.outputs}
    wanted = [name for name in names if name in made]
    if wanted:
        values.update(OrtStage(original, list(graph), known_types(graph), wanted).run(values))
    return {name: values[name] for name in names if name in values}


def region_verdicts(
    nodes: Sequence[FusedNode],
    regions: Sequence[Region],
    original: onnx_ir.Model,
    constants: Mapping[str, Value],
    feeds: Mapping[str, np.ndarray],
    limits: Limits,
) -> list[RegionVerdict]:
    """The verdict on each region. ``constants`` are weights of the fused model, some of which the original computes."""
    if not nodes:
        return []
    names = list(dict.fromkeys(name for n in nodes for name in (*n.inputs, *n.outputs)))
    fed = {name: Value(array=array) for name, array in feeds.items()}
    known = {**constants, **fed, **original_values(original, names, feeds)}
    verdicts = [_verdict(node, region, known, limits) for node, region in zip(nodes, regions, strict=True)]
    return [
        v if v.passed or not v.outputs else _by_float64(v, node, region, known, original, limits)
        for v, node, region in zip(verdicts, nodes, regions, strict=True)
    ]


def _by_float64(
    verdict: RegionVerdict, node: FusedNode, region: Region, known: Mapping[str, Value], original: onnx_ir.Model, limits: Limits
) -> RegionVerdict:
    """A second look at a region that is out of tolerance: it may be nearer to the truth than the original is."""
    given = [str(v.name) for v in original.graph.inputs if v.name in known]  # shapes may be computed from those
    truth = in_float64(original, {n: known[n] for n in (*given, *node.inputs)}, node.outputs)
    if truth is None or float_types(node.program) != {"float32"}:
        return verdict
    got = [m.array for m in region.run([known[n] for n in node.inputs])]
    apart = distance(truth, [known[n].array for n in node.outputs], got, lambda t: choose(t, whole=False, limits=limits))
    if apart is None or not apart.excuses:
        return verdict
    reason = f"of the float64 result the kernel is {apart.kernel:.2g} tolerances off, the original {apart.original:.2g}"
    return RegionVerdict(node.name, True, True, verdict.outputs, reason)


def _verdict(node: FusedNode, region: Region, known: Mapping[str, Value], limits: Limits) -> RegionVerdict:
    missing = [name for name in (*node.inputs, *node.outputs) if name not in known]
    if missing:
        return RegionVerdict(node.name, True, False, reason=f"the original has no value {missing[0]!r} to compare with")
    through = float_types(node.program)

    def pick(name: str, dtype: np.dtype) -> Tolerance:
        return choose(dtype, through, whole=False, limits=limits)

    try:
        made = region.run([known[name] for name in node.inputs])
    except GraphfuseError as error:
        return RegionVerdict(node.name, False, True, reason=str(error))
    outputs = tuple(compare_output(n, known[n].array, m.array, pick) for n, m in zip(node.outputs, made, strict=True))
    bad = next((o for o in outputs if not o.passed), None)
    return RegionVerdict(node.name, bad is None, True, outputs, f"{bad.name}: {bad.reason}" if bad else "")


def float_types(program: Program) -> set[str]:
    """The float types that values of the program take, as NumPy names them."""
    return {i.dtype.numpy.name for i in program.body if i.dtype.is_float}


def upstream_float_types(model: onnx_ir.Model, programs: Mapping[onnx_ir.Node, Program]) -> dict[str, set[str]]:
    """For each output of a model, the float types that values take on the way to it: in inputs, weights, casts and programs."""
    seen: dict[onnx_ir.Value, frozenset[str]] = {}
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        seen[value] = _type_names(value.dtype)
    for node in model.graph:
        own = float_types(programs[node]) if node in programs else _cast_types(node)
        reaching = frozenset(own).union(*(seen.get(v, frozenset()) for v in node.inputs if v is not None))
        seen.update((v, reaching) for v in node.outputs)
    return {str(v.name): set(seen.get(v, frozenset())) for v in model.graph.outputs}


def _cast_types(node: onnx_ir.Node) -> frozenset[str]:
    return _type_names(onnx_ir.DataType(node.attributes.get_int("to", 0))) if node.op_type == "Cast" else frozenset()


def _type_names(code: onnx_ir.DataType | None) -> frozenset[str]:
    if code is None or code in (onnx_ir.DataType.UNDEFINED, onnx_ir.DataType.STRING):
        return frozenset()
    dtype = np.dtype(code.numpy())
    return frozenset({dtype.name}) if is_float(dtype) else frozenset()
