"""Drives the fused region's plugin as TensorRT does: the same calls in the same order, on a device of the test's choice.

The order is the one that was seen in real builds: after the parse everything happens on clones, shapes are asked for twice
and twice more, the fields three times. What only happens on a GPU (attach, shape change, enqueue) follows TensorRT's
documentation.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

import graphfuse_plugin
from graphfuse import jit
from graphfuse.codegen.source import KernelSource
from graphfuse.ir import Program, loads
from graphfuse.ir.dtypes import DType
from graphfuse.ir.plugin_types import PLUGIN_TYPES
from graphfuse_plugin import guard
from tests import stand_in_trt

Shape = tuple[int, ...]
Profile = Sequence[tuple[Shape, Shape, Shape]]  # smallest, usual, largest of each input


class Network:
    """The build side, for one region."""

    def __init__(self, trt: Any, spec: str) -> None:
        self.trt, self.spec, self.program = trt, spec, loads(spec)
        graphfuse_plugin.register(trt)
        self.creator = trt.get_plugin_registry().get_creator("FusedRegion", "1", "graphfuse")

    def parse(self) -> Any:
        """The plugin as the network holds it; None where the parse fails."""
        declared = [f.name for f in self.creator.field_names]
        given = {"spec": np.frombuffer(self.spec.encode() + b"\0", np.int8), "plugin_version": b"1\0", "plugin_namespace": b"graphfuse\0"}
        arrived = [self.trt.PluginField(n, given[n], self.trt.PluginFieldType.CHAR) for n in declared if n in given]
        plugin = self.creator.create_plugin("node", self.trt.PluginFieldCollection(arrived), self.trt.TensorRTPhase.BUILD)
        if plugin is None:
            return None
        assert (plugin.plugin_name, plugin.plugin_version, plugin.plugin_namespace) == ("FusedRegion", "1", "graphfuse")
        types = [trt_type(self.trt, t) for t, _ in self.program.params]
        assert plugin.get_output_data_types(types) == [trt_type(self.trt, t) for t, _ in self.program.outputs]
        copy = self._capable(plugin.clone())
        assert len(copy.get_output_data_types(types)) == copy.num_outputs
        return copy

    def _capable(self, plugin: Any) -> Any:
        for capability in (self.trt.PluginCapabilityType.CORE, self.trt.PluginCapabilityType.BUILD, self.trt.PluginCapabilityType.RUNTIME):
            assert plugin.get_capability_interface(capability) is plugin
        return plugin

    def output_shapes(self, plugin: Any, shapes: Sequence[Shape], dynamic: Sequence[Shape] = ()) -> list[Shape]:
        """The shapes that the plugin's expressions have for inputs of ``shapes``; sizes marked -1 in ``dynamic`` are not constant."""
        marks = dynamic or shapes
        inputs = [
            stand_in_trt.DimsExprs([stand_in_trt.IDimensionExpr(d, m != -1) for d, m in zip(s, mark, strict=True)])
            for s, mark in zip(shapes, marks, strict=True)
        ]
        found = plugin.get_output_shapes(inputs, [], stand_in_trt.IExprBuilder())
        return [tuple(d.value for d in dims) for dims in found]

    def build(self, profile: Profile, targets: Sequence[str] | None = None) -> dict[str, bytes]:
        """The fields as they stand in the plan, after a whole build."""
        with guard.building(targets) as build:
            plugin = self._capable(self.parse().clone())
            smallest, usual, largest = ([p[i] for p in profile] for i in range(3))
            open_sizes = [tuple(a if a == b else -1 for a, b in zip(p[0], p[2], strict=True)) for p in profile]
            for _ in range(2):
                outputs = [self.output_shapes(plugin, s, open_sizes) for s in (smallest, usual, largest)]
            plugin = self._capable(plugin.clone())
            inputs = [self._dynamic(t, *p) for (t, _), p in zip(self.program.params, profile, strict=True)]
            results = [self._dynamic(t, *p) for (t, _), p in zip(self.program.outputs, zip(*outputs, strict=True), strict=True)]
            self._negotiate(plugin, inputs, results)
            plugin.configure_plugin(inputs, results)
            assert plugin.get_workspace_size(inputs, results) == 0
            assert plugin.get_valid_tactics() == []
            collections = [plugin.get_fields_to_serialize() for _ in range(3)]
            del plugin
            build.reraise()
            plans = [{f.name: np.asarray(f.data).tobytes() for f in c} for c in collections]
            assert plans[0] == plans[1] == plans[2]
            return plans[0]

    def _negotiate(self, plugin: Any, inputs: list[Any], outputs: list[Any]) -> None:
        """Depth first over the positions; every other format and type must be turned down."""
        tensors = inputs + outputs
        for position, item in enumerate(tensors):
            wanted = item.desc.type
            for offered in self.trt.DataType if hasattr(self.trt.DataType, "__iter__") else self.trt.DataType.__members__.values():
                item.desc.type = offered
                assert plugin.supports_format_combination(position, tensors, len(inputs)) == (offered == wanted)
            item.desc.type = wanted
            item.desc.format = self.trt.TensorFormat.HWC8
            assert not plugin.supports_format_combination(position, tensors, len(inputs))
            item.desc.format = self.trt.TensorFormat.LINEAR

    def _dynamic(self, dtype: DType, smallest: Shape, usual: Shape, largest: Shape) -> Any:
        made = self.trt.DynamicPluginTensorDesc()
        made.desc = describe(self.trt, dtype, tuple(a if a == b else -1 for a, b in zip(smallest, largest, strict=True)))
        made.min, made.opt, made.max = smallest, usual, largest
        return made

    def load(self, fields: Mapping[str, bytes]) -> Any:
        """The plugin as a deserialised engine holds it; None where TensorRT would give up."""
        held = [np.frombuffer(data, np.int8).copy() for data in fields.values()]
        made = [self.trt.PluginField(n, b, self.trt.PluginFieldType.CHAR) for n, b in zip(fields, held, strict=True)]
        plugin = self.creator.create_plugin("node", self.trt.PluginFieldCollection(made), self.trt.TensorRTPhase.RUNTIME)
        for buffer in held:
            buffer[:] = 0  # TensorRT frees the plan's bytes: the plugin must have copied
        return plugin


