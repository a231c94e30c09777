"""What of ours stands in the bytes of an engine: its regions and their kernels, read without TensorRT.

A plan's own format is TensorRT's secret, but the fields of a plugin stand in it as they are. Each region's kernels begin with
a marker, which holds a hash of its spec, and a spec is JSON; so both can be found, and belong together beyond doubt.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from graphfuse.engine.ahead import Warmed
from graphfuse.ir.errors import GraphfuseError, ProgramError

if TYPE_CHECKING:
    from graphfuse_plugin.fields import Kernel
    from graphfuse_plugin.region import Region

MARK = b"graphfuse-region:"
_KERNELS = re.compile(MARK + rb"([0-9a-f]{64}) (?=\{)")
_SPEC = re.compile(rb'\{"body":')  # a canonical spec's first key
_MAX_SPEC = 16 << 20
_MAX_HEADER = 4 << 20
_MAX_WASTED = 32 << 20  # characters read of what turns out to be no spec


def is_engine(content: bytes) -> bool:
    """Whether a file that begins so is an engine of one of the flavours, whatever is in it."""
    return content[:4] in (b"ftrt", b"vtrt")


def holds_kernels(plan: bytes) -> bool:
    """Whether these bytes are an engine with kernels of ours."""
    return next(_headers(plan), None) is not None


def regions_in(plan: bytes) -> list[tuple[Region, tuple[Kernel, ...]]]:
    """Each region with its kernels, one entry for each set of kernels. Raises ProgramError where they are damaged."""
    from graphfuse_plugin import fields

    headers = list(_headers(plan))
    specs = dict(_specs(plan, {digest for digest, *_ in headers}))
    found = {}
    for digest, start, begin, end in headers:
        key = digest, plan[begin:end]
        if key not in found:
            if digest not in specs:
                raise ProgramError("the engine holds kernels without the spec of their region; build it again")
            found[key] = fields.unpack(specs[digest], plan[start : end + 1 + _size_of(key[1])])
    return list(found.values())


def _headers(plan: bytes) -> Iterator[tuple[str, int, int, int]]:
    """Of each set of kernels: the hash of its spec, where its marker stands, where its header begins and ends.

    Every byte is looked at a few times at most, whatever a hostile file repeats.
    """
    place, newline = 0, -1
    while match := _KERNELS.search(plan, place):
        if newline < match.end():
            newline = plan.find(b"\n", match.end())
        if newline < 0:
            return
        whole = newline - match.start() <= _MAX_HEADER
        if whole:
            yield match[1].decode(), match.start(), match.end(), newline
        place = newline + 1 if whole else match.end()


def _size_of(header: bytes) -> int:
    """Bytes of the cubins behind a header. What is wrong with a bad one is for ``unpack`` to say."""
    try:
        return max((start + size for row in json.loads(header)["kernels"] for start, size, _ in row["cubins"].values()), default=0)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return 0


def _specs(plan: bytes, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Every spec whose hash is wanted, by it. A spec stands before the kernels that were made of it."""
    decoder = json.JSONDecoder()
    base, end, done, wasted = 0, -1, 0, 0
    text = ""
    for match in _SPEC.finditer(plan) if wanted else ():
        start = match.start()
        if start < done or wasted > _MAX_WASTED:
            continue
        if start >= min(end, base + _MAX_SPEC):
            base, end = start, plan.find(MARK, start, start + 2 * _MAX_SPEC)
            end = end if end >= 0 else min(len(plan), start + 2 * _MAX_SPEC)
            text = plan[base:end].decode("latin-1")
        try:
            done = base + decoder.raw_decode(text, start - base)[1]
        except (ValueError, RecursionError) as error:
            wasted += getattr(error, "pos", start - base + (1 << 20)) - (start - base)
            continue
        digest = hashlib.sha256(plan[start:done]).hexdigest()
        if digest in wanted:
            yield digest, plan[start:done].decode("latin-1")


def warm_engine(plan: bytes, targets: Sequence[str] = ()) -> Warmed:
    """Put into the cache what loading this engine on these GPUs will ask for: the kernels that it holds for others only.

    Raises GraphfuseError for an engine without kernels of ours, for an unknown target, and without NVRTC.
    """
    from graphfuse.jit.nvrtc import check_arch
    from graphfuse_plugin.adapt import kept, make
    from graphfuse_plugin.kernels import default_targets, find_cubin

    regions = regions_in(plan)
    if not regions:
        raise GraphfuseError(
            "this engine holds no kernels that could be compiled; name one that was built from a fused model without --aot"
        )
    archs = tuple(check_arch(t, "sm") for t in targets) or default_targets()
    distinct = {(r.spec, tuple(sorted(k.fixed.items()))): (r, k) for r, kernels in regions for k in kernels}
    compiled = 0
    for arch in archs:  # one at a time, as a loading process does: code for one alone takes what was tuned for it
        missing = [(r, k) for r, k in distinct.values() if find_cubin(k, arch) is None and kept(r, k, arch) is None]
        make(missing, arch)
        compiled += len(missing)
    return Warmed(len({r.spec for r, _ in regions}), len(distinct) * len(archs), compiled)
