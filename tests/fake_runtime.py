"""A TensorRT that runs engines, and a CUDA driver for it, in this process: for reading through what needs a GPU as it is executed.

An engine's bytes are the model that it was built from; ONNX Runtime computes it, a fused node by its portable form. Device
memory is the process's own; an execution under capture is recorded and happens when the graph is launched. What is asked
of the driver must be asked as the real bindings take it: names and numbers of arguments are held against them.
"""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import json
import time
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime as ort
import pytest

from graphfuse.engine import build, run
from graphfuse.engine.build import Engine, fused_nodes
from graphfuse.engine.flavour import Flavour, _make_logger
from graphfuse.ir import dtypes
from graphfuse.ir.plugin_types import PLUGIN_TYPES
from graphfuse.match import restore_model

NAMES = {"UINT8": dtypes.U8, **{name: dtype for dtype, name in PLUGIN_TYPES.items()}}
BY_CODE = {dtype.onnx: name for name, dtype in NAMES.items()}


def install(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[str], bool] = lambda name: False) -> HostCuda:
    """Puts both in place; outputs for whose names ``spoil`` holds come out wrong from fused engines."""
    cuda = HostCuda()
    module = _module(cuda, spoil)
    flavour = Flavour("tensorrt", module, _make_logger(module), builds_without_gpu=False)
    monkeypatch.setattr(run, "Cuda", lambda: cuda)
    monkeypatch.setattr(run, "load_flavour", lambda name=None: flavour)
    monkeypatch.setattr("graphfuse_plugin.driver.gpu_arch", lambda: "sm_89")
    monkeypatch.setattr(build, "build_engine", _build)
    return cuda


def _build(model: Any, *, shapes: Any = None, **options: Any) -> Engine:
    proto = model if isinstance(model, onnx.ModelProto) else onnx.load_from_string(model)
    ranges = {name: [list(s) for s in value] for name, value in dict(shapes or {}).items()}
    data = json.dumps(ranges).encode() + b"\n" + proto.SerializeToString()
    return Engine(data, [n.name for n in fused_nodes(proto)], "tensorrt", [])


class HostCuda:
    """Takes the driver's calls by name, as ``graphfuse.engine.run.Cuda`` does."""

    stream = 77

    def __init__(self) -> None:
        self.memory: dict[int, np.ndarray] = {}
        self.captured: list[Callable[[], None]] | None = None
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.live: set[int] = set()  # events and graphs that nobody has destroyed
        self._next = 100
        self.api: Any = types.SimpleNamespace(
            CUstreamCaptureMode=types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1),
        )

    def call(self, name: str, *args: Any) -> Any:
        """One driver call, checked against the real bindings where they are installed."""
        if importlib.util.find_spec("cuda") is not None:
            from cuda.bindings import driver

            assert len(inspect.signature(getattr(driver, name)).parameters) == len(args), f"{name} is not called like that"
        return getattr(self, "_" + name)(*args)

    def _new(self) -> int:
        self._next += 1
        self.live.add(self._next)
        return self._next

    def _cuEventCreate(self, flags: int) -> int:
        return self._new()

    def _cuEventRecord(self, event: int, stream: int) -> None:
        assert event in self.live
        assert stream == self.stream
        self.times = {**getattr(self, "times", {}), event: time.perf_counter()}

    def _cuEventSynchronize(self, event: int) -> None:
        assert event in self.times

    def _cuEventElapsedTime(self, before: int, after: int) -> float:
        return max(1000 * (self.times[after] - self.times[before]), 1e-6)

    def _cuEventDestroy(self, event: int) -> None:
        self.live.remove(event)

    def _cuStreamBeginCapture(self, stream: int, mode: Any) -> None:
        assert self.captured is None
        self.captured = []

    def _cuStreamEndCapture(self, stream: int) -> int:
        assert self.captured
        made = self._new()
        self.graphs[made], self.captured = self.captured, None
        return made

    def _cuGraphInstantiate(self, graph: int, flags: int) -> int:
        made = self._new()
        self.graphs[made] = self.graphs[graph]
        return made

    def _cuGraphDestroy(self, graph: int) -> None:
        self.live.remove(graph)

    def _cuGraphExecDestroy(self, graph: int) -> None:
        self.live.remove(graph)

    def _cuGraphLaunch(self, graph: int, stream: int) -> None:
        assert graph in self.live
        for work in self.graphs[graph]:
            work()

    def _cuMemsetD8Async(self, address: int, value: int, size: int, stream: int) -> None:
        ctypes.memset(address, value, size)

    def allocate(self, size: int) -> int:
        array = np.zeros(max(size, 16) + 16, np.uint8)
        self.memory[array.ctypes.data] = array
        return int(array.ctypes.data)

    def upload(self, array: np.ndarray) -> int:
        address = self.allocate(array.nbytes)
        ctypes.memmove(address, np.ascontiguousarray(array).ctypes.data, array.nbytes)
        return address

    def download(self, address: int, array: np.ndarray) -> np.ndarray:
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
        return array

    def synchronise(self) -> None:
        assert self.captured is None, "a synchronisation under capture"

    def free(self, addresses: Any) -> None:
        for address in addresses:
            del self.memory[address]

    def close(self) -> None: ...


