"""A module that looks like TensorRT to the plugin, where no TensorRT can be imported (and where its objects cannot be made).

It has the classes that a plugin derives from or constructs, and is as strict as the real ones where a mistake would show:
fields hold a view of the buffer they were given, collections hold no copy, dimension expressions are evaluated exactly.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class DataType(enum.Enum):
    FLOAT, HALF, INT8, INT32, BOOL, UINT8, FP8, BF16, INT64 = range(9)


class TensorFormat(enum.Enum):
    LINEAR, CHW2, HWC8 = range(3)


class PluginFieldType(enum.Enum):
    FLOAT16, FLOAT32, FLOAT64, INT8, INT16, INT32, CHAR = range(7)


class TensorRTPhase(enum.Enum):
    BUILD, RUNTIME = range(2)


class PluginCapabilityType(enum.Enum):
    CORE, BUILD, RUNTIME = range(3)


class DimensionOperation(enum.Enum):
    SUM, PROD, MAX, MIN, SUB, EQUAL, LESS, FLOOR_DIV, CEIL_DIV = range(9)


_APPLY: dict[DimensionOperation, Callable[[int, int], int]] = {
    DimensionOperation.SUM: lambda a, b: a + b,
    DimensionOperation.PROD: lambda a, b: a * b,
    DimensionOperation.MAX: max,
    DimensionOperation.MIN: min,
    DimensionOperation.SUB: lambda a, b: a - b,
    DimensionOperation.FLOOR_DIV: lambda a, b: a // b,
    DimensionOperation.CEIL_DIV: lambda a, b: -(-a // b),
}


class IDimensionExpr:
    """An expression that knows its value for one set of sizes, and whether TensorRT would call it constant."""

    def __init__(self, value: int, constant: bool) -> None:
        self.value = value
        self._constant = constant

    def is_constant(self) -> bool:
        return self._constant

    def get_constant_value(self) -> int:
        return self.value if self._constant else -(1 << 63)


class IExprBuilder:
    def constant(self, value: int) -> IDimensionExpr:
        assert type(value) is int
        return IDimensionExpr(value, True)

    def operation(self, op: DimensionOperation, first: IDimensionExpr, second: IDimensionExpr) -> IDimensionExpr:
        assert isinstance(first, IDimensionExpr)
        assert isinstance(second, IDimensionExpr)
        return IDimensionExpr(_APPLY[op](first.value, second.value), first.is_constant() and second.is_constant())


class DimsExprs(list[Any]):
    def __init__(self, dims: Sequence[IDimensionExpr] = ()) -> None:
        assert all(isinstance(d, IDimensionExpr) for d in dims)
        super().__init__(dims)


class PluginField:
    def __init__(self, name: str, data: Any, type: PluginFieldType) -> None:
        self.name, self.type = name, type
        self.data = np.frombuffer(memoryview(data), dtype=np.int8)


class PluginFieldCollection(list[PluginField]):
    pass


@dataclass
class PluginTensorDesc:
    dims: tuple[int, ...] = ()
    type: DataType = DataType.FLOAT
    format: TensorFormat = TensorFormat.LINEAR
    scale: float = 1.0


@dataclass
class DynamicPluginTensorDesc:
    desc: PluginTensorDesc = field(default_factory=PluginTensorDesc)
    min: tuple[int, ...] = ()
    opt: tuple[int, ...] = ()
    max: tuple[int, ...] = ()


class Registry:
    def __init__(self) -> None:
        self.creators: dict[tuple[str, str, str], Any] = {}

    def register_creator(self, creator: Any, plugin_namespace: str = "") -> bool:
        return self.creators.setdefault((creator.name, creator.plugin_version, plugin_namespace), creator) is creator

    def get_creator(self, name: str, version: str, plugin_namespace: str = "") -> Any:
        return self.creators.get((name, version, plugin_namespace))


def make() -> Any:
    """A fresh module with a registry of its own."""
    module = types.ModuleType("stand_in_trt")
    for thing in (
        DataType, TensorFormat, PluginFieldType, TensorRTPhase, PluginCapabilityType, DimensionOperation, DimsExprs, PluginField,
        PluginFieldCollection, PluginTensorDesc, DynamicPluginTensorDesc,
    ):  # fmt: skip
        setattr(module, thing.__name__, thing)
    for name in ("IPluginV3", "IPluginV3OneCore", "IPluginV3OneBuild", "IPluginV3OneRuntime", "IPluginCreatorV3One"):
        setattr(module, name, type(name, (), {}))
    registry = Registry()
    module.get_plugin_registry = lambda: registry  # type: ignore[attr-defined]
    return module
