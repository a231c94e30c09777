"""Compiling the kernels of a region, when TensorRT configures it: the only place where anything is generated."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from graphfuse.codegen.source import KernelSource
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

_made: dict[tuple[str, tuple[tuple[str, int], ...], tuple[str, ...]], Kernel] = {}
_LOCK = threading.Lock()


def default_targets() -> tuple[str, ...]:
    """Architectures to compile for when nobody said: the GPU of this machine, else ``COVERING``."""
    arch = gpu_arch()
    return (arch,) if arch else COVERING


def compile_region(spec: str, program: Program, shapes: Sequence[Sequence[int]]) -> tuple[Kernel, ...]:
    """The kernels for inputs of these shapes, where -1 stands for a size that changes at run time.

    Every symbol whose size is known is fixed in the kernel. Equal regions share one compilation in a process.
    """
    targets = current().targets or default_targets()
    fixed = known_sizes(program, shapes)
    key = (spec, tuple(sorted(fixed.items())), targets)
    if key not in _made:
        kernel = _compile(program, fixed, targets)
        with _LOCK:
            _made.setdefault(key, kernel)
    return (_made[key],)


def known_sizes(program: Program, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The symbols that the known sizes (not -1) determine. Raises ShapeError where a size contradicts the program."""
    from graphfuse.ir import expr

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


def _compile(program: Program, fixed: Mapping[str, int], targets: Sequence[str]) -> Kernel:
    source, used = _generate(program, fixed)
    cubins = _cubins(source.text, targets)
    if source.inputs != len(program.params) or source.outputs != len(program.results):
        raise ProgramError("the kernel of a fused region does not take the region's inputs and outputs")
    return Kernel(used, source.symbols, source.variants, cubins)


def _generate(program: Program, fixed: Mapping[str, int]) -> tuple[KernelSource, Mapping[str, int]]:
    """Source hardened to the known sizes; where those make a degenerate program (an empty axis), the general one."""
    from graphfuse.codegen import generate

    if fixed:
        try:
            return generate(program.specialise(fixed)), fixed
        except GraphfuseError:
            pass
    return generate(program), {}


def _cubins(text: str, targets: Sequence[str]) -> dict[str, bytes]:
    from graphfuse.jit import compile_cubin

    return {arch: compile_cubin(text, arch).image for arch in targets}


def find_cubin(kernel: Kernel, arch: str) -> bytes | None:
    """The cubin that runs on ``arch``: its own, else the latest earlier minor of the same major version, else None."""
    if arch in kernel.cubins:
        return kernel.cubins[arch]
    major, minor = int(arch[3:-1]), int(arch[-1])
    older = [name for name in kernel.cubins if name[3:].isdigit() and int(name[3:-1]) == major and int(name[-1]) < minor]
    return kernel.cubins[max(older, key=lambda name: int(name[-1]))] if older else None


def adapt(program: Program, kernel: Kernel, arch: str) -> tuple[Kernel, bytes]:
    """``kernel`` with a cubin for ``arch``: the one that it holds, else compiled anew where code generation and NVRTC are here.

    Raises GraphfuseError naming the target to build with.
    """
    image = find_cubin(kernel, arch)
    if image is not None:
        return kernel, image
    try:
        made = _compile(program, kernel.fixed, [arch])
    except (GraphfuseError, ImportError) as error:
        raise GraphfuseError(
            f"this engine holds kernels for {', '.join(sorted(kernel.cubins))}, not for {arch}, and they cannot be compiled here "
            f"({error}); build it with --target {arch}"
        ) from error
    return made, made.cubins[arch]
