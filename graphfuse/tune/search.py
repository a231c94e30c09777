"""Finds the fastest configuration of a program's kernel on a GPU, and keeps it only if it is clearly faster than the rule's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from math import prod
from statistics import median
from typing import Any

import ml_dtypes
import numpy as np

from graphfuse.codegen.config import BY_RULE, Config
from graphfuse.ir import Program, expr
from graphfuse.ir.errors import GraphfuseError
from graphfuse.jit import Cubin, CudaDevice, CudaExecutable, DeviceBuffer, best_arch, compile_many, driver, nvrtc, to_device
from graphfuse.tune.database import Entry
from graphfuse.tune.space import Candidate, candidates
from graphfuse.tune.timing import Launch, Timer, free_bytes, l2_bytes

MARGIN = 0.03  # of the default's time that a winner must save; repeated measurements differ by less
CACHES = 3  # the buffers' size, in L2 caches
FINALISTS = 4
TURNS = 5  # final measurements of the winner and of the default, in turns
MOST_SETS = 64
STEPS_OFF = 1e-3
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tuned:
    """What was found. ``config`` is the rule's where nothing beat it by the margin; times in microseconds."""

    config: Config
    us: float
    default_us: float
    tried: int
    spilled: int
    wrong: tuple[Config, ...]

    @property
    def kept(self) -> bool:
        """Whether there is a configuration to store."""
        return self.config != BY_RULE

    def entry(self, program: Program, sizes: Mapping[str, int], region: str, device: CudaDevice) -> Entry:
        """The record for the database."""
        dtypes = tuple(t.name for t, _ in (*program.params, *program.outputs))
        return Entry(
            self.config, round(self.us, 3), round(self.default_us, 3), self.tried, region, dtypes, dict(sizes), device.title,
            int(driver.call("cuDriverGetVersion")), nvrtc.version(), datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )  # fmt: skip


def tune(
    program: Program, device: CudaDevice, sizes: Mapping[str, int] | None = None, *, margin: float = MARGIN, most: int = 96, seed: int = 0
) -> Tuned:
    """Times the candidates at these sizes, on a GPU that does nothing else meanwhile.

    All are compiled in as many processes as there are cores; those that spill registers are not timed. One whose results
    differ from the default's beyond rounding cannot win, and is reported. Raises GraphfuseError for a
    program with a size that is not given, Refused for one that is not one kernel.
    """
    env = open_sizes(program, sizes or {})
    found = candidates(program, most)
    arch = best_arch(*device.capability)
    compiled = [by_arch[arch] for by_arch in compile_many([c.source for c in found], [arch])]
    fine = [(c, cubin) for c, cubin in zip(found, compiled, strict=True) if c.config == BY_RULE or not _spills(cubin)]
    with device.active(), Timer(device) as timer:
        bench = _Bench(program, device, env, seed)
        loaded = [(c, device.load_image(c.source, cubin.image)) for c, cubin in fine]
        return _decide(bench, timer, loaded, margin, len(found) - len(fine))


