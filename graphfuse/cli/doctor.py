"""``doctor``."""

from __future__ import annotations

import typer

from graphfuse.cli.common import JsonOption, check_outputs, progress, show, write_json


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(doctor)


def doctor(json_file: JsonOption = None) -> int:
    """Say what is installed, found and usable here, and how to mend what is not.

    The exit code is 0 unless something is missing that every command needs.
    """
    from graphfuse.report.doctor import examine
    from graphfuse.report.render import doctor_table

    check_outputs([json_file])
    with progress("looking around"):
        found = examine()
    show(doctor_table(found))
    write_json(json_file, found.to_json())
    return 0 if found.usable else 1
