"""Small models written as ONNX text, and questions that many tests ask of rewritten ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from graphfuse.graph.load import load_model
from graphfuse.ir.expr import evaluate
from graphfuse.match import Rewritten, export_plugin, restore_model, rewrite_model
from tests.conftest import run_reference


def model(body: str, inputs: str = "float[N,8] x", outputs: str = "float[N,8] y", *, opset: int = 17, weights: str = "") -> ir.Model:
    """``body`` is a list of nodes, one a line; ``weights`` declares initializers as in ``float[8] g = {...}``."""
    head = f'<ir_version: 8, opset_import: ["" : {opset}]>'
    declared = f" <{weights}>" if weights else ""
    return load_model(onnx.parser.parse_model(f"{head}\ng ({inputs}) => ({outputs}){declared} {{\n{body}\n}}"))


def regions(found: Rewritten) -> list[str]:
    """The op types of each region, joined by spaces."""
    return [" ".join(r.op_types) for r in found.regions]


def rules(found: Rewritten) -> set[str]:
    """The rules of all refusals."""
    return {r.rule for r in found.refusals}


def proto(found: ir.Model) -> onnx.ModelProto:
    return ir.to_proto(found)


def text(found: ir.Model) -> bytes:
    """The model as bytes, the same for equal models."""
    return bytes(ir.to_proto(found).SerializeToString(deterministic=True))


def reloaded(found: ir.Model) -> ir.Model:
    """As if written to a file and read again."""
    return ir.from_proto(onnx.ModelProto.FromString(text(found)))


def assert_law(found: Rewritten, policy: str) -> None:
    """``rewrite(restore(rewrite(m))) == rewrite(m)``, by way of the portable form and of the plugin form."""
    restored = restore_model(reloaded(found.model))
    assert text(rewrite_model(restored, policy=policy).model) == text(found.model)
    exported = export_plugin(reloaded(found.model)).model
    assert text(restore_model(reloaded(exported))) == text(restored)


def feeds_of(proto: onnx.ModelProto, sizes: Mapping[str, int] | None = None, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs; run-time dimensions at ``sizes`` or 5."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else (sizes or {}).get(d.dim_param, 5) for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        array = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2 if dtype.kind == "b" else 5, shape)
        feeds[value.name] = np.asarray(array).astype(dtype)
    return feeds


def assert_same_results(original: onnx.ModelProto, found: Rewritten, feeds: Mapping[str, np.ndarray]) -> None:
    """The rewritten model is valid, and ONNX Runtime gives for it what it gives for the original, bit by bit."""
    fused = proto(found.model)
    onnx.checker.check_model(fused, full_check=True)
    want, got = run_reference(original, feeds), run_reference(fused, feeds)
    assert list(want) == list(got)
    for name in want:
        assert want[name].dtype == got[name].dtype
        np.testing.assert_array_equal(want[name], got[name], err_msg=name)


def region_errors(found: Rewritten, feeds: Mapping[str, np.ndarray]) -> dict[str, float]:
    """For each region the largest |a - b| / (1 + |b|) between its program in NumPy and its function in ONNX Runtime."""
    from graphfuse.ir import interpret, loads

    open_model = proto(found.model)
    inside = {n.name for n in found.model.graph.all_nodes() if n.graph is not found.model.graph}
    outside = [r for r in found.regions if r.name not in inside]
    names = dict.fromkeys(n for r in outside for n in [*r.inputs, *r.outputs])
    values = {t.name: onnx.numpy_helper.to_array(t) for t in open_model.graph.initializer} | dict(feeds)
    have = {o.name for o in open_model.graph.output} | set(values)
    open_model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in have)
    values |= run_reference(open_model, feeds)
    errors = {r.name: _drawn_error(open_model, r.function, r.spec) for r in found.regions if r.name in inside}
    for region in outside:
        program = loads(region.spec)
        got = interpret.run(program, [values[n] for n in region.inputs[: len(program.params)]])
        errors[region.name] = max(_difference(g, values[n]) for g, n in zip(got, region.outputs, strict=True))
    return errors


def _drawn_error(model: onnx.ModelProto, name: str, spec: str) -> float:
    """As ``region_errors`` for a region in a body, on drawn inputs: what it gets there cannot be handed out."""
    from graphfuse.ir import interpret, loads

    (function,) = [f for f in model.functions if f.name == name]
    program = loads(spec)
    if len(function.input) != len(program.params):
        return 0.0  # it wants run-time shapes that go with the others; the model's outputs cover it
    rng = np.random.default_rng(0)
    env = {s: 2 + k for k, s in enumerate(program.symbols)}
    shapes = [tuple(d if isinstance(d, int) else evaluate(d, env) for d in shape) for _, shape in program.params]
    arrays = [rng.standard_normal(s) if t.is_float else rng.integers(0, 2, s) for (t, _), s in zip(program.params, shapes, strict=True)]
    feeds = {n: np.asarray(a).astype(t.numpy) for n, a, (t, _) in zip(function.input, arrays, program.params, strict=True)}
    inputs = [onnx.helper.make_tensor_value_info(n, t.onnx, a.shape) for (n, a), (t, _) in zip(feeds.items(), program.params, strict=True)]
    outputs = [onnx.ValueInfoProto(name=n) for n in function.output]
    graph = onnx.helper.make_graph(function.node, name, inputs, outputs)
    want = run_reference(onnx.helper.make_model(graph, opset_imports=function.opset_import, ir_version=10), feeds)
    got = interpret.run(program, list(feeds.values()))
    return max(_difference(g, want[n]) for g, n in zip(got, function.output, strict=True))


def _difference(got: np.ndarray, want: np.ndarray) -> float:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b) / (1 + np.abs(b)))
    return float(np.nan_to_num(apart, nan=np.inf).max()) if apart.size else 0.0


def op_types(found: ir.Model) -> Sequence[str]:
    return [n.op_type for n in found.graph]
