"""Element types: one entry for each ONNX type that a fused program can hold."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class DType:
    """An element type. ``kind`` is f (float), i (signed), u (unsigned) or b (bool); ``size`` is in bytes."""

    name: str
    kind: str
    size: int
    onnx: int  # TensorProto.DataType
    c: str  # the storage type's name in the device prelude

    @property
    def numpy(self) -> np.dtype:
        """The NumPy type of an array of these elements."""
        return np.dtype(_NUMPY[self.name])

    @property
    def compute(self) -> DType:
        """The type that arithmetic on these elements is done in: float32 for the small floats, else the type itself."""
        return F32 if self.kind == "f" and self.size < 4 else self

    def nearest(self, value: float) -> float:
        """``value`` rounded to a float type; infinite where it is out of range."""
        with np.errstate(over="ignore"):
            return float(self.numpy.type(value))

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def is_small_float(self) -> bool:
        """Whether values are computed in a wider type than they are stored in."""
        return self.compute is not self

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


F32 = DType("f32", "f", 4, 1, "float")
U8 = DType("u8", "u", 1, 2, "gf_u8")
I8 = DType("i8", "i", 1, 3, "gf_i8")
U16 = DType("u16", "u", 2, 4, "gf_u16")
I16 = DType("i16", "i", 2, 5, "gf_i16")
I32 = DType("i32", "i", 4, 6, "gf_i32")
I64 = DType("i64", "i", 8, 7, "gf_i64")
BOOL = DType("bool", "b", 1, 9, "gf_bool")
F16 = DType("f16", "f", 2, 10, "gf_f16")
F64 = DType("f64", "f", 8, 11, "double")
U32 = DType("u32", "u", 4, 12, "gf_u32")
U64 = DType("u64", "u", 8, 13, "gf_u64")
BF16 = DType("bf16", "f", 2, 16, "gf_bf16")
F8E4M3 = DType("f8e4m3", "f", 1, 17, "gf_f8e4m3")  # finite: NaN, but no infinity (E4M3FN)
F8E4M3Z = DType("f8e4m3z", "f", 1, 18, "gf_f8e4m3z")  # no negative zero, no infinity (E4M3FNUZ)
F8E5M2 = DType("f8e5m2", "f", 1, 19, "gf_f8e5m2")
F8E5M2Z = DType("f8e5m2z", "f", 1, 20, "gf_f8e5m2z")  # no negative zero, no infinity (E5M2FNUZ)

FLOAT8: tuple[DType, ...] = (F8E4M3, F8E4M3Z, F8E5M2, F8E5M2Z)
ALL: tuple[DType, ...] = (F32, U8, I8, U16, I16, I32, I64, BOOL, F16, F64, U32, U64, BF16, *FLOAT8)
_NUMPY: dict[str, type[np.generic] | str] = {
    "f32": "float32", "f16": "float16", "f64": "float64", "bool": "bool", "i8": "int8", "i16": "int16", "i32": "int32",
    "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "bf16": ml_dtypes.bfloat16,
    "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e4m3z": ml_dtypes.float8_e4m3fnuz, "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e5m2z": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip
BY_NAME = {t.name: t for t in ALL}
BY_ONNX = {t.onnx: t for t in ALL}


def from_onnx(code: int) -> DType | None:
    """The type of a ``TensorProto.DataType``, None for one that programs cannot hold (strings, complex, less than a byte)."""
    return BY_ONNX.get(int(code))


def from_numpy(dtype: np.dtype) -> DType:
    """The type of a NumPy array's elements. Raises ValueError for one that programs cannot hold."""
    for candidate in ALL:
        if candidate.numpy == dtype:
            return candidate
    raise ValueError(f"element type {dtype} is not supported")
