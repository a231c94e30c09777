"""What an autotuner may decide about a kernel; everything left open is decided by rule."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from graphfuse.ir.errors import GraphfuseError

WARP = 32
_LEGAL: dict[str, tuple[int, ...]] = {
    "lanes": (1, 2, 4, 8, 16),
    "items": (1, 2, 4, 8),
    "threads": (64, 128, 256, 512, 1024),
    "cluster": (1, 2, 4, 8),
    "team": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
}


@dataclass(frozen=True)
class Config:
    """Wishes for the shape of a kernel. A segment that cannot follow one decides by rule; results never depend on any.

    ``lanes`` elements in a vector, ``items`` vectors of a thread (pointwise), ``threads`` of a block, ``team`` threads
    of a row: up to a warp several rows share a block, beyond it the row has a block of that many threads to itself, or a
    ``cluster`` of so many blocks where the GPU has clusters.
    """

    lanes: int | None = None
    items: int | None = None
    threads: int | None = None
    team: int | None = None
    cluster: int | None = None

    def __post_init__(self) -> None:
        for name, legal in _LEGAL.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value not in legal):
                raise GraphfuseError(f"kernel configuration: {name} cannot be {value!r:.80}; choose one of {', '.join(map(str, legal))}")

    def to_json(self) -> dict[str, int]:
        """The wishes that are made, by name."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    @classmethod
    def from_json(cls, document: Any) -> Config:
        """Undoes ``to_json``. Raises GraphfuseError for anything else."""
        if not isinstance(document, dict) or not document.keys() <= _LEGAL.keys():
            raise GraphfuseError(f"kernel configuration: {document!r:.80} is not one; write it like {{'lanes': 4, 'threads': 256}}")
        return cls(**document)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.to_json().items()) or "by rule"


BY_RULE = Config()
