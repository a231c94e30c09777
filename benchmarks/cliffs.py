"""Where a sweep shows what it must not: a size much slower than its neighbours, or than torch.compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.table import us

LEAST = 0.85  # of the best neighbour's bandwidth
MOST = 1.10  # times torch.compile's time
LIMITED = 8  # a roof of so many empty launches is memory's, not the launch's


def moved(point: Mapping[str, Any]) -> int:
    """Bytes read and written, each once."""
    return int(point["read_bytes"]) + int(point["written_bytes"])


def bandwidth(point: Mapping[str, Any], name: str = "ours") -> float:
    """TB/s of a candidate."""
    return moved(point) / (us(point, name) or float("inf")) / 1e6


def cliffs(points: Sequence[Mapping[str, Any]], launch_us: float) -> list[str]:
    """Points below ``LEAST`` of a neighbour's bandwidth.

    A smaller neighbour always counts. A larger one counts only where memory is the limit for both: while the launch is, a larger size
    has the higher bandwidth by nature.
    """
    found = []
    for k, point in enumerate(points):
        own = bandwidth(point)
        around = [p for p in points[max(0, k - 1) : k + 2] if p is not point]
        fair = [p for p in around if moved(p) < moved(point) or min(point["roof_us"], p["roof_us"]) >= LIMITED * launch_us]
        best = max((bandwidth(p) for p in fair), default=0.0)
        if own < LEAST * best:
            found.append(f"{point['title']} ({own:.2f} TB/s beside {best:.2f})")
    return found


def losses(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Points where ours takes more than ``MOST`` times as long as torch.compile."""
    pairs = [(p, us(p, "ours"), us(p, "compile default")) for p in points]
    return [f"{p['title']} ({mine:.2f} us against {theirs:.2f})" for p, mine, theirs in pairs if mine and theirs and mine > MOST * theirs]
