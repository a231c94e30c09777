"""Judges outputs: how far a correct result may be off is measured on the graph itself, for each element.

The reference (``reference.py``) is run again and again with noise at every inexact value: 8 units roundoff of the type that it is
computed in (for a small float that may or may not be rounded, 2 of its own). What moves in an output is what a correct
computation may get wrong, no more: where nothing is inexact, nothing moves and the comparison is exact; where values cancel, or a
function is steep, the output moves as much as right answers differ. An element may be off by ``MARGIN`` times the largest
movement seen, and by one unit in the last place in a small float, whose rounding may fall the other way.

An element is *not judged* when noise changes its kind: an integer or bool that becomes another one, a number that becomes NaN
or infinite, a float that jumps by more than ``JUMP`` of the largest number in the array. Those are counted; a run in which they
are many proves little, and ``Tally`` says so. Before an element counts as wrong, hundreds of noisy runs are made.

ONNX Runtime's own result for the unchanged model is right by definition: an element that equals it is not wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx

from graphfuse.ir.dtypes import BY_NAME
from tests.fuzz.kernels import session
from tests.fuzz.maker import dtype_name
from tests.fuzz.reference import SMALL, Reference, Site

MARGIN = 8.0
JUMP = {"f64": 1e-6, "f32": 1e-2, "f16": 0.3, "bf16": 0.5}
FIRST_RUNS, MORE_RUNS = 4, 300
_UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_LARGEST = {"f64": 1.7e308, "f32": 3.4e38, "f16": 65504.0, "bf16": 3.3e38}
_SMALLEST_NORMAL = {"f64": 2.0**-1022, "f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126}
Arrays = Mapping[str, np.ndarray]


@dataclass
class Tally:
    """How many elements were judged, and how many could not be."""

    judged: int = 0
    unjudged: int = 0


@dataclass
class _Spread:
    """What noise did to one output: the largest movement, and where its kind changed."""

    moved: np.ndarray
    unstable: np.ndarray


@dataclass
class Expectation:
    """What is right for one run of a model."""

    reference: Reference
    feeds: Arrays
    types: Mapping[str, str]
    wanted: dict[str, np.ndarray]
    at_sites: dict[str, np.ndarray]
    own: Arrays | None
    seed: int = 0
    runs: int = 0
    spread: dict[str, _Spread] = field(default_factory=dict)

    def overflows(self) -> bool:
        """Whether a small float leaves its range on the way: kept in float32 it may or may not become infinite.

        Or a float64 the range of float32, where the reference has no other kernel; or some product inside a ReduceProd, which
        another order of multiplying may meet.
        """
        at = self.at_sites
        for p in self.reference.products:
            if (at[p.largest] > _LARGEST[p.dtype]).any() or (at[p.smallest] < _SMALLEST_NORMAL[p.dtype]).any():
                return True
        small = [s for s in self.reference.sites if s.dtype in SMALL and self.reference.keeps_small]
        narrow = [s for s in self.reference.sites if s.narrow]
        beyond = any(_beyond(self.at_sites[s.value], _LARGEST[s.dtype]) for s in small)
        return beyond or not all(np.isfinite(self.at_sites[s.value]).all() for s in narrow)

    def judge(self, got: Arrays, tally: Tally) -> str:
        """What is wrong with the outputs, "" if nothing is."""
        if list(got) != list(self.wanted):
            return f"outputs {list(got)} instead of {list(self.wanted)}"
        self._shake(FIRST_RUNS)
        found = self._first_wrong(got, tally)
        if found:
            self._shake(MORE_RUNS)
            found = self._first_wrong(got, Tally())
        return found

    def _first_wrong(self, got: Arrays, tally: Tally) -> str:
        return next((f"{n}: {t}" for n in self.wanted for t in [self._wrong(n, np.asarray(got[n]), tally)] if t), "")

    def _wrong(self, name: str, got: np.ndarray, tally: Tally) -> str:
        want, dtype = self.wanted[name], self.types[name]
        if got.dtype != BY_NAME[dtype].numpy or got.shape != want.shape:
            return f"{got.dtype}{list(got.shape)} instead of {dtype}{list(want.shape)}"
        spread = self.spread[name]
        bad = ~spread.unstable & (self._off(want, got, dtype, spread.moved) if BY_NAME[dtype].is_float else got != want)
        if self.own is not None and bad.any():
            bad &= ~_same(self.own[name], got)
        tally.judged += int(np.count_nonzero(~spread.unstable))
        tally.unjudged += int(np.count_nonzero(spread.unstable))
        if not bad.any():
            return ""
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
        allowed = f" ({MARGIN * spread.moved[at]:.3g} allowed)" if BY_NAME[dtype].is_float else ""
        return f"{np.count_nonzero(bad)} of {bad.size} wrong, first at {list(at)}: {got[at]} instead of {want[at]}{allowed}"

    def _off(self, want: np.ndarray, got: np.ndarray, dtype: str, moved: np.ndarray) -> np.ndarray:
        g = got.astype(np.float64)
        allowed = MARGIN * moved
        if dtype in SMALL and self.reference.sites:
            allowed = allowed + 2 * _UNIT[dtype] * np.maximum(np.abs(want), _SMALLEST_NORMAL[dtype])
        with np.errstate(invalid="ignore"):
            return ~((g == want) | (np.isnan(g) & np.isnan(want)) | (np.isfinite(g) & np.isfinite(want) & (np.abs(g - want) <= allowed)))

    def _shake(self, runs: int) -> None:
        """Noisy runs, up to this many in all."""
        if not self.spread:
            self.spread = {n: _Spread(np.zeros(w.shape), np.zeros(w.shape, bool)) for n, w in self.wanted.items()}
        if not self.reference.sites:
            return
        for run in range(self.runs, runs):
            rng = np.random.default_rng((self.seed, run))
            noise = {s.noise: _noise(rng, s, self.at_sites) for s in self.reference.sites}
            for (name, want), moved in zip(self.wanted.items(), self.reference.noisy(self.feeds, noise), strict=True):
                _note(self.spread[name], want, moved, self.types[name])
        self.runs = max(self.runs, runs)


def _beyond(values: np.ndarray, largest: float) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size and np.abs(finite).max() > largest)


def _noise(rng: np.random.Generator, site: Site, values: Arrays) -> np.ndarray:
    """Noise of the size of an error at a site; none where the value is not finite, or a 0 that is not what cancellation left."""
    value = values[site.value]
    unit = 2 * _UNIT[site.dtype] if site.rounds else 8 * _UNIT["f32" if site.dtype in SMALL else site.dtype]
    with np.errstate(invalid="ignore"):
        size = np.maximum(np.abs(value), max(site.floor, _SMALLEST_NORMAL[site.dtype]))
        if site.operand:
            size = np.maximum(size, np.abs(values[site.operand]))
        noise = unit * size * rng.uniform(-1, 1, value.shape)
    return np.where(np.isfinite(noise) & np.isfinite(value) & ((value != 0) | (site.floor > 0)), noise, -0.0)


def _note(spread: _Spread, want: np.ndarray, moved: np.ndarray, dtype: str) -> None:
    if not BY_NAME[dtype].is_float:
        spread.unstable |= moved != want
        return
    finite = np.isfinite(want) & np.isfinite(moved)
    with np.errstate(invalid="ignore"):
        same = (want == moved) | (np.isnan(want) & np.isnan(moved))
        distance = np.where(finite, np.abs(moved - want), 0.0)
    top = np.max(np.abs(want), where=finite, initial=0.0)
    spread.unstable |= (~finite & ~same) | (distance > JUMP[dtype] * top)
    spread.moved = np.maximum(spread.moved, distance)


def _same(own: np.ndarray, got: np.ndarray) -> np.ndarray:
    """Whether elements are those of ONNX Runtime."""
    return np.asarray((own == got) | (own != own) & (got != got))


class Oracle:
    """Knows what a model's outputs are. Raises Unsupported where ONNX Runtime cannot compute it in any type."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self.types = {o.name: dtype_name(o.type.tensor_type.elem_type) for o in model.graph.output}
        self.has_small = _has_small(model)
        self._exact = Reference(model, exact=True)
        self._kept = Reference(model, exact=False) if self.has_small else self._exact
        self._own = own_session(model)

    @property
    def runs_itself(self) -> bool:
        """Whether ONNX Runtime has a kernel for every node of the model as it is."""
        return self._own is not None

    def own(self, feeds: Arrays) -> Arrays | None:
        """ONNX Runtime's outputs of the model itself; None where it lacks a kernel."""
        try:
            return None if self._own is None else run_by_name(self._own, feeds)
        except Exception as error:
            if is_limit(error):
                return None
            raise

    def expect(self, feeds: Arrays, *, exact: bool, left: frozenset[str] = frozenset()) -> Expectation:
        """What is right for these inputs; ``exact``: with small floats rounded after every node. ``left``: see ``left_alone``."""
        reference = Reference(self._model, exact=exact, left=left) if left else self._exact if exact else self._kept
        wanted, at_sites = reference.exact(feeds)
        return Expectation(reference, feeds, self.types, wanted, at_sites, self.own(feeds))


