"""Every class, method, enum and keyword that we use of TensorRT exists, with that signature, in the bindings of both flavours."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from graphfuse.engine import load_flavour
from graphfuse.engine.progress import Monitor
from graphfuse.ir.plugin_types import PLUGIN_TYPES
from graphfuse_plugin.creator import FusedRegionCreator
from graphfuse_plugin.plugin import FusedRegionPlugin
from tests import full_trt
from tests.bindings_use import OBJECTS, faults, signatures, uses
from tests.conftest import ROOT

SOURCES = [p for room in ("graphfuse/engine", "plugins/graphfuse_plugin") for p in sorted((ROOT / room).glob("*.py"))]
# What one flavour has and the other has not; our sources look before they use it.
ABSENT = {
    "full": {"ComputeCapability", "IBuilderConfig.num_compute_capabilities", "IBuilderConfig.set_compute_capability"},
    "rtx": {"IPluginV3QuickAOTBuild", "NetworkDefinitionCreationFlag.PREFER_AOT_PYTHON_PLUGINS"},
}
# Names that reach getattr as text.
BY_TEXT = [
    *(f"DataType.{t}" for t in PLUGIN_TYPES.values()), *(f"DimensionOperation.{o}" for o in ("SUM", "SUB", "PROD", "MAX", "MIN", "FLOOR_DIV")),
    "PluginField", "PluginFieldCollection", "PluginFieldType.CHAR", "DimsExprs", "get_plugin_registry", "IPluginRegistry.register_creator",
    "IPluginRegistry.get_creator", "IDimensionExpr.is_constant", "IDimensionExpr.get_constant_value", "IExprBuilder.constant", "IExprBuilder.operation",
    "IPluginV3Layer.plugin", "ILayer.name", "ILayer.type", "ILayer.num_inputs", "ILayer.get_input", "ITensor.shape", "ITensor.name",
    "ITensor.get_dimension_name", "PluginTensorDesc.dims", "PluginTensorDesc.type", "PluginTensorDesc.format", "DynamicPluginTensorDesc.desc",
    "DynamicPluginTensorDesc.opt", "TensorIOMode.INPUT",
]  # fmt: skip
CALLBACKS = {
    "IPluginV3": ("clone", "get_capability_interface"),
    "IPluginV3OneBuild": (
        "configure_plugin", "get_output_data_types", "get_output_shapes", "get_valid_tactics", "get_workspace_size", "supports_format_combination",
    ),
    "IPluginV3OneRuntime": ("attach_to_context", "enqueue", "get_fields_to_serialize", "on_shape_change", "set_tactic"),
    "IPluginCreatorV3One": ("create_plugin",),
    "IProgressMonitor": ("phase_start", "step_complete", "phase_finish"),
}  # fmt: skip


OURS = {"IPluginCreatorV3One": FusedRegionCreator, "IProgressMonitor": Monitor}


def callback_faults(trt: Any) -> list[str]:
    """TensorRT calls our methods with as many arguments as its documentation names."""
    lines = []
    for base, names in CALLBACKS.items():
        for name in names:
            ours: Any = getattr(OURS.get(base, FusedRegionPlugin), name)
            taken = len(inspect.signature(ours).parameters) - 1
            (form,) = signatures(getattr(getattr(trt, base), name))
            if len(form) != taken:
                lines.append(f"{base}.{name} gets {[n for n, _ in form]}, ours takes {taken}")
    return lines


def all_faults(trt: Any, flavour: str) -> list[str]:
    missing = [name for name in BY_TEXT if not _exists(trt, name)]
    return [f"no {name}" for name in missing] + faults(list(uses(SOURCES)), trt, ABSENT[flavour]) + callback_faults(trt)


def _exists(thing: Any, name: str) -> bool:
    for part in name.split("."):
        thing = getattr(thing, part, None)
    return thing is not None


def test_the_scan_sees_what_we_use() -> None:
    """It would prove nothing if it looked past our sources."""
    names = {use.name for use in uses(SOURCES)}
    assert {f"{c}." in " ".join(names) for c in OBJECTS.values()} == {True}
    for name in (
        "Builder",
        "OnnxParser",
        "Runtime",
        "TensorFormat.LINEAR",
        "INetworkDefinition.get_layer",
        "IExecutionContext.execute_async_v3",
    ):
        assert name in names
    assert len(names) > 40


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("builder.create_netwrk(1)", "no Builder.create_netwrk"), ("builder.create_network(1, 2)", "is not called with"),
        ("config.add_optimization_profile(profil=1)", "is not called with"), ("trt.DataType.FLOAT19", "no DataType.FLOAT19"),
        ("self.context.set_input_shape('x')", "is not called with"), ("trt.Builder()", "is not called with"),
    ],
)  # fmt: skip
def test_the_comparison_finds_what_is_wrong(tmp_path: Path, source: str, fault: str) -> None:
    (tmp_path / "x.py").write_text(source)
    assert any(fault in line for line in faults(list(uses([tmp_path / "x.py"])), load_flavour("tensorrt_rtx").module, set()))


def test_tensorrt_for_rtx() -> None:
    assert all_faults(load_flavour("tensorrt_rtx").module, "rtx") == []


@pytest.mark.skipif(full_trt.absence() is not None, reason=full_trt.absence() or "")
def test_full_tensorrt(tmp_path: Path) -> None:
    place = full_trt.package(tmp_path / "full")
    out = full_trt.run(
        place,
        """
        import json
        from tests.engine.test_bindings import all_faults
        import tensorrt
        print(json.dumps([tensorrt.__version__, all_faults(tensorrt, "full")]))
        """,
    )
    version, found = json.loads(out.splitlines()[-1])
    assert found == []
    assert version.startswith("11.")
