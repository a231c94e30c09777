"""The two flavours of TensorRT behind one face; what differs between them is written here and nowhere else.

``tensorrt`` is the full library: it builds for the GPU it runs on. ``tensorrt_rtx`` is TensorRT for RTX: it builds for any
GPU it knows, also on a machine without one.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from graphfuse.engine import locate
from graphfuse.ir.errors import GraphfuseError

NAMES = ("tensorrt", "tensorrt_rtx")
TITLES = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT for RTX"}


@dataclass(frozen=True)
class Flavour:
    """One loaded TensorRT. ``logger`` is the only logger of this process: TensorRT keeps pointers to the first it sees."""

    name: str
    module: ModuleType
    logger: Any  # a trt.ILogger that is also a Log
    builds_without_gpu: bool

    @property
    def title(self) -> str:
        """Name for people."""
        return TITLES[self.name]

    @property
    def version(self) -> str:
        """As the module says it, e.g. ``1.7.1.116``."""
        return str(getattr(self.module, "__version__", "?"))

    @property
    def network_flags(self) -> int:
        """Creation flags of a strongly typed network; releases where that is the only kind may have dropped the member."""
        member = getattr(self.module.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        return 0 if member is None else 1 << int(member)

    @property
    def times_tactics(self) -> bool:
        """Whether the builder measures what it chooses between, so that a timing cache helps the next build."""
        return not self.builds_without_gpu

    @property
    def archs(self) -> tuple[str, ...]:
        """The targets that this flavour can be told to build for, e.g. ``sm_89``; none where it builds for the GPU only."""
        if not hasattr(self.module, "ComputeCapability"):
            return ()
        members = self.module.ComputeCapability.__members__
        return tuple(f"sm_{name[2:]}" for name in members if re.fullmatch(r"SM\d+", name))

    def check_targets(self, targets: Sequence[str], gpu: str | None) -> None:
        """Raises GraphfuseError for a target that this flavour cannot build for. ``gpu`` is the arch of the GPU, if any."""
        for target in targets:
            if not re.fullmatch(r"sm_\d+", target):
                raise GraphfuseError(f"target {target!r} is not a GPU architecture; write it like sm_89")
            if self.archs and target not in self.archs:
                raise GraphfuseError(f"{self.title} cannot build for {target}; it knows {', '.join(self.archs)}")
            if not self.archs and target != gpu:
                raise GraphfuseError(
                    f"{self.title} builds for the GPU it runs on ({gpu or 'none here'}), not for {target}; leave the target out"
                )

    def set_targets(self, config: Any, targets: Sequence[str]) -> None:
        """Tell the builder. Never CURRENT: without a GPU that aborts the process. No target means every GPU from sm_80 on."""
        if not targets or not self.archs:
            return
        config.num_compute_capabilities = len(targets)
        for index, target in enumerate(targets):
            if not config.set_compute_capability(getattr(self.module.ComputeCapability, "SM" + target[3:]), index):
                raise GraphfuseError(f"{self.title} did not accept the target {target}")

    def check_run(self, capability: tuple[int, int]) -> None:
        """Raises GraphfuseError when engines of this flavour do not run on a GPU of this compute capability."""
        arch = f"sm_{capability[0]}{capability[1]}"
        if self.archs and arch not in self.archs:
            raise GraphfuseError(
                f"{self.title} does not run on this GPU (compute capability {capability[0]}.{capability[1]}); "
                "use --flavour tensorrt, or --device cuda, which runs the same kernels without an engine"
            )


def load_flavour(name: str | None = None) -> Flavour:
    """Load ``tensorrt`` or ``tensorrt_rtx``; None takes one that is loaded already, else the one that can build here.

    Raises GraphfuseError with the command that installs what is missing.
    """
    if name is None:
        name = _choose()
    if name not in NAMES:
        raise GraphfuseError(f"unknown flavour {name!r}; choose {' or '.join(NAMES)}")
    with _LOCK:
        if name not in _LOADED:
            _LOADED[name] = _load(name)
        return _LOADED[name]


_LOCK = threading.Lock()
_LOADED: dict[str, Flavour] = {}


def _choose() -> str:
    if _LOADED:
        return next(iter(_LOADED))
    from graphfuse_plugin.driver import gpu_arch

    return "tensorrt" if gpu_arch() is not None and locate.is_importable("tensorrt") else "tensorrt_rtx"


def _load(name: str) -> Flavour:
    module = locate.import_rtx() if name == "tensorrt_rtx" else _import_full()
    return Flavour(name, module, _make_logger(module), builds_without_gpu=hasattr(module, "ComputeCapability"))


def _import_full() -> ModuleType:
    try:
        return importlib.import_module("tensorrt")
    except (ImportError, OSError, AttributeError) as error:
        raise GraphfuseError(f"TensorRT does not load ({error}); install it with `pip install 'graphfuse[tensorrt]'`") from error


# --- messages ---------------------------------------------------------------------------------------------------------


@dataclass
class Capture:
    """Messages that TensorRT gave to the logger, as (severity name, text)."""

    thread: int
    verbose: bool = False
    lines: list[tuple[str, str]] = field(default_factory=list)

    def errors(self) -> list[str]:
        """Texts of errors in one line each; complaints that there is no driver are left out where others say more."""
        found = [" ".join(text.split()) for severity, text in self.lines if severity in ("ERROR", "INTERNAL_ERROR")]
        return [e for e in found if "cudaError 35" not in e] or found


class Log:
    """The part of the logger that is ours: hands every message to the captures of its thread."""

    def __init__(self) -> None:
        self.captures: list[Capture] = []

    def take(self, severity: str, text: str) -> None:
        """Store one message; one from a thread that builds nothing goes to all."""
        here = [c for c in self.captures if c.thread == threading.get_ident()]
        for capture in here or list(self.captures):
            if severity != "VERBOSE" or capture.verbose:
                capture.lines.append((severity, text))

    @contextmanager
    def capture(self, verbose: bool = False) -> Iterator[Capture]:
        """Collect the messages of this thread; the most detailed ones, thousands of them, only if asked for."""
        capture = Capture(threading.get_ident(), verbose)
        self.captures.append(capture)
        try:
            yield capture
        finally:
            self.captures.remove(capture)


def _make_logger(trt: ModuleType) -> Any:
    class Logger(trt.ILogger, Log):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            Log.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            with suppress(BaseException):  # called from C++, which has nowhere to put an exception
                self.take(severity.name, msg)

    return Logger()
