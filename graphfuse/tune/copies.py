"""Kernels that do nothing but move memory: the roof that others are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphfuse.codegen.source import KernelSource, Variant
from graphfuse.ir import expr

VECTOR = 16  # bytes of an access
WORDS = "xyzw"
UNROLLED = 8  # vectors of one thread beyond which they run in a loop


@dataclass(frozen=True)
class Shape:
    """How a copy is written: vectors of one thread in each array, threads of a block, streaming (evict-first) accesses or not."""

    each: int
    threads: int
    streaming: bool


SHAPES = tuple(Shape(each, threads, streaming) for each in (1, 2, 4) for threads in (256, 512) for streaming in (False, True))


def empty() -> KernelSource:
    """A kernel of one block that does nothing, to measure a launch."""
    return KernelSource('extern "C" __global__ void graphfuse_empty() {}\n', (Variant("graphfuse_empty", 1, 32, ()),), 0, 0, ())


def mix(reads: int, writes: int, shape: Shape) -> KernelSource:
    """Reads ``reads`` arrays and writes ``writes`` arrays, each of ``n`` vectors: a multiple of ``each * threads``, or the rest is left."""
    tile = shape.each * shape.threads
    places = [f"first + {e * shape.threads}" for e in range(shape.each)]
    lines = [f"const long long first = (long long)blockIdx.x * {tile} + threadIdx.x;"]
    for e, place in enumerate(places):
        lines += [f"const uint4 a{e}_{k} = {_load(f'p{k} + {place}', shape.streaming)};" for k in range(reads)]
    for e, place in enumerate(places):
        lines.append(f"const uint4 v{e} = {_folded([f'a{e}_{k}' for k in range(reads)])};")
        lines += [_store(f"q{k} + {place}", f"v{e}", shape.streaming) for k in range(writes)]
    return _source(lines, reads, writes, expr.floordiv(expr.sym("n"), tile), shape.threads, ("n",))


def same_grid(read_bytes: Sequence[int], write_bytes: Sequence[int], blocks: int, threads: int) -> KernelSource:
    """Reads whole arrays and writes whole arrays (of these sizes, rounded up to vectors) with a given grid."""
    reads, writes = [-(-n // VECTOR) for n in read_bytes], [-(-n // VECTOR) for n in write_bytes]
    lines = [f"const long long t = (long long)blockIdx.x * {threads} + threadIdx.x;", "uint4 v = make_uint4(1, 2, 3, 4);"]
    for k, count in enumerate(reads):
        lines.append(_walk(count, blocks * threads, f"const uint4 a = p{k}[u]; {' '.join(f'v.{w} ^= a.{w};' for w in WORDS)}"))
    for k, count in enumerate(writes):
        lines.append(_walk(count, blocks * threads, f"q{k}[u] = v;"))
    return _source(lines, len(reads), len(writes), blocks, threads, ())


def _walk(count: int, total: int, body: str) -> str:
    steps = -(-count // total)
    unroll = "#pragma unroll\n" if steps <= UNROLLED else "#pragma unroll 4\n"
    return f"{unroll}for (int k = 0; k < {steps}; ++k) {{ const long long u = t + k * {total}LL; if (u < {count}) {{ {body} }} }}"


def _load(address: str, streaming: bool) -> str:
    return f"__ldcs({address})" if streaming else f"*({address})"


def _store(address: str, value: str, streaming: bool) -> str:
    return f"__stcs({address}, {value});" if streaming else f"*({address}) = {value};"


def _folded(names: Sequence[str]) -> str:
    return f"make_uint4({', '.join(' ^ '.join(f'{name}.{word}' for name in names) for word in WORDS)})"


def _source(lines: Sequence[str], reads: int, writes: int, grid: expr.Dim, threads: int, symbols: tuple[str, ...]) -> KernelSource:
    arguments = [f"const uint4* __restrict__ p{k}" for k in range(reads)] + [f"uint4* __restrict__ q{k}" for k in range(writes)]
    arguments += [f"const long long {name}" for name in symbols]
    head = f'extern "C" __global__ void __launch_bounds__({threads}) graphfuse_copy({", ".join(arguments)}) {{'
    text = "\n".join([head, *lines, "}", ""])
    variant = Variant("graphfuse_copy", grid, threads, (VECTOR,) * (reads + writes))
    return KernelSource(text, (variant,), reads, writes, symbols)
