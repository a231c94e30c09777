"""``build``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphfuse.cli.common import FusedArgument, JsonOption, check_outputs, show, write_json
from graphfuse.cli.phases import phases
from graphfuse.ir.errors import GraphfuseError

if TYPE_CHECKING:
    from graphfuse.engine import Engine


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
    more: Annotated[list[str] | None, typer.Argument(metavar="SHAPE|sm_XX", hidden=True)] = None,
    aot: Annotated[bool, typer.Option("--aot", help="An engine that needs no Python where it runs (full TensorRT only).")] = False,
    min_driver: Annotated[
        int | None,
        typer.Option(
            "--min-driver",
            metavar="BRANCH",
            help="With --aot: the oldest driver that must take the kernels; 535 if left out.",
            show_default=False,
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print what TensorRT says.")] = False,
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="Write all that TensorRT says here, also when the build fails.", show_default=False),
    ] = None,
    timing_cache: Annotated[
        Path | None,
        typer.Option(
            "--timing-cache",
            metavar="FILE",
            help="Keep TensorRT's measurements here for the next build (full TensorRT only).",
            show_default=False,
        ),
    ] = None,
    json_file: JsonOption = None,
) -> int:
    """Build a TensorRT engine in which every fused node is a plugin layer."""
    from graphfuse import api
    from graphfuse.engine import parse_profiles
    from graphfuse.report.render import plural

    check_outputs([output, json_file, log, timing_cache], [fused])
    targets, texts = _sorted(target, shapes, more)
    ranges = parse_profiles(texts) if texts else None
    began = time.perf_counter()
    with phases(f"building {output.name}") as shown:
        engine = api.build_engine(
            fused, shapes=ranges, flavour=flavour, targets=targets, verbose=verbose, aot=aot, min_driver=min_driver,
            log_file=log, timing_cache=timing_cache, progress=shown,
        )  # fmt: skip
    seconds = time.perf_counter() - began
    engine.save(output)
    if json_file is not None:
        layers, reason = _layers(engine)
        write_json(json_file, {
            "flavour": engine.flavour, "plugin_layers": list(engine.plugin_layers), "bytes": len(engine.bytes), "seconds": round(seconds, 3),
            "targets": targets, "layers": layers, "layers_not_told": reason,
        })  # fmt: skip
    if verbose:
        show(*engine.log)
    show(
        f"{plural(len(engine.plugin_layers), 'plugin layer')} in {len(engine.bytes) / 1e6:.2f} MB, {engine.flavour}, {seconds:.1f} s",
        f"wrote {output}",
    )
    return 0


def _layers(engine: Engine) -> tuple[list[str] | None, str | None]:
    """Names of the engine's layers, of TensorRT's inspector; or why it cannot be asked, which takes a GPU that runs the engine."""
    from graphfuse.engine import LoadedEngine

    try:
        with LoadedEngine(engine.bytes, flavour=engine.flavour) as loaded:
            return loaded.layers(), None
    except GraphfuseError as error:
        return None, str(error)


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
