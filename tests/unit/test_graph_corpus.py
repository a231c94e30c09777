"""Facts and folding against ONNX Runtime, on real models with all their inner values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphfuse.check.inputs import make_inputs
from graphfuse.check.recipe import read_recipe
from graphfuse.graph.facts import Depends, Facts
from graphfuse.graph.fold import fold_constants
from graphfuse.graph.load import load_model
from graphfuse.ir import expr
from graphfuse.ir.expr import Dim
from tests.conftest import run_reference, shared_cases, shared_models


def feeds(path: Path) -> Iterator[dict[str, np.ndarray]]:
    """The inputs of each run of a model of the collection, or of a bug-report case."""
    files = sorted(path.parent.glob(f"{path.stem}.in*.npz"))
    for file in files:
        with np.load(file) as data:
            yield {str(name): data[f"a{i}"] for i, name in enumerate(data["names"])}
    if not files:
        model = load_model(path)
        recipe = read_recipe(model.metadata_props)
        assert recipe is not None
        yield make_inputs(model)
        if recipe.alt_dims:
            yield make_inputs(model, alt=True)


def with_inner_values(path: Path) -> onnx.ModelProto:
    """The model with the outputs of all nodes of its main graph as outputs."""
    wide = onnx.load(path)
    shown = {o.name for o in wide.graph.output}
    for node in wide.graph.node:
        wide.graph.output.extend(onnx.ValueInfoProto(name=n) for n in node.output if n and n not in shown)
    return wide


def sizes_of(facts: Facts, given: dict[str, np.ndarray]) -> dict[str, int]:
    """What the run-time sizes of the graph's inputs are in a run."""
    env: dict[str, int] = {}
    for value in (v for v in facts.model.graph.inputs if v.name in given):
        for dim, size in zip(facts.shape(value) or (), given[value.name].shape, strict=True):
            env.update(dict.fromkeys(expr.symbols(dim), size))
    return env


def differs(dim: Dim, actual: int, env: dict[str, int]) -> bool:
    return expr.symbols(dim) <= set(env) and expr.evaluate(dim, env) != actual


def check_value(facts: Facts, value: ir.Value, actual: np.ndarray, env: dict[str, int]) -> None:
    shape, dtype, known = facts.shape(value), facts.dtype(value), facts.value(value)
    assert dtype is not None, value.name
    assert shape is not None, value.name
    assert (dtype.numpy, len(shape)) == (actual.dtype, actual.ndim), value.name
    assert not any(differs(d, n, env) for d, n in zip(shape, actual.shape, strict=True)), (value.name, shape, actual.shape)
    if known is not None and known.dtype == object:
        assert known.shape == actual.shape, value.name
        pairs = zip(known.reshape(-1).tolist(), actual.reshape(-1).tolist(), strict=True)
        assert not any(differs(item, number, env) for item, number in pairs), (value.name, known, actual)
    elif known is not None:
        np.testing.assert_array_equal(known, actual, err_msg=str(value.name))


def is_told(facts: Facts, value: ir.Value) -> bool:
    """Whether the sizes are known once those of the graph's inputs are."""
    return all(expr.symbols(d) <= facts.input_symbols for d in facts.shape(value) or ())


@pytest.mark.parametrize("path", [*shared_models(), *shared_cases()])
def test_types_shapes_and_known_values_are_what_a_run_gives(path: Path) -> None:
    facts, wide = Facts(load_model(path)), with_inner_values(path)
    values = [v for node in facts.model.graph for v in node.outputs if facts.depends(v) is not Depends.CONSTANT]
    for given in feeds(path):
        actual, env = run_reference(wide, given), sizes_of(facts, given)
        for value in values:
            check_value(facts, value, actual[value.name], env)
    if "corpus.inputs" in facts.model.metadata_props:
        assert sum(is_told(facts, v) for v in values) >= 0.97 * len(values)


@pytest.mark.parametrize("path", [*shared_models(), *shared_cases()])
def test_folding_changes_no_bit_of_any_output(path: Path) -> None:
    original, model = onnx.load(path), load_model(path)
    before = len(model.graph)
    gone = fold_constants(model)
    folded = ir.to_proto(model)
    onnx.checker.check_model(folded, full_check=True)
    assert gone == before - len(model.graph) >= sum(n.op_type == "Constant" for n in original.graph.node)
    assert [i.name for i in folded.graph.input] == [i.name for i in original.graph.input]
    for given in feeds(path):
        want, got = run_reference(original, given), run_reference(folded, given)
        assert list(got) == list(want)
        for name in want:
            assert got[name].dtype == want[name].dtype
            np.testing.assert_array_equal(got[name], want[name], err_msg=name)


@pytest.mark.parametrize("path", shared_models())
def test_no_constant_node_is_left_but_quantised_weights(path: Path) -> None:
    model = load_model(path)
    fold_constants(model)
    facts = Facts(model)
    left = {n.op_type for n in model.graph if any(facts.depends(v) is Depends.CONSTANT for v in n.outputs)}
    assert left <= {"DequantizeLinear"}
