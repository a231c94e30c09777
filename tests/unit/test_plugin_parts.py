"""Parts of the plugin that need no device: choice of cubins, stored errors, known sizes."""

from __future__ import annotations

import importlib.util
import threading

import pytest

from graphfuse.ir import ShapeError, dtypes, loads
from graphfuse_plugin import building, guard, unsupported_io
from graphfuse_plugin.fields import Kernel, marker
from graphfuse_plugin.kernels import COVERING, compile_kernels, find_cubin, known_sizes
from tests import regions


@pytest.mark.parametrize(
    ("held", "arch", "want"),
    [
        ("sm_80 sm_89", "sm_89", "sm_89"),
        ("sm_80 sm_86", "sm_89", "sm_86"),
        ("sm_80 sm_89", "sm_86", "sm_80"),
        ("sm_89", "sm_86", None),  # a cubin never runs on an earlier minor
        ("sm_80 sm_89", "sm_90", None),  # nor on another major version
        ("sm_120", "sm_121", "sm_120"),
        ("sm_100 sm_120", "sm_103", "sm_100"),
        ("sm_90a", "sm_90", None),  # a suffix binds it to exactly one
        ("", "sm_80", None),
    ],
)
def test_cubin_for_an_architecture(held, arch, want) -> None:
    kernel = Kernel({}, (), (), {name: name.encode() for name in held.split()})
    found = find_cubin(kernel, arch)
    assert (found.decode() if found else None) == want


def test_covering_targets_run_on_all_that_they_stand_for() -> None:
    kernel = Kernel({}, (), (), dict.fromkeys(COVERING, b"x"))
    assert all(find_cubin(kernel, arch) for arch in ("sm_80", "sm_86", "sm_89", "sm_120", "sm_121"))


def test_known_sizes_are_read_and_contradictions_found() -> None:
    program = loads(regions.joined())
    assert known_sizes(program, [(-1,), (7,), ()]) == {"m": 2}
    assert known_sizes(program, [(4,), (-1,), ()]) == {"n": 4}
    assert known_sizes(program, [(-1,), (-1,), ()]) == {}
    with pytest.raises(ShapeError):
        known_sizes(program, [(-1,), (8,), ()])


def test_what_cannot_be_a_plugin_says_why() -> None:
    assert unsupported_io(loads(regions.scale())) is None
    assert (
        unsupported_io(loads(regions.same(dtypes.U8))) == "input 0 is u8; TensorRT plugins take f32, f16, bf16, f8e4m3, i8, i32, i64, bool"
    )
    assert "rank 9" in (unsupported_io(loads(regions.scale((1,) * 9))) or "")


def test_the_first_stored_error_is_raised_once_with_its_traceback() -> None:
    @guard.guarded
    def first() -> None:
        raise ZeroDivisionError("one")

    @guard.guarded_or(lambda: 7)
    def second() -> int:
        raise ValueError("two")

    with building() as build:
        with pytest.raises(guard.CallbackFailed, match="ZeroDivisionError: one"):
            first()
        assert second() == 7
        with pytest.raises(ZeroDivisionError) as caught:
            build.reraise()
        assert caught.traceback[-1].name == "first"
        build.reraise()


def test_errors_go_to_the_build_of_their_thread() -> None:
    @guard.guarded_or(lambda: None)
    def fail() -> None:
        raise KeyError

    with building() as outer:
        with building() as inner:
            fail()
        assert (len(outer.failures), len(inner.failures)) == (0, 1)

        def work() -> None:
            with building() as own:
                fail()
                assert len(own.failures) == 1

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not outer.failures
        stranger = threading.Thread(target=fail)  # a thread that TensorRT made belongs to the build that is going on
        stranger.start()
        stranger.join()
        assert len(outer.failures) == 1


def test_markers_differ_by_spec() -> None:
    assert marker(regions.scale()) != marker(regions.pair())
    assert marker("") == marker("")


@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="cuda-bindings is not installed")
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "sm_121"])
def test_every_type_and_schedule_compiles_for_every_target(arch) -> None:
    specs = [*map(regions.same, regions.PLUGIN_TYPES), regions.pair(), regions.softmax(), regions.softmax(5000), regions.joined()]
    kernels = compile_kernels([(loads(spec), {}) for spec in specs], [arch])
    assert all(find_cubin(kernel, arch) for kernel in kernels)
