"""NVRTC compiles the kernel of every region of every model for each architecture; needs no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphfuse.codegen import generate
from graphfuse.ir import loads
from graphfuse.jit import compile_many
from tests.corpus import EVERY_MODEL, fused

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed: pip install graphfuse[cuda]")
ARCHS = ("sm_80", "sm_89", "sm_90", "sm_120")


@pytest.mark.parametrize("path", EVERY_MODEL, ids=lambda p: p.stem)
def test_every_kernel_compiles(path: Path) -> None:
    specs = sorted({p.value for f in fused(path).model.functions for p in f.metadata_props if p.key == "graphfuse.spec"})
    sources = [generate(loads(spec)) for spec in specs]
    for source, cubins in zip(sources, compile_many(sources, ARCHS, jobs=1), strict=True):
        for arch in ARCHS:
            assert cubins[arch].image.startswith(b"\x7fELF")
            assert set(cubins[arch].resources) == {v.entry for v in source.variants if v.on(arch)}
