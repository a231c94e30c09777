"""What graphfuse finds on this machine. Every probe answers, whatever is broken: the doctor must not fall ill."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphfuse.ir.errors import GraphfuseError

OK, MISSING, BROKEN = "ok", "missing", "broken"


@dataclass(frozen=True)
class Finding:
    """One thing looked for. ``state`` is ok, missing or broken; ``needed`` says that nothing works without it."""

    name: str
    state: str
    detail: str
    purpose: str
    mend: str = ""
    needed: bool = False


@dataclass(frozen=True)
class Doctor:
    """All findings, in the order in which one thing needs the other."""

    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Whether everything that every command needs is there."""
        return all(f.state == OK for f in self.findings if f.needed)

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"usable": self.usable, "findings": [asdict(f) for f in self.findings]}


def examine() -> Doctor:
    """Looks at everything once. Makes no CUDA context and builds nothing."""
    findings = [_python()]
    findings += [_package(*row) for row in _PACKAGES]
    findings += [_probe(*row) for row in _PROBES]
    return Doctor(tuple(findings))


def _python() -> Finding:
    version = platform.python_version()
    state = OK if sys.version_info >= (3, 10) else BROKEN
    return Finding(
        "Python", state, f"{version}, {platform.system()} {platform.machine()}", "everything", "install Python 3.10 or later", True
    )


_BASE = "pip install graphfuse"
_PACKAGES = (
    ("numpy", "everything", _BASE),
    ("ml_dtypes", "everything", _BASE),
    ("onnx", "reading models", _BASE),
    ("onnx_ir", "reading models", _BASE),
    ("onnxruntime", "the reference, and all that is not fused", _BASE),
    ("polygraphy", "check", _BASE),
)


def _package(module: str, purpose: str, mend: str) -> Finding:
    try:
        found = importlib.import_module(module)
        version = getattr(found, "__version__", None) or importlib.metadata.version(module)
    except ModuleNotFoundError as error:
        state = MISSING if error.name == module else BROKEN
        return Finding(module, state, _line(error), purpose, mend, needed=True)
    except Exception as error:
        return Finding(module, BROKEN, _line(error), purpose, mend, needed=True)
    return Finding(module, OK, str(version), purpose, needed=True)


def _probe(name: str, purpose: str, mend: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name, OK, look(), purpose)
    except (GraphfuseError, ImportError, FileNotFoundError) as error:
        return Finding(name, MISSING, _line(error), purpose, mend)
    except Exception as error:
        return Finding(name, BROKEN, _line(error), purpose, mend)


def _line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:200]


# --- probes: each returns what it found, or raises with the reason why not ---------------------------------------------


def _compiler() -> str:
    from graphfuse.jit.host_build import require_compiler

    command = require_compiler()
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", timeout=20)
    return f"{command[0]}: {done.stdout.partition(chr(10))[0]}"


def _nvrtc() -> str:
    from graphfuse.jit import nvrtc

    archs = nvrtc.supported_archs()
    return f"{nvrtc.version()}, compiles for sm_{archs[0]} to sm_{archs[-1]}"


def _disassembler() -> str:
    for name in ("cuobjdump", "nvdisasm"):
        if not _cuda_tool(name):
            raise FileNotFoundError(f"no {name}")
    return f"{_cuda_tool('cuobjdump')}"


def _cuda_tool(name: str) -> str | None:
    found = shutil.which(name)
    if found:
        return found
    for package in ("nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm"):
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for entry in files:
            if entry.name == name:
                return str(entry.locate())
    return None


def _gpu() -> str:
    from cuda.bindings import driver

    try:
        status, *_ = driver.cuInit(0)
    except RuntimeError as error:  # the driver library itself is absent
        raise FileNotFoundError("no NVIDIA driver is found") from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise FileNotFoundError(f"the NVIDIA driver does not start: {status.name}")
    version = driver.cuDriverGetVersion()[1]
    count = driver.cuDeviceGetCount()[1]
    if not count:
        raise FileNotFoundError("the NVIDIA driver sees no GPU")
    names = []
    for number in range(count):
        device = driver.cuDeviceGet(number)[1]
        attribute = driver.CUdevice_attribute
        major = driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)[1]
        minor = driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)[1]
        names.append(f"{driver.cuDeviceGetName(128, device)[1].decode(errors='replace').strip(chr(0))} (sm_{major}{minor})")
    return f"{', '.join(names)}; driver for CUDA {version // 1000}.{version % 1000 // 10}"


def _tensorrt() -> str:
    module = importlib.import_module("tensorrt")
    return f"{module.__version__}, {Path(str(module.__file__)).parent}"


def _tensorrt_rtx() -> str:
    from graphfuse.engine.locate import PACKAGE, find_rtx_files, import_rtx, is_importable

    how = "importable as it is" if is_importable(PACKAGE) else f"linked together from {find_rtx_files().extension.parent.parent}"
    return f"{import_rtx().__version__}, {how}"


def _plugin() -> str:
    import graphfuse_plugin

    return f"{graphfuse_plugin.NAMESPACE}::{graphfuse_plugin.NAME} version {graphfuse_plugin.VERSION}"


def _cache() -> str:
    from graphfuse.jit.cache import default_folder

    folder = default_folder()
    if folder is None:
        return "switched off by GRAPHFUSE_CACHE_DIR"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder):
        pass
    entries = [p.stat().st_size for p in folder.rglob("*.bin")]
    return f"{folder}, {len(entries)} entries, {sum(entries) / 1e6:.1f} MB"


_PROBES: tuple[tuple[str, str, str, Callable[[], str]], ...] = (
    ("C++ compiler", "check and run on --device host", "install g++, or set CXX; without one, check uses the NumPy interpreter", _compiler),
    ("NVRTC", "build, show --resources, --device cuda", "pip install 'graphfuse[cuda]'", _nvrtc),
    ("NVIDIA GPU", "--device cuda, --device engine", "a GPU and its driver; rewriting, checking and building need none", _gpu),
    ("TensorRT", "build --flavour tensorrt", "pip install 'graphfuse[tensorrt]'", _tensorrt),
    ("TensorRT for RTX", "build --flavour tensorrt_rtx, also without a GPU", "pip install 'graphfuse[rtx]'", _tensorrt_rtx),
    ("plugin", "build, and running engines", "pip install graphfuse", _plugin),
    ("cuobjdump, nvdisasm", "looking at machine code", "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm", _disassembler),
    ("kernel cache", "not compiling the same kernel twice", "make the folder writable, or set GRAPHFUSE_CACHE_DIR", _cache),
)

__all__ = ["Doctor", "Finding", "examine"]
