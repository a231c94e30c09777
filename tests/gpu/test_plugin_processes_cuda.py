"""The plugin on a GPU in processes of its own: without NVRTC, at exit with work in flight, as a forked child."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import regions, stand_in_trt
from tests.conftest import ROOT
from tests.protocol import Network

HEAD = """
import importlib.abc, sys
from pathlib import Path

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in HIDDEN:
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Absent())
import numpy as np
import graphfuse_plugin
from tests import stand_in_trt
from tests.gpu.test_plugin_protocol import Gpu
from tests.protocol import Context, Network

gpu = Gpu()
network = Network(stand_in_trt.make(), Path("spec").read_text())
loaded = network.load({"spec": Path("spec").read_bytes(), "kernels": Path("kernels").read_bytes()})
context, stream = Context(network, loaded), gpu.stream()
x = np.arange(ROWS * 8, dtype=np.float32).reshape(ROWS, 8)
context.set_shapes([x.shape])
source, target = gpu.upload(x), gpu.allocate(x.nbytes)
context.enqueue([source], [target], int(stream))
"""


# Newer Pythons warn of every fork beside threads, and CUDA has threads.
WARNINGS = ("-W", "ignore:This process:DeprecationWarning")


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    network = Network(stand_in_trt.make(), regions.scale())
    for name, data in network.build([((1, 8), (4, 8), (1 << 20, 8))]).items():
        (folder / name).write_bytes(data)
    return folder


def child(fields: Path, body: str, *, rows: int = 7, hidden: tuple[str, ...] = ()) -> str:
    """Runs ``body`` after one execution; the process must end well and say nothing on stderr."""
    text = f"HIDDEN, ROWS = {hidden!r}, {rows}\n{HEAD}\n{textwrap.dedent(body)}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins"), *filter(None, sys.path)])}
    found = subprocess.run(
        [sys.executable, *WARNINGS, "-c", text], cwd=fields, env=environment, capture_output=True, text=True, timeout=200
    )
    assert (found.returncode, found.stderr) == (0, ""), found.stdout + found.stderr
    return found.stdout


def test_an_engine_runs_without_nvrtc(fields) -> None:
    body = """
    gpu("cuStreamSynchronize", stream)
    assert (gpu.read(target, x) == x * 2 + 1).all()
    assert "cuda.bindings.nvrtc" not in sys.modules
    print("ran")
    """
    assert child(fields, body, hidden=("cuda.bindings.nvrtc",)) == "ran\n"


def test_exit_with_work_in_flight(fields) -> None:
    child(fields, "[context.enqueue([source], [target], int(stream)) for _ in range(500)]", rows=1 << 20)


def test_a_forked_child_is_told_to_spawn(fields) -> None:
    body = """
    import os
    if not os.fork():
        loaded.attach_to_context(None)
        try:
            graphfuse_plugin.reraise()
        except graphfuse_plugin.plugin.GraphfuseError as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
    """
    assert "start it by spawn" in child(fields, body)
