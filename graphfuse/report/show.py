"""A closer look at a fused model: its regions as programs, CUDA source and resources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import onnx_ir

from graphfuse.graph.load import load_model
from graphfuse.ir import Program, pretty
from graphfuse.ir.errors import GraphfuseError
from graphfuse.session.fused import is_fused, read_fused
from graphfuse.session.interface import nearest
from graphfuse.session.session import Model

ARCHS = ("sm_80", "sm_89", "sm_90", "sm_120")


@dataclass(frozen=True)
class ShownRegion:
    """One fused node. ``function`` is its op_type, which regions with the same program share."""

    name: str
    function: str
    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)  # by arch, then by entry

    @cached_property
    def source(self) -> Any:
        """The ``KernelSource`` of its program."""
        from graphfuse.codegen import generate

        return generate(self.program)

    @property
    def text(self) -> str:
        """The program for people."""
        return pretty(self.program, self.function)

    @property
    def cuda(self) -> str:
        """The CUDA source."""
        return str(self.source.text)

    def to_json(self, parts: Sequence[str]) -> dict[str, Any]:
        """The region with the named parts: program, cuda, resources."""
        found: dict[str, Any] = {
            "name": self.name,
            "function": self.function,
            "inputs": [_port(n, t, s) for n, (t, s) in zip(self.inputs, self.program.params, strict=True)],
            "outputs": [_port(n, t, s) for n, (t, s) in zip(self.outputs, self.program.outputs, strict=True)],
        }
        attributes = {"program": "text", "cuda": "cuda", "resources": "resources"}
        return {**found, **{part: getattr(self, attributes[part]) for part in parts}}


def _port(name: str, dtype: Any, shape: Any) -> dict[str, Any]:
    return {"name": name, "dtype": str(dtype.numpy), "shape": [d if isinstance(d, int) else str(d) for d in shape]}


def shown_regions(model: Model, wanted: str | None = None) -> list[ShownRegion]:
    """The fused nodes of a model, or those called ``wanted`` (a node's name, or its function's, or the beginning of either).

    Raises GraphfuseError when the model has no fused node, or none of that name.
    """
    loaded = load_model(model)
    found = [_shown(node, loaded) for node in loaded.graph.all_nodes() if is_fused(node)]
    if not found:
        raise GraphfuseError("the model has no fused region; write one with graphfuse rewrite")
    if wanted is None:
        return found
    named = [r for r in found if wanted in (r.name, r.function)] or [r for r in found if r.name.startswith(wanted)]
    if not named:
        names = [r.name for r in found]
        close = nearest(wanted, names)
        hint = f"did you mean {close!r}?" if close else f"it has {', '.join(names[:8])}{' and more' if len(names) > 8 else ''}"
        raise GraphfuseError(f"the model has no region {wanted!r}; {hint}")
    return named


def _shown(node: onnx_ir.Node, model: onnx_ir.Model) -> ShownRegion:
    fused = read_fused(node, model)
    return ShownRegion(fused.name, node.op_type, fused.program, fused.inputs, fused.outputs)


def measure(regions: Sequence[ShownRegion], archs: Sequence[str] = ARCHS) -> None:
    """Compiles the regions' kernels for the architectures and fills in their resources. Raises GraphfuseError without NVRTC."""
    from graphfuse.jit import compile_many

    for region, by_arch in zip(regions, compile_many([r.source for r in regions], archs), strict=True):
        for arch, cubin in by_arch.items():
            region.resources[arch] = {entry: asdict(used) for entry, used in cubin.resources.items()}