def open_sizes(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """A size for each symbol. Raises GraphfuseError naming the first that has none."""
    missing = [name for name in program.symbols if name not in sizes]
    if missing:
        raise GraphfuseError(f"dimension {missing[0]} of a region is open; give a size to tune for: --size {missing[0]}=8")
    return {name: sizes[name] for name in program.symbols}


def _spills(cubin: Cubin) -> bool:
    return any(r.stack_bytes or r.spill_stores or r.spill_loads for r in cubin.resources.values())


def _decide(bench: _Bench, timer: Timer, found: Sequence[tuple[Candidate, CudaExecutable]], margin: float, spilled: int) -> Tuned:
    """A quick look at all, a longer one at the best that are right, then the winner and the default in turns."""
    launches = [bench.launches(executable) for _, executable in found]
    quick = [timer.time(each, count=7, least_us=200.0) for each in launches]
    best = sorted(range(len(found)), key=quick.__getitem__)[:FINALISTS]
    wrong = [k for k in best if k and not bench.agree(found[k][1], found[0][1])]
    longer = {k: timer.time(launches[k]) for k in (*best, 0) if k not in wrong}
    winner = min(longer, key=longer.__getitem__)
    times: dict[int, list[float]] = {0: [], winner: []}
    for _ in range(TURNS):
        for k, measured in times.items():
            measured.append(timer.time(launches[k]))
    default_us, us = median(times[0]), median(times[winner])
    config = found[winner][0].config if us < default_us * (1 - margin) else BY_RULE
    bad = tuple(found[k][0].config for k in wrong)
    return Tuned(config, us if config != BY_RULE else default_us, default_us, len(found), spilled, bad)


class _Bench:
    """Sets of input and output buffers of one program."""

    def __init__(self, program: Program, device: CudaDevice, env: dict[str, int], seed: int) -> None:
        self.program, self.device, self.env = program, device, env
        shapes = [(t.numpy, tuple(expr.evaluate(d, env) for d in s)) for t, s in program.params]
        outputs = list(zip((t.numpy for t, _ in program.outputs), program.output_shapes(env), strict=True))
        one = sum(prod(shape) * dtype.itemsize for dtype, shape in (*shapes, *outputs))
        if 2 * one > free_bytes():
            raise GraphfuseError(f"tuning needs {2 * one >> 20} MB of GPU memory at these sizes; choose smaller ones with --size")
        count = max(2, min(MOST_SETS, CACHES * l2_bytes(device) // max(one, 1) + 1, free_bytes() // (2 * max(one, 1))))
        rng = np.random.default_rng(seed)
        first = [to_device(device, _array(rng, dtype, shape)) for dtype, shape in shapes]
        inputs = [first, *([_copy(device, b) for b in first] for _ in range(count - 1))]  # one draw; every set has a copy of its own
        self.sets = [(given, [DeviceBuffer(device, shape, dtype) for dtype, shape in outputs]) for given in inputs]

    def launches(self, executable: CudaExecutable) -> list[Launch]:
        """A launch for each set."""
        return [executable.prepare([b.pointer for b in (*inputs, *outputs)], self.env).launch for inputs, outputs in self.sets]

    def agree(self, executable: CudaExecutable, default: CudaExecutable) -> bool:
        """Whether two kernels compute the same but for rounding."""
        return all(same(a, b) for a, b in zip(self._results(executable), self._results(default), strict=True))

    def _results(self, executable: CudaExecutable) -> list[Array]:
        inputs, outputs = self.sets[0]
        for buffer in outputs:
            if buffer.nbytes:
                driver.call("cuMemsetD8", buffer.pointer, 0xA5, buffer.nbytes)
        executable.launch([b.pointer for b in (*inputs, *outputs)], self.env)
        return [b.to_host() for b in outputs]


def same(found: Array, wanted: Array) -> bool:
    """Whether two results differ by no more than another order of summing does.

    The norm of the difference by a few roundings; of integers, which may be rounded sums, one in a thousand by one step.
    """
    if wanted.dtype.kind in "biu":
        off = found.astype(np.int64) - wanted.astype(np.int64)
        return bool(np.abs(off).max(initial=0) <= 1 and np.count_nonzero(off) <= off.size * STEPS_OFF)
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    finite = np.isfinite(b)
    eps = float(ml_dtypes.finfo(wanted.dtype).eps)  # type: ignore[no-untyped-call]
    return bool(np.linalg.norm((a - b)[finite]) <= 8 * eps * max(float(np.linalg.norm(b[finite])), float(np.finfo(np.float32).tiny)))


def _copy(device: CudaDevice, buffer: DeviceBuffer) -> DeviceBuffer:
    made = DeviceBuffer(device, buffer.shape, buffer.dtype)
    if buffer.nbytes:
        driver.call("cuMemcpyDtoD", made.pointer, buffer.pointer, buffer.nbytes)
    return made


def _array(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Normal floats; bytes of their whole range; other integers 0 or 1, which index any axis."""
    if dtype.itemsize == 1 and dtype.kind in "iu":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    if dtype.kind in "biu":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.standard_normal(shape, np.float32).astype(dtype)
