"""``Session``: runs a model whose fused nodes need no TensorRT."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir

from graphfuse.graph.load import load_model
from graphfuse.session.devices import Region, open_device
from graphfuse.session.fused import PLUGIN_OP, FusedNode, is_fused, read_fused
from graphfuse.session.interface import Port, accept_inputs, port
from graphfuse.session.ort_stage import OrtStage, known_types
from graphfuse.session.stages import Stage, last_uses, live_nodes, outer_reads, split
from graphfuse.session.values import Value, tensor_type

if TYPE_CHECKING:
    from graphfuse.session.binding import Binding

Model = str | os.PathLike[str] | onnx.ModelProto | onnx_ir.Model


class Session:
    """A model ready to run: fused nodes on ``device``, the rest in ONNX Runtime with its optimisation off.

    ``model`` is a path, a ``ModelProto`` or an ``onnx_ir.Model``, with fused nodes in portable or plugin form, or with
    none at all. ``device`` is cuda, host, numpy or auto (the first of these that works; ``Session.device`` says which).
    Raises GraphfuseError when the model cannot be read, ONNX Runtime does not take its unfused nodes, or the device
    does not work here. Bodies of If, Loop and Scan run in ONNX Runtime as a whole, fused nodes in them as the nodes that
    they were made from. All kernels are compiled here, together; ``run`` compiles nothing.
    """

    def __init__(self, model: Model, device: str = "auto") -> None:
        self._model = _with_bodies_to_run(load_model(model))
        graph = self._model.graph
        self.inputs: tuple[Port, ...] = tuple(port(v) for v in graph.inputs)
        self.outputs: tuple[Port, ...] = tuple(port(v) for v in graph.outputs)
        self._device = open_device(device)
        self._fused = {n: read_fused(n, self._model) for n in graph if is_fused(n)}
        stages = split(live_nodes(graph, self._reads), self._reads)
        self._drops = last_uses(stages, graph, self._reads)
        live = {n: self._fused[n] for s in stages if s.fused for n in s.nodes}
        regions = dict(zip(live, self._device.load(list(live.values())), strict=True))
        self._steps = self._build(stages, regions)
        self.constants = {v.name or "": Value(array=v.const_value.numpy()) for v in self._needed_constants(stages) if v.const_value}

    def _reads(self, node: onnx_ir.Node) -> list[onnx_ir.Value]:
        """The values that the node needs here: of a fused one, its program's parameters alone."""
        if node not in self._fused:
            return outer_reads(node, self._model.graph)
        wanted = set(self._fused[node].inputs)
        return [v for v in node.inputs if v is not None and v.name in wanted]

    @property
    def device(self) -> str:
        """Where the fused nodes run: ``cuda``, ``host`` or ``numpy``."""
        return self._device.name

    @property
    def unfused(self) -> list[str]:
        """Labels of the nodes that run in ONNX Runtime; none for a wholly fused model."""
        return [name for step in self._steps if isinstance(step, OrtStage) for name in step.labels]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, in the model's order, for these inputs (arrays of exactly the model's dtypes).

        Raises GraphfuseError for an unknown or missing input, a wrong dtype, rank or fixed dimension, and for sizes
        that the model's nodes do not take.
        """
        given = accept_inputs(self.inputs, inputs)
        values = dict(self.constants)
        values.update((name, Value(array=array)) for name, array in given.items())
        for step, drop in zip(self._steps, self._drops, strict=True):
            values.update(step.run(values))
            for name in drop:
                values.pop(name, None)
        return {p.name: values[p.name].result for p in self.outputs}

    def bind(self, inputs: Mapping[str, Any]) -> Binding:
        """Prepares a wholly fused model to run on these device arrays, again and again, by launching kernels only.

        Raises GraphfuseError when the device is not CUDA, a node is not fused, or an array is not contiguous or has a
        wrong dtype or shape.
        """
        from graphfuse.session.binding import bind

        return bind(self, self._device, inputs)

    def fused_regions(self) -> tuple[list[FusedNode], list[Region]]:
        """The fused nodes of the main graph in the order in which they run, and each of them ready to run by itself."""
        pairs = [pair for step in self._steps if isinstance(step, _FusedStep) for pair in step.nodes]
        return [node for node, _ in pairs], [region for _, region in pairs]

    def _build(self, stages: list[Stage], regions: dict[onnx_ir.Node, Region]) -> list[Any]:
        """The steps in order; each ONNX Runtime stage learns its input types from what came before it."""
        types = known_types(self._model.graph)
        wanted = self._wanted(stages)
        steps: list[Any] = []
        for stage in stages:
            if stage.fused:
                steps.append(_FusedStep([(self._fused[n], regions[n]) for n in stage.nodes]))
                types.update(t for n in stage.nodes for t in _program_types(self._fused[n]))
            else:
                steps.append(OrtStage(self._model, stage.nodes, types, wanted))
                types.update(steps[-1].output_types)
        return steps

    def _wanted(self, stages: list[Stage]) -> list[str]:
        """Names that must leave the stage that makes them: outputs of the model, and values read by another stage."""
        home = {v: s for s, stage in enumerate(stages) for n in stage.nodes for v in n.outputs}
        wanted = {v.name: None for v in self._model.graph.outputs if v.name}
        for index, stage in enumerate(stages):
            for node in stage.nodes:
                wanted.update({v.name: None for v in self._reads(node) if v.name and home.get(v, index) != index})
        return list(wanted)

    def _needed_constants(self, stages: list[Stage]) -> list[onnx_ir.Value]:
        """Initializers that do not live inside an ONNX Runtime stage: inputs of fused nodes, defaults of inputs, outputs."""
        graph = self._model.graph
        used = {v for s in stages if s.fused for n in s.nodes for v in self._reads(n)} | set(graph.outputs)
        return [v for v in graph.initializers.values() if v in used or v.is_graph_input()]


def _with_bodies_to_run(model: onnx_ir.Model) -> onnx_ir.Model:
    """In bodies ONNX Runtime needs the functions of the portable form, which travels inside the plugin form."""
    if not any(n.op_type == PLUGIN_OP and is_fused(n) and n.graph is not model.graph for n in model.graph.all_nodes()):
        return model
    from graphfuse.match.plugin_form import portable_of

    return portable_of(model)


class _FusedStep:
    """Fused nodes that run one after another."""

    def __init__(self, nodes: list[tuple[FusedNode, Region]]) -> None:
        self.nodes = nodes

    def run(self, values: Mapping[str, Value]) -> dict[str, Value]:
        made: dict[str, Value] = {}
        for node, region in self.nodes:
            inputs = [made[n] if n in made else values[n] for n in node.inputs]
            made.update(zip(node.outputs, region.run(inputs), strict=True))
        return made


def _program_types(node: FusedNode) -> list[tuple[str, onnx.TypeProto]]:
    return [(name, tensor_type(t.onnx)) for name, (t, _) in zip(node.outputs, node.program.outputs, strict=True)]
