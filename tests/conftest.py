"""What every tier shares: markers by folder, the reasons to skip, model lists, ONNX Runtime as the reference."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "models"
# A larger collection of models and of bug-report cases, beside the checkout; what needs it skips where it is absent.
_PLACES = (ROOT.parent / "shared", ROOT / "shared")
SHARED = Path(os.environ.get("GRAPHFUSE_SHARED") or next((p for p in _PLACES if p.is_dir()), _PLACES[0]))
SHARED_MODELS = sorted((SHARED / "models").glob("*.onnx"))
SHARED_CASES = sorted((SHARED / "reports" / "cases").glob("*.onnx"))
OWN_MODELS = sorted(MODELS.glob("*.onnx"))

Feeds = Mapping[str, np.ndarray]
Reference = Callable[..., dict[str, np.ndarray]]


def gpu_absence() -> str | None:
    """Why the gpu tier cannot run here; None if it can."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        return "cuda-bindings is not installed"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver: libcuda.so.1 is not found"
    count = ctypes.c_int(0)
    if code := driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return f"the NVIDIA driver does not start (CUDA error {code})"
    return None if count.value else "the NVIDIA driver sees no GPU"


def rtx_absence() -> str | None:
    """Why no TensorRT-RTX engine can be built here; None if one can."""
    missing = [m for m in ("tensorrt_rtx_bindings", "onnxruntime_ep_nv_tensorrt_rtx") if importlib.util.find_spec(m) is None]
    return f"TensorRT-RTX is not installed: no module {missing[0]}" if missing else None


def compiler_absence() -> str | None:
    """Why no kernel can be compiled for the CPU; None if one can."""
    return None if any(shutil.which(c) for c in (os.environ.get("CXX", "c++"), "g++", "clang++")) else "no C++ compiler is found"


_TIERS: dict[str, Callable[[], str | None]] = {"host": compiler_absence, "engine": rtx_absence, "gpu": gpu_absence}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test with its tier, which is its folder, and skips what cannot run here, with the reason."""
    absent: dict[str, str | None] = {}
    for item in items:
        tier = item.path.relative_to(ROOT / "tests").parts[0]
        if tier not in _TIERS:
            continue
        item.add_marker(getattr(pytest.mark, tier))
        reason = absent[tier] if tier in absent else absent.setdefault(tier, _TIERS[tier]())
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def shared_models() -> list[object]:
    """For ``parametrize``: the paths of the collection; one test that skips with its reason where there is none."""
    return _params(SHARED_MODELS, "models")


def shared_cases() -> list[object]:
    """For ``parametrize``: the paths of the bug-report models, likewise."""
    return _params(SHARED_CASES, "reports/cases")


def _params(paths: list[Path], folder: str) -> list[object]:
    if paths:
        return [pytest.param(p, id=p.stem) for p in paths]
    reason = f"the model collection is not there: no .onnx in {SHARED.name}/{folder} beside the checkout"
    return [pytest.param(Path(), id="absent", marks=pytest.mark.skip(reason=reason))]


@pytest.fixture(scope="session")
def has_gpu() -> bool:
    return gpu_absence() is None


@pytest.fixture
def reference() -> Reference:
    return run_reference


def run_reference(model: onnx.ModelProto | str | os.PathLike[str], feeds: Feeds) -> dict[str, np.ndarray]:
    """The outputs by name, from ONNX Runtime on the CPU with every graph optimisation off."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else os.fspath(model)
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))
