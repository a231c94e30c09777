"""DLPack capsules and views of foreign arrays: layouts, life times, what is refused. Needs no GPU: capsules of CPU memory are the same."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphfuse.ir import GraphfuseError
from graphfuse.jit import dlpack, driver, view
from tests.conftest import gpu_absence

Array = np.ndarray[Any, Any]


class Owner:
    """Hands out an array by way of our capsule."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        a = self.array
        return dlpack.export(a.ctypes.data, a.shape, a.dtype, self.__dlpack_device__(), self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0)


DTYPES = ["f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0, 3)])
def test_numpy_reads_our_capsule(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.random.default_rng(1).random(shape) * 7, dtype)
    taken = np.from_dlpack(Owner(array))
    assert taken.dtype == array.dtype
    assert taken.shape == array.shape
    np.testing.assert_array_equal(taken, array)
    if array.size:
        assert taken.ctypes.data == array.ctypes.data


@pytest.mark.parametrize("dtype", [*DTYPES, ml_dtypes.bfloat16])
def test_we_read_our_capsule(dtype: object) -> None:
    array = np.zeros((2, 3), dtype)  # type: ignore[call-overload]
    found = dlpack.describe(Owner(array).__dlpack__())
    assert found == dlpack.Described(array.ctypes.data, (2, 3), array.dtype, (3, 1), (dlpack.CPU, 0))


def test_we_read_the_capsule_of_numpy() -> None:
    array = np.arange(24, dtype=np.int64).reshape(4, 6)[1:, ::2]
    capsule = array.__dlpack__()
    found = dlpack.describe(capsule)
    assert found.pointer == array.ctypes.data
    assert (found.shape, found.strides, found.dtype) == ((3, 3), (6, 2), np.dtype(np.int64))


def test_owner_lives_as_long_as_the_consumer() -> None:
    owner = Owner(np.arange(4.0))
    alive = weakref.ref(owner)
    taken = np.from_dlpack(owner)
    del owner
    gc.collect()
    assert alive() is not None
    assert taken[3] == 3.0
    del taken
    gc.collect()
    assert alive() is None
    assert not dlpack._exported


def test_unused_capsule_lets_go() -> None:
    owner = Owner(np.arange(4.0))
    alive = weakref.ref(owner)
    capsule = owner.__dlpack__()
    del owner
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None


def test_used_capsule_is_refused() -> None:
    class Once(Owner):
        def __init__(self, array: Array) -> None:
            super().__init__(array)
            self.capsule = super().__dlpack__()

        def __dlpack__(self, **options: object) -> object:
            return self.capsule

    once = Once(np.arange(3))
    np.from_dlpack(once)
    with pytest.raises(GraphfuseError, match="no unused capsule"):
        dlpack.describe(once.capsule)


@pytest.mark.parametrize(("code", "bits", "lanes"), [(5, 64, 1), (2, 32, 4), (4, 32, 1), (6, 32, 1), (2, 4, 1), (3, 64, 1)])
def test_unknown_element_types(code: int, bits: int, lanes: int) -> None:
    with pytest.raises(GraphfuseError, match="is not supported"):
        dlpack._numpy(code, bits, lanes)


# --- views ------------------------------------------------------------------------------------------------------------


class Foreign:
    def __init__(self, **interface: object) -> None:
        self.__cuda_array_interface__ = {"shape": (2, 3), "typestr": "<f4", "data": (0x1000, False), "version": 3, **interface}


@pytest.mark.parametrize("strides", [None, (12, 4)])
def test_view_of_the_cuda_array_interface(strides: object) -> None:
    array = Foreign(strides=strides)
    seen = view(array)
    assert (seen.pointer, seen.shape, seen.dtype, seen.owner) == (0x1000, (2, 3), np.dtype(np.float32), array)


@pytest.mark.parametrize(("shape", "strides"), [((1, 3), (999, 4)), ((2, 1, 3), (12, 7, 4)), ((0, 3), (5, 5)), ((), ())])
def test_strides_that_do_not_matter(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert view(Foreign(shape=shape, strides=strides)).shape == shape


@pytest.mark.parametrize("strides", [(4, 8), (24, 4), (12, 8), (-12, 4), (0, 4), (12, 2)])
def test_strides_that_are_refused(strides: tuple[int, int]) -> None:
    with pytest.raises(GraphfuseError, match="are not C-contiguous; make it contiguous first"):
        view(Foreign(strides=strides))


def test_masked_array_is_refused() -> None:
    with pytest.raises(GraphfuseError, match="masked"):
        view(Foreign(mask=object()))


def test_memory_of_the_cpu_is_refused() -> None:
    with pytest.raises(GraphfuseError, match="ndarray is in the CPU's memory; copy it to the CUDA device first"):
        view(np.zeros(3))


def test_other_objects_are_refused() -> None:
    with pytest.raises(GraphfuseError, match="list has neither __cuda_array_interface__ nor __dlpack__"):
        view([1.0])


def test_capsule_of_cuda_memory() -> None:
    class Gpu(Owner):
        asked: object = None

        def __dlpack__(self, **options: object) -> object:
            Gpu.asked = options
            return super().__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (dlpack.CUDA, 1)

    array = np.zeros((3, 4), ml_dtypes.bfloat16)
    owner = Gpu(array)
    alive = weakref.ref(owner)
    seen = view(owner, stream=7)
    assert (seen.pointer, seen.shape, seen.dtype) == (array.ctypes.data, (3, 4), array.dtype)
    assert Gpu.asked == {"stream": 7}
    del owner
    gc.collect()
    assert alive() is not None  # the view holds what it looks at
    del seen
    gc.collect()
    assert alive() is None


def test_producer_that_refuses() -> None:
    class Refusing(Owner):
        def __dlpack__(self, **options: object) -> object:
            raise BufferError("it needs a gradient")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (dlpack.CUDA, 0)

    with pytest.raises(GraphfuseError, match="Refusing is not handed over: it needs a gradient"):
        view(Refusing(np.zeros(3)))


@pytest.mark.skipif(gpu_absence() is None, reason="there is a GPU here")
def test_why_cuda_is_unusable() -> None:
    reason = driver.unusable()
    assert reason is not None
    assert reason.startswith("CUDA: ")
    assert "\n" not in reason
