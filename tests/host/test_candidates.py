"""Whatever configuration a tuner asks for, a kernel computes the same: a spread of them on every test program."""

from __future__ import annotations

import pytest

from graphfuse.codegen import generate
from graphfuse.codegen.config import Config
from graphfuse.jit.host import HostDevice
from tests.host.test_kernels import _run
from tests.programs import CASES, compare, expected, inputs_for

SPREAD = [
    Config(lanes=1, items=4, threads=128),
    Config(lanes=16, items=2, threads=1024, team=4),
    Config(lanes=2, items=2, team=64),
    Config(lanes=4, team=1, threads=512),
    Config(lanes=8, items=1, threads=64, team=32),
    Config(items=8, threads=256, team=512),
    Config(lanes=4, items=4, team=16, threads=64),
    Config(lanes=2, team=1024, threads=1024),
    Config(team=2, threads=1024),
    Config(lanes=1, team=128),
    Config(lanes=8, team=8),
]
EACH = 4  # configurations of a program; all programs together see all of them


def chosen(number: int) -> list[Config]:
    return [SPREAD[(number * EACH + k) % len(SPREAD)] for k in range(EACH)]


WANTED = [(case, config) for number, case in enumerate(CASES) for config in chosen(number)]


@pytest.fixture(scope="module")
def loaded():
    sources = {(case.name, config): generate(case.program, config) for case, config in WANTED}
    return dict(zip(sources, HostDevice().load(list(sources.values())), strict=True))


@pytest.mark.parametrize(("case", "config"), WANTED, ids=lambda x: getattr(x, "name", None) or str(x))
def test_any_configuration_computes_the_same(case, config, loaded) -> None:
    for k, env in enumerate(case.sizes):
        inputs = inputs_for(case.program, env, seed=k)
        folded = max((a.size for a in inputs), default=1)
        for skew in (0, 1):
            compare(case.program, _run(loaded[case.name, config], case.program, inputs, env, skew), expected(case.program, inputs), folded)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_any_configuration_compiles(arch: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed: pip install 'graphfuse[cuda]'")
    from graphfuse.jit import compile_many

    part = WANTED[::8] if arch == "sm_80" else WANTED[3::8]
    for (case, config), cubins in zip(part, compile_many([generate(c.program, wish) for c, wish in part], [arch]), strict=True):
        assert cubins[arch].image.startswith(b"\x7fELF"), (case.name, config)
        assert all(v.entry in cubins[arch].resources for v in generate(case.program, config).variants if v.on(arch))
