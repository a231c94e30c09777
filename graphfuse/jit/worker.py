"""The child process that compiles a share of the kernels: jobs come in on stdin, compiled code goes out on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import BinaryIO, cast


@dataclass(frozen=True)
class Job:
    """One text to compile for one architecture."""

    text: str
    arch: str


def write_jobs(stream: object, jobs: Iterable[Job]) -> None:
    """Sends all jobs and closes the stream."""
    out = cast(BinaryIO, stream)
    out.write(json.dumps([asdict(j) for j in jobs]).encode())
    out.close()


def read_frames(stream: object) -> Iterator[bytes]:
    """The compiled objects that a child sends, each after its length in 8 bytes; ends early if the child does."""
    source = cast(BinaryIO, stream)
    while len(size := source.read(8)) == 8:
        length = int.from_bytes(size, "little")
        data = source.read(length)
        if len(data) < length:
            return
        yield data


def main() -> None:
    """Compiles in order; stops at the first error, which the parent finds again for itself and reports."""
    from graphfuse.ir.errors import GraphfuseError
    from graphfuse.jit.nvrtc import compile_image

    for job in json.load(sys.stdin.buffer):
        try:
            data = compile_image(job["text"], job["arch"]).to_bytes()
        except GraphfuseError:
            return
        sys.stdout.buffer.write(len(data).to_bytes(8, "little") + data)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
