"""The plugin in processes of its own: without a compiler, at exit, after a fork, spawned; each must end as a process should."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import regions, stand_in_trt
from tests.conftest import ROOT
from tests.protocol import Network

# What every child begins with: an engine's fields from files, and a device that takes launches and does nothing.
HEAD = """
import importlib.abc, sys, threading
from pathlib import Path

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == hidden or name.startswith(hidden + ".") for hidden in HIDDEN):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Absent())
import graphfuse_plugin
from graphfuse_plugin import driver, guard
from tests import stand_in_trt
from tests.protocol import Context, Network

class Device:
    launched = []
    def arch(self): return ARCH
    def load(self, image, entry):
        assert image.startswith(b"\\x7fELF")
        return entry
    def launcher(self, function, blocks, threads, arguments):
        return lambda stream: self.launched.append((function, blocks, stream))

def engine(trt=None):
    network = Network(trt or stand_in_trt.make(), Path("spec").read_text())
    return network, network.load({"spec": Path("spec").read_bytes(), "kernels": Path("kernels").read_bytes()})

def run(network, loaded, rows=7, stream=3):
    context = Context(network, loaded)
    context.set_shapes([(rows, 8)])
    context.enqueue([4096], [8192], stream)
    return context
"""


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    network = Network(stand_in_trt.make(), regions.scale())
    for name, data in network.build([((1, 8), (4, 8), (64, 8))], ["sm_80"]).items():
        (folder / name).write_bytes(data)
    return folder


def child(fields: Path, body: str, *, hidden: tuple[str, ...] = (), arch: str = "sm_86", code: int = 0) -> str:
    """Runs ``body`` after the head; the process must end with this exit code, and say nothing on stderr."""
    text = f"HIDDEN, ARCH = {hidden!r}, {arch!r}\n{HEAD}\n{textwrap.dedent(body)}"
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}", "PATH": "/usr/bin:/bin", "GRAPHFUSE_CACHE_DIR": str(fields / "cache")}
    found = subprocess.run([sys.executable, "-c", text], cwd=fields, env=environment, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (code, ""), found.stdout + found.stderr
    return found.stdout


NO_COMPILER = ("cuda", "onnx", "onnx_ir", "onnxruntime", "typer", "polygraphy")


def test_an_engine_runs_where_nothing_can_be_compiled(fields) -> None:
    """No NVRTC, no CUDA bindings for Python, no ONNX: the kernels are in the engine."""
    out = child(
        fields,
        """
        driver.use(Device())
        context = run(*engine())
        context.set_shapes([(4, 8)])
        context.enqueue([4096], [8192], 9)
        assert [s for _, _, s in Device.launched] == [3, 9]
        assert not any(m in sys.modules for m in HIDDEN)
        print("ran", context.plugin.launcher.current.kernel.fixed)
        """,
        hidden=NO_COMPILER,
    )
    assert out == "ran {'n': 4}\n"


@pytest.mark.parametrize("hidden", [("cuda",), ("cuda.bindings.nvrtc",)], ids=["no bindings", "no NVRTC"])
def test_another_gpu_without_a_compiler_says_what_is_missing(fields, hidden) -> None:
    out = child(
        fields,
        """
        driver.use(Device())
        network, loaded = engine()
        loaded.attach_to_context(None)
        try:
            graphfuse_plugin.reraise()
        except graphfuse_plugin.plugin.GraphfuseError as error:
            print(error)
        """,
        hidden=hidden,
        arch="sm_90",
    )
    assert out.count("\n") == 1
    for part in (
        "holds kernels for sm_80, not for sm_90",
        "cuda-bindings cannot be imported",
        "pip install 'graphfuse[cuda]'",
        "--target sm_90",
    ):
        assert part in out


def test_another_gpu_with_a_compiler_compiles_for_it(fields) -> None:
    out = child(fields, "driver.use(Device()); run(*engine()); print(len(Device.launched))", arch="sm_90")
    assert out == "1\n"


def test_without_a_driver_one_line_says_so(fields) -> None:
    out = child(
        fields,
        """
        network, loaded = engine()
        loaded.attach_to_context(None)
        try:
            graphfuse_plugin.reraise()
        except graphfuse_plugin.plugin.GraphfuseError as error:
            print(error)
        """,
        hidden=("cuda",),
    )
    assert "no CUDA driver: cuda.bindings is not installed" in out or "no CUDA driver: cuda is not installed" in out
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    "ending",
    [
        "sys.exit(0)",
        "context.plugin.enqueue(*context.descs, [4096], [8192], 0, 1)",
        "del network; keep = context",
        "import atexit; atexit.register(lambda: context.enqueue([4096], [8192], 1))",
        "threading.Thread(target=lambda: [context.enqueue([4096 * i], [8192], 1) for i in range(20000)]).start()",
        "threading.Thread(target=lambda: [context.enqueue([4096 * i], [8192], 1) for i in range(10**9)], daemon=True).start()",
        "graphfuse_plugin.specialise(4); [context.set_shapes([(r, 8)]) for r in (9, 10, 11)]",
        "builtins = __import__('builtins'); builtins.immortal = [context, loaded, engine()]",
    ],
    ids=["exit", "in flight", "context outlives", "at exit", "thread at work", "daemon at work", "compiling", "never freed"],
)
def test_interpreter_exit(fields, ending) -> None:
    """Live engines and contexts, and threads in the middle of an execution, at the end of the process (report R82)."""
    child(fields, f"driver.use(Device()); network, loaded = engine(); context = run(network, loaded)\n{ending}")


def test_a_forked_child_works_on_a_device_of_its_own(fields) -> None:
    """Forks from a process whose other threads hold every lock of ours most of the time."""
    child(
        fields,
        """
        import os, signal, warnings
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # which is what this is about
        driver.use(Device()); graphfuse_plugin.specialise(4)
        network, loaded = engine(); run(network, loaded)
        stop = threading.Event()
        def busy():
            while not stop.is_set():
                with guard.building(["sm_80"]):
                    guard.current()
        threads = [threading.Thread(target=busy) for _ in range(3)]
        [t.start() for t in threads]
        for _ in range(20):
            pid = os.fork()
            if not pid:
                signal.alarm(60)
                run(network, loaded)
                with guard.building(["sm_80"]) as build:
                    assert guard.current() is build
                assert guard.current() is guard._AMBIENT
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        """,
    )


def test_a_child_forked_from_a_process_with_cuda_is_told_to_spawn(fields) -> None:
    out = child(
        fields,
        """
        import os
        driver.use(driver.Driver.__new__(driver.Driver))  # as after the first engine
        network, loaded = engine()
        if not os.fork():
            loaded.attach_to_context(None)
            try:
                graphfuse_plugin.reraise()
            except graphfuse_plugin.plugin.GraphfuseError as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
        """,
    )
    assert out == "this process was forked from one that used CUDA, where CUDA cannot work; start it by spawn\n"


def test_a_spawned_child_begins_anew(fields) -> None:
    (fields / "spawning.py").write_text(
        f"HIDDEN, ARCH = (), 'sm_86'\n{HEAD}\n"
        + textwrap.dedent("""
        def work(rows):
            driver.use(Device())
            run(*engine(), rows=rows)
            return len(Device.launched)

        if __name__ == "__main__":
            import multiprocessing
            driver.use(Device())
            run(*engine())
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(sum(pool.map(work, [3, 4, 5, 6])))
        """)
    )
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}", "PATH": "/usr/bin:/bin"}
    found = subprocess.run([sys.executable, "spawning.py"], cwd=fields, env=environment, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (0, "")
    assert int(found.stdout) >= 4


def test_several_engines_and_tensorrts_in_one_process(fields) -> None:
    """Two flavours loaded at once, engines of each, contexts that come and go in any order."""
    child(
        fields,
        """
        import gc
        driver.use(Device())
        flavours = [stand_in_trt.make(), stand_in_trt.make()]
        engines = [engine(trt) for trt in flavours for _ in range(3)]
        contexts = [run(*e, rows=i + 1) for i, e in enumerate(engines) for _ in range(2)]
        while engines:
            engines.pop(len(engines) // 2)
            contexts.pop(0)
            gc.collect()
            for number, context in enumerate(contexts):
                context.enqueue([4096 * number], [8192], number)
        assert contexts
        """,
    )


def test_importing_the_plugin_needs_no_tensorrt_and_registering_twice_is_harmless(fields) -> None:
    """Reports R63 and R76."""
    child(
        fields,
        """
        assert graphfuse_plugin.register() == []
        trt = stand_in_trt.make()
        for _ in range(3):
            assert graphfuse_plugin.register(trt) == ["stand_in_trt"]
        assert len(trt.get_plugin_registry().creators) == 1
        """,
        hidden=("tensorrt", "tensorrt_rtx", "tensorrt_bindings", "cuda"),
    )
