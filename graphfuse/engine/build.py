"""Building an engine from a model in the plugin form, and proving that the engine holds what it should.

TensorRT has ways to succeed without our kernels: a fused node may be inlined as a function, a failing callback may leave a
plan without its fields. So after the parse the plugin layers are counted, and after the build every region's marker is
looked for in the plan's bytes; an error that a callback met is raised with its own traceback.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from graphfuse.engine import aot as pythonless
from graphfuse.engine import timing_cache as timing
from graphfuse.engine.ahead import requests
from graphfuse.engine.flavour import Capture, Flavour, load_flavour
from graphfuse.engine.interrupts import Interrupts, interrupts_held
from graphfuse.engine.progress import Progress, Silent, Unfailing, make_monitor
from graphfuse.engine.shapes import Ranges, make_profiles, plain_range
from graphfuse.ir.errors import GraphfuseError, ProgramError
from graphfuse.ir.files import write_bytes, write_text

Model = bytes | onnx.ModelProto | str | os.PathLike[str]


@dataclass(frozen=True)
class Engine:
    """A built engine: the serialised plan, the names of its fused layers, and what TensorRT said while building."""

    bytes: bytes
    plugin_layers: list[str]
    flavour: str
    log: list[str]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan; a file of that name is replaced in one step, or not at all."""
        write_bytes(Path(path), self.bytes)


@dataclass(frozen=True)
class FusedNode:
    """A FusedRegion node of the model: its name (empty if it has none) and its spec."""

    name: str
    spec: str


