"""A net being written down: names for values, weights that are the same everywhere, the input recipe, the file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Row = dict[str, Any]


class Net:
    """Nodes in order. Values are known by name; the scope given to ``Net.within`` goes before the names made in it."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.scope = ""
        # RandomState's integers are the same in every release of NumPy, on every machine.
        self._random = np.random.RandomState(seed)
        self._used: dict[str, int] = {}

    def within(self, scope: str) -> Net:
        """From here on names begin with ``scope``."""
        self.scope = scope
        return self

    def op(self, op_type: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """A node of one output, and that output's name."""
        return self.ops(op_type, *inputs, out=(out,), **attributes)[0]

    def ops(self, op_type: str, *inputs: str, out: tuple[str, ...], **attributes: Any) -> list[str]:
        """A node of as many outputs as ``out`` has names; empty ones are made up."""
        name = self._name(op_type)
        outputs = [o or f"{name}_output_{i}" for i, o in enumerate(out)]
        self.nodes.append(helper.make_node(op_type, list(inputs), outputs, name, **attributes))
        return outputs

    def const(self, value: Any, dtype: str = "float32") -> str:
        """A Constant node, as exporters write scalars, axes and shapes."""
        return self.op("Constant", value=numpy_helper.from_array(np.asarray(value, dtype)))

    def given(self, name: str, array: np.ndarray) -> str:
        """An initializer."""
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), f"{self.scope}{name}"))
        return f"{self.scope}{name}"

    def weight(self, name: str, shape: tuple[int, ...], scale: float, around: float = 0.0) -> str:
        """An initializer of random float32 values within ``scale`` of ``around``."""
        steps = self._random.randint(-1024, 1025, shape)
        return self.given(name, (around + steps * (scale / 1024)).astype(np.float32))

    def model(self, name: str, opset: int, inputs: list[Row], outputs: dict[str, Any], *, dims: Row, alt_dims: Row) -> onnx.ModelProto:
        """The checked model. A row of ``inputs`` is also its input recipe; ``outputs`` maps names to (dtype, shape)."""
        graph = helper.make_graph(
            self.nodes,
            name,
            [_info(row["name"], row["dtype"], row["shape"]) for row in inputs],
            [_info(key, dtype, shape) for key, (dtype, shape) in outputs.items()],
            self.weights,
        )
        made = helper.make_model(graph, producer_name="graphfuse-models", ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
        texts = {"corpus.inputs": inputs, "corpus.dims": dims, "corpus.alt_dims": alt_dims}
        helper.set_model_props(made, {key: json.dumps(value) for key, value in texts.items()})
        onnx.checker.check_model(made, full_check=True)
        return made

    def _name(self, op_type: str) -> str:
        stem = f"{self.scope}{op_type}"
        count = self._used[stem] = self._used.get(stem, 0) + 1
        return stem if count == 1 else f"{stem}_{count - 1}"


def _info(name: str, dtype: str, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def write(model: onnx.ModelProto, script: str) -> None:
    """Saves the model where the command line says, else beside ``script`` under its name."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(script).with_suffix(".onnx")
    path.write_bytes(model.SerializeToString(deterministic=True))
    print(f"{path.name}: {len(model.graph.node)} nodes, {path.stat().st_size // 1024} KB")
