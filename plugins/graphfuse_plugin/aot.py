"""Regions as layers of an engine that needs no Python: quickly deployable plugins of full TensorRT, compiled ahead of time.

TensorRT takes the kernel (in PTX) and its launch (as expressions of dimensions) into the engine when it is built. A plugin of
this kind has a fixed number of inputs, so every region is a plugin of its own, ``graphfuse::Region_<hash of its spec>``.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from graphfuse.ir import expr
from graphfuse.ir.errors import GraphfuseError, ShapeError
from graphfuse.ir.expr import Call, Dim, Sym
from graphfuse.ir.plugin_types import PLUGIN_TYPES
from graphfuse_plugin.aot_kernel import MIN_DRIVER, AotKernel, compile_aot
from graphfuse_plugin.guard import record
from graphfuse_plugin.kernels import known_sizes
from graphfuse_plugin.plugin import NAMESPACE
from graphfuse_plugin.region import Region
from graphfuse_plugin.shapes import readings


@dataclass(frozen=True)
class AotTarget:
    """Which GPUs the PTX is for (this one and later ones), and the oldest driver branch that must take it."""

    arch: str
    min_driver: int = MIN_DRIVER


def aot_name(spec: str) -> str:
    """The name of a region's plugin."""
    return "Region_" + hashlib.sha256(spec.encode()).hexdigest()[:24]


def unsupported_aot(region: Region) -> str | None:
    """Why a region cannot be such a layer, in one line; None if it can, as far as one can tell before the sizes are known."""
    if not region.program.params:
        return "it has no input, and plugins compiled ahead of time need one"
    return None


_registered: dict[tuple[int, str], AotTarget] = {}


def register_aot(trtp: Any, trt: Any, region: Region, target: AotTarget) -> str:
    """Register a region with ``tensorrt.plugin`` (``trtp``) and return its name; doing it again changes its target.

    Raises GraphfuseError for a region that cannot be compiled ahead of time.
    """
    reason = unsupported_aot(region)
    if reason is not None:
        raise GraphfuseError(f"region {aot_name(region.spec)} cannot run without Python: {reason}; build without --aot")
    name = aot_name(region.spec)
    key = id(trtp), name
    known = key in _registered
    _registered[key] = target
    if not known:
        identity = f"{NAMESPACE}::{name}"
        trtp.register(identity)(describe_function(trtp, trt, region))
        trtp.aot_impl(identity)(implement_function(trtp, region, lambda: _registered[key]))
    return name


def describe_function(trtp: Any, trt: Any, region: Region) -> Callable[..., Any]:
    """What ``tensorrt.plugin.register`` wants: from descriptions of the inputs to those of the outputs."""

    def describe(*inputs: Any) -> Any:
        return _recorded(_describe, trtp, trt, region, inputs)

    count = len(region.program.results)
    result = trtp.TensorDesc if count == 1 else tuple[(trtp.TensorDesc,) * count]  # type: ignore[misc]
    return _with_signature(describe, [(f"in{k}", trtp.TensorDesc) for k in range(len(region.program.params))], result)


def _describe(trtp: Any, trt: Any, region: Region, inputs: Sequence[Any]) -> Any:
    program = region.program
    wanted = [getattr(trt.DataType, PLUGIN_TYPES[dtype]) for dtype, _ in program.params]
    if [x.dtype for x in inputs] != wanted:
        raise GraphfuseError(
            f"a fused region was made for inputs of {[str(w) for w in wanted]}, the network gives {[str(x.dtype) for x in inputs]}"
        )
    env = symbol_values(trtp, region, inputs)
    made = [
        trtp.from_shape_expr(tuple(symbolic(trtp, d, env) for d in shape), getattr(trt.DataType, PLUGIN_TYPES[dtype]))
        for dtype, shape in program.outputs
    ]
    return made[0] if len(made) == 1 else tuple(made)


def implement_function(trtp: Any, region: Region, target: Callable[[], AotTarget]) -> Callable[..., Any]:
    """What ``tensorrt.plugin.aot_impl`` wants: the kernel and its launch."""

    def implement(*arguments: Any) -> Any:
        *inputs, _outputs, _tactic = arguments
        return _recorded(_implement, trtp, region, inputs, target())

    parts = [
        *((f"in{k}", trtp.TensorDesc) for k in range(len(region.program.params))),
        ("outputs", tuple[trtp.TensorDesc]),
        ("tactic", int),
    ]
    text = Union[str, bytes]
    return _with_signature(implement, parts, tuple[text, text, trtp.KernelLaunchParams, trtp.SymExprs])


