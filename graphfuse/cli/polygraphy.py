"""``polygraphy``: Polygraphy's tools, with our plugin registered."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Adds the command; what follows its name goes to Polygraphy as it is."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(context_settings=settings, add_help_option=False)(polygraphy)


def polygraphy(context: typer.Context) -> int:
    """Run Polygraphy with the plugin registered: graphfuse polygraphy convert plugin.onnx --convert-to trt -o engine ..."""
    from graphfuse.engine.polygraphy_cli import run

    return run(context.args)
