"""``build``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from graphfuse.cli.common import FusedArgument, JsonOption, check_outputs, progress, show, write_json
from graphfuse.ir.errors import GraphfuseError


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
            help="Sizes of a dynamic input, as x:1x3x8,4x3x8,8x3x8; repeat for other inputs, and for an input's other profiles.",
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
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    aot: Annotated[bool, typer.Option("--aot", help="An engine that needs no Python where it runs (full TensorRT only).")] = False,
    min_driver: Annotated[
        int | None,
        typer.Option(
            "--min-driver", metavar="BRANCH", help="With --aot: the oldest driver that must take the kernels.", show_default="535"
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print what TensorRT says.")] = False,
    json_file: JsonOption = None,
) -> int:
    """Build a TensorRT engine in which every fused node is a plugin layer."""
    from graphfuse import api
    from graphfuse.engine import parse_profiles
    from graphfuse.report.render import plural

    check_outputs([output, json_file], [fused])
    targets, texts = _sorted(target, shapes, more)
    ranges = parse_profiles(texts) if texts else None
    began = time.perf_counter()
    with progress(f"building {output.name}"):
        engine = api.build_engine(fused, shapes=ranges, flavour=flavour, targets=targets, verbose=verbose, aot=aot, min_driver=min_driver)
    seconds = time.perf_counter() - began
    engine.save(output)
    report = {
        "flavour": engine.flavour,
        "plugin_layers": list(engine.plugin_layers),
        "bytes": len(engine.bytes),
        "seconds": round(seconds, 3),
        "targets": targets,
    }
    write_json(json_file, report)
    if verbose:
        show(*engine.log)
    show(
        f"{plural(len(engine.plugin_layers), 'plugin layer')} in {len(engine.bytes) / 1e6:.2f} MB, {engine.flavour}, {seconds:.1f} s",
        f"wrote {output}",
    )
    return 0


def _sorted(target: list[str] | None, shapes: list[str] | None, more: list[str] | None) -> tuple[list[str], list[str]]:
    """Targets and shapes, those among them that follow one option without its name: ``--target sm_89 sm_120``."""
    targets = [t for text in target or () for t in text.split(",")]
    texts = list(shapes or ())
    for word in more or ():
        if word.startswith("sm_"):
            targets.append(word)
        elif ":" in word:
            texts.append(word)
        else:
            raise GraphfuseError(f"argument {word!r} is not understood; it is no target like sm_89 and no shape like x:1x3")
    return targets, texts
