"""What commands share: options, output files, tables on a terminal or in a pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphfuse.ir.errors import GraphfuseError
from graphfuse.ir.files import write_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX model.", show_default=False)]
FusedArgument = Annotated[Path, typer.Argument(metavar="FUSED", help="A model that `graphfuse rewrite` wrote.", show_default=False)]
JsonOption = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON, too.", show_default=False)]
PolicyOption = Annotated[
    str, typer.Option("--policy", metavar="auto|aggressive", help="What to fuse: what pays off, or all that is legal.")
]
SkipOption = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="RULE", help="Do without this rule of the policy, or pattern; may be repeated.", show_default=False),
]
PatternsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--patterns", metavar="FILE.py", help="Execute this file and use the patterns in it; may be repeated.", show_default=False
    ),
]
ExactOption = Annotated[bool, typer.Option("--exact-rounding", help="Round small floats after every op, as the model itself does.")]
SizesOption = Annotated[
    list[str] | None, typer.Option("--size", metavar="NAME=N", help="Value of a dynamic dimension; may be repeated.", show_default=False)
]
ModelOutput = Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="The model to write.", show_default=False)]


def console() -> Console:
    """Where reports go: as wide as the terminal, and 120 columns without colours in a pipe."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    return Console(width=width, highlight=False, soft_wrap=False)


def show(*parts: RenderableType) -> None:
    """Prints tables and lines."""
    out = console()
    for part in parts:
        out.print(part, soft_wrap=type(part).__name__ != "Table")  # text is source to be copied: never broken over lines


@contextmanager
def progress(text: str) -> Iterator[None]:
    """A spinner on a terminal while something takes its time; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


def check_outputs(outputs: Sequence[Path | None], inputs: Sequence[Path | None] = ()) -> None:
    """Raises GraphfuseError for a file that could not be written, or would replace an input; before any work is done."""
    given = [path for path in outputs if path is not None]
    for path in given:
        if path.is_dir():
            raise GraphfuseError(f"{path}: is a folder; name a file in it")
        if not path.absolute().parent.is_dir():
            raise GraphfuseError(f"{path}: there is no folder {path.parent}; make it first")
        if not (path.exists() and not path.is_file()) and not os.access(path.absolute().parent, os.W_OK):
            raise GraphfuseError(f"{path}: cannot be written: no file may be made in {path.parent}; choose another folder")
        for source in inputs:
            if source is not None and _same(path, source):
                raise GraphfuseError(f"{path}: is an input of this command; choose another output")
    if len({os.path.realpath(p) for p in given}) < len(given):
        raise GraphfuseError(f"{given[0]}: two outputs have this name; choose different ones")


def _same(left: Path, right: Path) -> bool:
    try:
        return left.samefile(right)
    except OSError:
        return left.absolute() == right.absolute()


def write_json(path: Path | None, document: Any) -> None:
    """Writes the report where one is asked for."""
    if path is not None:
        write_text(path, json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def parse_sizes(items: Sequence[str] | None) -> dict[str, int]:
    """``["batch=2", "seq=16"]`` as a mapping. Raises GraphfuseError for anything else."""
    sizes = {}
    for item in items or ():
        name, equals, number = item.rpartition("=")
        if not (equals and name and number.isdecimal()):
            raise GraphfuseError(f"size {item!r} is not understood; write it like batch=2")
        sizes[name] = int(number)
    return sizes
