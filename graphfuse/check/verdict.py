"""What a check found: a verdict for each output and each region."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class OutputVerdict:
    """One output compared. Figures are 0 where nothing could be compared.

    ``max_abs`` is the largest difference, ``max_rel`` the largest over the size of the value (or of those around it, where it is near zero),
    ``used`` the largest difference as a fraction of what is allowed there (over 1 fails). ``nans`` and ``infs`` count
    those of the original, ``wrong`` the elements that are not right. ``reason`` is empty for a passed one.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    passed: bool
    reason: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    rtol: float = 0.0
    atol: float = 0.0
    used: float = 0.0
    nans: int = 0
    infs: int = 0
    wrong: int = 0

    @property
    def verdict(self) -> str:
        """``pass`` or ``FAIL``."""
        return "pass" if self.passed else "FAIL"


@dataclass(frozen=True)
class RegionVerdict:
    """One fused region, fed with the original's values. ``compared`` is False where there was nothing to compare with."""

    name: str
    passed: bool
    compared: bool
    outputs: tuple[OutputVerdict, ...] = ()
    reason: str = ""

    @property
    def verdict(self) -> str:
        """``pass``, ``FAIL`` or ``not compared``."""
        return "not compared" if not self.compared else "pass" if self.passed else "FAIL"


@dataclass(frozen=True)
class CheckResult:
    """The whole finding. ``device`` is where the fused nodes ran; ``notes`` are one line each, for people."""

    passed: bool
    outputs: tuple[OutputVerdict, ...]
    regions: tuple[RegionVerdict, ...]
    device: str
    notes: tuple[str, ...] = ()
    seed: int = 0
    inputs: dict[str, str] = field(default_factory=dict)  # name to "dtype[shape]"

    @property
    def guilty(self) -> tuple[str, ...]:
        """Names of the regions that failed."""
        return tuple(r.name for r in self.regions if not r.passed)

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON can hold it; infinite figures become text."""
        found = asdict(self)
        found["guilty"] = list(self.guilty)
        for row, verdict in zip(found["outputs"], self.outputs, strict=True):
            row["verdict"] = verdict.verdict
        for row, region in zip(found["regions"], self.regions, strict=True):
            row["verdict"] = region.verdict
        plain = _plain(found)
        assert isinstance(plain, dict)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
