"""What rewriting costs: time and memory over the number of nodes, and over the weights (``make scaling``).

Each size runs in a process of its own. Time is CPU time, so that other work on the machine counts little; memory is the
peak of the process less what it holds once everything is imported, against the size of the model's files.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from benchmarks import synthetic

NODES = (300, 1_000, 3_000, 10_000, 30_000)
MIB = 1 << 20


def held(*, reset: bool = False) -> int:
    """The most bytes of memory that this process held since the last reset (Linux: what the kernel calls VmHWM)."""
    status = Path("/proc/self/status").read_text()
    most = int(next(text for text in status.splitlines() if text.startswith("VmHWM")).split()[1]) * 1024
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    return most


def cost(path: Path, policy: str = "auto") -> dict[str, Any]:
    """Loads, rewrites and saves a model in this process; seconds of CPU, bytes of memory, what came out."""
    import graphfuse
    from graphfuse.graph.load import load_model
    from graphfuse.graph.save import save_model
    from graphfuse.match.rewrite import rewrite_model

    warm = synthetic.model(200)
    graphfuse.rewrite(warm)  # imports, tables and memos
    held(reset=True)
    base, start = held(), time.process_time()
    loaded = load_model(path)
    after_load = time.process_time()
    found = rewrite_model(loaded, policy=policy)
    after_rewrite = time.process_time()
    out = path.with_name("fused.onnx")
    written = save_model(found.model, out)
    end = time.process_time()
    for file in written:
        file.unlink()
    return {
        "nodes": found.report["nodes_before"],
        "nodes_after": found.report["nodes_after"],
        "regions": len(found.regions),
        "load_s": after_load - start,
        "rewrite_s": after_rewrite - after_load,
        "save_s": end - after_rewrite,
        "total_s": end - start,
        "base_bytes": base,
        "peak_bytes": held(),
    }


def _worker(pipe: Any, work: Callable[..., dict[str, Any]], args: tuple[Any, ...]) -> None:
    pipe.send(work(*args))


def apart(work: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """``work(*args)`` in a fresh process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_worker, args=(theirs, work, args))
    process.start()
    theirs.close()
    try:
        found: dict[str, Any] = ours.recv()
    finally:
        process.join()
    return found


def by_nodes(nodes: int, hidden: int, folder: Path) -> dict[str, Any]:
    """The cost of a model of so many nodes with its weights inside."""
    path = folder / "model.onnx"
    onnx.save(synthetic.model(nodes, hidden), path)
    size = path.stat().st_size
    return {**apart(cost, path), "model_bytes": size, "hidden": hidden}


def by_weights(size: int, folder: Path, nodes: int = 900) -> dict[str, Any]:
    """The cost of a model of ``nodes`` nodes with ``size`` bytes of weights in a file beside it."""
    path = folder / "large.onnx"
    hidden = synthetic.hidden_for(size, nodes)
    written = synthetic.write_external(path, nodes, hidden)
    return {**apart(cost, path), "model_bytes": written + path.stat().st_size, "hidden": hidden}


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    more = row["peak_bytes"] - row["base_bytes"]
    return (
        f"{row['nodes']:>7} {row['nodes_after']:>7} {row['regions']:>8} {row['load_s']:>7.2f} {row['rewrite_s']:>9.2f} {row['save_s']:>7.2f} "
        f"{1000 * row['total_s'] / row['nodes']:>8.3f} {row['model_bytes'] / MIB:>9.0f} {more / MIB:>8.0f} {more / row['model_bytes']:>6.2f}"
    )


HEAD = "  nodes   after  regions  load s  rewrite s  save s  ms/node  model MB  held MB  ratio"


def main(arguments: list[str] | None = None) -> int:
    """Prints the curves; ``--gigabytes`` adds a model with so many of weights in a file beside it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=list(NODES))
    parser.add_argument("--hidden", type=int, default=256, help="width of the layers, which sets the size of the weights")
    parser.add_argument(
        "--gigabytes", type=float, default=0.0, help="weights of one more model, outside its file (written to a temporary folder)"
    )
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        print(HEAD)
        for nodes in chosen.nodes:
            rows.append(by_nodes(nodes, chosen.hidden, Path(folder)))
            print(line(rows[-1]), flush=True)
        if chosen.gigabytes:
            rows.append(by_weights(int(chosen.gigabytes * 1e9), Path(folder)))
            print(line(rows[-1]), "weights outside")
    print(
        f"held: beyond the {rows[0]['base_bytes'] / MIB:.0f} MB of the interpreter with everything imported and one small model rewritten"
    )
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
