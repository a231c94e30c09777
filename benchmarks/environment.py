"""Where a measurement was made: written into every result."""

from __future__ import annotations

import importlib.metadata
import platform
from datetime import datetime, timezone
from typing import Any

PACKAGES = ("torch", "triton", "onnx", "onnx-ir", "onnxruntime", "numpy", "cuda-bindings", "nvidia-cuda-nvrtc")


def environment() -> dict[str, Any]:
    """The GPU, its driver, CUDA, packages and the date."""
    import torch

    import graphfuse
    from graphfuse.jit import driver, nvrtc

    properties = torch.cuda.get_device_properties(0)
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "cuda_driver": _dotted(int(driver.call("cuDriverGetVersion"))),
        "driver": _driver_release(),
        "cuda": torch.version.cuda,
        "nvrtc": nvrtc.version(),
        "python": platform.python_version(),
        "graphfuse": graphfuse.__version__,
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _dotted(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _driver_release() -> str:
    """The driver package's own number, which CUDA's API does not tell."""
    import shutil
    import subprocess

    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.split()
    return found[0] if found else "unknown"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
