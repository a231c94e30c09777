"""``polygraphy-plugins``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphfuse.cli.common import JsonOption, check_outputs, show, write_json


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("polygraphy-plugins")(polygraphy_plugins)


def polygraphy_plugins(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write them to.", show_default=False)],
    json_file: JsonOption = None,
) -> int:
    """Write our patterns as a --plugin-dir for `polygraphy plugin` match, list, replace and autotune."""
    from graphfuse.match.plugin_folders import write_folders

    check_outputs([json_file])
    names = write_folders(output)
    write_json(json_file, {"patterns": names})
    show(f"wrote {len(names)} patterns to {output}: polygraphy plugin match MODEL --plugin-dir {output}")
    return 0
