"""Compiling the kernels of a region: when TensorRT configures it, or beside an engine's work; never in an execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphfuse.codegen.source import KernelSource
from graphfuse.ir import expr
from graphfuse.ir.errors import GraphfuseError, ProgramError, ShapeError
from graphfuse.ir.program import Program
from graphfuse_plugin.driver import gpu_arch
from graphfuse_plugin.fields import Kernel
from graphfuse_plugin.guard import current
from graphfuse_plugin.shapes import readings

# Where a machine has no GPU, engines are built for others. A cubin runs on every later minor of its major version (8.0 on
# 8.6 and 8.9, 12.0 on 12.1), so these two cover what TensorRT for RTX builds for by default. Turing (sm_75), Hopper (sm_90)
# and data-centre Blackwell (sm_100) must be asked for: the default plan of TensorRT for RTX does not run there either.
COVERING = ("sm_80", "sm_120")


Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Request:
    """A region to compile: one kernel for each set of sizes that it is hardened for, the most particular set first."""

    spec: str
    program: Program
    hardened: tuple[Sizes, ...]


Key = tuple[str, tuple[tuple[str, int], ...], tuple[str, ...]]  # spec, fixed sizes, targets
MAX_SHARED = 1024  # kernels kept for equal regions where no build says when it ends


def default_targets() -> tuple[str, ...]:
    """Architectures to compile for when nobody said: the GPU of this machine, else ``COVERING``."""
    arch = gpu_arch()
    return (arch,) if arch else COVERING


def compile_regions(requests: Sequence[Request], progress: Callable[[int, int], None] | None = None) -> list[tuple[Kernel, ...]]:
    """The kernels of each region, in the order of its request; two that turn out to be the same are one.

    Equal regions of a build share one compilation; different ones are compiled together, on all cores.
    ``progress(done, total)`` is called from any thread after each compile.
    """
    build = current()
    targets = build.targets or default_targets()
    if len(build.compiled) > MAX_SHARED:
        build.compiled.clear()
    made: dict[Key, Kernel] = build.compiled
    wanted = {_key(request, sizes, targets): (request.program, sizes) for request in requests for sizes in request.hardened}
    todo = {key: job for key, job in wanted.items() if key not in made}
    made.update(zip(todo, compile_kernels(list(todo.values()), targets, progress), strict=True))
    return [_distinct(made[_key(request, sizes, targets)] for sizes in request.hardened) for request in requests]


def _key(request: Request, sizes: Sizes, targets: tuple[str, ...]) -> Key:
    return request.spec, tuple(sorted(sizes.items())), targets


def _distinct(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    return tuple({tuple(sorted(k.fixed.items())): k for k in kernels}.values())


def hardened_sizes(program: Program, shapes: Sequence[Sequence[int]], usual: Sequence[Sequence[int]] = ()) -> tuple[Sizes, ...]:
    """What to harden a region's kernels for when its inputs have ``shapes`` (-1: a size that changes at run time).

    Where ``usual`` shapes are given (an optimisation profile's), one kernel is for exactly these; another serves every size.
    """
    known = known_sizes(program, shapes)
    same_ranks = [len(u) for u in usual] == [len(s) for s in shapes]  # tensors of static shapes may come without a range
    exact = known_sizes(program, usual) if same_ranks else known
    return (exact, known) if len(exact) == len(program.symbols) and exact != known else (known,)


def known_sizes(program: Program, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The symbols that the known sizes (not -1) determine. Raises ShapeError where a size contradicts the program."""
    env: dict[str, int] = {}
    for item in readings(program):
        size = shapes[item.param][item.axis]
        if size >= 0 and expr.symbols(item.rest) <= env.keys():
            env[item.symbol] = (size - expr.evaluate(item.rest, env)) // item.slope
    for number, (got, (_, want)) in enumerate(zip(shapes, program.params, strict=True)):
        for size, dim in zip(got, want, strict=True):
            if size >= 0 and expr.symbols(dim) <= env.keys() and expr.evaluate(dim, env) != size:
                raise ShapeError(f"input {number} of a fused region has the shape {list(got)} in the network; it was made for {list(want)}")
    return env


def compile_kernels(
    regions: Sequence[tuple[Program, Sizes]], targets: Sequence[str], progress: Callable[[int, int], None] | None = None
) -> list[Kernel]:
    """A kernel for each program and the sizes it is hardened for, through the cache and on all cores. Needs NVRTC."""
    from graphfuse.jit import compile_many

    arch = targets[0] if len(targets) == 1 else None
    generated = [generate_hardened(program, fixed, arch) for program, fixed in regions]
    compiled = compile_many([source for source, _ in generated], targets, progress=progress)
    kernels = []
    for (program, _), (source, fixed), cubins in zip(regions, generated, compiled, strict=True):
        if source.inputs != len(program.params) or source.outputs != len(program.results):
            raise ProgramError("the kernel of a fused region does not take the region's inputs and outputs")
        kernels.append(Kernel(fixed, source.symbols, source.variants, {arch: cubin.image for arch, cubin in cubins.items()}))
    return kernels


def generate_hardened(program: Program, fixed: Sizes, arch: str | None = None) -> tuple[KernelSource, Sizes]:
    """Source hardened to the known sizes; where those make a degenerate program (an empty axis), the general one.

    Code for one architecture alone takes what ``graphfuse tune`` found for it; several share a source, which is by rule.
    """
    if fixed:
        try:
            return _generate(program.specialise(fixed), arch), fixed
        except GraphfuseError:
            pass
    return _generate(program, arch), {}


def _generate(program: Program, arch: str | None) -> KernelSource:
    from graphfuse.codegen import generate
    from graphfuse.codegen.config import BY_RULE
    from graphfuse.tune import lookup

    return generate(program, (lookup(program, arch) if arch else None) or BY_RULE)


def find_cubin(kernel: Kernel, arch: str) -> bytes | None:
    """The cubin that runs on ``arch``: its own, else the latest earlier minor of the same major version, else None."""
    if arch in kernel.cubins:
        return kernel.cubins[arch]
    major, minor = int(arch[3:-1]), int(arch[-1])
    older = [name for name in kernel.cubins if name[3:].isdigit() and int(name[3:-1]) == major and int(name[-1]) < minor]
    return kernel.cubins[max(older, key=lambda name: int(name[-1]))] if older else None