class Context:
    """One execution context of one plugin."""

    def __init__(self, network: Network, loaded: Any) -> None:
        self.trt, self.program = network.trt, network.program
        self.plugin = loaded.attach_to_context(None)
        assert self.plugin is not loaded
        graphfuse_plugin.reraise()

    def set_shapes(self, shapes: Sequence[Shape]) -> None:
        """As before the first enqueue with new shapes."""
        results = self.program.output_shapes(self.program.bind(shapes))
        self.descs = (
            [describe(self.trt, t, s) for (t, _), s in zip(self.program.params, shapes, strict=True)],
            [describe(self.trt, t, s) for (t, _), s in zip(self.program.outputs, results, strict=True)],
        )
        self.plugin.on_shape_change(*self.descs)

    def enqueue(self, inputs: Sequence[int], outputs: Sequence[int], stream: int = 0) -> None:
        """As in every execution."""
        self.plugin.enqueue(*self.descs, list(inputs), list(outputs), 0, stream)


def describe(trt: Any, dtype: DType, shape: Shape) -> Any:
    """A PluginTensorDesc."""
    made = trt.PluginTensorDesc()
    made.dims, made.type, made.format = shape, trt_type(trt, dtype), trt.TensorFormat.LINEAR
    return made


def trt_type(trt: Any, dtype: DType) -> Any:
    return getattr(trt.DataType, PLUGIN_TYPES[dtype])


# --- the host device in the driver's place ----------------------------------------------------------------------------


class HostDriver:
    """Runs the source that a cubin was made from on the CPU; launches arrive as the driver would get them."""

    sources: ClassVar[dict[bytes, KernelSource]] = {}  # by the cubin's hash; cubins outlive a test

    def __init__(self, monkeypatch: Any) -> None:
        self.launches: list[str] = []
        self._host = jit.HostDevice()
        self._compile = jit.compile_many
        monkeypatch.setattr(jit, "compile_many", self._record)
        monkeypatch.setattr("graphfuse_plugin.driver._installed", self)

    def _record(self, sources: Sequence[KernelSource], archs: Sequence[str], **more: Any) -> Any:
        made = self._compile(sources, archs, **more)
        for source, cubins in zip(sources, made, strict=True):
            self.sources.update({hashlib.sha256(c.image).digest(): source for c in cubins.values()})
        return made

    def arch(self) -> str:
        return "sm_86"

    def load(self, image: bytes, entry: str) -> Any:
        source = self.sources[hashlib.sha256(image).digest()]
        variant = next(v for v in source.variants if v.entry == entry)
        text = "#define GF_CLUSTERS 0\n" + source.text  # as the architecture that this stands for
        (executable,) = self._host.load([replace(source, text=text, variants=(replace(variant, before=0),))])
        return executable

    def launcher(self, function: Any, blocks: int, threads: int, arguments: int) -> Any:
        return lambda stream: self._launch(function, blocks, threads, arguments)

    def _launch(self, function: Any, blocks: int, threads: int, arguments: int) -> None:
        source: KernelSource = function.source
        count = source.inputs + source.outputs + len(source.symbols)
        places = (ctypes.c_void_p * count).from_address(arguments)
        words = [ctypes.c_longlong.from_address(place or 0).value for place in places]
        pointers, sizes = words[: count - len(source.symbols)], words[count - len(source.symbols) :]
        env = dict(zip(source.symbols, sizes, strict=True))
        (variant,) = source.variants
        assert (blocks, threads) == (variant.blocks(env), variant.block)
        self.launches.append(variant.entry)
        function.launch(pointers, env)


def run_on_host(context: Context, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """One enqueue on arrays of this process."""
    context.set_shapes([a.shape for a in arrays])
    shapes = context.program.output_shapes(context.program.bind([a.shape for a in arrays]))
    results = [np.zeros(s, t.numpy) for (t, _), s in zip(context.program.outputs, shapes, strict=True)]
    context.enqueue([a.ctypes.data for a in arrays], [r.ctypes.data for r in results])
    return results


def fixed(program: Program, shapes: Sequence[Shape]) -> Profile:
    """A profile of one shape."""
    return [(tuple(s),) * 3 for s in shapes]
