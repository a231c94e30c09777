"""``scan`` and ``explain``: what is in a model, and why it is fused or not."""

from __future__ import annotations

from typing import Annotated

import typer

from graphfuse.cli.common import (
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
)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(scan)
    app.command()(explain)


def scan(
    model: ModelArgument,
    policy: PolicyOption = "auto",
    skip: SkipOption = None,
    patterns: PatternsOption = None,
    sizes: SizesOption = None,
    json_file: JsonOption = None,
) -> int:
    """Count small ops and chains, and predict launches and bytes before and after fusion."""
    from graphfuse.report import render
    from graphfuse.report.scan import scan as look

    check_outputs([json_file], [model])
    with progress(f"scanning {model.name}"):
        found = look(model, policy=policy, skip=skip or (), sizes=parse_sizes(sizes), patterns=patterns or ())
    show(*render.scan_tables(found))
    write_json(json_file, found.to_json())
    return 0


def explain(
    model: ModelArgument,
    node: Annotated[str | None, typer.Argument(metavar="NODE", help="A node, or a value that it makes.", show_default=False)] = None,
    policy: PolicyOption = "auto",
    skip: SkipOption = None,
    patterns: PatternsOption = None,
    json_file: JsonOption = None,
) -> int:
    """Say for every node, or for one, why it is fused or left alone."""
    from graphfuse.report import render
    from graphfuse.report.explain import explain as look

    check_outputs([json_file], [model])
    with progress(f"looking at {model.name}"):
        found = look(model, node, policy=policy, skip=skip or (), patterns=patterns or ())
    show(*render.explain_tables(found))
    write_json(json_file, found.to_json())
    return 0
