"""Which kernels an engine will ask for, told from a model's inputs alone; and compiling them before anyone asks.

TensorRT knows the sizes inside a network only while it builds. But a region's sizes bear the names of the model's, so the
shapes of the inputs mostly tell them. Where they do not, or mislead, the kernels are compiled when TensorRT asks: what is
done here saves time and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphfuse.engine.shapes import Ranges, check_range, plain_range
from graphfuse.graph.names import identifier
from graphfuse.ir.errors import ShapeError

if TYPE_CHECKING:
    import onnx_ir

    from graphfuse_plugin.kernels import Request
    from graphfuse_plugin.region import Region

Labels = Mapping[str, Sequence["str | int | None"]]  # for each input, each axis: its size, or the name that stands for it


@dataclass(frozen=True)
class Warmed:
    """Regions of a model, kernels that they need, and how many of these were compiled because the cache did not have them."""

    regions: int
    kernels: int
    compiled: int


def requests(regions: Iterable[Region], labels: Labels, profiles: Sequence[Ranges]) -> list[Request]:
    """A request for each region and profile whose sizes the profile's shapes tell."""
    from graphfuse_plugin.kernels import Request

    made = []
    known = list(regions)
    for ranges in profiles or [{}]:
        named = _named_sizes(labels, ranges)
        for region in known:
            if all(name in named for name in region.program.symbols):
                sizes = {name: named[name] for name in region.program.symbols}
                fixed = {name: low for name, (low, _, high) in sizes.items() if low == high}
                made.append(Request(region.spec, region.program, ({name: mid for name, (_, mid, _) in sizes.items()}, fixed)))
    return made


def _named_sizes(labels: Labels, ranges: Ranges) -> dict[str, tuple[int, int, int]]:
    """Smallest, usual and largest value of each size, by the symbol that regions have for it."""
    sizes: dict[str, tuple[int, int, int]] = {}
    for name, axes in labels.items():
        if name in ranges:
            for label, values in zip(axes, zip(*ranges[name], strict=True), strict=True):
                if isinstance(label, str) and label:
                    sizes[identifier(label)] = values
    return sizes


def warm(model: onnx_ir.Model, profiles: Sequence[Ranges], targets: Sequence[str] = ()) -> Warmed:
    """Put the kernels of a fused model (either form) into the cache, as a build with these profiles will ask for them.

    Regions of sizes that no shape tells get the kernel that serves every size. Raises GraphfuseError for shapes that do not
    fit the model, for an unknown target, and without NVRTC.
    """
    from graphfuse.jit.cache import default_cache
    from graphfuse.match import export_plugin
    from graphfuse_plugin.guard import building
    from graphfuse_plugin.kernels import Request, compile_regions, default_targets
    from graphfuse_plugin.region import Region

    plugin_form = export_plugin(model).model
    specs = dict.fromkeys(n.attributes["spec"].as_string() for n in plugin_form.graph if n.op_type == "FusedRegion")
    regions = [Region.parse(spec) for spec in specs]
    labels = _labels(plugin_form)
    ranges = [_checked(labels, each) for each in profiles]
    wanted = requests(regions, labels, ranges)
    served = {request.spec for request in wanted}
    wanted += [Request(r.spec, r.program, ({},)) for r in regions if r.spec not in served]
    archs = tuple(targets or default_targets())
    before = default_cache().written
    with building(archs):
        kernels = compile_regions(wanted)
    count = len({(r.spec, tuple(k.fixed.items())) for r, ks in zip(wanted, kernels, strict=True) for k in ks})
    return Warmed(len(regions), count * len(archs), default_cache().written - before)


def _labels(model: onnx_ir.Model) -> Labels:
    found: dict[str, list[str | int | None]] = {}
    for value in model.graph.inputs:
        if value.name is not None and value.shape is not None:
            found[value.name] = [d if isinstance(d, int) else d.value for d in value.shape]
    return found


def _checked(labels: Labels, ranges: Ranges) -> dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Shapes that fit the model. Raises ShapeError for others."""
    checked = {name: check_range(name, plain_range(name, value)) for name, value in ranges.items()}
    for name, shapes in checked.items():
        if name not in labels:
            raise ShapeError(f"shapes are given for {name!r}, but the model's inputs are {', '.join(map(repr, labels))}")
        for shape in shapes:
            if len(shape) != len(labels[name]) or any(isinstance(d, int) and d != s for d, s in zip(labels[name], shape, strict=True)):
                raise ShapeError(
                    f"input {name!r} is {'x'.join(str(d or '?') for d in labels[name])} in the model; {'x'.join(map(str, shape))} does not fit it"
                )
    return checked
