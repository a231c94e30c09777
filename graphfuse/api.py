"""The Python face: what ``import graphfuse`` offers. Models are paths, ``onnx.ModelProto`` or ``onnx_ir.Model``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir

from graphfuse.check import check
from graphfuse.graph.load import load_model
from graphfuse.graph.save import EMBEDDED_LIMIT, save_model
from graphfuse.ir.errors import GraphfuseError
from graphfuse.match import export_plugin as to_plugin_form
from graphfuse.match import load_plan, restore_model, rewrite_model
from graphfuse.match.planfile import Plan, Refusal
from graphfuse.match.rewrite import FusedRegion
from graphfuse.patterns.load import Source
from graphfuse.report.doctor import examine as doctor
from graphfuse.report.explain import explain
from graphfuse.report.scan import scan
from graphfuse.session import Session

if TYPE_CHECKING:
    from graphfuse.engine import Engine
    from graphfuse.engine.progress import Progress

Model = str | os.PathLike[str] | onnx.ModelProto | onnx_ir.Model
Shapes = Mapping[str, "str | Sequence[int] | Sequence[Sequence[int]]"]


@dataclass(frozen=True)
class Result:
    """A fused model and the account of it.

    ``regions`` say what each fused node stands for, ``refusals`` what was left alone and why, ``plan`` is what a plan file
    holds, ``report`` all of it as JSON can hold it. ``ir_model`` is the model as ``onnx_ir`` has it, weights unread.
    """

    ir_model: onnx_ir.Model
    plan: Plan
    regions: list[FusedRegion]
    refusals: list[Refusal]
    report: dict[str, Any]

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The fused model in portable form, weights included."""
        return to_proto(self.ir_model)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the fused model, and its weights beside it where they are in a file of their own. Raises GraphfuseError."""
        save_model(self.ir_model, path)


def rewrite(
    model: Model,
    *,
    policy: str = "auto",
    skip: Iterable[str] = (),
    plan: Plan | str | os.PathLike[str] | None = None,
    exact_rounding: bool = False,
    sizes: Mapping[str, int] | None = None,
    patterns: Iterable[Source] = (),
) -> Result:
    """The model with its chains of small ops fused, in portable form.

    ``policy`` is auto (what pays off) or aggressive (all that is legal), ``skip`` names rules of the policy, and patterns, to do without,
    ``plan`` (a file or a ``Plan``) goes before both. ``patterns`` are more patterns, or Python files of such, which are executed. ``exact_rounding`` rounds small floats after every op, as the model
    itself does. ``sizes`` are values of run-time dimensions to predict costs at. A fused model is fused anew.

    Raises GraphfuseError for a model, policy, rule or plan that is not one, and for a plan of another graph.
    """
    if isinstance(skip, str):
        skip = (skip,)
    if isinstance(plan, str | os.PathLike):
        plan = load_plan(plan)
    made = rewrite_model(
        load_model(model), policy=policy, skip=skip, plan=plan, exact_rounding=exact_rounding, sizes=sizes, patterns=patterns
    )
    return Result(made.model, made.plan, made.regions, made.refusals, made.report)


def restore(fused: Model) -> onnx.ModelProto:
    """The plain model that a fused one (in portable form) was made of. Raises GraphfuseError for a damaged one."""
    return to_proto(restore_model(load_model(fused)))


def export_plugin(fused: Model) -> onnx.ModelProto:
    """The fused model in plugin form, as TensorRT's parser takes it once ``graphfuse_plugin`` is imported."""
    return to_proto(plugin_form(fused))


def plugin_form(fused: Model) -> onnx_ir.Model:
    """As ``export_plugin``, with weights unread; a model in plugin form already comes back as it is."""
    return to_plugin_form(load_model(fused)).model


def build_engine(
    fused: Model,
    *,
    shapes: Shapes | Sequence[Shapes] | None = None,
    flavour: str | None = None,
    targets: Sequence[str] | None = None,
    verbose: bool = False,
    aot: bool = False,
    min_driver: int | None = None,
    log_file: str | os.PathLike[str] | None = None,
    timing_cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Engine:
    """A TensorRT engine of a fused model (portable or plugin form), with every fused node a plugin layer.

    ``shapes`` gives the smallest, usual and largest shape of each dynamic input (``((1, 8), (4, 8), (8, 8))``, or as on the
    command line ``"1x8,4x8,8x8"``), or one shape for all three; a list of such mappings makes several optimisation
    profiles, each with kernels hardened for its usual shapes. ``flavour`` is tensorrt or tensorrt_rtx
    (None: the one that works here); ``targets`` are architectures such as ``sm_89``. ``aot`` makes an engine that needs no
    Python where it runs (full TensorRT only), for drivers from the branch ``min_driver`` on. ``log_file`` gets every message of
    TensorRT's, also when the build fails; ``timing_cache`` is a file that keeps its measurements for the next build (full
    TensorRT only); ``progress`` is told of every phase (``graphfuse.engine.progress``). The result has ``bytes``,
    ``save(path)`` and ``plugin_layers``. Raises GraphfuseError when something does not fit or TensorRT refuses.
    """
    from graphfuse.engine import build_engine as build

    model = plugin_form(fused)
    options: dict[str, Any] = {
        "shapes": [_ranges(s) for s in ([shapes] if isinstance(shapes, Mapping) else shapes or ())], "flavour": flavour, "targets": list(targets) if targets else None, "verbose": verbose,
        "aot": aot, "min_driver": min_driver, "log_file": log_file, "timing_cache": timing_cache, "progress": progress,
    }  # fmt: skip
    if _weight_bytes(model) <= EMBEDDED_LIMIT:
        return build(to_proto(model), **options)
    with tempfile.TemporaryDirectory(prefix="graphfuse-") as folder:  # too much for one protobuf
        path = Path(folder) / "model.onnx"
        save_model(model, path)
        return build(path, **options)


def _ranges(shapes: Shapes) -> dict[str, Any]:
    from graphfuse.engine import parse_shapes

    ranges: dict[str, Any] = {}
    for name, given in shapes.items():
        if isinstance(given, str):
            ranges.update(parse_shapes(f"{name}:{given}"))
        else:
            plain: list[Any] = list(given)
            ranges[name] = (tuple(plain),) * 3 if all(isinstance(d, int) for d in plain) else tuple(plain)
    return ranges


def _weight_bytes(model: onnx_ir.Model) -> int:
    tensors = (v.const_value for v in model.graph.initializers.values())
    return sum(t.nbytes for t in tensors if t is not None and t.dtype != onnx_ir.DataType.STRING)


def to_proto(model: onnx_ir.Model) -> onnx.ModelProto:
    """The model as a ``ModelProto`` with its weights inside. Raises GraphfuseError when they are over protobuf's 2 GB."""
    if _weight_bytes(model) > EMBEDDED_LIMIT:
        raise GraphfuseError("the model's weights are over 2 GB, too much for a ModelProto; use .save(path) or the command line")
    model = model.clone()
    onnx_ir.external_data.load_to_model(model)
    proto = onnx_ir.to_proto(model)
    assert isinstance(proto, onnx.ModelProto)
    return proto


__all__ = [
    "GraphfuseError", "Model", "Plan", "Result", "Session", "build_engine", "check", "doctor", "explain", "export_plugin", "load_plan",
    "restore", "rewrite", "scan",
]  # fmt: skip
