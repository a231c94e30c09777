"""Writes ``docs/benchmarks.md`` and its plots from committed results: what is printed is what was measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cliffs import bandwidth, cliffs, losses
from benchmarks.table import COMPILED, best_compiled, mean_speedup, noise, number, speedup, status, us

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
OURS, PEER, ROOF, FAINT = "#2a7f3f", "#b5532a", "#555555", "#cccccc"

INTRODUCTION = """\
# Benchmarks

Written by `python -m benchmarks.report` from the files in `benchmarks/results`; `make bench` on a machine with a GPU and torch makes new
ones. How everything is measured is in [benchmarks/README.md](../benchmarks/README.md).
"""
COLUMNS = """\
Times in microseconds, of one run of the chain in a CUDA graph over rotated inputs (cold cache). *Roof*: the bytes at the rate of a plain copy with
the same mix of reads and writes, or an empty launch. *Grid*: a kernel of our grid that only moves the bytes. *Gain*: the better
`torch.compile` of those that ran over ours; a dash stands for what was left out of the run. *Error*: of ours against float64.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, default=RESULTS / "bench.json")
    parser.add_argument("--sweeps", type=Path, default=RESULTS / "sweeps.json")
    given = parser.parse_args()
    (DOCS / "img").mkdir(parents=True, exist_ok=True)
    parts = [INTRODUCTION]
    if given.bench.exists():
        document = json.loads(given.bench.read_text())
        parts += [where(document), *chain_parts(document)]
        plot_gains(document["chains"], DOCS / "img" / "gains.svg")
    if given.sweeps.exists():
        document = json.loads(given.sweeps.read_text())
        parts += list(sweep_parts(document))
    (DOCS / "benchmarks.md").write_text("\n".join(parts).rstrip() + "\n")
    print(f"wrote {DOCS / 'benchmarks.md'}")


def where(document: Mapping[str, Any]) -> str:
    """The hardware and the software, in a sentence or two."""
    e = document["environment"]
    packages = ", ".join(f"{name} {version}" for name, version in e["packages"].items() if version)
    return (
        f"Measured on {e['date'][:10]} on one {e['gpu']} ({e['multiprocessors']} multiprocessors, {e['l2_bytes'] >> 20} MB of L2), driver {e['driver']}, "
        f"CUDA {e['cuda']}, NVRTC {e['nvrtc']}, Python {e['python']}; {packages}. An empty kernel in a CUDA graph takes {document['launch_us']:.2f} us.\n"
    )


def chain_parts(document: Mapping[str, Any]) -> Iterator[str]:
    """The tables of both groups of chains, the copy rates, and the plot."""
    chains = document["chains"]
    for title, table in (("The twelve chains", True), ("More chains, of the kinds that models hold", False)):
        chosen = [c for c in chains if c["table"] == table]
        if not chosen:
            continue
        yield f"## {title}\n"
        if table:
            yield COLUMNS
        yield "\n".join(markdown(chosen)) + "\n"
        behind = [c["title"] for c in chosen if (s := speedup(c)) is not None and s < 1 - noise(c)]
        yield f"Geometric mean of the gains: **{number(mean_speedup(chosen), '.2f')}**. " + (
            f"Slower than the better `torch.compile` by more than the noise: {'; '.join(behind)}.\n"
            if behind
            else "Nowhere slower than the better `torch.compile` by more than the noise.\n"
        )
    yield "![gain over torch.compile, by chain](img/gains.svg)\n"
    rates = ", ".join(f"{r['tb_s']:.2f} at {r['reads']}:{r['writes']}" for r in document["rates"])
    yield f"The copies that make the roof reach, in TB/s by reads : writes: {rates}.\n"


