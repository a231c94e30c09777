"""Ahead-of-time layers against the real Python code of ``tensorrt.plugin`` 11.4: its checks of signatures, and its templates.

TensorRT itself is absent, so what it would evaluate (dimension expressions) is evaluated by stand-ins.
"""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from graphfuse.cli import main
from graphfuse.engine import build_engine
from graphfuse.engine.aot import renamed
from graphfuse.ir import Builder, GraphfuseError, dtypes, dumps, expr, loads
from graphfuse_plugin.aot import aot_name, unsupported_aot
from graphfuse_plugin.aot_kernel import compile_aot
from graphfuse_plugin.kernels import known_sizes
from graphfuse_plugin.region import Region
from tests import full_trt, regions

with_bindings = pytest.mark.skipif(full_trt.absence() is not None, reason=full_trt.absence() or "")

# Drives TensorRT's own template of an AOT plugin in the order in which a build does.
DRIVE = """
import json, types
import graphfuse_plugin  # before TensorRT, whose libraries are absent: there is no registry to register with
import tensorrt as trt, tensorrt.plugin as trtp
import tensorrt.plugin._lib as lib, tensorrt.plugin._tensor as tensor, tensorrt.plugin._plugin_class as classes
from graphfuse_plugin import aot, building
from graphfuse.ir.plugin_types import PLUGIN_TYPES
from graphfuse_plugin.region import Region
from tests import stand_in_trt as stand_in

class Registry:
    creators = {}
    def register_creator(self, creator, namespace=""): self.creators[creator.name, namespace] = creator; return True
    def get_creator(self, name, version, namespace=""): return self.creators[name, namespace]

class Like(types.ModuleType):  # the bindings, but for what only TensorRT itself could make
    def __getattr__(self, name): return getattr(trt, name)

like = Like("tensorrt")
like.get_plugin_registry = lambda registry=Registry(): registry
like.IDimensionExpr, like.DimsExprs = stand_in.IDimensionExpr, lambda n: [None] * n
for module in (lib, tensor, classes):
    module.trt = like

class SymExpr:  # as tensor.SymExprImpl, whose base class wants TensorRT's own expressions
    def __init__(self, value):
        assert isinstance(value, tensor.SymInt32)
        self.value = value._expr.value

tensor.SymExprImpl = SymExpr

class Builder(stand_in.IExprBuilder):
    def operation(self, op, first, second):
        return super().operation(stand_in.DimensionOperation[op.name], first, second)

class Setter(list):
    @property
    def nbSymExprs(self): return len(self)
    @nbSymExprs.setter
    def nbSymExprs(self, count): self[:] = [None] * count

def dynamic(dtype, smallest, usual, largest):
    made = trt.DynamicPluginTensorDesc()
    made.desc = trt.PluginTensorDesc()
    made.desc.dims = trt.Dims([a if a == b else -1 for a, b in zip(smallest, largest)])
    made.desc.type, made.desc.format = getattr(trt.DataType, PLUGIN_TYPES[dtype]), trt.TensorFormat.LINEAR
    made.min, made.opt, made.max = trt.Dims(smallest), trt.Dims(usual), trt.Dims(largest)
    return made

def drive(spec, profile, runs, arch="sm_80", driver=525):
    region = Region.parse(spec)
    program = region.program
    name = aot.register_aot(trtp, trt, region, aot.AotTarget(arch, driver))
    assert aot.register_aot(trtp, trt, region, aot.AotTarget(arch, driver)) == name  # twice is harmless
    creator = like.get_plugin_registry().get_creator(name, "1", "graphfuse")
    assert [f.name for f in creator.field_names] == []
    plugin = creator.create_plugin(name, "graphfuse", [], trt.TensorRTPhase.BUILD, trt.QuickPluginCreationRequest.STRICT_AOT)
    assert type(plugin).__name__ == "_TemplateAOTPlugin"
    types_in = [getattr(trt.DataType, PLUGIN_TYPES[t]) for t, _ in program.params]
    types_out = plugin.get_output_data_types(types_in, [len(s) for _, s in program.params])
    assert types_out == [getattr(trt.DataType, PLUGIN_TYPES[t]) for t, _ in program.outputs]
    assert plugin.get_num_outputs() == len(program.results)
    answers = []
    for shapes in runs:
        marks = [[a == b for a, b in zip(low, high)] for low, _, high in profile]
        dims = [[stand_in.IDimensionExpr(d, c) for d, c in zip(s, m)] for s, m in zip(shapes, marks)]
        outputs = [[d.value for d in o] for o in plugin.get_output_shapes(dims, [], Builder())]
        env = program.bind(shapes)
        assert outputs == [list(s) for s in program.output_shapes(env)]
        results = zip(*(program.output_shapes(program.bind([p[k] for p in profile])) for k in range(3)))
        in_out = [dynamic(t, *p) for (t, _), p in zip(program.params, profile)] + [dynamic(t, *r) for (t, _), r in zip(program.outputs, results)]
        formats = plugin.get_supported_format_combinations(in_out, len(program.params))
        assert [f.type for f in formats] == types_in + types_out
        assert all(f.format == trt.TensorFormat.LINEAR for f in formats)
        plugin.configure_plugin(in_out[: len(program.params)], in_out[len(program.params) :])
        assert plugin.get_valid_tactics() == []
        plugin.set_tactic(0)
        launch, extra = types.SimpleNamespace(), Setter()
        plugin.get_launch_params(dims, in_out, len(program.params), launch, extra, Builder())
        kernel, ptx = plugin.get_kernel([d.desc for d in in_out[: len(program.params)]], [d.desc for d in in_out[len(program.params) :]])
        assert plugin.clone().get_kernel([d.desc for d in in_out[: len(program.params)]], [d.desc for d in in_out[len(program.params) :]])[1] == ptx
        answers.append({"entry": kernel, "ptx": ptx.decode(), "launch": {k: v.value for k, v in vars(launch).items()}, "extra": [e.value for e in extra]})
    return answers
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return full_trt.package(tmp_path_factory.mktemp("trt") / "full")


CASES = {
    "dynamic": (regions.scale(), [((1, 8), (4, 8), (4096, 8))], [[(1, 8)], [(4, 8)], [(4096, 8)]]),
    "static": (regions.scale((4, 8)), [((4, 8),) * 3], [[(4, 8)]]),
    "fixed by the profile": (regions.scale(), [((4, 8),) * 3], [[(4, 8)]]),
    "scalar": (regions.scale(()), [((),) * 3], [[()]]),
    "two outputs": (regions.pair(), [((1, 8), (4, 8), (64, 8)), ((8,),) * 3], [[(64, 8), (8,)], [(3, 8), (8,)]]),
    "rows": (regions.softmax(), [((0, 33), (4, 33), (512, 33))], [[(0, 33)], [(511, 33)]]),
    "computed sizes": (regions.joined(), [((0,), (5,), (99,)), ((3,), (7,), (99,)), ((),) * 3], [[(50,), (7,), ()], [(0,), (3,), ()]]),
    "half": (regions.same(dtypes.F16, (3, 32)), [((3, 32),) * 3], [[(3, 32)]]),
    "int64": (regions.same(dtypes.I64), [((4, 6),) * 3], [[(4, 6)]]),
    "bool": (regions.same(dtypes.BOOL), [((4, 6),) * 3], [[(4, 6)]]),
}  # fmt: skip


@with_bindings
@pytest.mark.parametrize("case", CASES)
def test_through_tensorrts_own_checks_and_templates(place, case) -> None:
    spec, profile, runs = CASES[case]
    out = full_trt.run(place, f"{DRIVE}\nprint(json.dumps(drive({spec!r}, {profile!r}, {runs!r})))")
    answers = json.loads(out.splitlines()[-1])
    program = loads(spec)
    known = [tuple(a if a == b else -1 for a, b in zip(low, high, strict=True)) for low, _, high in profile]
    want = compile_aot(program, known_sizes(program, known), program.bind([p[2] for p in profile]), "sm_80", 525)
    for shapes, answer in zip(runs, answers, strict=True):
        env = program.bind(shapes)
        assert (answer["entry"], answer["ptx"]) == (want.entry, want.ptx)
        assert answer["extra"] == [env[name] for name in want.symbols]
        launch = {"grid_y": 1, "grid_z": 1, "block_y": 1, "block_z": 1, "shared_mem": 0, "block_x": want.block}
        assert answer["launch"] == {**launch, "grid_x": expr.evaluate(want.grid, env)}
        assert answer["launch"]["grid_x"] >= 1


@with_bindings
def test_what_the_network_gives_must_fit_and_errors_are_kept(place) -> None:
    out = full_trt.run(
        place,
        f"""{DRIVE}
