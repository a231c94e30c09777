"""A model as bytes, piece by piece: the very bytes that protobuf would write, without a second copy of the weights.

A message is its fields in the order of their numbers, each behind its tag; an initializer is one such field of the graph.
So what stands before the initializers and behind them is encoded as a whole, and each weight by itself when its turn comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import numpy as np
import onnx
import onnx_ir as ir

_GRAPH = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_INITIALIZER = onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
Message = TypeVar("Message", onnx.ModelProto, onnx.GraphProto)


def placeholder(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """An empty tensor of the same type, to stand in a proto for one that is encoded by itself."""
    return ir.Tensor(np.empty(0, tensor.dtype.numpy()), dtype=tensor.dtype, name=tensor.name)


def pieces(proto: onnx.ModelProto, weights: Mapping[str, ir.TensorProtocol]) -> Iterator[bytes]:
    """The bytes of ``proto`` with the initializers that ``weights`` names in place of those that it has."""
    graph = proto.graph
    head, tail = _encoded(_side(graph, _INITIALIZER, before=True)), _encoded(_side(graph, _INITIALIZER, before=False))
    sizes = [_weight(t, weights).ByteSize() for t in graph.initializer]
    length = len(head) + len(tail) + sum(len(_tag(_INITIALIZER, size)) + size for size in sizes)
    yield _encoded(_side(proto, _GRAPH, before=True)) + _tag(_GRAPH, length) + head
    for tensor, size in zip(graph.initializer, sizes, strict=True):
        yield _tag(_INITIALIZER, size)
        yield _encoded(_weight(tensor, weights))
    yield tail + _encoded(_side(proto, _GRAPH, before=False))


def _weight(tensor: onnx.TensorProto, weights: Mapping[str, ir.TensorProtocol]) -> onnx.TensorProto:
    if tensor.name not in weights:
        return tensor
    made: onnx.TensorProto = ir.serde.serialize_tensor(weights[tensor.name])
    made.name = tensor.name
    return made


def _side(message: Message, number: int, *, before: bool) -> Message:
    """The message with the fields of lower numbers alone, or of higher ones."""
    side = type(message)()
    for field, value in message.ListFields():
        if (field.number < number) if before else (field.number > number):
            if isinstance(value, (str, bytes, int, float)):
                setattr(side, field.name, value)
            elif hasattr(value, "CopyFrom"):
                getattr(side, field.name).CopyFrom(value)
            else:
                getattr(side, field.name).extend(value)
    return side


def _encoded(message: onnx.ModelProto | onnx.GraphProto | onnx.TensorProto) -> bytes:
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def _tag(number: int, length: int) -> bytes:
    """What stands before a field of ``length`` bytes."""
    return _varint(number << 3 | 2) + _varint(length)


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)
