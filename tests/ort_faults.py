"""Where releases of ONNX Runtime are wrong that this package still takes, and who judges there instead.

For Python 3.10 there is none newer than 1.23. Each fault has an example, and a test that it is wrong before the release that
mended it, and right from there on: an entry that is no longer needed, or never was, fails.
"""

from __future__ import annotations

import functools
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
    """``meets`` says whether a node with these inputs meets the fault; ``example`` does. ``mended``: the first release without it.

    ``lacks``: there is no kernel, which a session says when it is made. ``crashes``: the process ends.
    """

    op: str
    mended: tuple[int, int]
    why: str
    meets: Callable[[dict[str, Any], Sequence[np.ndarray]], bool]
    example: tuple[np.ndarray, ...]
    judge: Run = onnx_reference_run
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    lacks: bool = False
    crashes: bool = False

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


def _cuts_all(attributes: dict[str, Any], inputs: Sequence[np.ndarray]) -> bool:
    if len(inputs) < 2 or len(inputs) == 4 or len(inputs[1]) != 2 * inputs[0].ndim:
        return False
    low, high = np.minimum(inputs[1].reshape(2, -1), 0)
    return bool((low + high <= -np.array(inputs[0].shape)).any())


def _all_fill(node: onnx.NodeProto, opset: int, arrays: Arrays) -> list[np.ndarray]:
    """Where nothing of the input is left; ONNX's reference takes no negative pads."""
    x, pads, *fill = (arrays[name] for name in node.input if name)
    return [np.full(np.array(x.shape) + pads.reshape(2, -1).sum(0), fill[0] if fill else 0, x.dtype)]


def _counts_dilated(attributes: dict[str, Any], inputs: Sequence[np.ndarray]) -> bool:
    return bool(attributes.get("count_include_pad")) and len(set(attributes.get("dilations", ()))) > 1


F32 = np.float32
CASTS_MENDED = (1, 26)  # before, of a cast of a cast only the outer one was made: 0.5 by way of an integer was True
FOLDS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
POOL = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0], "dilations": [2, 1], "count_include_pad": 1}
NOOP = {"noop_with_empty_axes": 1}
FAULTS = (
    Fault("Erf", (1, 27), "of NaN is 1", lambda _, x: bool(np.isnan(x[0]).any()), (np.array([np.nan, 1], F32),)),
    Fault("PRelu", (1, 27), "multiplies infinities by 0", _has_infinities, (np.array([np.inf, 2], F32), np.array([0.1], F32)), _prelu),
    Fault("PRelu", (1, 27), "multiplies infinite slopes by 0", _has_infinities, (np.array([2, 0], F32), np.array([np.inf], F32)), _prelu),
    *(Fault(op, (1, 24), f"has no kernel for {t}", _is_byte, (np.array([3, 4], t),) * 2, lacks=True)
      for op in ("Min", "Max") for t in ("uint8", "int8")),
    Fault("OneHot", (1, 27), "of nothing divides by 0", lambda _, x: x[0].size == 0, (np.zeros(0, np.int64), np.array(4), np.ones(2, F32)),
          crashes=True),
    *(Fault(op, (1, 24), "folds all where it should fold nothing", _folds_nothing, (np.ones((2, 3), F32),), attributes=NOOP) for op in FOLDS),
    Fault("AveragePool", (1, 25), "miscounts under unlike dilations", _counts_dilated, (np.ones((1, 1, 8, 7), F32),), attributes=POOL),
    Fault("Mod", (1, 32), "of integers goes by float64", lambda a, x: a.get("fmod") == 1 and x[0].dtype.kind in "iu",
          (np.array([(1 << 60) + 3]), np.array([10])), attributes={"fmod": 1}),
    Fault("Pad", (1, 24), "leaves memory as it was where all is cut off", _cuts_all,
          (np.ones(2, F32), np.array([3, -2]), np.array(0.25, F32)), _all_fill),
    Fault("Split", (1, 32), "makes no empty parts", _leaves_nothing, (np.ones(4, F32),), attributes={"num_outputs": 3}, outputs=3),
    Fault("LayerNormalization", (1, 24), "refuses rows of one element", _normalises_one, (np.ones((2, 1), F32), np.ones(1, F32))),
    Fault(
        "QuantizeLinear", (1, 30), "rounds quotients of float16 towards 0", lambda _, x: x[0].dtype == np.float16,
        (np.array([1.189, -1.189], np.float16), np.array(0.1, np.float16), np.array(3, np.int8)), _in_float32,
    ),
)  # fmt: skip


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


def is_judge(model: onnx.ModelProto) -> bool:
    """Whether the installed ONNX Runtime can be trusted with a model whatever its inputs are: no op of it has a fault, branches included."""
    if not all(_reads_opset(o.version) for o in model.opset_import if o.domain == "") or (
        installed() < CASTS_MENDED and _casts_twice(model)
    ):
        return False
    faults = [f for f in FAULTS if installed() < f.mended and not f.lacks]
    return not any(f.op == n.op_type and f.attributes.keys() <= {a.name for a in n.attribute} for n in _nodes(model.graph) for f in faults)


@functools.cache
def _reads_opset(version: int) -> bool:
    try:
        onnxruntime_run(onnx.helper.make_node("Identity", ["x"], ["y"]), version, {"x": np.zeros(1, F32)})
    except Exception:  # ONNX Runtime raises a class of its own for each status code
        return False
    return True


def _casts_twice(model: onnx.ModelProto) -> bool:
    """Whether an integer or bool that was cast is cast again."""
    casts = [node for node in _nodes(model.graph) if node.op_type == "Cast"]
    whole = {n.output[0] for n in casts for a in n.attribute if onnx.helper.tensor_dtype_to_np_dtype(a.i).kind in "iub"}
    return bool({node.input[0] for node in casts} & whole)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def model_reference(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a model without subgraphs by name; it runs node by node where the installed ONNX Runtime has a fault in one."""
    faulty = {f.op for f in FAULTS if installed() < f.mended}
    if not {n.op_type for n in model.graph.node} & faulty and not (installed() < CASTS_MENDED and _casts_twice(model)):
        return run_reference(model, feeds)
    (opset,) = (o.version for o in model.opset_import if o.domain == "")
    values = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer} | dict(feeds)
    for node in model.graph.node:
        results = reference(node, opset, {n: values[n] for n in node.input if n})
        values.update(zip(filter(None, node.output), results, strict=True))
    return {o.name: values[o.name] for o in model.graph.output}
