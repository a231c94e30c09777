"""TensorRT's timing cache in a file: what it measured for one build it need not measure for the next.

It is of use for layers other than ours, whose one tactic is never timed. TensorRT checks what it reads, and takes nothing
that was measured on another GPU or by another release.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graphfuse.engine.flavour import Capture, Flavour
from graphfuse.ir.errors import GraphfuseError
from graphfuse.ir.files import read_bytes, write_bytes

MAX_BYTES = 1 << 30


def check_flavour(flavour: Flavour) -> None:
    """Raises GraphfuseError where there is no such thing."""
    if not flavour.times_tactics:
        raise GraphfuseError(f"{flavour.title} has no timing cache, it chooses where the engine runs; leave the timing cache out")


def attach(flavour: Flavour, config: Any, path: Path, log: Capture) -> Any:
    """Give the builder what the file holds; a file that TensorRT does not take is begun anew. The result must outlive the build."""
    stored = _read(path)
    for data in dict.fromkeys([stored, b""]):
        timings = config.create_timing_cache(data)
        if timings is not None and config.set_timing_cache(timings, False):
            return timings
        log.lines.append(("WARNING", f"{path} holds no timings for this GPU and this {flavour.title}; it is begun anew"))
    raise GraphfuseError(f"{flavour.title} did not accept a timing cache; leave it out")


def save(timings: Any, path: Path) -> None:
    """Write the timings, old and new. Of two builds at once the later one's stay. Raises GraphfuseError."""
    data = timings.serialize()
    if data is not None:
        write_bytes(path, bytes(data))


def _read(path: Path) -> bytes:
    if not path.exists():
        return b""
    if not path.is_file():
        raise GraphfuseError(f"{path}: cannot be read: it is no file; name another one for the timing cache")
    if path.stat().st_size > MAX_BYTES:
        raise GraphfuseError(f"{path}: is no timing cache, it is too large; name another file")
    return read_bytes(path)
