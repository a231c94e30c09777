"""From a torch function to a fused model: exported to ONNX and rewritten, as a user would."""

from __future__ import annotations

import argparse
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch

from benchmarks.chains import CHAINS
from graphfuse.match import rewrite_model

OPSET = 17


class _Module(torch.nn.Module):
    """A function as a module; its arguments are the model's inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


def to_onnx(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> onnx.ModelProto:
    """The function as an ONNX model with inputs x0, x1... and outputs y0, y1..., of exactly these shapes."""
    buffer = io.BytesIO()
    names = [f"x{k}" for k in range(len(inputs))]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        count = len(function(*inputs)) if isinstance(function(*inputs), tuple) else 1
        torch.onnx.export(
            _Module(function), tuple(inputs), buffer, dynamo=False, opset_version=OPSET, input_names=names,
            output_names=[f"y{k}" for k in range(count)],
        )  # fmt: skip
    return onnx.load_from_string(buffer.getvalue())


def fuse(model: onnx.ModelProto | Path) -> Any:
    """The model with all that is legal fused, whether it pays or not: it is measured here. In ``onnx_ir`` form."""
    from graphfuse.graph.load import load_model

    return rewrite_model(load_model(model), policy="aggressive").model


def main() -> None:
    """Writes ``benchmarks/models``, which the tests without torch read."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("chains", nargs="*", help="which (default: all)")
    folder = Path(__file__).parent / "models"
    folder.mkdir(exist_ok=True)
    for name in parser.parse_args().chains or CHAINS:
        chain = CHAINS[name]
        model = to_onnx(chain.function, chain.inputs("cuda" if torch.cuda.is_available() else "cpu", 0))
        for node in model.graph.node:
            node.ClearField("doc_string")
        onnx.save(model, folder / f"{name}.onnx")
        print(f"{name}: {len(model.graph.node)} nodes")


if __name__ == "__main__":
    main()