def markdown(chains: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table of chains."""
    yield "| chain | MB | roof | grid | eager | eager, graph | compile | max-autotune | ours | ours / roof | gain | noise | error |"
    yield "|--|" + "--:|" * 12
    for c in chains:
        mine, roof = us(c, "ours"), c["roof_us"]
        moved = (c["read_bytes"] + c["written_bytes"]) / 1e6
        times = [roof, us(c, "same grid"), us(c, "eager"), us(c, "eager graph"), us(c, COMPILED[0]), us(c, COMPILED[1])]
        cells = [number(moved), *map(number, times), f"**{number(mine)}**", number(mine and mine / roof, ".2f"), number(speedup(c), ".2f")]
        yield f"| {c['title']} | " + " | ".join([*cells, f"{noise(c):.1%}", status(c)]) + " |"


def sweep_parts(document: Mapping[str, Any]) -> Iterator[str]:
    """A plot for each sweep, with the cliffs that it shows in words."""
    for kind, title, axis in (
        ("size", "Sizes: a pointwise chain of {} to {} bytes", "bytes moved"),
        ("row", "Rows: layer norm and softmax over rows of {} to {} elements", "elements in a row"),
    ):
        points = [p for p in document["points"] if p["name"].startswith(kind) and us(p, "ours")]
        if not points:
            continue
        plot_sweep(points, axis, DOCS / "img" / f"sweep_{kind}.svg")
        ends = [f"{int(points[end]['name'].split('_')[1]):,}" for end in (0, -1)]  # a run may have been cut short
        yield f"## {title.format(*ends)}\n\n![bandwidth](img/sweep_{kind}.svg)\n"
        drops, slower = cliffs(points, document["launch_us"]), losses(points)
        yield (
            ("Below 0.85 of a neighbour's bandwidth: " + "; ".join(drops) + ".\n")
            if drops
            else "No size falls below 0.85 of its best neighbour's bandwidth.\n"
        )
        yield (
            ("More than 10% slower than `torch.compile`: " + "; ".join(slower) + ".\n")
            if slower
            else "Nowhere more than 10% slower than `torch.compile`.\n"
        )


# --- plots --------------------------------------------------------------------------------------------------------------


def _axes(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "graphfuse", "svg.fonttype": "none"})  # the same small file for the same figures
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})


def plot_gains(chains: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bars: how many times as fast as the better torch.compile; the roof's own figure as a mark."""
    chosen = sorted((c for c in chains if speedup(c) is not None), key=lambda c: speedup(c) or 0)
    figure, axes = _axes(8, 0.28 * len(chosen) + 1)
    gains = [speedup(c) or 0 for c in chosen]
    roofs = [(best_compiled(c) or 0) / c["roof_us"] for c in chosen]
    axes.barh(range(len(chosen)), gains, color=[OURS if g >= 1 else PEER for g in gains], height=0.6, label="ours")
    axes.scatter(roofs, range(len(chosen)), color=ROOF, marker="|", s=90, label="at the roof")
    axes.axvline(1, color=FAINT, linewidth=1, zorder=0)
    axes.set_yticks(range(len(chosen)), [c["title"] for c in chosen], fontsize=7)
    axes.set_xlabel("times as fast as the better torch.compile")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    _save(figure, path)


def plot_sweep(points: Sequence[Mapping[str, Any]], axis: str, path: Path) -> None:
    """Lines: bandwidth of ours, of torch.compile, and of the roof."""
    figure, axes = _axes(8, 4)
    positions = [int(p["name"].split("_")[1]) for p in points]
    for name, label, colour, style in (("ours", "graphfuse", OURS, "-"), (COMPILED[0], "torch.compile", PEER, "-")):
        pairs = [(x, bandwidth(p, name)) for x, p in zip(positions, points, strict=True) if us(p, name)]
        axes.plot(*zip(*pairs, strict=True), style, color=colour, label=label, marker=".", markersize=4) if pairs else None
    axes.plot(
        positions,
        [(p["read_bytes"] + p["written_bytes"]) / p["roof_us"] / 1e6 for p in points],
        "--",
        color=ROOF,
        label="roof",
        linewidth=1,
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(axis)
    axes.set_ylabel("TB/s, each byte counted once")
    axes.legend(frameon=False)
    _save(figure, path)


if __name__ == "__main__":
    main()