def build_engine(
    model: Model,
    *,
    flavour: str | None = None,
    shapes: Ranges | Sequence[Ranges] | None = None,
    targets: Sequence[str] | None = None,
    expected_plugins: int | None = None,
    verbose: bool = False,
    aot: bool = False,
    min_driver: int | None = None,
    log_file: str | os.PathLike[str] | None = None,
    timing_cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Engine:
    """Build an engine from a model in the plugin form (bytes, proto, or the path of a file with external data beside it).

    ``shapes`` maps each dynamic input to its smallest, usual and largest shape; a list of such mappings makes as many
    optimisation profiles, each with kernels hardened for its usual shapes. ``targets`` are GPU architectures
    (``sm_89``); None means this machine's GPU, and for TensorRT for RTX every one from sm_80 on. ``expected_plugins`` is
    the number of fused layers that the engine must hold; by default, of the FusedRegion nodes in the model. ``verbose``
    keeps TensorRT's most detailed messages in ``Engine.log`` as well. ``aot`` makes an engine that needs no Python (full
    TensorRT only), with kernels that drivers from the branch ``min_driver`` on take. ``log_file`` gets every message, the
    most detailed ones too, also when the build fails. ``timing_cache`` is a file that keeps TensorRT's measurements for the
    next build (full TensorRT only). ``progress`` is told of every phase. Ctrl-C stops the build at TensorRT's next step.

    Raises GraphfuseError when the model, the shapes or the targets do not fit, or TensorRT refuses; any other exception
    that a callback of the plugin met is raised as it is.
    """
    import graphfuse_plugin
    from graphfuse_plugin.aot import AotTarget
    from graphfuse_plugin.aot_kernel import MIN_DRIVER
    from graphfuse_plugin.driver import gpu_arch

    nodes = fused_nodes(model)
    _check_specs(nodes)
    chosen = load_flavour(flavour)
    if aot:
        pythonless.check_flavour(chosen)
    if timing_cache is not None:
        timing.check_flavour(chosen)
    chosen.check_targets(targets or (), gpu_arch())
    if not chosen.builds_without_gpu and gpu_arch() is None:
        raise GraphfuseError(f"{chosen.title} builds on a machine with an NVIDIA GPU only; use --flavour tensorrt_rtx here")
    graphfuse_plugin.register(chosen.module)
    kernels_for = targets or _default_targets(chosen)
    ranges = [shapes] if isinstance(shapes, Mapping) else list(shapes or ())
    shown = Unfailing(progress or Silent())
    with interrupts_held() as held, _logged(chosen, verbose, log_file) as log, graphfuse_plugin.building(kernels_for) as build:
        monitor = make_monitor(chosen.module, shown, lambda: held.pressed)
        if aot:
            pythonless.register_nodes(chosen, nodes, AotTarget(kernels_for[0], min_driver or MIN_DRIVER))
        with pythonless.renamed(model) if aot else nullcontext(model) as given:
            builder, network, _parser = _parse(chosen, given, build, log, pythonless.network_flags(chosen) if aot else 0)
        layers = _check_layers(chosen, network, nodes, expected_plugins)
        config = builder.create_builder_config()
        config.progress_monitor = monitor
        for profile in make_profiles(builder, network, ranges):
            if config.add_optimization_profile(profile) < 0:
                raise GraphfuseError("TensorRT did not accept these shapes as an optimisation profile")
        chosen.set_targets(config, targets or ())
        cache = None if timing_cache is None else timing.attach(chosen, config, Path(timing_cache), log)
        if not aot:
            _compile_ahead(network, layers, ranges, shown, held)
        held.check()
        plan = _build(chosen, builder, network, config, build, log)
        if cache is not None and timing_cache is not None:
            timing.save(cache, Path(timing_cache))
        if not aot:  # what of an ahead-of-time plugin stands in a plan is TensorRT's business
            _check_plan(plan, nodes)
    said = [f"{severity}: {text}" for severity, text in log.lines if verbose or severity != "VERBOSE"]
    return Engine(plan, [layer.name for layer in layers], chosen.name, said)


@contextmanager
def _logged(flavour: Flavour, verbose: bool, path: str | os.PathLike[str] | None) -> Iterator[Capture]:
    """Collects what TensorRT says, and writes it to the file, whatever becomes of the build."""
    with flavour.logger.capture(verbose or path is not None) as log:
        try:
            yield log
        except BaseException:
            with suppress(GraphfuseError):  # why the build failed is what matters
                _write_log(path, log)
            raise
        _write_log(path, log)


def _write_log(path: str | os.PathLike[str] | None, log: Capture) -> None:
    if path is not None:
        write_text(Path(path), "".join(f"[{severity}] {text}\n" for severity, text in log.lines))


def _default_targets(flavour: Flavour) -> tuple[str, ...]:
    """An engine of TensorRT for RTX runs on GPUs other than the builder's, so its kernels must as well."""
    from graphfuse_plugin import COVERING, default_targets

    return tuple(dict.fromkeys([*COVERING, *default_targets()])) if flavour.builds_without_gpu else default_targets()


def fused_nodes(model: Model) -> list[FusedNode]:
    """The FusedRegion nodes of a model, those in branches included. Raises GraphfuseError if it is no ONNX model."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if isinstance(model, onnx.ModelProto):
        return list(_walk(model.graph))
    try:
        proto = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(os.fspath(model), load_external_data=False)
    except OSError as error:
        raise GraphfuseError(f"{error.filename} cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise GraphfuseError(f"{'the model' if isinstance(model, bytes) else os.fspath(model)} is not an ONNX model") from error
    return list(_walk(proto.graph))


def _check_specs(nodes: Sequence[FusedNode]) -> None:
    """Raises ProgramError naming the node whose spec is damaged or cannot be a plugin."""
    from graphfuse_plugin.region import Region

    for spec, name in {node.spec: node.name for node in reversed(nodes)}.items():
        try:
            Region.parse(spec)
        except ProgramError as error:
            raise ProgramError(f"fused node {name!r}: {error}") from error


def _walk(graph: onnx.GraphProto) -> Iterator[FusedNode]:
    for node in graph.node:
        if node.op_type == "FusedRegion":
            specs = [a.s.decode("ascii", "replace") for a in node.attribute if a.name == "spec"]
            yield FusedNode(node.name, specs[0] if specs else "")
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs] if attribute.type in (attribute.GRAPH, attribute.GRAPHS) else ():
                yield from _walk(inner)


def _parse(flavour: Flavour, model: Model, build: Any, log: Capture, flags: int = 0) -> tuple[Any, Any, Any]:
    """Builder, network and parser: each needs the one before it alive, and says so to nobody."""
    trt = flavour.module
    builder = trt.Builder(flavour.logger)
    network = builder.create_network(flavour.network_flags | flags)
    parser = trt.OnnxParser(network, flavour.logger)
    in_memory = isinstance(model, bytes | onnx.ModelProto)
    parsed = parser.parse(_serialised(model)) if in_memory else parser.parse_from_file(os.fspath(model))
    build.reraise()
    if not parsed:
        raise GraphfuseError(f"{flavour.title} cannot import the model: {_parser_errors(parser, log)}")
    return builder, network, parser


def _serialised(model: Any) -> bytes:
    try:
        return model if isinstance(model, bytes) else bytes(model.SerializeToString())
    except ValueError as error:
        raise GraphfuseError("the model is over 2 GB; save it with external data and give its path") from error


def _parser_errors(parser: Any, log: Capture) -> str:
    found = []
    for error in (parser.get_error(i) for i in range(min(parser.num_errors, 4))):
        node = f"node {error.node_name()!r} ({error.node_operator()}): " if error.node_name() or error.node_operator() else ""
        found.append(node + " ".join(error.desc().split())[:300])
    more = parser.num_errors - len(found)
    return "; ".join(found or log.errors()[:2] or ["no reason given"]) + (f"; and {more} more" if more > 0 else "")


def _check_layers(flavour: Flavour, network: Any, nodes: Sequence[FusedNode], expected: int | None) -> list[Any]:
    """The fused layers. Raises GraphfuseError unless every fused node became one."""
    layers = [layer for layer in (network.get_layer(i) for i in range(network.num_layers)) if _is_fused(flavour.module, layer, nodes)]
    names = [layer.name for layer in layers]
    want = len(nodes) if expected is None else expected
    if len(names) != want:
        raise GraphfuseError(
            f"{flavour.title} made {len(names)} fused layers of the model, not {want}; every fused node needs plugin_namespace "
            "'graphfuse' and plugin_version '1': make the model with `graphfuse export-plugin`"
        )
    lost = [node.name for node in nodes if node.name and node.name not in names]
    if lost:
        raise GraphfuseError(f"{flavour.title} made no fused layer of node {lost[0]!r}")
    return layers


def _is_fused(trt: Any, layer: Any, nodes: Sequence[FusedNode]) -> bool:
    if layer.type != trt.LayerType.PLUGIN_V3:
        return False
    from graphfuse_plugin import FusedRegionPlugin

    layer.__class__ = trt.IPluginV3Layer  # the bindings hand out the base class, which does not know its plugin
    return isinstance(layer.plugin, FusedRegionPlugin) or pythonless.is_aot_layer(layer.plugin, nodes)


def _compile_ahead(network: Any, layers: Sequence[Any], profiles: Sequence[Ranges], shown: Progress, held: Interrupts) -> None:
    """Compile the kernels that the profiles will ask for together, on all cores; TensorRT configures one plugin at a time."""
    from graphfuse_plugin.kernels import compile_regions

    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    labels = {t.name: [t.get_dimension_name(axis) if d == -1 else d for axis, d in enumerate(t.shape)] for t in inputs}
    plain = [{name: plain_range(name, value) for name, value in ranges.items()} for ranges in profiles]
    phase = "Compiling kernels"
    started: list[int] = []

    def tell(done: int, total: int) -> None:
        held.check()
        if not started:
            started.append(total)
            shown.start(phase, None, total)
        shown.step(phase, done)

    try:
        compile_regions(requests([layer.plugin.region for layer in layers], labels, plain), tell)
    finally:
        if started:
            shown.finish(phase)


def _build(flavour: Flavour, builder: Any, network: Any, config: Any, build: Any, log: Capture) -> bytes:
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        build.abandon()
    build.reraise()
    if plan is None:
        said = "; ".join(log.errors()[:2])[:600] or "no reason given"
        mend = "; build for other targets" if "Cannot compile for target" in said else ""
        raise GraphfuseError(f"{flavour.title} could not build the engine: {said}{mend}")
    return bytes(plan)


def _check_plan(plan: bytes, nodes: Sequence[FusedNode]) -> None:
    from graphfuse_plugin import marker

    for spec in dict.fromkeys(node.spec for node in nodes):
        if marker(spec) not in plan:
            lost = next(node.name for node in nodes if node.spec == spec)
            raise GraphfuseError(f"the engine lacks the kernels of fused node {lost!r}; it was not written")
