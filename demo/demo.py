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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out"
console = Console(highlight=False)


@dataclass
class Run:
    """One model's way through the commands: what each reported, in JSON, and the seconds it took."""

    name: str
    shapes: tuple[str, ...] = ()
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def command(self, verb: str, *arguments: str, report: bool = True) -> None:
        """Runs ``graphfuse verb ...``; ends the demo where it fails."""
        words = ["graphfuse", verb, *arguments]
        console.print(f"\n[bold cyan]$ {shlex.join(words)}[/]")
        sys.stdout.flush()
        target = OUT / f"{self.name}.{verb}.json"
        target.unlink(missing_ok=True)
        began = time.perf_counter()
        more = ["--json", str(target)] if report else []
        code = subprocess.run([sys.executable, "-m", "graphfuse", *words[1:], *more], cwd=ROOT, env=_environment()).returncode
        self.seconds[verb] = time.perf_counter() - began
        if code:
            console.print(f"[bold red]graphfuse {verb} ended with exit code {code}[/]")
            sys.exit(code)
        if report:
            self.reports[verb] = json.loads(target.read_text())

    def all(self) -> None:
        """scan, plan, rewrite, build, check."""
        model, plan, fused = f"models/{self.name}.onnx", f"out/{self.name}.plan.yaml", f"out/{self.name}.fused.onnx"
        self.command("scan", model)
        self.command("plan", model, "-o", plan, report=False)
        self.command("rewrite", model, "-o", fused, "--plan", plan)
        self.command("build", fused, "-o", f"out/{self.name}.engine", "--flavour", "tensorrt_rtx", *_flags("--shapes", self.shapes))
        self.command("check", model, fused, "--device", "host")


RUNS = (
    Run("yolo_head"),
    Run("transformer_block", ("hidden:1x1x64,2x24x64,8x128x64", "attention_mask:1x1,2x24,8x128")),
)


def _flags(flag: str, values: tuple[str, ...]) -> list[str]:
    return [word for value in values for word in (flag, value)]


def _environment() -> Mapping[str, str]:
    """The colours and the width of this terminal also where the command's output is a pipe."""
    return {**os.environ, "COLUMNS": str(console.width), **({"FORCE_COLOR": "1"} if console.is_terminal else {})}


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
        console.rule(f"[bold]{run.name}", align="left")
        run.all()
    console.print()
    console.print(summary(RUNS))
    console.print(f"Everything is in {OUT.name}/. It took {time.perf_counter() - began:.0f} s, and no GPU.")


def _rewrite(run: Run, key: str) -> Any:
    return run.reports["rewrite"][key]


def _sum(run: Run, key: str) -> int:
    return sum(region[key] for region in _rewrite(run, "regions"))


def _worst(run: Run) -> str:
    return f"{max(output['max_abs'] for output in run.reports['check']['outputs']):.1e}"


_ROWS = (
    ("nodes before", lambda run: f"{_rewrite(run, 'nodes_before')}"),
    ("nodes after", lambda run: f"{_rewrite(run, 'nodes_after')}"),
    ("small ops that became part of a region", lambda run: f"{_rewrite(run, 'small_ops_fused')} of {_rewrite(run, 'small_ops')}"),
    ("regions, each one generated kernel", lambda run: f"{len(_rewrite(run, 'regions'))}"),
    ("bytes moved by those ops before", lambda run: f"{_sum(run, 'bytes_before') / 1e6:.1f} MB"),
    ("bytes moved by the regions", lambda run: f"{_sum(run, 'bytes_after') / 1e6:.1f} MB"),
    ("plugin layers in the engine", lambda run: f"{len(run.reports['build']['plugin_layers'])}"),
    ("largest difference from ONNX Runtime", _worst),
    ("verdict", lambda run: "[green]passed[/]" if run.reports["check"]["passed"] else "[red]failed[/]"),
)


if __name__ == "__main__":
    main()
