"""``rewrite``, ``restore`` and ``export-plugin``: a model in, a model out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphfuse.cli.common import (
    ExactOption,
    FusedArgument,
    JsonOption,
    ModelArgument,
    ModelOutput,
    PatternsOption,
    PolicyOption,
    SizesOption,
    SkipOption,
    check_outputs,
    parse_sizes,
    progress,
    show,
    write_json,
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(rewrite)
    app.command()(restore)
    app.command("export-plugin")(export_plugin)


def rewrite(
    model: ModelArgument,
    output: ModelOutput,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="PLAN", help="Fuse what this plan says.", show_default=False)] = None,
    policy: PolicyOption = "auto",
    skip: SkipOption = None,
    patterns: PatternsOption = None,
    exact_rounding: ExactOption = False,
    sizes: SizesOption = None,
    json_file: JsonOption = None,
) -> int:
    """Write the model with its chains of small ops fused."""
    from graphfuse import api
    from graphfuse.report import render

    check_outputs([output, json_file], [model, plan])
    with progress(f"rewriting {model.name}"):
        made = api.rewrite(
            model,
            policy=policy,
            skip=skip or (),
            plan=plan,
            exact_rounding=exact_rounding,
            sizes=parse_sizes(sizes),
            patterns=patterns or (),
        )
    made.save(output)
    write_json(json_file, made.report)
    show(*render.rewrite_tables(made.report, made.regions), f"wrote {output}")
    return 0


def restore(fused: FusedArgument, output: ModelOutput, json_file: JsonOption = None) -> int:
    """Write the plain model that a fused one was made of."""
    from graphfuse.graph.load import load_model
    from graphfuse.graph.save import save_model
    from graphfuse.match import restore_model
    from graphfuse.session.fused import is_fused

    check_outputs([output, json_file], [fused])
    loaded = load_model(fused)
    plain = restore_model(loaded)
    save_model(plain, output)
    counts = {"nodes_before": len(loaded.graph), "nodes_after": len(plain.graph)}
    write_json(json_file, counts)
    fused_nodes = any(is_fused(node) for node in loaded.graph.all_nodes())
    nothing = [] if fused_nodes else ["nothing in it was fused"]
    show(f"{counts['nodes_before']} nodes became {counts['nodes_after']}", *nothing, f"wrote {output}")
    return 0


def export_plugin(fused: FusedArgument, output: ModelOutput, json_file: JsonOption = None) -> int:
    """Write a fused model in plugin form, for a TensorRT parser of your own (import graphfuse_plugin there)."""
    from graphfuse.api import plugin_form
    from graphfuse.graph.save import save_model
    from graphfuse.report.render import plural
    from graphfuse.session.fused import is_fused, label

    check_outputs([output, json_file], [fused])
    model = plugin_form(fused)
    save_model(model, output)
    layers = [label(n) for n in model.graph.all_nodes() if is_fused(n)]
    write_json(json_file, {"plugin_nodes": layers})
    show(f"{plural(len(layers), 'fused node')} in plugin form", f"wrote {output}")
    return 0
