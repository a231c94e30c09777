"""The fused engine against the plain one, and each region against the same engine without it.

Both engines get the same inputs; their outputs are compared before their times are. What a region brings is measured by
leaving it out: a region without which the engine is faster is rejected, with the figures, in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import onnx_ir

from graphfuse.bench.paired import Paired, measure_pairs
from graphfuse.check.compare import compare_outputs
from graphfuse.check.tolerance import choose
from graphfuse.check.verdict import OutputVerdict
from graphfuse.match import export_plugin, rewrite_model
from graphfuse.match.planfile import Plan, PlannedRegion

PAIRS = 30
MEASURED = "measured: "  # stands in a region's reason before its figures


class Runnable(Protocol):
    """An engine that is ready to be measured."""

    def measure(self) -> float:
        """Microseconds of one execution."""

    def outputs(self) -> dict[str, np.ndarray]:
        """What it computes."""

    def layers(self) -> list[str]:
        """Names of its layers."""


Opener = Callable[[onnx_ir.Model, Mapping[str, np.ndarray]], AbstractContextManager[Runnable]]


@dataclass(frozen=True)
class RegionBench:
    """What one region brings: ``paired`` compares the engine without it (first) to the engine with it (second)."""

    name: str
    paired: Paired

    @property
    def accepted(self) -> bool:
        """False where the engine is faster without the region, beyond the noise."""
        return self.paired.verdict != "slower"


@dataclass(frozen=True)
class Bench:
    """The plain engine (first) against the fused one (second), the fused one's outputs, and its regions if they were measured."""

    whole: Paired
    outputs: list[OutputVerdict]
    plain_layers: list[str]
    fused_layers: list[str]
    regions: list[RegionBench] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Right, and not slower."""
        return all(v.passed for v in self.outputs) and self.whole.verdict != "slower"

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "passed": self.passed, "verdict": self.whole.verdict, **asdict(self.whole), "outputs": {v.name: v.passed for v in self.outputs},
            "plain_layers": self.plain_layers, "fused_layers": self.fused_layers,
            "regions": [{"name": r.name, "accepted": r.accepted, **asdict(r.paired)} for r in self.regions],
        }  # fmt: skip


def bench(
    original: onnx_ir.Model,
    fused: onnx_ir.Model,
    feeds: Mapping[str, np.ndarray],
    open_engine: Opener,
    *,
    pairs: int = PAIRS,
    plan: Plan | None = None,
) -> Bench:
    """Measures both models as engines; with ``plan``, the one that ``fused`` was made by, also what each of its regions brings."""
    with open_engine(original, feeds) as plain, open_engine(export_plugin(fused).model, feeds) as quick:
        whole = measure_pairs(plain.measure, quick.measure, pairs)
        verdicts = compare_outputs(plain.outputs(), quick.outputs(), lambda _, dtype: choose(dtype, whole=True))
        found = Bench(whole, verdicts, plain.layers(), quick.layers())
        regions = [] if plan is None else [_region(original, quick, feeds, open_engine, pairs, plan, r) for r in plan.regions if r.enabled]
    return replace(found, regions=regions)


def _region(
    original: onnx_ir.Model,
    whole: Runnable,
    feeds: Mapping[str, np.ndarray],
    open_engine: Opener,
    pairs: int,
    plan: Plan,
    region: PlannedRegion,
) -> RegionBench:
    without = rewrite_model(original, plan=_disabled(plan, [region.name]))
    with open_engine(export_plugin(without.model).model, feeds) as other:
        return RegionBench(region.name, measure_pairs(other.measure, whole.measure, pairs))


def _disabled(plan: Plan, names: Sequence[str]) -> Plan:
    return replace(plan, regions=[replace(r, enabled=r.enabled and r.name not in names) for r in plan.regions])


def decided(plan: Plan, regions: Sequence[RegionBench]) -> Plan:
    """The plan with what was measured: rejected regions are disabled, every measured region carries its figures."""
    known = {r.name: r for r in regions}
    made = []
    for region in plan.regions:
        measured = known.get(region.name)
        if measured is None:
            made.append(region)
            continue
        before = region.reason.partition(MEASURED)[0].rstrip("; ")
        reason = f"{before}; {MEASURED}{'accepted' if measured.accepted else 'rejected'}, {measured.paired}".lstrip("; ")
        made.append(replace(region, enabled=measured.accepted, reason=reason))
    return replace(plan, regions=made)


def engine_opener(flavour: str | None = None) -> Opener:
    """Opens models as engines on this machine's GPU. Raises GraphfuseError where none can run."""
    from graphfuse.engine.build import build_engine
    from graphfuse.engine.run import runnable_flavour
    from graphfuse.engine.timed import TimedEngine

    name = runnable_flavour(flavour).name

    def open_engine(model: onnx_ir.Model, feeds: Mapping[str, np.ndarray]) -> AbstractContextManager[Runnable]:
        shapes = {key: (array.shape,) * 3 for key, array in feeds.items()}
        own = model.clone()
        onnx_ir.external_data.load_to_model(own)
        return TimedEngine(build_engine(onnx_ir.to_proto(own), flavour=name, shapes=shapes).bytes, feeds, flavour=name)

    return open_engine
