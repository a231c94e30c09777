"""Which of two things is faster: measured in turns, compared pair by pair, and believed only outside of the noise.

Clocks, heat and other users change while one measures. Both sides of a pair see the same of it, so the ratio within a pair
is steadier than either time. The interval of the median ratio comes from order statistics: it supposes no distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from graphfuse.ir.errors import GraphfuseError

CONFIDENCE = 0.95
GATE = 0.01  # differences below one in a hundred are no differences
MIN_PAIRS = 6  # fewer have no interval of this confidence
Measure = Callable[[], float]  # microseconds of one run


@dataclass(frozen=True)
class Paired:
    """Medians of both sides in microseconds; ``ratio`` is the second's time over the first's, between ``low`` and ``high``."""

    first_us: float
    second_us: float
    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> str:
        """``faster``, ``slower`` (the second than the first) or ``same``: outside of the interval and of the gate, or not."""
        if self.high < 1 - GATE:
            return "faster"
        return "slower" if self.low > 1 + GATE else "same"

    @property
    def noise(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        times = f"{self.first_us:.2f} to {self.second_us:.2f} us, {self.ratio:.3f} of the time"
        return f"{self.verdict}: {times} ({self.low:.3f} to {self.high:.3f}, {self.pairs} pairs)"


def measure_pairs(first: Measure, second: Measure, pairs: int) -> Paired:
    """Both in turns: first second, second first, first second... so that neither profits from coming after the other."""
    times: list[tuple[float, float]] = []
    for number in range(pairs):
        if number % 2:
            right = second()
            times.append((first(), right))
        else:
            left = first()
            times.append((left, second()))
    return compare([left for left, _ in times], [right for _, right in times])


def compare(first: Sequence[float], second: Sequence[float]) -> Paired:
    """The comparison of times that were measured in pairs. Raises GraphfuseError for too few of them, or times of nothing."""
    if len(first) != len(second) or len(first) < MIN_PAIRS:
        raise GraphfuseError(f"{min(len(first), len(second))} pairs of times are too few to compare; measure at least {MIN_PAIRS}")
    if min(*first, *second) <= 0:
        raise GraphfuseError("a run took no time at all; measure more work at once")
    ratios = sorted(right / left for left, right in zip(first, second, strict=True))
    rank = interval_rank(len(ratios))
    return Paired(median(first), median(second), median(ratios), ratios[rank], ratios[-1 - rank], len(ratios))


def interval_rank(count: int) -> int:
    """How many of ``count`` sorted values may be cut off at either end, for the rest to hold the median with the confidence."""
    rank, outside = -1, 0.0
    while True:
        outside += 2 * math.comb(count, rank + 1) * 0.5**count
        if outside > 1 - CONFIDENCE:
            return max(rank, 0)
        rank += 1
