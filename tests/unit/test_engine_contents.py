"""Regions and kernels found in an engine's bytes, damaged and hostile ones included."""

from __future__ import annotations

import random
import time

import pytest

from graphfuse.codegen.source import Variant
from graphfuse.engine.contents import holds_kernels, regions_in, warm_engine
from graphfuse.ir import GraphfuseError, ProgramError
from graphfuse_plugin.fields import Kernel, marker, pack
from graphfuse_plugin.region import Region
from tests import regions


def fields_of(spec: str, arch: str = "sm_89") -> bytes:
    region = Region.parse(spec)
    variant = Variant("entry", 1, 32, (4,) * region.interface.pointers, (), ())
    kernel = Kernel({}, region.interface.symbols, (variant,), {arch: b"\x7fELF" + arch.encode() * 9})
    return spec.encode() + b"\0\1CHAR" + pack(region, (kernel,))


def test_every_region_once_for_each_set_of_kernels() -> None:
    one, two = regions.scale((4, 8)), regions.softmax()
    plan = b"ftrt" + fields_of(one) * 2 + bytes(99) + fields_of(two) + fields_of(one, "sm_90") + b"end"
    found = [(r.spec, [list(k.cubins) for k in kernels]) for r, kernels in regions_in(plan)]
    assert found == [(one, [["sm_89"]]), (two, [["sm_89"]]), (one, [["sm_90"]])]
    assert holds_kernels(plan)


def test_an_engine_without_any() -> None:
    assert regions_in(b"ftrt" + bytes(1000)) == []
    assert not holds_kernels(b"ftrt" + bytes(1000))
    with pytest.raises(GraphfuseError, match="holds no kernels"):
        warm_engine(b"ftrt" + bytes(1000), ["sm_90"])


def test_a_marker_without_its_spec() -> None:
    whole = fields_of(regions.scale((4, 8)))
    with pytest.raises(ProgramError, match="without the spec"):
        regions_in(whole[whole.index(marker(regions.scale((4, 8)))) :])


def test_damage_is_one_clean_error_or_none() -> None:
    rng, whole = random.Random(5), bytearray(fields_of(regions.pair()))
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        if rng.random() < 0.3:
            del damaged[rng.randrange(len(damaged)) :]
        try:
            found = regions_in(bytes(damaged))
        except ProgramError:
            continue
        assert all(isinstance(k, Kernel) for _, kernels in found for k in kernels)


def test_brackets_without_end() -> None:
    hostile = b'{"body":' + b"[" * 100_000
    assert len(regions_in(hostile + fields_of(regions.scale((4, 8))))) == 1


@pytest.mark.parametrize(
    "filler",
    [b"graphfuse-region:" + b"a" * 64 + b" {", b'{"body":', b'{"body":[', b'{"body":[' + b"0," * 400, b'{"body":0} '],
    ids=["markers", "nested specs", "nested lists", "long lists", "wrong specs"],
)
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_what_a_hostile_file_repeats_takes_no_more_time_than_it_is_long(filler: bytes, end: bytes) -> None:
    hostile = b"ftrt" + filler * ((8 << 20) // len(filler)) + end
    began = time.process_time()
    holds_kernels(hostile)
    with pytest.raises(ProgramError):
        regions_in(hostile + bytes(9) + fields_of(regions.softmax())[:-40])
    assert time.process_time() - began < 20


@pytest.mark.parametrize("target", ['sm_80";x', "sm_", "", "80", "compute_80", "sm_8\n0"])
def test_a_target_that_is_none(target: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    with pytest.raises(GraphfuseError, match="not a name like sm_89"):
        warm_engine(b"ftrt" + fields_of(regions.softmax()), [target])
