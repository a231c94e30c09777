"""Tunes the kernels of a fused model: each different one once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphfuse.ir import Program
from graphfuse.jit import CudaDevice, best_arch
from graphfuse.report.show import shown_regions
from graphfuse.session.session import Model
from graphfuse.tune import search
from graphfuse.tune.database import Entry, key, store
from graphfuse.tune.search import Tuned

Progress = Callable[[str], None]


@dataclass(frozen=True)
class TunedRegion:
    """A kernel of a model, under the name of the first region that uses it."""

    name: str
    program: Program
    tuned: Tuned

    def to_json(self) -> dict[str, Any]:
        found = {**asdict(self.tuned), "config": self.tuned.config.to_json(), "wrong": [c.to_json() for c in self.tuned.wrong]}
        return {"name": self.name, "kept": self.tuned.kept, **found}


def tune_model(
    model: Model,
    database: Path,
    *,
    region: str | None = None,
    sizes: Mapping[str, int] | None = None,
    margin: float = search.MARGIN,
    most: int = 96,
    progress: Progress | None = None,
) -> list[TunedRegion]:
    """Tunes every different kernel of a fused model (or those of one region) and stores each decision as it is made.

    Where nothing beats the rule, that is stored too. Raises GraphfuseError without a GPU, or as ``search.tune`` does.
    """
    device = CudaDevice()
    arch = best_arch(*device.capability)
    names: dict[Program, str] = {}
    for shown in shown_regions(model, region):
        names.setdefault(shown.program, shown.name)
    found = []
    for program, name in names.items():
        env = search.open_sizes(program, sizes or {})
        for form, rest in _forms(program, env):
            if progress:
                progress(name)
            tuned = search.tune(form, device, rest, margin=margin, most=most)
            entry: Entry = tuned.entry(form, env, name, device)
            store({key(form, arch, rest): entry}, database)
            found.append(
                TunedRegion(name if form is program else f"{name} at {', '.join(f'{k}={v}' for k, v in env.items())}", form, tuned)
            )
    return found


def _forms(program: Program, env: dict[str, int]) -> list[tuple[Program, dict[str, int]]]:
    """A program as sessions run it, and hardened to its sizes as engines do, each with the sizes that it leaves open."""
    return [(program, env), (program.specialise(env), {})] if env else [(program, {})]
