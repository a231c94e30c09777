"""What a fused layer keeps in an engine: its spec, and its kernels compiled.

Two fields of bytes. ``spec`` is the program's canonical JSON, as in the model. ``kernels`` is a line of JSON (ASCII) that
describes the region's inputs and outputs and the kernels, then their cubins one after another. The line begins with a marker made from the spec, so that a
builder can look for it in the finished plan. Everything is checked on the way in. What cannot be checked is what a cubin
does: an engine, like a program, must come from someone you trust.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from graphfuse.codegen.source import Variant
from graphfuse.ir import dtypes, expr
from graphfuse.ir.dtypes import DType
from graphfuse.ir.errors import ProgramError
from graphfuse.ir.expr import Dim, Shape
from graphfuse_plugin.region import Interface, Region

FORMAT = 4
SPEC, KERNELS = "spec", "kernels"
MAX_HEADER = 4 << 20
MAX_CUBIN = 64 << 20
_ENTRY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_ARCH = re.compile(r"sm_[0-9]{2,3}[af]?")
_SIDES = ("params", "outputs")  # of an interface
_ELF = b"\x7fELF"


@dataclass(frozen=True)
class Kernel:
    """One kernel of a region, compiled. ``fixed`` are the symbols it was hardened for: it serves only those values.

    ``symbols`` are the sizes that it takes as arguments, in order; ``cubins`` maps an architecture to machine code.
    """

    fixed: Mapping[str, int]
    symbols: tuple[str, ...]
    variants: tuple[Variant, ...]
    cubins: Mapping[str, bytes]

    def on(self, arch: str) -> Kernel:
        """With the entries that code for this architecture has."""
        return replace(self, variants=tuple(v for v in self.variants if v.on(arch)))

    def serves(self, env: Mapping[str, int]) -> bool:
        """Whether it computes the region for these sizes."""
        return all(env[name] == size for name, size in self.fixed.items())


def marker(spec: str) -> bytes:
    """Bytes that stand in every plan that holds the kernels of ``spec``."""
    return b"graphfuse-region:" + hashlib.sha256(spec.encode()).hexdigest().encode()


def pack(region: Region, kernels: tuple[Kernel, ...]) -> bytes:
    """The ``kernels`` field."""
    blob = bytearray()
    rows = []
    for kernel in kernels:
        cubins = {}
        for arch in sorted(kernel.cubins):
            image = kernel.cubins[arch]
            cubins[arch] = [len(blob), len(image), hashlib.sha256(image).hexdigest()]
            blob += image
        rows.append({
            "fixed": dict(sorted(kernel.fixed.items())),
            "symbols": list(kernel.symbols),
            "variants": [_variant_row(v) for v in kernel.variants],
            "cubins": cubins,
        })  # fmt: skip
    interface = {side: [[t.name, [expr.render(d) for d in shape]] for t, shape in getattr(region.interface, side)] for side in _SIDES}
    header = {"format": FORMAT, **interface, "kernels": rows}
    return marker(region.spec) + b" " + json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode() + b"\n" + bytes(blob)


def _variant_row(variant: Variant) -> list[Any]:
    limits = [[expr.render(d) for d in variant.below_2_31], [[expr.render(d), least] for d, least in variant.at_least]]
    return [variant.entry, expr.render(variant.grid), variant.block, list(variant.align), *limits, variant.cluster, variant.before]


def unpack(spec: str, data: bytes) -> tuple[Region, tuple[Kernel, ...]]:
    """What ``pack`` wrote, with the region. Raises ProgramError with one line that says what is wrong."""
    line, newline, blob = data.partition(b"\n")
    if not newline or len(line) > MAX_HEADER or not line.startswith(marker(spec) + b" "):
        raise ProgramError("the kernels in this engine do not belong to the region's spec; build the engine again")
    try:
        header = json.loads(line[len(marker(spec)) :])
        if header["format"] != FORMAT:
            raise ProgramError(
                f"the engine holds kernels in format {header['format']!r:.40}, this graphfuse reads {FORMAT}; build the engine again"
            )
        interface = Interface(*(tuple(_tensor(row) for row in header[side]) for side in _SIDES))
        return Region.known(spec, interface), tuple(_kernel(row, interface, blob) for row in header["kernels"])
    except ProgramError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ProgramError(f"damaged kernels in this engine: {type(error).__name__}: {str(error)[:100]}; build it again") from error


def _want(condition: bool, what: str) -> None:
    if not condition:
        raise ProgramError(f"damaged kernels in this engine: {what}; build it again")


def _tensor(row: list[Any]) -> tuple[DType, Shape]:
    dtype, shape = row
    return dtypes.BY_NAME[dtype], tuple(_parse(d) for d in shape)


@lru_cache(maxsize=4096)
def _parse(text: str | int) -> Dim:
    """Sizes and grids of an engine repeat themselves."""
    return expr.parse(text)


def _kernel(row: Mapping[str, Any], interface: Interface, blob: bytes) -> Kernel:
    symbols = tuple(row["symbols"])
    fixed = dict(row["fixed"])
    known = set(interface.symbols)
    _want(all(type(s) is str for s in symbols) and len(set(symbols)) == len(symbols) and known >= {*symbols, *fixed}, "unknown sizes")
    _want(all(type(v) is int and v >= 0 for v in fixed.values()), "sizes that are no numbers")
    variants = tuple(_variant(v, interface.pointers, symbols) for v in row["variants"])
    _want(bool(variants), "a kernel without entry points")
    return Kernel(fixed, symbols, variants, {arch: _cubin(arch, place, blob) for arch, place in row["cubins"].items()})


def _variant(row: list[Any], pointers: int, symbols: tuple[str, ...]) -> Variant:
    entry, grid, block, align, bounded, wanted, cluster, before = row
    _want(type(entry) is str and _ENTRY.fullmatch(entry) is not None, "a bad entry name")
    _want(type(block) is int and 1 <= block <= 1024, "a bad block size")
    _want(cluster in (1, 2, 4, 8) and type(cluster) is int and type(before) is int and before >= 0, "a bad cluster")
    _want(len(align) == pointers and all(type(a) is int and a in (1, 2, 4, 8, 16, 32) for a in align), "bad alignments")
    blocks, *limits = [_parse(d) for d in (grid, *bounded)]
    least = [(_parse(d), n) for d, n in wanted]
    _want(all(type(n) is int for _, n in least), "a bad size limit")
    _want(all(expr.symbols(d) <= set(symbols) for d in (blocks, *limits, *(d for d, _ in least))), "a grid of unknown sizes")
    return Variant(entry, blocks, block, tuple(align), tuple(limits), tuple(least), cluster, before)


def _cubin(arch: Any, place: list[Any], blob: bytes) -> bytes:
    start, size, digest = place
    _want(type(arch) is str and _ARCH.fullmatch(arch) is not None, "a bad architecture name")
    _want(
        type(start) is int and type(size) is int and 0 <= start and 0 < size <= MAX_CUBIN and start + size <= len(blob), "a cubin cut short"
    )
    image = blob[start : start + size]
    _want(image.startswith(_ELF) and hashlib.sha256(image).hexdigest() == digest, "a cubin with a wrong checksum")
    return image


# --- to and from TensorRT's field collections -------------------------------------------------------------------------


class FieldStore:
    """A PluginFieldCollection with everything it points to.

    The collection holds no reference to its fields, nor a field to more than its buffer; TensorRT reads both after the
    callback has returned. So the plugin keeps this object.
    """

    def __init__(self, trt: Any, parts: Mapping[str, bytes]) -> None:
        import numpy as np

        self.buffers = [np.frombuffer(data, dtype=np.int8) for data in parts.values()]
        self.fields = [trt.PluginField(name, buffer, trt.PluginFieldType.CHAR) for name, buffer in zip(parts, self.buffers, strict=True)]
        self.collection = trt.PluginFieldCollection(self.fields)


def read(collection: Any) -> dict[str, bytes]:
    """Copies of the fields' bytes by name. A model's strings end in a NUL that TensorRT adds; a plan's fields do not."""
    import numpy as np

    return {field.name: np.asarray(field.data).tobytes() for field in collection}


def text(parts: Mapping[str, bytes], name: str) -> str:
    """A field as text. Raises ProgramError if it is missing or not ASCII."""
    if name not in parts:
        raise ProgramError(f"a FusedRegion node lacks the attribute {name!r}; make the plugin form with `graphfuse export-plugin`")
    try:
        return parts[name].rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError as error:
        raise ProgramError(f"attribute {name!r} of a FusedRegion node is not ASCII text") from error
