"""``build``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from graphfuse.cli.common import FusedArgument, JsonOption, check_outputs, progress, show, write_json


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(build)


def build(
    fused: FusedArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="ENGINE", help="The engine to write.", show_default=False)],
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shapes",
            metavar="NAME:MIN,OPT,MAX",
            help="Sizes of a dynamic input, as x:1x3x8,4x3x8,8x3x8; repeat for others.",
            show_default=False,
        ),
    ] = None,
    flavour: Annotated[
        str | None,
        typer.Option(
            "--flavour", metavar="tensorrt|tensorrt_rtx", help="Which TensorRT; the one that works here if left out.", show_default=False
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="sm_XX", help="GPU architecture to build for; may be repeated.", show_default=False),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print what TensorRT says.")] = False,
    json_file: JsonOption = None,
) -> int:
    """Build a TensorRT engine in which every fused node is a plugin layer."""
    from graphfuse import api
    from graphfuse.engine import parse_shapes

    check_outputs([output, json_file], [fused])
    ranges = parse_shapes(shapes) if shapes else None
    began = time.perf_counter()
    with progress(f"building {output.name}"):
        engine = api.build_engine(fused, shapes=ranges, flavour=flavour, targets=target, verbose=verbose)
    seconds = time.perf_counter() - began
    engine.save(output)
    report = {
        "flavour": engine.flavour,
        "plugin_layers": list(engine.plugin_layers),
        "bytes": len(engine.bytes),
        "seconds": round(seconds, 3),
        "targets": list(target or ()),
    }
    write_json(json_file, report)
    if verbose:
        show(*engine.log)
    show(
        f"{len(engine.plugin_layers)} plugin layers in {len(engine.bytes) / 1e6:.2f} MB, {engine.flavour}, {seconds:.1f} s",
        f"wrote {output}",
    )
    return 0
