"""The fused region as a TensorRT plugin.

One class serves every region: what it computes is the program in its spec. TensorRT's base classes come from one of two
modules, so the class is made for the module that is loaded. All that a region *is* lives in the immutable ``Region``, and
the kernels in an immutable tuple; a clone shares both and has its own launcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from graphfuse.ir.dtypes import DType
from graphfuse.ir.errors import GraphfuseError
from graphfuse.ir.plugin_types import PLUGIN_TYPES
from graphfuse_plugin import fields
from graphfuse_plugin.fields import FieldStore, Kernel
from graphfuse_plugin.guard import current, failed, guarded, guarded_or, record, returns
from graphfuse_plugin.kernels import Request, compile_regions, hardened_sizes
from graphfuse_plugin.launch import Launcher
from graphfuse_plugin.region import Region, Tensors
from graphfuse_plugin.shapes import output_shapes

NAME, VERSION, NAMESPACE = "FusedRegion", "1", "graphfuse"


class FusedRegionPlugin:
    """Every callback of IPluginV3, its three capabilities in one object. ``trt`` is the TensorRT module it was made for."""

    trt: Any
    num_outputs: int

    def __init__(self, region: Region, kernels: tuple[Kernel, ...] = ()) -> None:
        trt = self.trt
        for base in (trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):
            base.__init__(self)
        self.plugin_name, self.plugin_version, self.plugin_namespace = NAME, VERSION, NAMESPACE
        self.num_outputs = len(region.interface.outputs)
        self.region = region
        self.kernels = kernels
        self._launcher: Launcher | None = None
        self._store: FieldStore | None = None
        current().plugins.append(self)

    # Both of these crash the process when they fail, so they hold nothing that can; a second try is for an interrupt
    # by the keyboard, which Python delivers wherever it happens to be.

    @guarded_or(lambda self, _: self)
    def get_capability_interface(self, type: Any) -> Any:
        return self

    def clone(self) -> Any:
        try:
            return self.__class__(self.region, self.kernels)
        except BaseException as error:
            record("clone", error)
        return self.__class__(self.region, self.kernels)

    # --- build

    @guarded
    @returns(lambda self, value: _is_list(value, self.num_outputs), "a type for each output")
    def get_output_data_types(self, input_types: Sequence[Any]) -> list[Any]:
        wanted = [self._trt_type(t) for t, _ in self.region.interface.params]
        if list(input_types) != wanted:
            raise GraphfuseError(
                f"a fused region was made for inputs of type {', '.join(t.name for t in wanted)}; "
                f"the network gives {', '.join(t.name for t in input_types)}"
            )
        return [self._trt_type(t) for t, _ in self.region.interface.outputs]

    @guarded
    @returns(lambda self, value: _is_list(value, self.num_outputs), "a shape for each output")
    def get_output_shapes(self, inputs: Sequence[Any], shape_inputs: Sequence[Any], expr_builder: Any) -> list[Any]:
        return output_shapes(self.trt, self.region.program, inputs, expr_builder)

    @guarded
    @returns(lambda _, value: value is True or value is False, "True or False")
    def supports_format_combination(self, pos: int, in_out: Sequence[Any], num_inputs: int) -> bool:
        """One combination only: TensorRT would otherwise compile all of them into the plan."""
        desc = in_out[pos].desc
        return bool(desc.format == self.trt.TensorFormat.LINEAR and desc.type == self._trt_type(self._tensors[pos][0]))

    @guarded
    def configure_plugin(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        (self.kernels,) = compile_regions([self.request([item.desc.dims for item in inputs], [item.opt for item in inputs])])
        self._store = self._launcher = None

    @guarded_or(lambda *_: 0)
    @returns(lambda _, value: type(value) is int and value >= 0, "a number of bytes")
    def get_workspace_size(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
        return 0

    @guarded
    @returns(lambda _, value: isinstance(value, list) and 0 not in value, "tactics other than 0")
    def get_valid_tactics(self) -> list[int]:
        return []

    @guarded_or(lambda self: self.trt.PluginFieldCollection([]))
    @returns(lambda self, value: isinstance(value, self.trt.PluginFieldCollection) and len(value) > 0, "fields")
    def get_fields_to_serialize(self) -> Any:
        if self._store is None:
            key = "fields", self.trt, self.region.spec, *map(id, self.kernels)
            # the kernels stay with their fields, so that none gets the number of one that is gone
            _, self._store = current().share(key, lambda: (self.kernels, self._fields()))
        return self._store.collection

    def _fields(self) -> FieldStore:
        parts = {fields.SPEC: self.region.spec.encode("ascii"), fields.KERNELS: fields.pack(self.region, self.kernels)}
        return FieldStore(self.trt, parts)

    # --- run

    @guarded
    def set_tactic(self, tactic: int) -> None:
        return None

    @guarded_or(lambda self, _: self.clone())
    def attach_to_context(self, resource_context: Any) -> Any:
        made = self.clone()
        made.launcher.load()
        return made

    @guarded
    def on_shape_change(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.launcher.prepare([tuple(desc.dims) for desc in inputs])

    def enqueue(
        self, input_desc: Any, output_desc: Any, inputs: Sequence[int], outputs: Sequence[int], workspace: int, stream: int
    ) -> None:
        try:  # guarded here: on this path a wrapper costs as much as the rest
            (self._launcher or self.launcher).launch(inputs, outputs, stream)
        except BaseException as error:
            raise failed("enqueue", error) from None

    # --- inside

    def request(self, shapes: Sequence[Sequence[int]], usual: Sequence[Sequence[int]]) -> Request:
        """What to compile when this region's inputs have these shapes (-1: not known) and, mostly, the ``usual`` ones."""
        program = self.region.program
        return Request(self.region.spec, program, hardened_sizes(program, shapes, usual))

    @property
    def launcher(self) -> Launcher:
        """This context's launcher."""
        if self._launcher is None:
            self._launcher = Launcher(self.region, self.kernels)
        return self._launcher

    @property
    def _tensors(self) -> Tensors:
        return self.region.interface.params + self.region.interface.outputs

    def _trt_type(self, dtype: DType) -> Any:
        return getattr(self.trt.DataType, PLUGIN_TYPES[dtype])


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and None not in value


@lru_cache(maxsize=4)
def make_plugin_class(trt: Any) -> type[FusedRegionPlugin]:
    """``FusedRegionPlugin`` on the base classes of one TensorRT module."""
    bases = (FusedRegionPlugin, trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime)
    return type("FusedRegionPlugin", bases, {"trt": trt, "__doc__": FusedRegionPlugin.__doc__})
