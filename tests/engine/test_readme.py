"""README.md and docs/ say what is true: their commands run, their snippets run, their links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from graphfuse.match.policy import RULES
from tests.conftest import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)#]+)")
DOCUMENTS = [ROOT / "README.md", ROOT / "models" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = DOCUMENTS[0].read_text()


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(README) if kind == language]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder like the checkout to a reader, where what the commands write is thrown away."""
    (tmp_path / "models").symlink_to(ROOT / "models")
    return tmp_path


def run(words: list[str], place: Path) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins")])}
    env.pop("COLUMNS", None)
    done = subprocess.run([sys.executable, *words], cwd=place, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def plain(text: str) -> list[str]:
    """Words, without what differs between machines (errors of floats, folding of long cells) and versions (hashes)."""
    text = re.sub(r"_[0-9a-f]{10}\b", "_HASH", text)
    return re.sub(r"[0-9.]+e[-+]\d+|[0-9.]+% used", "ERROR", text).replace("─", "").split()


def test_make_commands_are_targets() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"^make ([\w-]+)$", "\n".join(blocks("sh")), re.M)) | set(re.findall(r"`make ([\w-]+)`", README))
    assert {"demo", "test", "gpu-test"} <= named <= targets


def test_commands_run_in_order(place: Path) -> None:
    lines = [line for text in blocks("sh") for line in text.splitlines() if line and not line.startswith("make ")]
    assert len(lines) >= 9
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "graphfuse"
        run(["-m", "graphfuse", *words], place)


def test_excerpts_are_what_is_printed(place: Path) -> None:
    run(["-m", "graphfuse", "rewrite", "models/yolo_head.onnx", "-o", "yolo.fused.onnx"], place)
    parts = [part for text in blocks("text") for part in re.split(r"^\$ ", text, flags=re.M) if part]
    assert len(parts) >= 2
    for part in parts:
        line, shown = part.split("\n", 1)
        assert plain(run(["-m", *shlex.split(line)], place)) == plain(shown), line


def test_the_policy_page_knows_every_rule() -> None:
    named = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / "policy.md").read_text(), re.M)
    assert named == [rule.name for rule in RULES]


def test_snippets_run(place: Path) -> None:
    snippets = blocks("python")
    assert snippets
    for text in snippets:
        run(["-c", text], place)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = [t for t in LINK.findall(document.read_text()) if "://" not in t]
    assert [t for t in targets if not (document.parent / t).exists()] == []
