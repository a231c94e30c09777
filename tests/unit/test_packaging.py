from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = [ROOT / "graphfuse", ROOT / "plugins" / "graphfuse_plugin"]
# Modules whose package has another name. Those that no list of dependencies names stand for optional ones that tests may miss.
PACKAGES = {"onnx_graphsurgeon": "onnx-graphsurgeon",
    "cuda": "cuda-bindings", "google": "onnx", "onnx_ir": "onnx-ir", "yaml": "pyyaml", "tensorrt_rtx": "tensorrt-rtx-cu13-bindings",
    "tensorrt_rtx_bindings": "tensorrt-rtx-cu13-bindings", "onnxruntime_ep_nv_tensorrt_rtx": "onnxruntime-ep-nv-tensorrt-rtx-cu13",
}  # fmt: skip


def declared(*groups: str) -> set[str]:
    lists = [PROJECT["project"]["dependencies"], *(PROJECT["project"]["optional-dependencies"][g] for g in groups)]
    return {re.split(r"[<>=!~\[ ]", entry)[0].lower() for entries in lists for entry in entries}


def imports(path: Path, *, top_level: bool) -> set[str]:
    """Packages outside the standard library that a module imports: at its top level, or anywhere."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in tree.body if top_level else ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
        found |= {name.split(".")[0] for name in names}
    own = {"graphfuse", "graphfuse_plugin", "__future__"}
    return {PACKAGES.get(m, m) for m in found - own - set(sys.stdlib_module_names)}


MODULES = [p for source in SOURCES for p in sorted(source.rglob("*.py"))]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_is_imported_is_declared(path: Path) -> None:
    assert imports(path, top_level=False) <= declared("tensorrt", "rtx", "cuda", "polygraphy")


@pytest.mark.parametrize("path", [p for p in MODULES if p.is_relative_to(SOURCES[0])], ids=lambda p: str(p.relative_to(ROOT)))
def test_no_module_needs_an_extra_to_be_imported(path: Path) -> None:
    assert imports(path, top_level=True) <= declared()


def test_every_file_that_is_not_python_is_package_data() -> None:
    listed = subprocess.run(["git", "ls-files", "-z", *SOURCES], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout: nothing tells sources from leftovers")
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    files = [Path(name).name for name in listed.stdout.split("\0") if name and not name.endswith(".py")]
    assert [f for f in files if not any(fnmatch.fnmatch(f, p) for p in patterns)] == []


def test_every_folder_of_sources_is_a_package() -> None:
    folders = {p.parent for p in MODULES}
    assert [str(f.relative_to(ROOT)) for f in sorted(folders) if not (f / "__init__.py").is_file()] == []


def test_ci_runs_make_test_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "make test"]
    assert script.stat().st_mode & 0o111
