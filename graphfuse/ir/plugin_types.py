"""What TensorRT hands to plugins and takes from them: element types by its names for them, and ranks."""

from __future__ import annotations

from graphfuse.ir.dtypes import BF16, BOOL, F8E4M3, F16, F32, I8, I32, I64, DType

MAX_RANK = 8  # of a TensorRT tensor
# No UINT8, which TensorRT keeps to casts at a network's edge, and of the float8 types the one that it knows. INT4 and FP4 it
# hands over too; programs hold no type of less than a byte.
PLUGIN_TYPES: dict[DType, str] = {
    F32: "FLOAT", F16: "HALF", BF16: "BF16", F8E4M3: "FP8", I8: "INT8", I32: "INT32", I64: "INT64", BOOL: "BOOL",
}  # fmt: skip
