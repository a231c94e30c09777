"""What a GPU can do: bytes a second for each mix of reads and writes, and the time of a launch that does nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from graphfuse.ir.errors import GraphfuseError
from graphfuse.jit import CudaDevice, DeviceBuffer, best_arch, driver, nvrtc
from graphfuse.tune import copies
from graphfuse.tune.copies import SHAPES, VECTOR, Shape
from graphfuse.tune.files import data_folder
from graphfuse.tune.timing import Timer, free_bytes, l2_bytes

MIXES = ((8, 1), (4, 1), (3, 1), (2, 1), (1, 1), (1, 2), (1, 4))
TOTAL = 1 << 30  # bytes moved by one measured copy; far beyond any L2 cache
EMPTY_LAUNCHES = 500
VERSION = 1
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Rate:
    """The best copy of one mix: ``reads`` arrays to ``writes`` arrays of one size. ``tb_s`` counts bytes read and written."""

    reads: int
    writes: int
    tb_s: float
    shape: Shape


@dataclass(frozen=True)
class Calibration:
    """Figures of one GPU, with where they come from. Times in microseconds."""

    gpu: str
    arch: str
    l2_bytes: int
    driver: int
    nvrtc: str
    date: str
    launch_us: float
    rates: tuple[Rate, ...]

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


def calibrate(device: CudaDevice, mixes: Sequence[tuple[int, int]] = MIXES, progress: Progress | None = None) -> Calibration:
    """Measures a GPU that does nothing else meanwhile; about ten seconds. Raises CudaError when it fails or memory runs out."""
    with device.active(), Timer(device) as timer:
        launch_us = launch_time(device, timer)
        rates = []
        for reads, writes in mixes:
            if progress:
                progress(f"{reads}:{writes}")
            rates.append(copy_rate(device, timer, reads, writes))
        return Calibration(
            device.title, best_arch(*device.capability), l2_bytes(device), int(driver.call("cuDriverGetVersion")), nvrtc.version(),
            datetime.now(timezone.utc).isoformat(timespec="seconds"), launch_us, tuple(rates),
        )  # fmt: skip


def launch_time(device: CudaDevice, timer: Timer) -> float:
    """Microseconds from one empty kernel to the next inside a CUDA graph."""
    (executable,) = device.load([copies.empty()])
    return timer.time([executable.prepare([], {}).launch] * EMPTY_LAUNCHES)


def copy_rate(device: CudaDevice, timer: Timer, reads: int, writes: int, total: int = TOTAL) -> Rate:
    """The best of several plain copies that read ``reads`` bytes for every ``writes`` that they write."""
    total = min(total, free_bytes() // 4)
    tile = max(shape.each * shape.threads for shape in SHAPES)
    vectors = total // (VECTOR * (reads + writes)) // tile * tile
    if not vectors:
        raise GraphfuseError("calibrate: the GPU has no memory free to measure with; end other programs on it")
    buffers = [noise(device, vectors * VECTOR, seed) for seed in range(reads + writes)]
    executables = device.load([copies.mix(reads, writes, shape) for shape in SHAPES])
    launches = [e.prepare([b.pointer for b in buffers], {"n": vectors}).launch for e in executables]
    times = [timer.time([launch]) for launch in launches]
    best = min(range(len(times)), key=times.__getitem__)
    return Rate(reads, writes, vectors * VECTOR * (reads + writes) / times[best] / 1e6, SHAPES[best])


def noise(device: CudaDevice, size: int, seed: int) -> DeviceBuffer:
    """``size`` bytes of device memory that hold random bits: what is constant can move faster than real data."""
    buffer = DeviceBuffer(device, [size], np.uint8)
    some = np.frombuffer(np.random.default_rng(seed).bytes(min(size, 16 << 20)), np.uint8)
    with device.active():
        driver.call("cuMemcpyHtoD", buffer.pointer, some.ctypes.data, some.nbytes)
        for start in range(some.nbytes, size, some.nbytes):
            driver.call("cuMemcpyDtoD", buffer.pointer + start, buffer.pointer, min(some.nbytes, size - start))
    return buffer


def file_of(gpu: str) -> Path:
    """The file for a GPU of this name."""
    return data_folder() / "calibration" / f"{''.join(c if c.isalnum() else '_' for c in gpu)}.json"
