"""An engine under a stopwatch: inputs bound once, the execution captured in a CUDA graph, its replays timed by events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphfuse.engine.run import LoadedEngine, refused

WARM_UP = 5
LEAST_US = 1000.0  # of one measurement: events resolve half a microsecond


class TimedEngine(LoadedEngine):
    """A context manager; ``inputs`` stay on the device as long as it lasts."""

    def __init__(self, plan: bytes, inputs: Mapping[str, np.ndarray], *, flavour: str | None = None) -> None:
        super().__init__(plan, flavour=flavour)
        self._buffers: list[int] = []
        self._graph: Any = None
        self._events: list[Any] = []
        try:
            self._prepare(inputs)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TimedEngine:
        return self

    def _prepare(self, inputs: Mapping[str, np.ndarray]) -> None:
        tensors = self.tensors()
        self.set_inputs(tensors, inputs, self._buffers)
        self._outputs = self.set_outputs(tensors, self._buffers)
        self._events = [self.cuda.call("cuEventCreate", 0) for _ in range(2)]
        for _ in range(WARM_UP):  # TensorRT wants a plain execution for these shapes before a capture
            self._enqueue()
        self.cuda.synchronise()
        self._graph = self._capture()
        self.rounds = max(1, round(LEAST_US / max(self._replays(3), 1.0)))

    def _enqueue(self) -> None:
        import graphfuse_plugin

        with self.flavour.logger.capture() as log, graphfuse_plugin.building() as build:
            done = self.context.execute_async_v3(self.cuda.stream)
            build.reraise()
            if not done:
                raise refused(self.flavour, "could not run the engine", log)

    def _capture(self) -> Any:
        mode = self.cuda.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self.cuda.call("cuStreamBeginCapture", self.cuda.stream, mode)
        try:
            self._enqueue()
        finally:
            graph = self.cuda.call("cuStreamEndCapture", self.cuda.stream)
        ready = self.cuda.call("cuGraphInstantiate", graph, 0)
        self.cuda.call("cuGraphDestroy", graph)
        return ready

    def measure(self) -> float:
        """Microseconds of one execution, under a CUDA graph."""
        return self._replays(self.rounds)

    def _replays(self, count: int) -> float:
        before, after = self._events
        self.cuda.call("cuEventRecord", before, self.cuda.stream)
        for _ in range(count):
            self.cuda.call("cuGraphLaunch", self._graph, self.cuda.stream)
        self.cuda.call("cuEventRecord", after, self.cuda.stream)
        self.cuda.call("cuEventSynchronize", after)
        return 1000.0 * float(self.cuda.call("cuEventElapsedTime", before, after)) / count

    def outputs(self) -> dict[str, np.ndarray]:
        """What a replay of the graph computes. Outputs are overwritten before it: what an execution left there proves nothing."""
        for address, array in self._outputs.values():
            if array.nbytes:
                self.cuda.call("cuMemsetD8Async", address, 0xA5, array.nbytes, self.cuda.stream)
        self.cuda.call("cuGraphLaunch", self._graph, self.cuda.stream)
        found = {name: self.cuda.download(address, array) for name, (address, array) in self._outputs.items()}
        self.cuda.synchronise()
        return found

    def close(self) -> None:
        """Free what was bound, then the engine."""
        if self._graph is not None:
            self.cuda.call("cuGraphExecDestroy", self._graph)
        for event in self._events:
            self.cuda.call("cuEventDestroy", event)
        self.cuda.free(self._buffers)
        self._graph, self._events, self._buffers = None, [], []
        super().close()
