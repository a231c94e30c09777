"""DLPack capsules by ctypes: arrays change hands between libraries without a copy, and without importing any of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from graphfuse.ir.errors import GraphfuseError

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_KINDS = {"i": _INT, "u": _UINT, "f": _FLOAT, "b": _BOOL}
_BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
_NAME = b"dltensor"


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


@dataclass(frozen=True)
class Described:
    """What a capsule holds. ``strides`` count elements; None means C order."""

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...] | None
    device: tuple[int, int]


_exported: dict[int, tuple[Any, ...]] = {}  # what a consumer has not given back yet, by the address of its struct


def _forget(address: int) -> None:
    if _exported is not None:  # None while the interpreter shuts down
        _exported.pop(address, None)


_give_back = _Deleter(_forget)

_python = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _python))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))
_raw_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))


def _drop(capsule: int) -> None:
    """Runs when a capsule dies; one that was used has another name, and its consumer calls the deleter."""
    if _raw_valid is not None and _raw_valid(capsule, _NAME):
        _forget(_raw_pointer(capsule, _NAME))


_drop_capsule = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_drop)


def export(pointer: int, shape: Sequence[int], dtype: np.dtype[Any], device: tuple[int, int], owner: object) -> object:
    """A capsule for C-contiguous memory, which keeps ``owner`` alive until its consumer gives it back."""
    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    steps = (ctypes.c_int64 * max(1, len(shape)))(*(prod(shape[i + 1 :]) for i in range(len(shape))))
    tensor = _Tensor(pointer, _Device(*device), len(shape), _data_type(dtype), sizes, steps, 0)
    managed = _Managed(tensor, None, _give_back)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, sizes, steps, owner)
    return _new(address, _NAME, ctypes.cast(_drop_capsule, ctypes.c_void_p))


def describe(capsule: object) -> Described:
    """What an unused capsule holds; the memory lives as long as the capsule does, so keep it.

    Raises GraphfuseError for something else, or an element type that programs cannot hold.
    """
    try:
        managed = ctypes.cast(_pointer(capsule, _NAME), ctypes.POINTER(_Managed)).contents
    except ValueError as error:
        raise GraphfuseError("array: its __dlpack__ gave no unused capsule; pass an object that is not consumed yet") from error
    tensor = managed.tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    dtype = _numpy(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
    return Described((tensor.data or 0) + tensor.byte_offset, shape, dtype, strides, (tensor.device.type, tensor.device.id))


def _data_type(dtype: np.dtype[Any]) -> _DataType:
    code = _BFLOAT if dtype == _BFLOAT16 else _KINDS[dtype.kind]
    return _DataType(code, dtype.itemsize * 8, 1)


def _numpy(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    if (code, bits, lanes) == (_BFLOAT, 16, 1):
        return _BFLOAT16
    letter = next((k for k, c in _KINDS.items() if c == code), None)
    if letter is None or lanes != 1 or bits % 8 or (letter == "b" and bits != 8):
        raise GraphfuseError(f"array: element type {code} of {bits} bits is not supported; convert it first")
    dtype: np.dtype[Any] = np.dtype(f"{letter}{bits // 8}")
    return dtype
