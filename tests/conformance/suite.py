"""Many cases: all rewritten first, then their kernels compiled in batches, then run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graphfuse.codegen import generate
from graphfuse.ir import Program
from graphfuse.jit import CudaDevice, HostDevice
from tests.conformance.attempt import FAILED, REFUSED, Attempt, attempt, run
from tests.conformance.cases import Case

Progress = Callable[[str, int, int], None]
BATCH = {"host": 96, "cuda": 4000}  # programs compiled together; each compiler process of the host device reads the prelude once


@dataclass(frozen=True)
class Result:
    """What came of a case; ``reason`` says why it was refused or what is wrong."""

    name: str
    op: str
    state: str
    reason: str


def run_all(cases: Sequence[Case], devices: Sequence[str], progress: Progress | None = None) -> list[Result]:
    """Every case on every device. Raises CompileError for a kernel that does not compile."""
    tried = [attempt(c) for c in _counted(cases, "rewrite", progress)]
    wrong: dict[int, str] = {}
    for device in devices:
        compile_all(tried, device, progress)
        for i, one in enumerate(_counted(tried, f"run on {device}", progress)):
            found = check(one, device)
            if found:
                wrong.setdefault(i, f"{device}: {found}")
    return [_result(one, wrong.get(i)) for i, one in enumerate(tried)]


def check(tried: Attempt, device: str) -> str:
    """What is wrong on this device.

    A model that is fused in part is looked at in NumPy only, and its small floats not at all: the package's tolerances are for
    nodes that round as NumPy does, and the rest of it runs in ONNX Runtime, which may not even know its ops.
    """
    if tried.model is None or (tried.state == REFUSED and (device != "numpy" or not tried.programs or _has_small_floats(tried))):
        return ""
    found = run(tried, device)
    return "" if tried.state == REFUSED and found.startswith("GraphfuseError") else found


def _has_small_floats(tried: Attempt) -> bool:
    return any(np.asarray(v).dtype.itemsize < 4 for d in tried.case.data for v in d.wanted)


def compile_all(tried: Sequence[Attempt], device: str, progress: Progress | None = None) -> None:
    """Compiles the kernels of all cases that are fused wholly; sessions find them loaded then."""
    if device == "numpy":
        return
    programs = list(dict.fromkeys(p for t in tried if t.state != REFUSED for p in t.programs))
    opened = HostDevice() if device == "host" else CudaDevice()
    for batch in _counted(list(_batches(programs, BATCH[device])), f"compile for {device}", progress):
        opened.load([generate(p) for p in batch])


def _batches(programs: Sequence[Program], size: int) -> Iterator[Sequence[Program]]:
    for start in range(0, len(programs), size):
        yield programs[start : start + size]


def _counted(items: Sequence, what: str, progress: Progress | None) -> Iterator:  # type: ignore[type-arg]
    for done, item in enumerate(items):
        yield item
        if progress:
            progress(what, done + 1, len(items))


def _result(tried: Attempt, wrong: str | None) -> Result:
    case = tried.case
    return Result(case.name, case.op, FAILED if wrong else tried.state, wrong or tried.reason)
