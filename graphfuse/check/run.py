"""``check``: runs the original and the fused model on the same inputs and says whether the fused one is right."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir

from graphfuse.check.compare import compare_outputs
from graphfuse.check.inputs import check_inputs, load_inputs, make_inputs
from graphfuse.check.regions import region_verdicts, upstream_float_types
from graphfuse.check.tolerance import Limits, Tolerance, choose
from graphfuse.check.verdict import CheckResult, OutputVerdict, RegionVerdict
from graphfuse.graph.load import load_model
from graphfuse.ir.errors import GraphfuseError
from graphfuse.session import Session
from graphfuse.session.devices import open_device
from graphfuse.session.fused import is_fused, read_fused
from graphfuse.session.interface import Port, port
from graphfuse.session.session import Model
from graphfuse.session.values import is_native, numpy_type

Arrays = dict[str, Any]
STRING = int(onnx.TensorProto.STRING)
DEVICES = ("host", "cuda", "numpy", "auto", "engine")
Inputs = Mapping[str, Any] | str | os.PathLike[str] | None


def check(
    original: Model,
    fused: Model,
    *,
    device: str = "host",
    inputs: Inputs = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    alt: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> CheckResult:
    """Compares the fused model with the original, which runs in ONNX Runtime with its optimisation off.

    ``device`` is where fused nodes run: host (the kernels' source on the CPU; NumPy where there is no compiler, which the
    notes say), cuda, numpy, auto, or engine (a TensorRT engine, on a GPU). ``inputs`` are arrays by name, an ``.npz`` path,
    or None to make them up from ``seed``, ``sizes`` (dynamic dimensions by name) and ``alt`` (the other set of sizes).
    ``rtol`` and ``atol`` go before the tolerances that follow from the dtypes (``check/tolerance.py``).

    Raises GraphfuseError when a model cannot be read or run, or when the two do not take the same inputs.
    """
    if device not in DEVICES:
        raise GraphfuseError(f"there is no device {device!r} to check on; choose one of {', '.join(DEVICES)}")
    _check_limits(rtol, atol)
    pair = _Pair(load_model(original), load_model(fused))
    pair.check_interface()
    feeds = _feeds(pair.original, inputs, seed, alt, sizes)
    limits = Limits(rtol, atol)
    place, notes = _place(device)
    session = Session(pair.fused, "auto" if place == "engine" else place)
    want, got, more = _run(original, pair, session, place, feeds)
    outputs = _compare(pair, want, got, limits)
    checked = region_verdicts(*session.fused_regions(), pair.original, session.constants, feeds, limits)
    return CheckResult(
        passed=all(o.passed for o in outputs) and all(r.passed for r in checked),
        outputs=tuple(outputs),
        regions=tuple(checked),
        device="engine" if place == "engine" else session.device,
        notes=(*notes, *more, *_findings(outputs, checked), *_of_bodies(pair.fused, place)),
        seed=seed,
        inputs={n: f"{a.dtype}{list(a.shape)}" for n, a in feeds.items()},
    )


@dataclass(frozen=True)
class _Pair:
    original: onnx_ir.Model
    fused: onnx_ir.Model

    def check_interface(self) -> None:
        """Raises GraphfuseError unless both take the same inputs: else there is nothing that both could be run on."""
        left, right = ({_signature(port(v)) for v in m.graph.inputs} for m in (self.original, self.fused))
        if left != right:
            odd = sorted(left - right)[:1] or sorted(right - left)[:1]
            side = "original" if left - right else "fused model"
            raise GraphfuseError(
                f"the fused model is no rewrite of the original: only the {side} has the input {odd[0]}; give two of one kind"
            )

    def output_ports(self) -> list[Port]:
        return [port(v) for v in self.original.graph.outputs]

    def float_types(self) -> dict[str, set[str]]:
        programs = {n: read_fused(n, self.fused).program for n in self.fused.graph if is_fused(n)}
        return upstream_float_types(self.fused, programs)


def _signature(p: Port) -> str:
    return f"{p.name!r} of {p.type_name}"


def _check_limits(rtol: float | None, atol: float | None) -> None:
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not 0 <= value < float("inf"):
            raise GraphfuseError(f"{name}={value} is no tolerance; give a number of at least 0")


def _feeds(model: onnx_ir.Model, inputs: Inputs, seed: int, alt: bool, sizes: Mapping[str, int] | None) -> dict[str, np.ndarray]:
    if inputs is None:
        return make_inputs(model, sizes=sizes, alt=alt, seed=seed)
    if isinstance(inputs, Mapping):
        return check_inputs(inputs, model)
    return load_inputs(inputs, model)


def _place(device: str) -> tuple[str, list[str]]:
    """Where fused nodes will run, and what there is to say about it."""
    if device == "engine":
        return device, []
    if device != "host":
        return open_device(device).name, []
    try:
        return open_device("host").name, []
    except GraphfuseError as error:
        return "numpy", [f"the kernels themselves were not run ({error}); the NumPy interpreter ran their programs instead"]


def _run(original: Model, pair: _Pair, session: Session, place: str, feeds: Mapping[str, np.ndarray]) -> tuple[Arrays, Arrays, list[str]]:
    """The outputs of both, through Polygraphy where that can be."""
    problem = _why_no_polygraphy(pair, feeds)
    if problem is None:
        from graphfuse.check import runners

        second = _engine_runner(pair.fused, feeds) if place == "engine" else runners.SessionRunner(session, feeds)
        want, got = runners.run_both([runners.ReferenceRunner(original, feeds), second], feeds)
        return want, got, []
    if place == "engine":
        raise GraphfuseError(f"an engine cannot be checked here: {problem}; check on cuda or host")
    return Session(pair.original, "numpy").run(feeds), session.run(feeds), [f"{problem}: graphfuse alone compared"]


def _why_no_polygraphy(pair: _Pair, feeds: Mapping[str, np.ndarray]) -> str | None:
    """Why the comparison has to do without Polygraphy; None if it does not."""
    if importlib.util.find_spec("polygraphy") is None:
        return "Polygraphy is not installed"
    types = [a.dtype for a in feeds.values()]
    types += [numpy_type(p.dtype) for p in pair.output_ports() if p.dtype not in (0, STRING)]
    plain = all(is_native(t) for t in types) and all(p.dtype not in (0, STRING) for p in pair.output_ports())
    return None if plain else "Polygraphy cannot carry the types of these inputs and outputs"


def _engine_runner(model: onnx_ir.Model, feeds: Mapping[str, np.ndarray]) -> Any:
    from graphfuse.engine.runner import EngineRunner

    return EngineRunner(model, feeds)


def _compare(pair: _Pair, want: Arrays, got: Arrays, limits: Limits) -> list[OutputVerdict]:
    """Our verdicts, then Polygraphy's on what ours let pass: it is never the only judge, and never overruled."""
    through = pair.float_types()

    def pick(name: str, dtype: np.dtype) -> Tolerance:
        return choose(dtype, through.get(name, ()), whole=True, limits=limits)

    verdicts = compare_outputs(want, got, pick)
    arrays = [*want.values(), *got.values()]
    if importlib.util.find_spec("polygraphy") is None or not all(isinstance(a, np.ndarray) and is_native(a.dtype) for a in arrays):
        return verdicts
    from graphfuse.check import runners

    said = runners.polygraphy_verdicts(want, got, verdicts)
    doubt = "Polygraphy finds it out of tolerance"
    return [v if said.get(v.name, True) or not v.passed else replace(v, passed=False, reason=doubt) for v in verdicts]


def _of_bodies(fused: onnx_ir.Model, place: str) -> list[str]:
    count = sum(is_fused(n) and n.graph is not fused.graph for n in fused.graph.all_nodes())
    if not count or place == "engine":
        return []
    return [f"{count} regions in bodies of If, Loop or Scan ran as their original nodes in ONNX Runtime; an engine runs their kernels"]


def _findings(outputs: list[OutputVerdict], checked: list[RegionVerdict]) -> list[str]:
    notes = []
    guilty = [r.name for r in checked if not r.passed]
    if guilty:
        notes.append(f"guilty: {', '.join(guilty)}")
    elif checked and not all(o.passed for o in outputs):
        notes.append("each region by itself is within tolerance: small errors add up, or a rounding crosses a boundary after a region")
    skipped = sum(not r.compared for r in checked)
    if skipped:
        notes.append(f"{skipped} of {len(checked)} regions were not compared by themselves; the outputs cover them")
    return notes
