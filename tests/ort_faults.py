"""Where releases of ONNX Runtime are wrong that this package still takes, and who judges there instead.

For Python 3.10 there is none newer than 1.23. Each fault has an example, and a test that it is wrong before the release that
mended it, and right from there on: an entry that is no longer needed, or never was, fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tests.conftest import run_reference
from tests.unit.one_node import Arrays, onnx_reference_run, onnxruntime_run

Run = Callable[[onnx.NodeProto, int, Arrays], list[np.ndarray]]


@dataclass(frozen=True)
class Fault:
    """``meets`` says whether a node with these inputs meets the fault; ``example`` does. ``mended``: the first release without it."""

    op: str
    mended: tuple[int, int]
    why: str
    meets: Callable[[dict[str, Any], Sequence[np.ndarray]], bool]
    example: tuple[np.ndarray, ...]
    judge: Run = onnx_reference_run
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1

    def __str__(self) -> str:
        return f"{self.op}: {self.why}"


def _prelu(node: onnx.NodeProto, opset: int, arrays: Arrays) -> list[np.ndarray]:
    """The formula of the specification; ONNX's reference multiplies 0 by an infinite slope."""
    x, slope = (arrays[name] for name in node.input)
    with np.errstate(invalid="ignore"):
        return [np.where(x < 0, slope * x, x)]


def _in_float32(node: onnx.NodeProto, opset: int, arrays: Arrays) -> list[np.ndarray]:
    """ONNX's reference on wider inputs: quotients that are not rounded to float16 before they are rounded to integers."""
    wide = {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in arrays.items()}
    return onnx_reference_run(node, opset, wide)


def _normalises_one(attributes: dict[str, Any], inputs: Sequence[np.ndarray]) -> bool:
    return bool(np.prod(inputs[0].shape[attributes.get("axis", -1) :]) == 1)


def _has_infinities(attributes: dict[str, Any], inputs: Sequence[np.ndarray]) -> bool:
    return any(np.isinf(x).any() for x in inputs)


def _folds_nothing(attributes: dict[str, Any], inputs: Sequence[np.ndarray]) -> bool:
    return bool(attributes.get("noop_with_empty_axes")) and len(inputs) == 1


def _is_byte(attributes: dict[str, Any], inputs: Sequence[np.ndarray]) -> bool:
    return inputs[0].dtype.itemsize == 1


def _leaves_nothing(attributes: dict[str, Any], inputs: Sequence[np.ndarray]) -> bool:
    """Whether the parts that are as large as the first leave none for the last."""
    size, parts = inputs[0].shape[attributes.get("axis", 0)], attributes.get("num_outputs", 1)
    return bool(-(-size // parts) * (parts - 1) >= size > 0)


def _counts_dilated(attributes: dict[str, Any], inputs: Sequence[np.ndarray]) -> bool:
    return bool(attributes.get("count_include_pad")) and len(set(attributes.get("dilations", ()))) > 1


F32 = np.float32
FOLDS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
POOL = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0], "dilations": [2, 1], "count_include_pad": 1}
NOOP = {"noop_with_empty_axes": 1}
FAULTS = (
    Fault("Erf", (1, 27), "of NaN is 1", lambda _, x: bool(np.isnan(x[0]).any()), (np.array([np.nan, 1], F32),)),
    Fault("PRelu", (1, 27), "multiplies infinities by 0", _has_infinities, (np.array([np.inf, 2], F32), np.array([0.1], F32)), _prelu),
    Fault("PRelu", (1, 27), "multiplies infinite slopes by 0", _has_infinities, (np.array([2, 0], F32), np.array([np.inf], F32)), _prelu),
    *(Fault(op, (1, 24), "of 8 bits has no kernel", _is_byte, (np.array([3, 4], t),) * 2) for op in ("Min", "Max") for t in (np.uint8, np.int8)),
    *(Fault(op, (1, 24), "folds all where it should fold nothing", _folds_nothing, (np.ones((2, 3), F32),), attributes=NOOP) for op in FOLDS),
    Fault("AveragePool", (1, 25), "miscounts under unlike dilations", _counts_dilated, (np.ones((1, 1, 8, 7), F32),), attributes=POOL),
    Fault("Split", (1, 32), "makes no empty parts", _leaves_nothing, (np.ones(4, F32),), attributes={"num_outputs": 3}, outputs=3),
    Fault("LayerNormalization", (1, 24), "refuses rows of one element", _normalises_one, (np.ones((2, 1), F32), np.ones(1, F32))),
    Fault(
        "QuantizeLinear", (1, 30), "rounds quotients of float16 towards 0", lambda _, x: x[0].dtype == np.float16,
        (np.array([1.189, -1.189], np.float16), np.array(0.1, np.float16), np.array(3, np.int8)), _in_float32,
    ),
)  # fmt: skip


NEWEST = max(f.mended for f in FAULTS)  # the first release that has none of them


def installed() -> tuple[int, int]:
    """Major and minor version of ONNX Runtime."""
    import onnxruntime

    major, minor = onnxruntime.__version__.split(".")[:2]
    return int(major), int(minor)


def reference(node: onnx.NodeProto, opset: int, arrays: Arrays) -> list[np.ndarray]:
    """What the node should compute: ONNX Runtime's word but where the installed one is known to be wrong."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    inputs = [np.asarray(arrays[n]) for n in node.input if n]
    met = (f for f in FAULTS if f.op == node.op_type and installed() < f.mended and f.meets(attributes, inputs))
    judge = next((f.judge for f in met), onnxruntime_run)
    return judge(node, opset, arrays)


def may_meet_one(model: onnx.ModelProto) -> bool:
    """Whether an op of the model, branches included, has a fault in the installed ONNX Runtime, whatever its inputs are."""
    faulty = {f.op for f in FAULTS if installed() < f.mended}
    return any(node.op_type in faulty for node in _nodes(model.graph))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def model_reference(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a model without subgraphs by name; it runs node by node where the installed ONNX Runtime has a fault in one."""
    if not may_meet_one(model):
        return run_reference(model, feeds)
    (opset,) = (o.version for o in model.opset_import if o.domain == "")
    values = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer} | dict(feeds)
    for node in model.graph.node:
        results = reference(node, opset, {n: values[n] for n in node.input if n})
        values.update(zip(filter(None, node.output), results, strict=True))
    return {o.name: values[o.name] for o in model.graph.output}
