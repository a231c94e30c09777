"""``tune`` and ``calibrate``: what needs a GPU to measure on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphfuse.cli.common import FusedArgument, JsonOption, SizesOption, check_outputs, parse_sizes, progress, show, write_json
from graphfuse.ir.errors import GraphfuseError


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(tune)
    app.command()(calibrate)


def tune(
    fused: FusedArgument,
    region: Annotated[
        str | None, typer.Argument(metavar="REGION", help="Only this region (name, or its beginning).", show_default=False)
    ] = None,
    sizes: SizesOption = None,
    margin: Annotated[float, typer.Option("--margin", metavar="PERCENT", help="Least gain over the rule's choice to keep another.")] = 3.0,
    most: Annotated[int, typer.Option("--most", metavar="N", help="Candidates for each kernel at most.", min=1)] = 96,
    database: Annotated[
        Path | None,
        typer.Option("--database", metavar="FILE", help="Where decisions go (default: the user's data folder).", show_default=False),
    ] = None,
    json_file: JsonOption = None,
) -> int:
    """Time variants of each kernel on this GPU and remember the fastest.

    Sessions, and engines built on this machine, use what was found; results never depend on it. Let nothing else run on the GPU.
    """
    from graphfuse.report.tuning import tuning_table
    from graphfuse.tune.database import database_file
    from graphfuse.tune.model import tune_model

    check_outputs([json_file], [fused])
    if not 0 <= margin < 100:
        raise GraphfuseError(f"--margin {margin:g}: not a percentage from 0 to 100; try 3")
    target = database or database_file()
    if target is None:
        raise GraphfuseError("GRAPHFUSE_TUNED is set to nothing, so there is no file for decisions; name one with --database")
    with progress("tuning"):
        found = tune_model(fused, target, region=region, sizes=parse_sizes(sizes), margin=margin / 100, most=most)
    show(tuning_table(found), f"stored in {target}")
    write_json(json_file, {"database": str(target), "kernels": [r.to_json() for r in found]})
    return 0


def calibrate(json_file: JsonOption = None) -> int:
    """Measure what this GPU's memory and launches can do, and remember it.

    Let nothing else run on the GPU. The figures are what kernels are judged by.
    """
    from graphfuse.jit import CudaDevice
    from graphfuse.report.tuning import calibration_table
    from graphfuse.tune.calibrate import calibrate as measure
    from graphfuse.tune.calibrate import file_of
    from graphfuse.tune.files import write_json as store

    check_outputs([json_file])
    device = CudaDevice()
    with progress("measuring copies"):
        found = measure(device)
    show(calibration_table(found), f"stored in {store(file_of(found.gpu), found.to_json())}")
    write_json(json_file, found.to_json())
    return 0
