"""``check`` and ``run``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphfuse.cli.common import JsonOption, SizesOption, check_outputs, parse_sizes, progress, show, write_json
from graphfuse.ir.errors import GraphfuseError
from graphfuse.ir.files import read_bytes, write_bytes

if TYPE_CHECKING:
    import numpy as np

InputsOption = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="NPZ", help="Arrays by input name; made up from the seed if left out.", show_default=False),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of made-up inputs.")]
AltOption = Annotated[bool, typer.Option("--alt", help="Make up inputs of the other set of sizes.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(check)
    app.command()(run)


def check(
    original: Annotated[Path, typer.Argument(metavar="ORIGINAL", help="The model before rewrite.", show_default=False)],
    fused: Annotated[Path, typer.Argument(metavar="FUSED", help="The model after rewrite.", show_default=False)],
    device: Annotated[str, typer.Option("--device", metavar="host|cuda|engine|numpy|auto", help="Where fused nodes run.")] = "host",
    inputs: InputsOption = None,
    rtol: Annotated[float | None, typer.Option("--rtol", help="Relative tolerance, instead of the dtype's.", show_default=False)] = None,
    atol: Annotated[float | None, typer.Option("--atol", help="Absolute tolerance, instead of the dtype's.", show_default=False)] = None,
    seed: SeedOption = 0,
    alt: AltOption = False,
    sizes: SizesOption = None,
    json_file: JsonOption = None,
) -> int:
    """Compare a fused model with its original, output by output and region by region. Exit code 1 if they differ."""
    from graphfuse.check import check as compare
    from graphfuse.report import render

    check_outputs([json_file], [original, fused, inputs])
    with progress(f"checking {fused.name}"):
        found = compare(
            original, fused, device=device, inputs=inputs, rtol=rtol, atol=atol, seed=seed, alt=alt, sizes=parse_sizes(sizes)
        )  # fmt: skip
    show(*render.check_tables(found))
    write_json(json_file, found.to_json())
    return 0 if found.passed else 1


def run(
    model: Annotated[Path, typer.Argument(metavar="MODEL|ENGINE", help="An ONNX model, or a TensorRT engine.", show_default=False)],
    device: Annotated[str, typer.Option("--device", metavar="auto|cuda|host|numpy", help="Where fused nodes run.")] = "auto",
    inputs: InputsOption = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="NPZ", help="Write the outputs by name.", show_default=False)
    ] = None,
    seed: SeedOption = 0,
    alt: AltOption = False,
    sizes: SizesOption = None,
    json_file: JsonOption = None,
) -> int:
    """Run a model, fused or not, without TensorRT, or an engine on this GPU; sum up the outputs."""
    from graphfuse.check.inputs import load_inputs, make_inputs
    from graphfuse.graph.load import load_model
    from graphfuse.report import render
    from graphfuse.session import Session

    check_outputs([output, json_file], [model, inputs])
    with progress(f"running {model.name}"):
        if _is_engine(model):
            outputs, where = _run_engine(model, inputs), "TensorRT"
        else:
            loaded = load_model(model)
            feeds = load_inputs(inputs, loaded) if inputs else make_inputs(loaded, sizes=parse_sizes(sizes), alt=alt, seed=seed)
            session = Session(loaded, device)
            outputs, where = session.run(feeds), session.device
    if output is not None:
        write_bytes(output, _npz(outputs))
    rows = [(name, *_summary(array)) for name, array in outputs.items()]
    write_json(json_file, {"device": where, "outputs": [dict(zip(("name", "dtype", "shape", "mean_abs"), r, strict=True)) for r in rows]})
    show(render.run_table([[str(c) if not isinstance(c, float) else f"{c:.6g}" for c in row] for row in rows], where))
    return 0


def _is_engine(path: Path) -> bool:
    from graphfuse.engine.contents import is_engine

    try:
        with path.open("rb") as file:
            return is_engine(file.read(4))
    except OSError:
        return False  # for the loader of models to say


def _run_engine(path: Path, inputs: Path | None) -> dict[str, Any]:
    """The outputs of an engine, of either flavour: its first bytes tell which."""
    from graphfuse.check.inputs import read_arrays
    from graphfuse.engine import LoadedEngine

    if inputs is None:
        raise GraphfuseError("an engine does not say what its inputs look like; give them by --inputs")
    feeds = read_arrays(inputs)
    plan = read_bytes(path)
    with LoadedEngine(plan, flavour="tensorrt_rtx" if plan.startswith(b"vtrt") else "tensorrt") as engine:
        wanted = {tensor.name: tensor.dtype for tensor in engine.tensors()}
        for name, array in feeds.items():  # NumPy's files know no bfloat16 and no float8
            if array.dtype.kind == "V" and name in wanted and array.dtype.itemsize == wanted[name].itemsize:
                feeds[name] = array.view(wanted[name])
        return engine.run(feeds)


def _summary(array: np.ndarray | list[Any]) -> tuple[str, list[int], float | str]:
    """Dtype, shape and mean of the absolute values (text where it is no finite number)."""
    import numpy as np

    if isinstance(array, list):
        return "sequence", [len(array)], ""
    if array.dtype.kind in "OSUT":
        return "string", list(array.shape), ""
    mean = float(np.mean(np.abs(array.astype(np.float64)))) if array.size else 0.0
    return str(array.dtype), list(array.shape), mean if np.isfinite(mean) else str(mean)


def _npz(outputs: dict[str, Any]) -> bytes:
    import io

    import numpy as np

    odd = [name for name, array in outputs.items() if not isinstance(array, np.ndarray) or array.dtype.kind in "OSUT"]
    if odd:
        raise GraphfuseError(f"output {odd[0]!r} is no tensor of numbers and cannot be written to an .npz file; leave --output away")
    buffer = io.BytesIO()
    np.savez(buffer, **outputs)
    return buffer.getvalue()