region = Region.parse({regions.scale()!r})
name = aot.register_aot(trtp, trt, region, aot.AotTarget("sm_80"))
with building() as build:
    plugin = like.get_plugin_registry().get_creator(name, "1", "graphfuse").create_plugin(name, "graphfuse", [], None, trt.QuickPluginCreationRequest.STRICT_AOT)
    try:
        plugin.get_output_data_types([trt.DataType.HALF], [2])
    except Exception as error:
        print(type(error).__name__)
    try:
        build.reraise()
    except aot.GraphfuseError as error:
        print(error)
""",
    )
    assert out.splitlines()[-2] == "GraphfuseError"
    assert "made for inputs of ['DataType.FLOAT'], the network gives ['DataType.HALF']" in out.splitlines()[-1]


@with_bindings
def test_sizes_too_large_for_one_kernel_and_targets_too_new(place) -> None:
    spec = regions.scale()
    out = full_trt.run(
        place,
        f"""{DRIVE}
for arch, driver in (("sm_120", 535), ("sm_70", 580)):
    try:
        drive({spec!r}, [((1, 8), (4, 8), (64, 8))], [[(4, 8)]], arch, driver)
    except aot.GraphfuseError as error:
        print(error)
(answer,) = drive({spec!r}, [((1, 8), (4, 8), (1 << 29, 8))], [[(1 << 29, 8)]])
print(answer["launch"]["grid_x"], answer["extra"])
""",
    )
    lines = out.splitlines()
    assert "needs a driver from 570 on" in lines[-3]
    assert "no ahead-of-time kernels for sm_70" in lines[-2]
    assert lines[-1].endswith(f"[{1 << 29}]")


# --- what this machine's TensorRT says


def test_rtx_refuses_with_the_reason_and_the_way_out() -> None:
    with pytest.raises(GraphfuseError, match=r"^TensorRT for RTX .* takes no plugins compiled ahead of time .*; build without --aot"):
        build_engine(regions.lone(regions.scale((4, 8)), (4, 8)), flavour="tensorrt_rtx", aot=True)


def test_the_command_line_refuses_in_one_line(tmp_path, capsys) -> None:
    onnx.save(regions.lone(regions.scale((4, 8)), (4, 8)), tmp_path / "p.onnx")
    assert main(["build", str(tmp_path / "p.onnx"), "-o", str(tmp_path / "e"), "--flavour", "tensorrt_rtx", "--aot"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "build without --aot" in err
    assert not (tmp_path / "e").exists()


def test_nodes_are_renamed_in_memory_and_beside_a_file(tmp_path) -> None:
    made = regions.lone(regions.scale((4, 8)), (4, 8))
    name = aot_name(regions.scale((4, 8)))
    for given in (made, made.SerializeToString()):
        with renamed(given) as other:
            assert [n.op_type for n in other.graph.node] == [name]
    assert [n.op_type for n in made.graph.node] == ["FusedRegion"]
    onnx.save(made, tmp_path / "m.onnx")
    with renamed(tmp_path / "m.onnx") as path:
        assert path.parent == tmp_path
        assert [n.op_type for n in onnx.load(path).graph.node] == [name]
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_a_region_without_inputs_says_why() -> None:
    b = Builder()
    spec = dumps(b.finish([b.broadcast(b.const(1.0, dtypes.F32), (4,))]))
    assert "it has no input" in (unsupported_aot(Region.parse(spec)) or "")
