"""The figures that are made of measurements: gains, noise, cliffs."""

from __future__ import annotations

import math

import pytest

from benchmarks.cliffs import bandwidth, cliffs, losses
from benchmarks.table import best_compiled, lines, mean_speedup, noise, speedup


def candidate(us: float, again: float | None = None, **more):
    return {"us": us, "medians": [us, again or us], "error": 1e-7, "right": True, **more}


def chain(name="a", table=True, **times):
    found = {n.replace("_", " ").replace("max autotune", "max-autotune"): candidate(t) for n, t in times.items()}
    return {"name": name, "title": name, "table": table, "read_bytes": 2e6, "written_bytes": 1e6, "roof_us": 1.0, "candidates": found}


def test_a_gain_is_over_the_better_mode() -> None:
    one = chain(ours=2.0, compile_default=5.0, compile_max_autotune=4.0)
    assert best_compiled(one) == 4.0
    assert speedup(one) == 2.0
    assert mean_speedup([one, chain(ours=2.0, compile_default=1.0)]) == pytest.approx(1.0)


def test_what_was_not_measured_has_no_gain() -> None:
    failed = chain(compile_default=5.0)
    failed["candidates"]["ours"] = {"failed": "CudaError: x"}
    assert speedup(failed) is None
    assert mean_speedup([failed]) is None
    assert "CudaError" in "\n".join(lines({"chains": [failed]}))


def test_a_wrong_result_shows_in_the_table() -> None:
    bad = chain(ours=2.0)
    bad["candidates"]["ours"]["right"] = False
    assert "WRONG" in "\n".join(lines({"chains": [bad]}))


def test_noise_is_the_largest_difference_between_two_measurements() -> None:
    one = chain(ours=2.0, eager=1.0)
    one["candidates"]["ours"] = candidate(2.0, 2.1)
    one["candidates"]["eager"] = candidate(1.0, 9.0)  # bound by the CPU; not part of any comparison
    assert noise(one) == pytest.approx(0.05)


def point(moved: float, us: float, peer: float = math.inf, roof: float | None = None):
    return {
        "title": f"{moved:g}", "name": f"size_{moved:g}", "read_bytes": moved / 2, "written_bytes": moved / 2, "roof_us": roof or moved / 4e6,
        "candidates": {"ours": candidate(us), "compile default": candidate(peer)},
    }  # fmt: skip


def test_small_sizes_rise_without_being_cliffs() -> None:
    points = [point(1e3, 2.0, roof=0.6), point(2e3, 2.0, roof=0.6), point(4e3, 2.0, roof=0.6)]
    assert cliffs(points, 0.6) == []


def test_a_drop_below_the_smaller_neighbour_is_a_cliff_at_any_size() -> None:
    assert len(cliffs([point(1e3, 2.0, roof=0.6), point(2e3, 6.0, roof=0.6)], 0.6)) == 1


def test_a_dip_between_large_neighbours_is_a_cliff() -> None:
    points = [point(1e8, 25), point(2e8, 70), point(4e8, 100)]
    assert [text.split()[0] for text in cliffs(points, 0.6)] == ["2e+08"]
    assert bandwidth(points[0]) == pytest.approx(4.0)


def test_losses_are_beyond_ten_percent() -> None:
    assert losses([point(1e8, 25, 24), point(1e8, 25, 23)]) == []
    assert losses([point(1e8, 25, 22)]) == ["1e+08 (25.00 us against 22.00)"]
