"""Finding TensorRT for RTX in the two PyPI packages that hold it, and making it importable.

One wheel holds the Python bindings, another one (made for ONNX Runtime) the libraries. The bindings look for the libraries
beside themselves, and the parser looks for the core by a name that no wheel has, so neither ``LD_LIBRARY_PATH`` nor loading
the libraries first makes a complete TensorRT of them. A folder of symbolic links does: the loader takes "beside" from where
the link stands. Nothing installed is changed, no environment variable is read or written.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from graphfuse.ir.errors import GraphfuseError

PACKAGE = "tensorrt_rtx"
MEND = "install both with `pip install 'graphfuse[rtx]'`"


@dataclass(frozen=True)
class RtxFiles:
    """The four files that make up TensorRT for RTX; ``links`` names each as the loader wants to find it."""

    init: Path
    extension: Path
    core: Path
    parser: Path

    @property
    def links(self) -> dict[str, Path]:
        """Name in the package folder to installed file. The parser opens the core without the ``.1``, everyone else with."""
        return {
            "__init__.py": self.init,
            "tensorrt_rtx.so": self.extension,
            "libtensorrt_rtx.so": self.core,
            "libtensorrt_rtx.so.1": self.core,
            "libtensorrt_onnxparser_rtx.so.1": self.parser,
        }

    @property
    def key(self) -> str:
        """Changes whenever one of the files is replaced."""
        facts = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in self.links.values()]
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


_WANTED = {
    "the bindings": (re.compile(r"tensorrt_rtx\.so"), "tensorrt_rtx_cu13_bindings"),
    "the core library": (re.compile(r"libtensorrt_rtx\.so\.\d[\d.]*"), "onnxruntime-ep-nv-tensorrt-rtx-cu13"),
    "the parser library": (re.compile(r"libtensorrt_onnxparser_rtx\.so\.\d[\d.]*"), "onnxruntime-ep-nv-tensorrt-rtx-cu13"),
}


def find_rtx_files() -> RtxFiles:
    """Where the installed wheels put TensorRT for RTX. Raises GraphfuseError naming what is missing or does not fit."""
    installed = list(_installed_files())
    found: dict[str, tuple[Path, str]] = {}
    for part, (pattern, wheel) in _WANTED.items():
        hits = [(path, version) for path, version in installed if pattern.fullmatch(path.name)]
        if not hits:
            raise GraphfuseError(f"TensorRT for RTX: {part} (PyPI package {wheel}) is not installed; {MEND}")
        found[part] = max(hits, key=lambda hit: hit[0].name)
    (extension, bindings_version), (core, _), (parser, _) = found.values()
    init = extension.with_name("__init__.py")
    if not init.is_file():
        raise GraphfuseError(f"TensorRT for RTX: {init} is missing; the package is damaged, {MEND}")
    _check_versions(bindings_version, core, parser)
    return RtxFiles(init, extension, core, parser)


def _installed_files() -> Iterator[tuple[Path, str]]:
    """(file, version of its distribution) of every shared object in distributions that have to do with RTX."""
    for dist in importlib.metadata.distributions():
        if "rtx" not in (dist.metadata["Name"] or "").lower():
            continue
        for entry in dist.files or ():
            path = Path(str(dist.locate_file(entry)))
            if ".so" in entry.name and path.is_file():
                yield path.resolve(), dist.version


def _check_versions(bindings: str, core: Path, parser: Path) -> None:
    """Bindings and libraries of different releases load, then crash: their interfaces are numbered by these three digits."""
    want = bindings.split(".")[:3]
    for library in (core, parser):
        got = library.name.partition(".so.")[2].split(".")
        if got != want[: len(got)]:
            raise GraphfuseError(
                f"TensorRT for RTX: the bindings are version {bindings}, {library.name} is not; {MEND} (it asks for releases that fit)"
            )


# --- the folder of links ----------------------------------------------------------------------------------------------


def link_package(files: RtxFiles) -> Path:
    """A folder ``tensorrt_rtx`` that imports as TensorRT for RTX; its parent may be put on ``PYTHONPATH`` for other tools."""
    from graphfuse.jit.cache import default_folder

    root = default_folder()
    if root is None:
        return _private(files)
    folder = root / "rtx" / files.key / PACKAGE
    return folder if _is_intact(folder, files) else _publish(files, folder)


def _is_intact(folder: Path, files: RtxFiles) -> bool:
    try:
        return {p.name for p in folder.iterdir() if p.name != "__pycache__"} == set(files.links) and all(
            (folder / name).readlink() == target for name, target in files.links.items()
        )
    except OSError:
        return False


def _publish(files: RtxFiles, folder: Path) -> Path:
    """Make the links aside and rename them into place, so that no other process ever sees half a package.

    Where the place is taken (by a damaged folder) or cannot be written, the private folder itself is used.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=folder.parent))
    except OSError:
        return _private(files)
    made = _fill(aside / PACKAGE, files)
    try:
        made.rename(folder)
    except OSError:
        if not _is_intact(folder, files):
            atexit.register(shutil.rmtree, aside, ignore_errors=True)
            return made
    shutil.rmtree(aside, ignore_errors=True)
    return folder


def _private(files: RtxFiles) -> Path:
    """A folder for this process alone, gone when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="graphfuse-rtx-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _fill(folder / PACKAGE, files)


def _fill(folder: Path, files: RtxFiles) -> Path:
    folder.mkdir()
    for name, target in files.links.items():
        (folder / name).symlink_to(target)
    return folder


def import_rtx() -> ModuleType:
    """The module ``tensorrt_rtx``: as it is where it imports, else through a folder of links. Raises GraphfuseError."""
    if PACKAGE in sys.modules:
        return sys.modules[PACKAGE]
    bindings = sys.modules.get("tensorrt_rtx_bindings")
    if bindings is None:
        bindings = _import(PACKAGE) if is_importable(PACKAGE) else _import_linked(link_package(find_rtx_files()))
    # A second import under either name would register the same native types twice and fail.
    sys.modules[PACKAGE] = sys.modules["tensorrt_rtx_bindings"] = bindings
    return bindings


def is_importable(name: str) -> bool:
    """Whether a regular module of this name is on the path (a folder that happens to have it is not)."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise GraphfuseError(f"{name} is installed but does not load: {error}; reinstall it") from error


def _import_linked(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        for name in [n for n in sys.modules if n == PACKAGE or n.startswith(PACKAGE + ".")]:
            del sys.modules[name]
        if isinstance(error, ImportError | OSError):
            raise GraphfuseError(f"TensorRT for RTX does not load: {error}; {MEND}") from error
        raise
    return module
