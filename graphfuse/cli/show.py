"""``show``."""

from __future__ import annotations

from typing import Annotated

import typer

from graphfuse.cli.common import FusedArgument, JsonOption, check_outputs, progress, show, write_json


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("show")(show_regions)


def show_regions(
    fused: FusedArgument,
    region: Annotated[
        str | None, typer.Argument(metavar="REGION", help="Only this region (name, or its beginning).", show_default=False)
    ] = None,
    cuda: Annotated[bool, typer.Option("--cuda", help="The generated CUDA source.")] = False,
    program: Annotated[bool, typer.Option("--program", help="The fused program.")] = False,
    resources: Annotated[bool, typer.Option("--resources", help="Registers, spills and shared memory, for each architecture.")] = False,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="sm_XX", help="Architecture for --resources; may be repeated.", show_default=False),
    ] = None,
    json_file: JsonOption = None,
) -> int:
    """Look into a fused model: what each region computes, its kernel, and what the kernel uses."""
    from graphfuse.report import render
    from graphfuse.report.show import ARCHS, measure, shown_regions

    check_outputs([json_file], [fused])
    found = shown_regions(fused, region)
    parts = [name for name, wanted in (("program", program), ("cuda", cuda), ("resources", resources)) if wanted]
    if resources:
        with progress("compiling"):
            measure(found, target or ARCHS)
    if parts:
        for one in found:
            show(*render.region_parts(one, parts))
    else:
        show(render.region_list(found))
    write_json(json_file, {"regions": [r.to_json(parts) for r in found]})
    return 0
