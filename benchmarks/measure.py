"""Times candidates in CUDA graphs over rotated inputs and compares their outputs with float64.

A candidate is a list of calls, one for each set of inputs; each call returns its outputs. The sets are together more than
three times the L2 cache, and the outputs of every set are kept, so that no candidate finds its data in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from benchmarks.chains import Chain

Tensor = torch.Tensor
Call = Callable[[], Sequence[Tensor]]

REPLAYS = 20
LEAST_US = 1000.0  # of one replay, so that its start does not count
CACHES = 3
MOST_SETS = 1500
TOLERANCE = {torch.float16: 2e-3, torch.float32: 1e-5}
STEPS_OFF = 1e-3  # of integer elements that may be one step from the reference: a float32 quotient may round to the other side


def input_sets(chain: Chain, l2: int) -> list[tuple[Tensor, ...]]:
    """At least two sets of inputs that do not fit the L2 cache, their outputs included, three times over."""
    one = chain.inputs("cuda", 0)
    moved = sum(t.nbytes for t in one) + sum(s.numel() * s.element_size() for s in shapes(chain))
    count = min(MOST_SETS, max(2, CACHES * l2 // moved + 1))
    return [one, *(chain.inputs("cuda", seed) for seed in range(1, count))]


def shapes(chain: Chain) -> tuple[Tensor, ...]:
    """The outputs without their data."""
    with torch.device("meta"):
        return chain.outputs([torch.empty(s.shape, dtype=s.dtype, device="meta") for s in chain.specs])


@dataclass
class Candidate:
    """Something that computes a chain. ``make`` prepares it for the sets; graphs are captured unless ``graph`` is false."""

    name: str
    calls: list[Call]
    graph: bool = True
    note: dict[str, Any] = field(default_factory=dict)
    kept: Any = None  # what the calls point to and do not hold
    outputs: list[Sequence[Tensor]] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    _graph: Any = None
    _rounds: int = 1

    def prepare(self) -> None:
        """Runs everything once, then captures it."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            for call in self.calls[:2]:
                call()
        torch.cuda.synchronize()
        if not self.graph:
            self.outputs = [call() for call in self.calls[:1]]
            return
        once = self._capture(1)
        for _ in range(2):
            once.replay()
        self._rounds = max(1, round(LEAST_US / max(_elapsed(once.replay), 1.0)))
        self._graph = once if self._rounds == 1 else self._capture(self._rounds)

    def _capture(self, rounds: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            self.outputs = [call() for _ in range(rounds) for call in self.calls]
        return graph

    def measure(self) -> None:
        """One measurement: the median of ``REPLAYS`` replays, in microseconds for one call."""
        run = self._graph.replay if self.graph else self._eagerly
        for _ in range(3):
            run()
        times = [_elapsed(run) for _ in range(REPLAYS)]
        self.medians.append(median(times) / (self._rounds * len(self.calls)))

    def _eagerly(self) -> None:
        for call in self.calls:
            call()

    @property
    def us(self) -> float:
        """The better of the measurements: what disturbs one only makes it slower."""
        return min(self.medians)

    def again(self) -> list[Sequence[Tensor]]:
        """The outputs of the first and the last set, written once more, over nonsense."""
        chosen = [self.outputs[0], self.outputs[-1]]  # of the last round, but each round computes the same
        for outputs in chosen:
            for tensor in outputs:
                tensor.fill_(float("nan") if tensor.is_floating_point() else 0x5A)
        self._graph.replay()
        torch.cuda.synchronize()
        return chosen

    def close(self) -> None:
        """Frees the graph and its memory."""
        self._graph, self.outputs, self.calls, self.kept = None, [], [], None


def _elapsed(run: Callable[[], Any]) -> float:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    run()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) * 1000.0


# --- correctness ----------------------------------------------------------------------------------------------------------


def judge(chain: Chain, sets: Sequence[Sequence[Tensor]], found: Sequence[Sequence[Tensor]]) -> dict[str, Any]:
    """The worst error of the outputs of the first and the last set against float64, and whether it is small enough."""
    worst, right = 0.0, True
    for inputs, outputs in zip((sets[0], sets[-1]), found, strict=True):
        for wanted, got in zip(chain.reference(inputs), outputs, strict=True):
            error, limit = _error(got, wanted)
            worst, right = max(worst, error), right and error <= limit
    return {"error": worst, "right": right}


def _error(got: Tensor, wanted: Tensor) -> tuple[float, float]:
    """(error, its limit): the norm of the difference over that of the reference; for integers, the part that is off by one."""
    if got.shape != wanted.shape:
        return float("inf"), 0.0
    if not got.is_floating_point():
        off = (got.long() - wanted.long()).abs()
        return (float("inf") if int(off.max()) > 1 else float(off.double().mean())), STEPS_OFF
    wide = got.double()
    if bool((wide.isnan() != wanted.isnan()).any()):
        return float("inf"), 0.0
    difference = torch.nan_to_num(wide - wanted)
    return float(difference.norm() / wanted.nan_to_num().norm().clamp_min(1e-30)), TOLERANCE[got.dtype]
