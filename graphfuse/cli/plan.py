"""``plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphfuse.cli.common import (
    ExactOption,
    JsonOption,
    ModelArgument,
    PatternsOption,
    PolicyOption,
    SizesOption,
    SkipOption,
    check_outputs,
    parse_sizes,
    progress,
    show,
    write_json,
)  # fmt: skip
from graphfuse.ir.files import write_text


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(plan)


def plan(
    model: ModelArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="PLAN", help="The plan to write: .yaml, or .json.", show_default=False)],
    policy: PolicyOption = "auto",
    skip: SkipOption = None,
    patterns: PatternsOption = None,
    exact_rounding: ExactOption = False,
    sizes: SizesOption = None,
    json_file: JsonOption = None,
) -> int:
    """Write what would be fused, and why, as a file to edit and to hand to rewrite --plan."""
    from graphfuse.api import rewrite
    from graphfuse.match.planfile import plan_text
    from graphfuse.report import render

    check_outputs([output, json_file], [model])
    with progress(f"planning {model.name}"):
        made = rewrite(
            model, policy=policy, skip=skip or (), exact_rounding=exact_rounding, sizes=parse_sizes(sizes), patterns=patterns or ()
        )
    write_text(output, plan_text(made.plan, as_json=output.suffix.lower() == ".json"))
    write_json(json_file, made.report)
    show(*render.region_tables(made.regions), f"wrote {output}: set enabled to false, or edit nodes, then graphfuse rewrite --plan")
    return 0
