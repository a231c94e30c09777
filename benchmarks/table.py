"""A result document as lines of text and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

COMPILED = ("compile default", "compile max-autotune")
NAMES = ("eager", "eager graph", *COMPILED, "same grid", "ours")


def us(chain: Mapping[str, Any], name: str) -> float | None:
    """Microseconds of a candidate; None where it has none."""
    value = chain["candidates"].get(name, {}).get("us")
    return float(value) if value is not None else None


def best_compiled(chain: Mapping[str, Any]) -> float | None:
    """The better mode of torch.compile."""
    return min((t for name in COMPILED if (t := us(chain, name)) is not None), default=None)


def speedup(chain: Mapping[str, Any]) -> float | None:
    """How many times as fast ours is as the better torch.compile."""
    mine, theirs = us(chain, "ours"), best_compiled(chain)
    return theirs / mine if mine and theirs else None


def noise(chain: Mapping[str, Any]) -> float:
    """The largest relative difference between two measurements of one candidate."""
    spreads = [max(c["medians"]) / min(c["medians"]) - 1 for n, c in chain["candidates"].items() if c.get("medians") and n != "eager"]
    return max(spreads, default=0.0)


def mean_speedup(chains: list[Any]) -> float | None:
    """The geometric mean of the speedups."""
    found = [math.log(s) for c in chains if (s := speedup(c)) is not None]
    return math.exp(sum(found) / len(found)) if found else None


def number(value: float | None, form: str = "") -> str:
    """A figure of three digits, or a dash."""
    if value is None:
        return "-"
    return format(value, form) if form else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def status(chain: Mapping[str, Any]) -> str:
    """Whether ours is right: its error, or what went wrong."""
    mine = chain["candidates"].get("ours", {})
    return mine["failed"][:40] if "failed" in mine else f"{mine.get('error', math.nan):.0e}{'' if mine.get('right') else ' WRONG'}"


def lines(document: Mapping[str, Any]) -> list[str]:
    """The table for a terminal, one line a chain."""
    head = f"{'chain':18} {'MB':>6} {'roof':>6} {'grid':>6} {'eagerG':>7} {'comp':>7} {'maxat':>7} {'ours':>7} {'/roof':>6} {'/grid':>6} {'gain':>6} noise error"
    rows = [head]
    for chain in document["chains"]:
        mine, roof, grid = us(chain, "ours"), chain["roof_us"], us(chain, "same grid")
        moved = (chain["read_bytes"] + chain["written_bytes"]) / 1e6
        figures = [us(chain, "eager graph"), us(chain, COMPILED[0]), us(chain, COMPILED[1]), mine]
        rows.append(
            f"{chain['name']:18} {number(moved):>6} {number(roof):>6} {number(grid):>6} "
            + " ".join(f"{number(f):>7}" for f in figures)
            + f" {number(mine and mine / roof, '.2f'):>6} {number(mine and grid and mine / grid, '.2f'):>6}"
            + f" {number(speedup(chain), '.2f'):>6} {noise(chain):5.1%} {status(chain)}"
        )
    for title, table in (("twelve", True), ("more", False)):
        rows.append(
            f"{title}: geometric mean of the gains {number(mean_speedup([c for c in document['chains'] if c['table'] == table]), '.3f')}"
        )
    return rows