def is_limit(error: Exception) -> bool:
    """Whether ONNX Runtime lacks a kernel, or believes ONNX's shape inference where that is wrong (Slice before opset 13)."""
    return any(text in str(error) for text in ("NOT_IMPLEMENTED", "find an implementation", "re-use buffer"))


def own_session(model: onnx.ModelProto) -> object | None:
    """A session of a model; None where a kernel is missing or NumPy cannot hold its inputs."""
    if any(v.type.tensor_type.elem_type == BY_NAME["bf16"].onnx for v in (*model.graph.input, *model.graph.output)):
        return None
    try:
        return session(model)
    except Exception as error:  # ONNX Runtime's errors have no common class
        if is_limit(error):
            return None
        raise


def run_by_name(ready: object, feeds: Arrays) -> dict[str, np.ndarray]:
    """The outputs by name."""
    names = [o.name for o in ready.get_outputs()]  # type: ignore[attr-defined]
    return dict(zip(names, ready.run(names, dict(feeds)), strict=True))  # type: ignore[attr-defined]


def _has_small(model: onnx.ModelProto) -> bool:
    codes = {BY_NAME[t].onnx for t in SMALL}
    graph = model.graph
    casts = {a.i for n in graph.node if n.op_type == "Cast" for a in n.attribute}
    return bool(codes & ({v.type.tensor_type.elem_type for v in graph.input} | {t.data_type for t in graph.initializer} | casts))