class FakeEngine:
    def __init__(self, data: bytes, cuda: HostCuda, trt: Any, spoil: Callable[[str], bool]) -> None:
        head, _, model = data.partition(b"\n")
        self.ranges: dict[str, Any] = json.loads(head)
        self.model, self.cuda, self.trt = onnx.load_from_string(model), cuda, trt
        self.fused = [n.name for n in fused_nodes(self.model)]
        plain = restore_model(onnx_ir.from_proto(self.model)) if self.fused else onnx_ir.from_proto(self.model)
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = ort.InferenceSession(onnx_ir.to_proto(plain).SerializeToString(), options, providers=["CPUExecutionProvider"])
        weights = {t.name for t in self.model.graph.initializer}
        self.inputs = [v for v in self.model.graph.input if v.name not in weights]
        self.values = {v.name: v for v in (*self.inputs, *self.model.graph.output)}
        self.spoil = spoil
        self.num_io_tensors = len(self.values)

    def get_tensor_name(self, index: int) -> str:
        return list(self.values)[index]

    def get_tensor_mode(self, name: str) -> Any:
        return self.trt.TensorIOMode.INPUT if name in {v.name for v in self.inputs} else self.trt.TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return types.SimpleNamespace(name=BY_CODE.get(self.values[name].type.tensor_type.elem_type, "INT4"))

    def create_execution_context(self) -> FakeContext:
        return FakeContext(self)

    def create_engine_inspector(self) -> Any:
        layers = [{"Name": n.name} if k % 2 else n.name for k, n in enumerate(self.model.graph.node)]
        return types.SimpleNamespace(get_engine_information=lambda form: json.dumps({"Layers": layers}))


class FakeContext:
    def __init__(self, engine: FakeEngine) -> None:
        self.engine, self.cuda = engine, engine.cuda
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.results: Mapping[str, np.ndarray] | None = None
        self.warm = False

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        if name in self.engine.ranges:
            low, _, high = self.engine.ranges[name]
            if not all(a <= d <= b for a, d, b in zip(low, shape, high, strict=True)):
                return False
        self.shapes[name] = tuple(shape)
        self.warm = False
        self.results = None
        return True

    def set_tensor_address(self, name: str, address: int) -> None:
        assert address in self.cuda.memory
        self.addresses[name] = address

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._run()[name].shape)

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == self.cuda.stream
        assert set(self.addresses) == set(self.engine.values)
        if self.cuda.captured is not None:
            assert self.warm, "TensorRT wants a plain execution before a capture"
            self.cuda.captured.append(self._execute)
        else:
            self._execute()
            self.warm = True
        return True

    def _execute(self) -> None:
        for name, array in self._run().items():
            flat = np.ascontiguousarray(array)
            if self.engine.fused and self.engine.spoil(name):
                flat = np.zeros_like(flat)
            ctypes.memmove(self.addresses[name], flat.ctypes.data, flat.nbytes)

    def _run(self) -> Mapping[str, np.ndarray]:
        if self.results is None:  # inputs stay where they are; one computation is enough
            self.results = self._compute()
        return self.results

    def _compute(self) -> Mapping[str, np.ndarray]:
        feeds = {}
        for value in self.engine.inputs:
            dtype = NAMES[BY_CODE[value.type.tensor_type.elem_type]].numpy
            array = np.empty(self.shapes[value.name], dtype)
            feeds[value.name] = self.cuda.download(self.addresses[value.name], array)
        names = [v.name for v in self.engine.model.graph.output]
        return dict(zip(names, self.engine.session.run(names, feeds), strict=True))


def _module(cuda: HostCuda, spoil: Callable[[str], bool]) -> Any:
    module: Any = types.ModuleType("tensorrt")
    module.TensorIOMode = types.SimpleNamespace(INPUT="input", OUTPUT="output")
    module.LayerInformationFormat = types.SimpleNamespace(JSON="json")
    module.ILogger = type("ILogger", (), {})
    module.Runtime = lambda logger: types.SimpleNamespace(deserialize_cuda_engine=lambda plan: FakeEngine(plan, cuda, module, spoil))
    return module
