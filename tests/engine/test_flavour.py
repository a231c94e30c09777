"""Finding and loading TensorRT for RTX from its two packages; every process here starts afresh, without LD_LIBRARY_PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

import graphfuse_plugin
from graphfuse.engine import flavour, locate
from graphfuse.ir import GraphfuseError
from tests.conftest import ROOT


def python(code: str, **env: str) -> str:
    """Output of a new process; it fails the test if it ends in any way but the normal one."""
    clean = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**clean, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}", **env},
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


LOAD = "from graphfuse.engine import load_flavour; f = load_flavour('tensorrt_rtx'); print(f.version, f.module.__name__)"


def test_loads_in_a_fresh_process_and_leaves_the_environment_alone(tmp_path) -> None:
    code = f"import os; before = dict(os.environ); {LOAD}; assert dict(os.environ) == before"
    assert python(code, GRAPHFUSE_CACHE_DIR=str(tmp_path)).endswith(" tensorrt_rtx")
    (links,) = tmp_path.glob("rtx/*/tensorrt_rtx")
    assert {p.name for p in links.iterdir() if p.is_symlink()} == set(locate.find_rtx_files().links)
    assert [p.name for p in links.parent.iterdir()] == ["tensorrt_rtx"]  # nothing half-made is left


def test_a_damaged_cache_and_one_that_cannot_be_written_do_not_matter(tmp_path) -> None:
    python(LOAD, GRAPHFUSE_CACHE_DIR=str(tmp_path))
    (links,) = tmp_path.glob("rtx/*/tensorrt_rtx")
    (links / "libtensorrt_rtx.so").unlink()
    (links / "libtensorrt_rtx.so").symlink_to("/nowhere")
    (links / "__init__.py").unlink()
    (links / "__init__.py").write_text("raise SystemExit('trusted a foreign file')")
    python(LOAD, GRAPHFUSE_CACHE_DIR=str(tmp_path))
    python(LOAD, GRAPHFUSE_CACHE_DIR="")
    python(LOAD, GRAPHFUSE_CACHE_DIR="/proc/none")


def test_many_processes_at_once_make_one_package(tmp_path) -> None:
    command = [sys.executable, "-c", LOAD]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}", "GRAPHFUSE_CACHE_DIR": str(tmp_path)}
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=env) for _ in range(4)]
    for process in started:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert len(list(tmp_path.glob("rtx/*/tensorrt_rtx"))) == 1


def test_the_folder_imports_in_other_programs_and_is_used_if_it_is_on_the_path() -> None:
    parent = str(locate.link_package(locate.find_rtx_files()).parent)
    code = f"import sys; sys.path.insert(0, {parent!r}); import tensorrt_rtx; {LOAD}; assert f.module is tensorrt_rtx"
    python(code)
    python(f"{LOAD}; import tensorrt_rtx_bindings; assert tensorrt_rtx_bindings is f.module")


def test_parts_that_are_missing_or_do_not_fit_are_named(monkeypatch) -> None:
    everything = list(locate._installed_files())
    for part, name in (
        ("the bindings", "tensorrt_rtx.so"),
        ("the core library", "libtensorrt_rtx.so."),
        ("the parser library", "onnxparser"),
    ):
        monkeypatch.setattr(locate, "_installed_files", lambda n=name: iter([f for f in everything if n not in f[0].name]))
        with pytest.raises(GraphfuseError, match=rf"{part} .*pip install 'graphfuse\[rtx\]'"):
            locate.find_rtx_files()
    monkeypatch.setattr(locate, "_installed_files", lambda: iter([(p, "1.6.0.1") for p, _ in everything]))
    with pytest.raises(GraphfuseError, match=r"the bindings are version 1\.6\.0\.1"):
        locate.find_rtx_files()


def test_installed_files_stay_untouched(tmp_path) -> None:
    files = locate.find_rtx_files()
    before = [(p, p.stat().st_mtime_ns, p.stat().st_size) for p in files.links.values()]
    shutil.rmtree(locate.link_package(files).parent)
    locate.link_package(files)
    assert [(p, p.stat().st_mtime_ns, p.stat().st_size) for p in files.links.values()] == before


def test_flavours_by_name() -> None:
    rtx = flavour.load_flavour("tensorrt_rtx")
    assert flavour.load_flavour() is rtx
    assert rtx.builds_without_gpu
    assert {"sm_80", "sm_86", "sm_89", "sm_120"} <= set(rtx.archs)
    assert rtx.network_flags == 1
    with pytest.raises(GraphfuseError, match="unknown flavour 'trt'; choose tensorrt or tensorrt_rtx"):
        flavour.load_flavour("trt")
    with pytest.raises(GraphfuseError, match=r"TensorRT does not load .*pip install 'graphfuse\[tensorrt\]'"):
        flavour.load_flavour("tensorrt")


def test_the_plugin_registers_once_and_finds_another_of_its_name() -> None:
    rtx = flavour.load_flavour("tensorrt_rtx")
    assert graphfuse_plugin.register() == graphfuse_plugin.register(rtx.module)
    assert "tensorrt_rtx" in graphfuse_plugin.register()
    code = (
        "from graphfuse.engine import load_flavour; trt = load_flavour('tensorrt_rtx').module\n"
        "class Other(trt.IPluginCreatorV3One):\n"
        "    def __init__(self):\n"
        "        trt.IPluginCreatorV3One.__init__(self)\n"
        "        self.name, self.plugin_version, self.plugin_namespace = 'FusedRegion', '1', 'graphfuse'\n"
        "        self.field_names = trt.PluginFieldCollection([])\n"
        "other = Other(); assert trt.get_plugin_registry().register_creator(other, 'graphfuse')\n"
        "try: import graphfuse_plugin\n"
        "except Exception as error: print(error)\n"
    )
    assert python(code).startswith("another plugin is registered as graphfuse::FusedRegion")


def test_importing_the_plugin_needs_neither_tensorrt_nor_onnx() -> None:
    code = (
        "import sys, graphfuse_plugin; assert graphfuse_plugin.register() == []\n"
        "heavy = ['tensorrt', 'tensorrt_rtx', 'onnx', 'onnx_ir', 'cuda', 'graphfuse.match', 'graphfuse.graph', 'polygraphy']\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    assert python(code) == "[]"


def test_importing_the_plugin_after_tensorrt_registers_it() -> None:
    parent = str(locate.link_package(locate.find_rtx_files()).parent)
    code = (
        f"import sys; sys.path.insert(0, {parent!r}); import tensorrt_rtx as trt, graphfuse_plugin\n"
        "print(trt.get_plugin_registry().get_creator('FusedRegion', '1', 'graphfuse') is not None)"
    )
    assert python(code) == "True"


SOURCES = [*(ROOT / "graphfuse/engine").glob("*.py"), *(ROOT / "plugins/graphfuse_plugin").glob("*.py")]