def _implement(trtp: Any, region: Region, inputs: Sequence[Any], target: AotTarget) -> tuple[str, str, Any, Any]:
    shapes = [x.shape for x in inputs]
    kernel = kernel_for(region, [list(s) for s in shapes], [list(s.max if s.is_dynamic else s) for s in shapes], target)
    env = symbol_values(trtp, region, inputs)
    launch = trtp.KernelLaunchParams()
    launch.grid_x, launch.block_x = symbolic(trtp, kernel.grid, env), kernel.block
    sizes = trtp.SymExprs(len(kernel.symbols))
    for place, name in enumerate(kernel.symbols):
        sizes[place] = trtp.SymInt32(env[name])
    return kernel.entry, kernel.ptx, launch, sizes


def kernel_for(region: Region, shapes: Sequence[Sequence[int]], largest: Sequence[Sequence[int]], target: AotTarget) -> AotKernel:
    """The kernel for inputs of these shapes (-1: changes at run time) that grow up to the ``largest``."""
    most = region.program.bind(largest)
    fixed = known_sizes(region.program, shapes)
    return compile_aot(region.program, fixed, most, target.arch, target.min_driver)


# --- expressions ------------------------------------------------------------------------------------------------------


def symbol_values(trtp: Any, region: Region, inputs: Sequence[Any]) -> dict[str, Any]:
    """Each symbol of the program as a shape expression, read off the inputs' dimensions."""
    if len(inputs) != len(region.program.params):
        raise ShapeError(f"the fused region takes {len(region.program.params)} inputs, the network gives {len(inputs)}")
    env: dict[str, Any] = {}
    for item in readings(region.program):
        size = inputs[item.param].shape_expr[item.axis]
        if item.rest != 0:
            size = size - symbolic(trtp, item.rest, env)
        env[item.symbol] = size if item.slope == 1 else size // item.slope
    return env


def symbolic(trtp: Any, dim: Dim, env: Mapping[str, Any]) -> Any:
    """``dim`` as a shape expression. TensorRT's stand left of every operator: a number at the left is none of its expressions."""
    if isinstance(dim, int):
        return trtp.ShapeExpr(dim)
    terms = sorted(dim.terms.items(), key=lambda term: (term[1] < 0, str(term[0])))  # so that no part is negative without need
    total = None
    for mono, coef in terms:
        part = trtp.ShapeExpr(abs(coef))
        for factor, atom in enumerate(mono):
            part = _symbolic_atom(trtp, atom, env) if factor == 0 and abs(coef) == 1 else part * _symbolic_atom(trtp, atom, env)
        before = trtp.ShapeExpr(0) if total is None else total
        total = before - part if coef < 0 else part if total is None else before + part
    return total


def _symbolic_atom(trtp: Any, atom: expr.Atom, env: Mapping[str, Any]) -> Any:
    if isinstance(atom, Sym):
        return env[atom.name]
    if not isinstance(atom, Call):
        raise ShapeError(f"a size holds the loop index {atom}; please report it")
    left, right = symbolic(trtp, atom.left, env), symbolic(trtp, atom.right, env)
    match atom.fn:
        case "//":
            return left // right
        case "%":  # TensorRT has no modulo
            return left - right * (left // right)
        case fn:
            return getattr(trtp, fn)(left, right)


# --- signatures and errors --------------------------------------------------------------------------------------------


def _with_signature(function: Callable[..., Any], parts: Sequence[tuple[str, Any]], result: Any) -> Callable[..., Any]:
    """TensorRT reads the number and the kinds of tensors off a function's signature; ours takes what the region takes."""
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind) for name, kind in parts]
    function.__signature__ = inspect.Signature(parameters, return_annotation=result)  # type: ignore[attr-defined]
    return function


def _recorded(function: Callable[..., Any], *arguments: Any) -> Any:
    """An exception goes into the build's failures, too: TensorRT shows it on stderr only."""
    try:
        return function(*arguments)
    except BaseException as error:
        record(function.__name__.strip("_"), error)
        raise
