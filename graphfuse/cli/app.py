"""The application: its commands, and what becomes of errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from graphfuse.cli import bench, build, cache, doctor, folders, plan, polygraphy, rewrite, scan, show, tune, verify
from graphfuse.ir.errors import GraphfuseError

FINE, FAILED, BAD_INPUT = 0, 1, 2
INTERRUPTED = 130

app = typer.Typer(
    name="graphfuse",
    help="Fuses chains of small ONNX ops into single generated CUDA kernels that run inside TensorRT engines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 fine, 1 a check failed, 2 bad input. GRAPHFUSE_DEBUG=1 or --debug shows where an error came from.",
)
for group in (scan, plan, rewrite, build, verify, tune, bench, polygraphy, folders, cache, show, doctor):
    group.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        import graphfuse

        typer.echo(f"graphfuse {graphfuse.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", envvar="GRAPHFUSE_DEBUG")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.", callback=_version, is_eager=True)] = False,
) -> None:
    if debug:
        os.environ["GRAPHFUSE_DEBUG"] = "1"


def run(arguments: Sequence[str] | None = None) -> int:
    """One command; every error becomes one line on stderr and an exit code."""
    try:
        code = app(list(sys.argv[1:] if arguments is None else arguments), prog_name="graphfuse", standalone_mode=False)
        if code == INTERRUPTED:  # some releases of typer make an exit code of Ctrl-C themselves
            raise KeyboardInterrupt
        sys.stdout.flush()
        return code if isinstance(code, int) else FINE
    except GraphfuseError as error:
        return _report(error, str(error))
    except (KeyboardInterrupt, typer.Abort):
        print("graphfuse: interrupted", file=sys.stderr)
        return INTERRUPTED
    except MemoryError as error:
        return _report(error, f"not enough memory: {str(error) or 'the model is too large for this machine'}")
    except BrokenPipeError:  # the reader has gone, as in `graphfuse show ... | head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 (so that nothing is flushed into the pipe at exit)
        return FINE
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error; which library's depends on typer's version
            if type(error).__name__ == "NoArgsIsHelpError":  # no command at all: the message is the whole help
                print(error.format_message(), file=sys.stderr)
                return BAD_INPUT
            return _report(error, f"{error.format_message()} (see graphfuse --help)")
        return _report(error, f"internal error, please report it with --debug: {type(error).__name__}: {error}")


def _report(error: BaseException, text: str) -> int:
    if os.environ.get("GRAPHFUSE_DEBUG", "") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    print("graphfuse: " + " ".join(text.split()), file=sys.stderr)
    return BAD_INPUT
