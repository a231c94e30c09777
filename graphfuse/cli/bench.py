"""``bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphfuse.cli.common import JsonOption, SizesOption, check_outputs, parse_sizes, progress, show, write_json
from graphfuse.cli.verify import AltOption, InputsOption, SeedOption

if TYPE_CHECKING:
    from rich.table import Table

    from graphfuse.bench import Bench


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(bench)


def bench(
    original: Annotated[Path, typer.Argument(metavar="ORIGINAL", help="The model before rewrite.", show_default=False)],
    fused: Annotated[Path, typer.Argument(metavar="FUSED", help="The model after rewrite.", show_default=False)],
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="PLAN", help="The plan FUSED was made by: its regions are measured, too.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PLAN",
            help="Write the plan with decisions and figures here; into PLAN itself if left out.",
            show_default=False,
        ),
    ] = None,
    pairs: Annotated[int, typer.Option("--pairs", help="Measurements of each engine, in turns.", min=6)] = 30,
    flavour: Annotated[
        str | None, typer.Option("--flavour", metavar="tensorrt|tensorrt_rtx", help="Which TensorRT.", show_default=False)
    ] = None,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    alt: AltOption = False,
    sizes: SizesOption = None,
    json_file: JsonOption = None,
) -> int:
    """Measure the fused engine against the plain one, in turns, under CUDA graphs. Exit code 1 if it is slower, or wrong."""
    from graphfuse.bench import bench as measure
    from graphfuse.bench import decided, engine_opener
    from graphfuse.check.inputs import load_inputs, make_inputs
    from graphfuse.graph.load import load_model
    from graphfuse.match import load_plan, save_plan

    check_outputs([json_file, output], [original, fused, inputs])
    opener = engine_opener(flavour)  # before any work: where no engine can run it says so at once
    before, after = load_model(original), load_model(fused)
    feeds = load_inputs(inputs, before) if inputs else make_inputs(before, sizes=parse_sizes(sizes), alt=alt, seed=seed)
    planned = load_plan(plan) if plan else None
    with progress(f"measuring {fused.name}"):
        found = measure(before, after, feeds, opener, pairs=pairs, plan=planned)
    show(*lines(found))
    if found.regions:
        show(_table(found))
    if planned is not None and plan is not None:
        save_plan(decided(planned, found.regions), output or plan)
        show(f"wrote {output or plan}")
    write_json(json_file, found.to_json())
    return 0 if found.passed else 1


def lines(found: Bench) -> list[str]:
    """What is to be said of the whole."""
    wrong = [f"output {v.name!r} is wrong: {v.reason}" for v in found.outputs if not v.passed]
    layers = f"{len(found.plain_layers)} layers before, {len(found.fused_layers)} after" if found.fused_layers else "layers not told"
    return [f"fused is {found.whole}", layers, *wrong]


def _table(found: Bench) -> Table:
    from graphfuse.report.render import table

    made = table("what each region brings", "region", "without", "with", "share of the time", "decision", right=("without", "with"))
    for region in found.regions:
        p = region.paired
        decision = "accepted" if region.accepted else "rejected"
        made.add_row(
            region.name,
            f"{p.first_us:.2f} us",
            f"{p.second_us:.2f} us",
            f"{p.ratio:.3f} ({p.low:.3f} to {p.high:.3f})",
            f"{decision} ({p.verdict})",
        )
    return made
