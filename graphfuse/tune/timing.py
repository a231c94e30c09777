"""Times kernels on a GPU: launches captured in a CUDA graph, whole replays timed with events.

A graph shrinks the gaps between launches to what they are in production, and its replay costs the CPU one call. Callers
let the launches go round several sets of buffers, larger together than the L2 cache, so that memory is what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from graphfuse.jit import CudaDevice, driver

Launch = Callable[[int], None]  # enqueues something on the stream whose handle it is given

WARM_UP = 3


def l2_bytes(device: CudaDevice) -> int:
    """Size of the device's L2 cache."""
    attribute = driver.api().CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
    return int(driver.call("cuDeviceGetAttribute", attribute, driver.call("cuDeviceGet", device.ordinal)))


def free_bytes() -> int:
    """Memory of the current device that is free now."""
    return int(driver.call("cuMemGetInfo")[0])


class Timer:
    """Captures launches on one device and times their replay. A context manager: it frees its stream, events and graphs."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self._graphs: list[Any] = []

    def __enter__(self) -> Timer:
        with self.device.active():
            self.stream = driver.call("cuStreamCreate", 1)  # not ordered with the null stream
            self._events = [driver.call("cuEventCreate", 0) for _ in range(2)]
        return self

    def __exit__(self, *_: object) -> None:
        with self.device.active():
            for graph in self._graphs:
                driver.call("cuGraphExecDestroy", graph)
            for event in self._events:
                driver.call("cuEventDestroy", event)
            driver.call("cuStreamDestroy", self.stream)

    def capture(self, launches: Sequence[Launch], rounds: int = 1) -> Any:
        """A graph of all launches, one after another, ``rounds`` times over; for ``replays``."""
        stream = int(self.stream)
        with self.device.active():
            driver.call("cuStreamBeginCapture", self.stream, driver.api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            try:
                for launch in list(launches) * rounds:
                    launch(stream)
            finally:
                graph = driver.call("cuStreamEndCapture", self.stream)
            ready = driver.call("cuGraphInstantiate", graph, 0)
            driver.call("cuGraphDestroy", graph)
        self._graphs.append(ready)
        return ready

    def replays(self, graph: Any, count: int) -> list[float]:
        """Microseconds of each of ``count`` replays, after a few that are not counted."""
        before, after = self._events
        found = []
        with self.device.active():
            for number in range(WARM_UP + count):
                driver.call("cuEventRecord", before, self.stream)
                driver.call("cuGraphLaunch", graph, self.stream)
                driver.call("cuEventRecord", after, self.stream)
                driver.call("cuEventSynchronize", after)
                if number >= WARM_UP:
                    found.append(1000.0 * float(driver.call("cuEventElapsedTime", before, after)))
        return found

    def time(self, launches: Sequence[Launch], *, count: int = 20, least_us: float = 500.0) -> float:
        """Microseconds of one launch: the median of ``count`` replays, each long enough (``least_us``) to be measured well."""
        once = median(self.replays(self.capture(launches), 3))
        rounds = max(1, round(least_us / max(once, 1.0)))
        return median(self.replays(self.capture(launches, rounds), count)) / (rounds * len(launches))
