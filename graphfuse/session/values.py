"""One value on its way through a session: held as an array, an ONNX Runtime value or device memory, converted when asked.

ONNX Runtime's Python arrays cannot carry bfloat16 or float8, nor sequences; its own values can. So what one ONNX
Runtime stage hands to another stays an ``OrtValue``, and arrays are made only for fused nodes and for the caller.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any, Protocol

import numpy as np
import onnx
import onnxruntime as ort

from graphfuse.ir.errors import GraphfuseError

Array = np.ndarray


class DeviceMemory(Protocol):
    """Memory of a device that holds one contiguous array."""

    dtype: np.dtype
    shape: tuple[int, ...]

    def to_host(self) -> Array:
        """A copy in host memory."""
        ...


class Value:
    """A tensor or sequence. Converted lazily; the converted form is kept, so each conversion happens once."""

    def __init__(self, *, array: Array | None = None, ort_value: Any = None, device: DeviceMemory | None = None) -> None:
        self._array = array
        self._ort = ort_value
        self.device = device

    @property
    def array(self) -> Array:
        """The value as a NumPy array. Raises GraphfuseError for a sequence or an optional without a value."""
        if self._array is None:
            self._array = self.device.to_host() if self.device is not None else ort_to_array(self._ort)
        return self._array

    @property
    def for_ort(self) -> Any:
        """What ``InferenceSession.run`` takes: an ``OrtValue``, or the array itself where it holds strings."""
        if self._ort is None:
            self._ort = array_to_ort(self.array)
        return self._ort

    @property
    def result(self) -> Any:
        """What the caller gets: an array, or a list of arrays for a sequence."""
        if self._array is None and self._ort is not None and self._ort.is_tensor_sequence():
            return [np.asarray(item) for item in _sequence_items(self._ort)]
        return self.array


def onnx_type(dtype: np.dtype) -> int:
    """The ``TensorProto.DataType`` of a NumPy type. Raises GraphfuseError for one that ONNX does not have."""
    if dtype.kind in "OSUT":
        return int(onnx.TensorProto.STRING)
    try:
        return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))
    except (ValueError, KeyError, TypeError) as error:
        raise GraphfuseError(f"ONNX has no element type for arrays of {dtype}; convert them first") from error


def numpy_type(code: int) -> np.dtype:
    """The NumPy type of a ``TensorProto.DataType`` (an ``ml_dtypes`` one for the small floats and integers)."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code))


def is_native(dtype: np.dtype) -> bool:
    """Whether ONNX Runtime's Python arrays can hold it: everything but the types that NumPy itself lacks."""
    return dtype.type.__module__ == "numpy" and dtype.kind in "fiubc"


def array_to_ort(array: Array) -> Any:
    """An ``OrtValue`` on the same memory where possible; strings come back as they are."""
    if array.dtype.kind in "OSUT":
        return array
    array = np.ascontiguousarray(array).reshape(array.shape)
    if is_native(array.dtype):
        return ort.OrtValue.ortvalue_from_numpy(array)
    carrier = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(carrier, onnx_type(array.dtype))


def ort_to_array(value: Any) -> Array:
    """A NumPy array with the value's elements. Raises GraphfuseError when it is not a tensor."""
    if isinstance(value, np.ndarray):
        return value
    if not value.is_tensor():
        raise GraphfuseError(f"a value of type {value.data_type()} cannot be returned as an array; make a tensor output of it")
    if value.data_type() == "tensor(string)":
        return np.asarray(value.numpy())
    dtype = numpy_type(value.element_type())
    if is_native(dtype):
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    result = np.empty(shape, dtype)
    if result.nbytes:
        ctypes.memmove(result.ctypes.data, value.data_ptr(), result.nbytes)
    return result


def _sequence_items(value: Any) -> list[Any]:
    """The tensors of a sequence: an ``OrtValue`` has no way in, so a model of one node hands it back as a list."""
    type_proto = parse_type(value.data_type())
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "unpack",
        [onnx.ValueInfoProto(name="x", type=type_proto)],
        [onnx.ValueInfoProto(name="y", type=type_proto)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 16)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    items: list[Any] = session.run(None, {"x": value})[0]
    return items


_TYPE = re.compile(r"(tensor|seq|optional)\((.*)\)")
_ELEMENT = {"float": "FLOAT", "double": "DOUBLE"}


def parse_type(text: str) -> onnx.TypeProto:
    """ONNX Runtime's name of a type (``tensor(float)``, ``seq(tensor(int64))``) as a ``TypeProto`` without shapes."""
    match = _TYPE.fullmatch(text)
    if match is None:
        raise GraphfuseError(f"a value of type {text} cannot pass between fused and unfused parts; restore the model and run that")
    kind, inner = match.groups()
    if kind == "tensor":
        return tensor_type(onnx.TensorProto.DataType.Value(_ELEMENT.get(inner, inner.upper())))
    result = onnx.TypeProto()
    (result.sequence_type if kind == "seq" else result.optional_type).elem_type.CopyFrom(parse_type(inner))
    return result


def tensor_type(code: int) -> onnx.TypeProto:
    """The type of a tensor of this element type and any shape."""
    result = onnx.TypeProto()
    result.tensor_type.elem_type = code
    return result
