"""``cache``: the compiled kernels that are kept between runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphfuse.cli.common import JsonOption, check_outputs, progress, show, write_json
from graphfuse.ir.errors import GraphfuseError
from graphfuse.ir.files import read_bytes

if TYPE_CHECKING:
    from graphfuse.engine.ahead import Warmed


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(no_args_is_help=True, help="Compiled kernels kept between runs: make them beforehand, list them, delete them.")
    group.command()(warm)
    group.command()(ls)
    group.command()(clear)
    app.add_typer(group, name="cache")


def warm(
    source: Annotated[
        Path, typer.Argument(metavar="FUSED|ENGINE", help="A model that `graphfuse rewrite` wrote, or an engine.", show_default=False)
    ],
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shapes",
            metavar="NAME:MIN,OPT,MAX",
            help="Sizes of a dynamic input of FUSED, as for build; repeat for other inputs and profiles.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target", metavar="sm_XX", help="GPU architecture; may be repeated. This GPU, or what build takes.", show_default=False
        ),
    ] = None,
    json_file: JsonOption = None,
) -> int:
    """Compile kernels into the cache: those that a build of FUSED with these shapes, or a load of ENGINE on this GPU, asks for."""
    from graphfuse.report.render import plural

    check_outputs([json_file], [source])
    began = time.perf_counter()
    with progress(f"compiling the kernels of {source.name}"):
        done = _warmed(source, shapes or [], target or ())
    seconds = time.perf_counter() - began
    write_json(json_file, {"regions": done.regions, "kernels": done.kernels, "compiled": done.compiled, "seconds": round(seconds, 3)})
    show(
        f"{plural(done.regions, 'region')}, {plural(done.kernels, 'kernel')}: {done.compiled} compiled in {seconds:.1f} s, "
        f"{done.kernels - done.compiled} there already"
    )
    return 0


def _warmed(source: Path, shapes: Sequence[str], targets: Sequence[str]) -> Warmed:
    from graphfuse.engine import parse_profiles
    from graphfuse.engine.ahead import warm as compile_ahead
    from graphfuse.engine.contents import holds_kernels, is_engine, warm_engine
    from graphfuse.graph.load import load_model

    plan = b"" if source.suffix == ".onnx" else read_bytes(source)
    if not (is_engine(plan) or holds_kernels(plan)):
        return compile_ahead(load_model(source), parse_profiles(shapes) if shapes else [], targets)
    if shapes:
        raise GraphfuseError("an engine knows the sizes that it was built for; leave --shapes out")
    if not holds_kernels(plan):
        raise GraphfuseError(f"{source}: this engine holds no kernels of ours; name one that was built from a fused model without --aot")
    return warm_engine(plan, targets)


def ls(
    every: Annotated[bool, typer.Option("--all", help="Each entry, not only the sums.")] = False,
    json_file: JsonOption = None,
) -> int:
    """List what the cache holds: code for which GPUs, for the host device, how much, and when it was last used."""
    from graphfuse.jit.cache import default_cache
    from graphfuse.report.render import plural, size, table

    check_outputs([json_file])
    cache = default_cache()
    rows = [(_kind(cache.peek(e.name)), e) for e in cache.stored()]
    write_json(json_file, {
        "folder": str(cache.folder or ""), "limit_bytes": cache.limit_bytes,
        "entries": [{"key": e.name, "kind": kind, "bytes": e.size, "used": round(e.used)} for kind, e in rows],
    })  # fmt: skip
    made = table("", "kind", "files", "size", "last used", right=("files", "size"))
    for kind in sorted({k for k, _ in rows}):
        group = [e for k, e in rows if k == kind]
        made.add_row(kind, str(len(group)), size(sum(e.size for e in group)), _ago(max(e.used for e in group)))
    total = sum(e.size for _, e in rows)
    show(f"{cache.folder or 'no folder: kept in memory only'}", f"{plural(len(rows), 'file')}, {size(total)} of {size(cache.limit_bytes)}")
    if rows:
        show(made)
    if every:
        show(*(f"{e.name}  {kind:14} {size(e.size):>10}  {_ago(e.used)}" for kind, e in rows))
    return 0


def clear() -> int:
    """Delete every kernel in the cache. Running programs are not harmed; they compile anew what they need."""
    from graphfuse.jit.cache import default_cache
    from graphfuse.report.render import plural, size

    cache = default_cache()
    if cache.folder is None:
        raise GraphfuseError("the cache has no folder that can be written; set GRAPHFUSE_CACHE_DIR to one")
    files, freed = cache.clear()
    show(f"{plural(files, 'file')} deleted, {size(freed)} freed in {cache.folder}")
    return 0


def _kind(payload: bytes | None) -> str:
    from graphfuse.engine.contents import MARK
    from graphfuse.jit.nvrtc import Cubin

    if payload is None:
        return "damaged"
    if payload.startswith(b"\x7fELF"):
        return "host library"
    if payload.startswith(MARK):
        return "of engines"
    try:
        return Cubin.from_bytes(payload).arch
    except ValueError:
        return "host index"


def _ago(when: float) -> str:
    seconds = max(0.0, time.time() - when)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count != 1 else ''} ago"
    return "just now"
