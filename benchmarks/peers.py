"""What is measured: our kernels, and what a user would pick instead."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.chains import Chain, as_tuple
from benchmarks.export import fuse, to_onnx
from benchmarks.measure import Candidate, Tensor
from graphfuse.codegen.source import KernelSource
from graphfuse.session import Session
from graphfuse.tune import copies

Sets = Sequence[tuple[Tensor, ...]]


class NotFused(Exception):
    """A chain that is not kernels only."""


def ours(chain: Chain, sets: Sets) -> Candidate:
    """Exported, rewritten, bound to each set, and launched on torch's stream. Raises NotFused."""
    began = time.perf_counter()
    model = fuse(to_onnx(chain.function, sets[0]))
    rewritten = time.perf_counter()
    session = Session(model, device="cuda")
    if session.unfused:
        raise NotFused(f"not fused: {', '.join(session.unfused)}")
    compiled = time.perf_counter()
    bindings = [session.bind({p.name: x for p, x in zip(session.inputs, inputs, strict=True)}) for inputs in sets]
    outputs = [tuple(torch.from_dlpack(binding.outputs[p.name]) for p in session.outputs) for binding in bindings]

    def call(number: int) -> Sequence[Tensor]:
        bindings[number].launch(torch.cuda.current_stream().cuda_stream)
        return outputs[number]

    note = {"kernels": [_kernel(region.executable.source) for region in session.fused_regions()[1]],
            "rewrite_s": rewritten - began, "compile_s": compiled - rewritten}  # fmt: skip
    return Candidate("ours", [_bound(call, k) for k in range(len(sets))], note=note)


def _bound(call: Any, number: int) -> Any:
    return lambda: call(number)


def _kernel(source: KernelSource) -> dict[str, Any]:
    variant = source.variants[0]
    return {"entry": variant.entry, "blocks": variant.blocks({}), "threads": variant.block}


def eager(chain: Chain, sets: Sets, graph: bool) -> Candidate:
    """One kernel an op."""
    chosen = sets if graph else sets[:20]
    return Candidate("eager graph" if graph else "eager", [lambda x=x: chain.outputs(x) for x in chosen], graph=graph)


def compiled(chain: Chain, sets: Sets, mode: str) -> Candidate:
    """torch.compile for exactly these shapes, without graphs of its own: it is captured in ours like everything else."""
    torch._dynamo.reset()
    options = {"default": None, "max-autotune": "max-autotune-no-cudagraphs"}
    began = time.perf_counter()
    function = torch.compile(chain.function, mode=options[mode], dynamic=False, fullgraph=True)
    with torch.no_grad():
        function(*sets[0])
    torch.cuda.synchronize()
    note = {"compile_s": time.perf_counter() - began}
    return Candidate(f"compile {mode}", [lambda x=x: as_tuple(function(*x)) for x in sets], note=note)


def same_grid(sets: Sets, outputs: Sequence[Sequence[Tensor]], kernels: Sequence[dict[str, Any]], device: Any) -> Candidate:
    """A kernel of our grid that only reads the inputs and writes the outputs, each rounded up to 16 bytes."""
    largest = max(kernels, key=lambda k: int(k["blocks"]) * int(k["threads"]))
    source = copies.same_grid([t.nbytes for t in sets[0]], [t.nbytes for t in outputs[0]], largest["blocks"], largest["threads"])
    (executable,) = device.load([source])
    room = [[torch.empty(-(-t.nbytes // 16) * 16, dtype=torch.uint8, device="cuda") for t in made] for made in outputs]
    inputs = [[_padded(t) for t in given] for given in sets]
    launches = [executable.prepare([t.data_ptr() for t in (*a, *b)], {}) for a, b in zip(inputs, room, strict=True)]

    def call(number: int) -> Sequence[Tensor]:
        launches[number].launch(torch.cuda.current_stream().cuda_stream)
        return room[number]

    return Candidate("same grid", [_bound(call, k) for k in range(len(sets))], kept=inputs)


def _padded(tensor: Tensor) -> Tensor:
    if tensor.nbytes % 16 == 0 and tensor.data_ptr() % 16 == 0:
        return tensor
    room = torch.zeros(-(-tensor.nbytes // 16) * 16, dtype=torch.uint8, device="cuda")
    room[: tensor.nbytes] = tensor.reshape(-1).view(torch.uint8)
    return room
