"""The creator: makes plugins from a model's nodes (build) and from an engine's fields (run)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from graphfuse.ir.errors import ProgramError
from graphfuse_plugin import fields
from graphfuse_plugin.guard import current, guarded_or, returns
from graphfuse_plugin.plugin import NAME, NAMESPACE, VERSION, make_plugin_class
from graphfuse_plugin.region import Region


class FusedRegionCreator:
    """IPluginCreatorV3One for every fused region of every engine."""

    trt: Any

    def __init__(self) -> None:
        trt = self.trt
        trt.IPluginCreatorV3One.__init__(self)
        self.name, self.plugin_version, self.plugin_namespace = NAME, VERSION, NAMESPACE
        # Only attributes declared here reach create_plugin. The spec is one string: the only kind that arrives unchanged.
        self._declared = fields.FieldStore(trt, {fields.SPEC: b""})
        self.field_names = self._declared.collection

    @guarded_or(lambda *_: None)
    @returns(lambda self, value: isinstance(value, self.trt.IPluginV3), "a plugin")
    def create_plugin(self, name: str, field_collection: Any, phase: Any) -> Any:
        parts = fields.read(field_collection)
        spec = fields.text(parts, fields.SPEC)
        if phase != self.trt.TensorRTPhase.RUNTIME:
            return make_plugin_class(self.trt)(current().share(("region", spec), lambda: Region.parse(spec)))
        if fields.KERNELS not in parts:
            raise ProgramError("this engine was built without its kernels: the build reported an error; build it again")
        return make_plugin_class(self.trt)(*fields.unpack(spec, parts[fields.KERNELS]))


@lru_cache(maxsize=4)
def make_creator_class(trt: Any) -> type[FusedRegionCreator]:
    """``FusedRegionCreator`` on the base class of one TensorRT module."""
    return type("FusedRegionCreator", (FusedRegionCreator, trt.IPluginCreatorV3One), {"trt": trt})
