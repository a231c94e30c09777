"""``make demo``: a detection head and a transformer, from ONNX to a checked TensorRT engine, by the commands of README.md.

Each command is printed before it runs, so that it can be repeated by hand. Nothing here needs a GPU.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out"
WIDTH = None if sys.stdout.isatty() else 120  # as the commands have it
console = Console(highlight=False, width=WIDTH)


@dataclass
class Run:
    """One model's way through the commands: what each reported, in JSON, and the seconds it took."""

    name: str
    shapes: tuple[str, ...] = ()
    look_inside: bool = False
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def reported(self, verb: str, *arguments: str) -> None:
        """Runs ``graphfuse verb ...`` and keeps its report."""
        target = OUT / f"{self.name}.{verb}.json"
        target.unlink(missing_ok=True)
        began = time.perf_counter()
        command(verb, *arguments, hidden=["--json", str(target)])
        self.seconds[verb] = time.perf_counter() - began
        self.reports[verb] = json.loads(target.read_text())

    def all(self) -> None:
        """scan, plan, rewrite, build, check."""
        model, plan, fused = f"models/{self.name}.onnx", f"out/{self.name}.plan.yaml", f"out/{self.name}.fused.onnx"
        self.reported("scan", model)
        command("plan", model, "-o", plan, last_lines=True)  # its table is the one that scan printed
        self.reported("rewrite", model, "-o", fused, "--plan", plan)
        if self.look_inside:
            largest = max(self.reports["rewrite"]["regions"], key=lambda region: len(region["nodes"]))
            command("show", fused, largest["name"], "--program")
        self.reported("build", fused, "-o", f"out/{self.name}.engine", "--flavour", "tensorrt_rtx", *_flags("--shapes", self.shapes))
        self.reported("check", model, fused, "--device", "host")


def command(verb: str, *arguments: str, hidden: Sequence[str] = (), last_lines: bool = False) -> None:
    """Prints ``graphfuse verb ...`` and runs it, with the ``hidden`` arguments; ends the demo where it fails.

    ``last_lines`` prints of its output only what it wrote.
    """
    console.print(f"\n[bold cyan]$ {escape(shlex.join(['graphfuse', verb, *arguments]))}[/]", soft_wrap=True)
    sys.stdout.flush()
    words = [sys.executable, "-m", "graphfuse", verb, *arguments, *hidden]
    done = subprocess.run(words, cwd=ROOT, env=_environment(), text=True, stdout=subprocess.PIPE if last_lines else None)
    if last_lines:
        print(done.stdout[max(done.stdout.rfind("wrote"), 0) :], end="")
    if done.returncode:
        console.print(f"[bold red]graphfuse {verb} ended with exit code {done.returncode}[/]")
        sys.exit(done.returncode)


RUNS = (
    Run("yolo_head"),
    Run("transformer_block", ("hidden:1x1x64,2x24x64,8x128x64", "attention_mask:1x1,2x24,8x128"), look_inside=True),
)


def _flags(flag: str, values: tuple[str, ...]) -> list[str]:
    return [word for value in values for word in (flag, value)]


def _environment() -> Mapping[str, str]:
    """Packages of this checkout, and the width of this terminal."""
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **({} if WIDTH else {"COLUMNS": str(console.width)})}


def summary(runs: tuple[Run, ...]) -> Table:
    """What came of it: a row for each figure, a column for each model."""
    table = Table(title="What happened", title_justify="left", title_style="bold")
    table.add_column("")
    for run in runs:
        table.add_column(run.name, justify="right")
    for title, cells in _ROWS:
        table.add_row(title, *(cells(run) for run in runs))
    return table


def main() -> None:
    """All runs, then the summary."""
    began = time.perf_counter()
    OUT.mkdir(exist_ok=True)
    for run in RUNS:
        console.print()
        console.rule(f"[bold]{run.name}", align="left")
        run.all()
    console.print()
    console.print(summary(RUNS))
    console.print(f"Everything is in {OUT.name}/. It took {time.perf_counter() - began:.0f} s, and no GPU.")


def _rewrite(run: Run, key: str) -> Any:
    return run.reports["rewrite"][key]


def _megabytes(run: Run, when: str) -> str:
    return f"{_rewrite(run, f'bytes_{when}') / 1e6:.1f}"


def _worst(run: Run) -> str:
    return f"{max(output['max_rel'] for output in run.reports['check']['outputs']):.1e}"


_ROWS = (
    ("nodes before", lambda run: f"{_rewrite(run, 'nodes_before')}"),
    ("nodes after", lambda run: f"{_rewrite(run, 'nodes_after')}"),
    ("small ops that are in a region now", lambda run: f"{_rewrite(run, 'small_ops_fused')} of {_rewrite(run, 'small_ops')}"),
    ("regions", lambda run: f"{len(_rewrite(run, 'regions'))}"),
    ("kernels for them, before and after", lambda run: f"{_rewrite(run, 'launches_before')} -> {_rewrite(run, 'launches_after')}"),
    ("their memory traffic, before and after", lambda run: f"{_megabytes(run, 'before')} -> {_megabytes(run, 'after')} MB"),
    ("plugin layers in the engine", lambda run: f"{len(run.reports['build']['plugin_layers'])}"),
    ("largest relative difference from ONNX Runtime", _worst),
    ("verdict", lambda run: "[green]passed[/]" if run.reports["check"]["passed"] else "[red]failed[/]"),
    ("seconds to build and to check", lambda run: f"{run.seconds['build']:.1f} and {run.seconds['check']:.1f}"),
)


if __name__ == "__main__":
    main()
