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
_KERNELS = re.compile(MARK + rb"([0-9a-f]{64}) (\{[^\n]*)\n")
_SPEC = re.compile(rb'\{"body":')  # a canonical spec's first key
_MAX_SPEC = 16 << 20


def is_engine(content: bytes) -> bool:
    """Whether a file that begins so is an engine of one of the flavours, whatever is in it."""
    return content[:4] in (b"ftrt", b"vtrt")


def holds_kernels(plan: bytes) -> bool:
    """Whether these bytes are an engine with kernels of ours."""
    return _KERNELS.search(plan) is not None


def regions_in(plan: bytes) -> list[tuple[Region, tuple[Kernel, ...]]]:
    """Each region with its kernels, one entry for each set of kernels. Raises ProgramError where they are damaged."""
    from graphfuse_plugin import fields

    specs = dict(_specs(plan, {m[1].decode() for m in _KERNELS.finditer(plan)}))
    found = {}
    for match in _KERNELS.finditer(plan):
        key = match[1].decode(), match[2]
        if key not in found:
            if key[0] not in specs:
                raise ProgramError("the engine holds kernels without the spec of their region; build it again")
            found[key] = fields.unpack(specs[key[0]], plan[match.start() : match.end() + _size_of(match[2])])
    return list(found.values())


def _size_of(header: bytes) -> int:
    """Bytes of the cubins behind a header. What is wrong with a bad one is for ``unpack`` to say."""
    try:
        return max((start + size for row in json.loads(header)["kernels"] for start, size, _ in row["cubins"].values()), default=0)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return 0


def _specs(plan: bytes, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Every spec whose hash is wanted, by it. A spec stands before the kernels that were made of it."""
    decoder = json.JSONDecoder()
    for match in _SPEC.finditer(plan):
        end = plan.find(MARK, match.start())
        text = plan[match.start() : min(end if end >= 0 else len(plan), match.start() + _MAX_SPEC)].decode("latin-1")
        try:
            text = text[: decoder.raw_decode(text)[1]]
        except (ValueError, RecursionError):
            continue
        digest = hashlib.sha256(text.encode("latin-1")).hexdigest()
        if digest in wanted:
            yield digest, text


def warm_engine(plan: bytes, targets: Sequence[str] = ()) -> Warmed:
    """Put into the cache what loading this engine on these GPUs will ask for: the kernels that it holds for others only.

    Raises GraphfuseError for an engine without kernels of ours, for an unknown target, and without NVRTC.
    """
    from graphfuse_plugin.adapt import kept, make
    from graphfuse_plugin.kernels import default_targets, find_cubin

    regions = regions_in(plan)
    if not regions:
        raise GraphfuseError(
            "this engine holds no kernels that could be compiled; name one that was built from a fused model without --aot"
        )
    archs = tuple(targets or default_targets())
    distinct = {(r.spec, tuple(sorted(k.fixed.items()))): (r, k) for r, kernels in regions for k in kernels}
    compiled = 0
    for arch in archs:  # one at a time, as a loading process does: code for one alone takes what was tuned for it
        missing = [(r, k) for r, k in distinct.values() if find_cubin(k, arch) is None and kept(r, k, arch) is None]
        make(missing, arch)
        compiled += len(missing)
    return Warmed(len({r.spec for r, _ in regions}), len(distinct) * len(archs), compiled)
