"""Full TensorRT's Python bindings without its libraries: for looking at names and signatures, and for ``tensorrt.plugin``'s own checks.

The wheel ``tensorrt-cu13-bindings`` holds the extension module alone. Beside libraries of its names whose functions do
nothing it can be imported, and everything in it that is Python or a signature is the real thing.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.conftest import ROOT, compiler_absence

LIBRARIES = ("libnvinfer.so.11", "libnvinfer_plugin.so.11", "libnvonnxparser.so.11")


def absence() -> str | None:
    """Why the bindings cannot be looked at here; None if they can."""
    if importlib.util.find_spec("tensorrt_bindings") is None:
        return "the bindings of full TensorRT are not installed (pip install --no-deps tensorrt-cu13-bindings==11.4.0.106)"
    return compiler_absence()


def package(folder: Path) -> Path:
    """Makes ``folder`` a place from which ``import tensorrt`` imports the bindings; returns it."""
    spec = importlib.util.find_spec("tensorrt_bindings")
    assert spec is not None
    assert spec.origin is not None
    target = folder / "tensorrt"
    target.mkdir(parents=True)
    for item in Path(spec.origin).parent.iterdir():
        (target / item.name).symlink_to(item)
    wanted = subprocess.run(
        ["nm", "-D", "--undefined-only", str(target / "tensorrt.so")], capture_output=True, text=True, check=True
    ).stdout
    names = [line.split()[-1] for line in wanted.splitlines()]
    ours = [n for n in names if n.endswith("_INTERNAL") or "PluginRegistry" in n or "NvInfer" in n or "NvOnnx" in n]
    (folder / "stub.c").write_text("\n".join(f"void* {name}(void) {{ return 0; }}" for name in ours))
    for library in LIBRARIES:
        subprocess.run([compiler(), "-shared", "-fPIC", "-w", "-x", "c", "-o", str(target / library), str(folder / "stub.c")], check=True)
    return folder


def compiler() -> str:
    return shutil.which("cc") or shutil.which("gcc") or "c++"


def run(folder: Path, body: str) -> str:
    """What ``body`` prints in a process of its own where ``tensorrt`` is the bindings in ``folder``."""
    code = f"import sys; sys.path[:0] = [{str(folder)!r}]\n{textwrap.dedent(body)}"
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}", "PATH": "/usr/bin:/bin"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, timeout=200)
    assert found.returncode == 0, found.stderr[-4000:]
    return found.stdout
