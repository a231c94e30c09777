"""Runs some nodes of a graph in ONNX Runtime, with optimisation off, on values that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from graphfuse.graph.facts import constant_tensor
from graphfuse.ir.dtypes import BF16, DType

RUN_IR_VERSION = 10  # what every ONNX Runtime from 1.23 on reads; newer ones change nothing that a node means
_INLINE = 1024  # bytes; larger constants are fed, so that no model passes protobuf's limit


def can_hold(dtype: DType | None) -> bool:
    """Whether ONNX Runtime's Python face takes and gives arrays of this type."""
    return dtype is not None and dtype is not BF16


class Evaluation:
    """``nodes`` in order, fed by initializers and by ``known`` values of the model's main graph."""

    def __init__(self, model: ir.Model, nodes: Sequence[ir.Node], known: Mapping[ir.Value, np.ndarray]) -> None:
        self._model, self._nodes, self._known = model, list(nodes), known

    def run(self, wanted: Sequence[ir.Value]) -> dict[ir.Value, np.ndarray]:
        """The wanted results. Those that ONNX Runtime cannot compute are left out, found by halving the list."""
        if not wanted:
            return {}
        try:
            return dict(zip(wanted, self._session_results(wanted), strict=True))
        except Exception:  # ONNX Runtime raises a class of its own for each status code
            if len(wanted) == 1:
                return {}
            middle = len(wanted) // 2
            return {**self.run(wanted[:middle]), **self.run(wanted[middle:])}

    def _session_results(self, wanted: Sequence[ir.Value]) -> list[np.ndarray]:
        import onnxruntime

        nodes = self._needed(wanted)
        made = {v for n in nodes for v in n.outputs}
        sources = {v: None for n in nodes for v in n.inputs if v is not None and v not in made}
        arrays = {v.name or "": self._array(v) for v in sources}
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        model = self._proto(nodes, arrays, wanted)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        results: list[np.ndarray] = session.run(None, {n: a for n, a in arrays.items() if a.nbytes > _INLINE})
        return results

    def _needed(self, wanted: Sequence[ir.Value]) -> list[ir.Node]:
        needed: set[ir.Value] = set(wanted)
        kept = []
        for node in reversed(self._nodes):
            if any(v in needed for v in node.outputs):
                kept.append(node)
                needed.update(v for v in node.inputs if v is not None and v not in self._known)
        return kept[::-1]

    def _array(self, value: ir.Value) -> np.ndarray:
        tensor = constant_tensor(value)
        return self._known[value] if tensor is None else np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape.numpy())

    def _proto(self, nodes: Sequence[ir.Node], arrays: Mapping[str, np.ndarray], wanted: Sequence[ir.Value]) -> onnx.ModelProto:
        made = onnx.ModelProto(ir_version=min(self._model.ir_version, RUN_IR_VERSION))
        made.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in self._model.opset_imports.items() if d in ("", "ai.onnx"))
        made.graph.name = "constants"
        for name, array in arrays.items():
            tensor = onnx.numpy_helper.from_array(array if array.nbytes <= _INLINE else array[:0].reshape(-1), name)
            if array.nbytes <= _INLINE:
                made.graph.initializer.append(tensor)
            else:
                made.graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, array.shape))
        made.graph.node.extend(ir.to_proto(n) for n in nodes)
        made.graph.output.extend(onnx.ValueInfoProto(name=v.name) for v in wanted)
        return made
