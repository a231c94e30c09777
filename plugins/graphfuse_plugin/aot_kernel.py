"""A region's kernel as TensorRT's ahead-of-time plugins want it: one entry point in PTX, launched from expressions.

Such a layer has one kernel and no code of ours at run time, so what a launcher decides elsewhere is decided inside the
kernel: it looks at the addresses, and runs the vector variant or the one for single elements. Both are the generated
functions themselves, made callable; a block that stands for several of a variant's blocks runs them one after another.

The order of arguments is TensorRT's: inputs, sizes (32 bits each), outputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from graphfuse.codegen.source import KernelSource, Variant
from graphfuse.ir import expr
from graphfuse.ir.errors import GraphfuseError
from graphfuse.ir.expr import Atom, Call, Dim, Sym
from graphfuse.ir.program import Program
from graphfuse_plugin.kernels import Sizes, generate_hardened

ENTRY = "graphfuse_aot"
# The first driver branch that takes each version of PTX, oldest first.
DRIVERS = {525: "8.0", 535: "8.2", 545: "8.3", 550: "8.4", 560: "8.5", 570: "8.7", 575: "8.8", 580: "9.0"}
MIN_DRIVER = 535  # of the oldest branch that is still maintained
# The version of PTX that first knew an architecture.
_SINCE = {75: "6.3", 80: "7.0", 86: "7.1", 87: "7.4", 89: "7.8", 90: "7.8", 100: "8.6", 120: "8.7", 103: "8.8", 121: "8.8", 110: "9.0"}
_HEAD = re.compile(r'^extern "C" __global__ void (__launch_bounds__\([^()]*\)) (\w+)\(([^()]*)\) \{', re.MULTILINE)
# A hint about loads whose bytes are not all wanted; older drivers do not know it and do well without it.
_HINT = re.compile(r'^\s*\.pragma "used_bytes_mask [^"]*";\n', re.MULTILINE)
_HINT_SINCE = (8, 3)
_VERSION = re.compile(r"^\.version [0-9.]+$", re.MULTILINE)
_SUPPORT = """
struct gf_aot_dim { unsigned x; };
static __device__ __forceinline__ long long gf_aot_floor(long long a, long long b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
static __device__ __forceinline__ long long gf_aot_max(long long a, long long b) { return a > b ? a : b; }
static __device__ __forceinline__ long long gf_aot_min(long long a, long long b) { return a < b ? a : b; }
"""


@dataclass(frozen=True)
class AotKernel:
    """One kernel in PTX: its entry point, the number of blocks as an expression of ``symbols``, and threads in a block.

    ``fixed`` are the sizes it was hardened for; ``symbols`` the sizes it takes as arguments, in order.
    """

    entry: str
    ptx: str
    grid: Dim
    block: int
    symbols: tuple[str, ...]
    fixed: Mapping[str, int]


def compile_aot(program: Program, fixed: Sizes, largest: Sizes, arch: str, min_driver: int = MIN_DRIVER) -> AotKernel:
    """The kernel of a region hardened for ``fixed`` sizes, right for all sizes up to ``largest``, for GPUs from ``arch`` on.

    Raises GraphfuseError where a size leaves no room for 32-bit indices, and where drivers from ``min_driver`` on do not
    know the architecture.
    """
    from graphfuse.jit.parallel import cached_cubin

    version = ptx_version(arch, min_driver)
    source, fixed = generate_hardened(program, fixed)
    chosen = _usable(source, largest)
    text = aot_text(source, chosen)
    cached_cubin(text, arch)  # PTX may ask for more than there is (shared memory, say); an assembler says so now, a driver too late
    image = cached_cubin(text, arch.replace("sm_", "compute_")).image.rstrip(b"\0").decode("ascii")
    return AotKernel(ENTRY, lowered(image, version), expr.emax(chosen[0].grid, 1), chosen[0].block, source.symbols, fixed)


def ptx_version(arch: str, min_driver: int) -> str:
    """The version of PTX that drivers from ``min_driver`` on take. Raises GraphfuseError if it does not know ``arch``."""
    taken = [version for branch, version in DRIVERS.items() if branch <= min_driver]
    if not taken:
        raise GraphfuseError(f"drivers before {min(DRIVERS)} are not supported; choose a later minimum")
    since = _SINCE.get(int(re.sub(r"\D", "", arch)))
    if since is None:
        raise GraphfuseError(f"no ahead-of-time kernels for {arch}; known are {', '.join(f'sm_{n}' for n in sorted(_SINCE))}")
    if _number(since) > _number(taken[-1]):
        needed = next(branch for branch, version in DRIVERS.items() if _number(version) >= _number(since))
        raise GraphfuseError(f"{arch} needs a driver from {needed} on, not {min_driver}; state it with --min-driver {needed}")
    return taken[-1]


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def lowered(ptx: str, version: str) -> str:
    """PTX that claims an older version: the compiler states its own, whatever instructions it used.

    An instruction that the older version lacks makes the driver refuse the kernel when the engine is built, never later.
    """
    text, count = _VERSION.subn(f".version {version}", ptx)
    if count != 1:
        raise GraphfuseError("the compiler's PTX has no version line; please report it")
    return text if _number(version) >= _HINT_SINCE else _HINT.sub("", text)


def _usable(source: KernelSource, largest: Sizes) -> list[Variant]:
    """Variants for every size, whose indices hold the largest, down to the first that takes any address."""
    alone = [v for v in source.variants if v.cluster == 1]  # TensorRT launches no clusters for us
    fitting = [v for v in alone if not v.at_least and all(expr.evaluate(d, largest) < 1 << 31 for d in v.below_2_31)]
    natural = next((k for k, v in enumerate(fitting) if v.align == source.variants[-1].align), None)
    if natural is None or len({v.block for v in fitting}) != 1:
        raise GraphfuseError("the variants of a kernel do not go together; please report it")
    return fitting[: natural + 1]


def aot_text(source: KernelSource, chosen: list[Variant]) -> str:
    """The source with its entry points made functions, and one entry point that chooses among them."""
    heads = {match[2]: match[3].split(", ") for match in _HEAD.finditer(source.text)}
    bounds = {match[2]: match[1] for match in _HEAD.finditer(source.text)}
    if not {v.entry for v in chosen} <= heads.keys() or any(
        len(a) != source.inputs + source.outputs + len(source.symbols) for a in heads.values()
    ):
        raise GraphfuseError("the generated source is not laid out as expected; please report it")
    text = _HEAD.sub(r"static __device__ __forceinline__ void \2(\3, const gf_aot_dim gf_block, const gf_aot_dim gf_grid) {", source.text)
    text = text.replace("blockIdx", "gf_block").replace("gridDim", "gf_grid")
    arguments = heads[chosen[0].entry]
    return "\n".join(["#define GF_CLUSTERS 0", _SUPPORT + text, _entry(source, chosen, arguments, bounds[chosen[0].entry])])


def _entry(source: KernelSource, chosen: list[Variant], arguments: list[str], bounds: str) -> str:
    inputs, outputs = arguments[: source.inputs], arguments[source.inputs : source.inputs + source.outputs]
    names = [a.rpartition(" ")[2].lstrip("*") for a in arguments]
    sizes = [f"const int {name}" for name in names[source.inputs + source.outputs :]]
    table = dict(zip(source.symbols, names[source.inputs + source.outputs :], strict=True))
    lines = [f'extern "C" __global__ void {bounds} {ENTRY}({", ".join([*inputs, *sizes, *outputs])}) {{']
    for number, variant in enumerate(chosen):
        aligned = [f"(gf_u64){name} % {a} == 0" for name, a in zip(names, variant.align, strict=False) if a > 1]
        last = number == len(chosen) - 1
        lines += [
            "  " + ("" if last else f"if ({' && '.join(aligned)}) ") + "{",
            f"    const long long blocks = {c_text(variant.grid, table)};",
            "    for (long long block = blockIdx.x; block < blocks; block += gridDim.x) {",
            f"      {variant.entry}({', '.join(names)}, gf_aot_dim{{(unsigned)block}}, gf_aot_dim{{(unsigned)blocks}});",
            "      __syncthreads();  // the next block of this variant may use the same shared memory",
            "    }",
            "    return;",
            "  }",
        ]
    return "\n".join([*lines, "}"])


def c_text(dim: Dim, names: Mapping[str, str]) -> str:
    """``dim`` in C, in 64 bits; ``names`` are the variables that hold the symbols."""
    if isinstance(dim, int):
        return f"{dim}LL"
    return "(" + " + ".join(_term(mono, coef, names) for mono, coef in sorted(dim.terms.items(), key=str)) + ")"


def _term(mono: tuple[Atom, ...], coef: int, names: Mapping[str, str]) -> str:
    return " * ".join([f"({coef}LL)", *(_atom(a, names) for a in mono)])


def _atom(atom: Atom, names: Mapping[str, str]) -> str:
    if isinstance(atom, Sym):
        return f"(long long){names[atom.name]}"
    if not isinstance(atom, Call):
        raise GraphfuseError(f"a grid holds the loop index {atom}; please report it")
    left, right = c_text(atom.left, names), c_text(atom.right, names)
    match atom.fn:
        case "//":
            return f"gf_aot_floor({left}, {right})"
        case "%":
            return f"({left} - {right} * gf_aot_floor({left}, {right}))"
        case fn:
            return f"gf_aot_{fn}({left}, {right})"
