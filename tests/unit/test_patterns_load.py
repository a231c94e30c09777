"""Patterns of the user's own, switches, what the commands say; and our patterns on the collection of models."""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib.metadata import EntryPoint
from pathlib import Path

import onnx
import pytest

import graphfuse
from graphfuse.cli import main
from graphfuse.graph.load import load_model
from graphfuse.ir import GraphfuseError
from graphfuse.match import rewrite_model
from graphfuse.match.explain import explain_model, explain_patterns
from graphfuse.match.rewrite import prepare
from graphfuse.patterns import load
from graphfuse.patterns.library import LIBRARY
from tests.conftest import ROOT, SHARED_MODELS
from tests.texts import model, proto

MINE = """
from graphfuse.patterns import Op, Pattern, Var

x = Var("x")
DOUBLE_NEG = Pattern("double-neg", Op("Neg", Op("Neg", x)), "-(-x) becomes x", rewrite=lambda match, tape: match["x"])
"""
BODY = "a = Neg(x)\nb = Neg(a)\nc = Exp(b)\ny = Tanh(c)"
SWISH = "s = Sigmoid(x)\nw = Mul(s, x)\ny = Tanh(w)"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_patterns_of_a_file(mine: Path) -> None:
    found = graphfuse.rewrite(proto(model(BODY)), patterns=[mine], policy="aggressive")
    assert found.report["patterns"]["rewritten"] == {"double-neg": 1}
    assert [r.op_types for r in found.regions] == [["Identity", "Exp", "Tanh"]]
    without = graphfuse.rewrite(proto(model(BODY)), patterns=[mine], skip="double-neg", policy="aggressive")
    assert without.report["patterns"]["rewritten"] == {}
    assert graphfuse.rewrite(proto(model(BODY)), patterns=str(mine)).report["patterns"]["rewritten"] == {"double-neg": 1}


def test_files_may_hold_what_modules_hold(mine: Path) -> None:
    more = "from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\nclass Limit:\n    low: float\n\nLIMIT = Limit(1.0)\n"
    mine.write_text(more + MINE.replace('match["x"]', 'match["x"] if LIMIT.low else None'))
    assert rewrite_model(model(BODY), patterns=[mine]).report["patterns"]["rewritten"] == {"double-neg": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", r"mine.py:1: cannot be executed: ZeroDivisionError: division by zero; mend the file"),
        ("x = (", r"mine.py.*: cannot be executed: SyntaxError"),
        ("x = 1", r"mine.py: defines no pattern"),
        (MINE.replace("double-neg", "swish"), r"pattern 'swish' is defined twice"),
    ],
)
def test_files_that_are_no_patterns(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(GraphfuseError, match=message):
        rewrite_model(model(BODY), patterns=[path])
    with pytest.raises(GraphfuseError, match="no such file of patterns"):
        rewrite_model(model(BODY), patterns=[tmp_path / "none.py"])


def test_patterns_of_packages(monkeypatch: pytest.MonkeyPatch, mine: Path) -> None:
    monkeypatch.syspath_prepend(str(mine.parent))
    points = [EntryPoint("mine", "mine:DOUBLE_NEG", load.GROUP)]
    monkeypatch.setattr(load, "entry_points", lambda group: points if group == load.GROUP else [])
    monkeypatch.setattr(load, "installed", load.installed.__wrapped__)
    assert rewrite_model(model(BODY)).report["patterns"]["rewritten"] == {"double-neg": 1}
    points[0] = EntryPoint("mine", "mine", load.GROUP)
    assert rewrite_model(model(BODY)).report["patterns"]["rewritten"] == {"double-neg": 1}
    points[0] = EntryPoint("mine", "mine:NOTHING", load.GROUP)
    with pytest.raises(GraphfuseError, match="entry point 'mine' cannot be loaded.*mend or remove its package"):
        rewrite_model(model(BODY))


def test_every_pattern_has_a_switch() -> None:
    for pattern in LIBRARY:
        names = {p.name for p in prepare(model(BODY), skip=[pattern.name]).patterns}
        assert names == {p.name for p in LIBRARY} - {pattern.name}
    assert rewrite_model(model(SWISH)).report["patterns"]["recognised"] == {"swish": 1}
    found = rewrite_model(model(SWISH), skip=["swish", "no-gain"])
    assert found.report["patterns"]["recognised"] == {}
    assert rewrite_model(model(SWISH), skip=iter(["swish"])).report["patterns"]["recognised"] == {}
    with pytest.raises(GraphfuseError, match="rule 'swiss' is unknown; the rules are .*, the patterns .*swish"):
        rewrite_model(model(SWISH), skip=["swiss"])


def test_regions_are_named_after_patterns() -> None:
    (region,) = rewrite_model(model(SWISH)).regions
    assert region.function.startswith("gf_swish_tanh_")
    assert region.patterns == ["swish"]
    (other,) = rewrite_model(model(SWISH), skip=["swish"]).regions
    assert other.function.startswith("gf_sigmoid_mul_tanh_")
    assert other.spec == region.spec


def test_explain_says_what_pattern_a_node_is_part_of_and_the_nearest_miss() -> None:
    given = model(SWISH.replace("Mul(s, x)", "Mul(s, a)").replace("s = ", "a = Abs(x)\ns = "))
    for node in given.graph:
        node.name = f"n_{node.outputs[0].name}"
    reports = {r.name: r for r in explain_patterns(given)}
    assert set(reports) == {p.name for p in LIBRARY}
    miss = reports["swish"]
    assert (miss.recognised, miss.node, miss.near, miss.matched) == (0, "n_s", "n_w", 2)
    assert miss.reason == "'x' stands where 'a' is wanted"
    assert reports["gelu-erf"].reason == "the graph has no Add and no Erf"
    assert [e.pattern for e in explain_model(model(SWISH))] == ["swish", "swish", ""]


def test_commands(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(proto(model(BODY)), "m.onnx")
    more = ["--patterns", str(mine)]
    assert main(["rewrite", "m.onnx", "-o", "f.onnx", *more, "--json", "r.json"]) == 0
    assert json.loads(Path("r.json").read_text())["patterns"]["rewritten"] == {"double-neg": 1}
    assert main(["scan", "m.onnx", *more, "--json", "s.json"]) == 0
    assert "Identity" in json.loads(Path("s.json").read_text())["ops"]
    assert main(["plan", "m.onnx", "-o", "p.yaml", *more]) == 0
    assert main(["rewrite", "m.onnx", "-o", "g.onnx", *more, "--plan", "p.yaml"]) == 0
    assert Path("f.onnx").read_bytes() == Path("g.onnx").read_bytes()
    capsys.readouterr()
    assert main(["explain", "m.onnx", *more, "--json", "e.json"]) == 0
    text = capsys.readouterr().out
    assert "double-neg" in text
    assert "1 rewritten" in text
    rows = {p["name"]: p for p in json.loads(Path("e.json").read_text())["patterns"]}
    assert rows["double-neg"]["rewritten"] == 1
    assert rows["gelu-erf"]["reason"] == "the graph has no Add and no Erf"
    assert main(["explain", "m.onnx", *more, "--skip", "double-neg"]) == 0
    assert main(["rewrite", "m.onnx", "-o", "h.onnx", "--patterns", "nothing.py"]) == 2


IN_COLLECTION = {
    "layer-norm": 90, "gelu-erf": 50, "swish": 47, "rms-norm": 26, "group-norm": 26, "rope": 20, "gelu-tanh": 9, "swiglu": 5, "hard-swish": 2,
}  # fmt: skip


def test_patterns_in_the_collection_of_models() -> None:
    """Nothing there is to be mended, every Erf is part of a GELU, and no match is lost unnoticed."""
    if not SHARED_MODELS:
        pytest.skip("the model collection is not beside the checkout")
    found: Counter[str] = Counter()
    for path in SHARED_MODELS:
        prepared = prepare(load_model(path))
        assert not prepared.repaired, path
        found.update(m.pattern.name for m in prepared.recognised.matches)
        erfs = sum(n.op_type == "Erf" for n in prepared.context.flow.nodes)
        assert sum(m.pattern.name == "gelu-erf" for m in prepared.recognised.matches) == erfs, path
    assert found == IN_COLLECTION


def test_the_page_on_patterns_is_true(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "patterns.md").read_text()
    rows = [line.split("|")[1] for line in page.partition("## One of your own")[0].splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`([^`]+)`", row)) == sorted(p.name for p in LIBRARY)
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    path = tmp_path / "own.py"
    path.write_text(snippet)
    given = model("a = Add(x, eps)\nr = Sqrt(a)\nd = Div(one, r)\ny = Mul(x, d)", weights="float eps = {1e-5}, float one = {1}")
    found = rewrite_model(given, patterns=[path], policy="aggressive")
    assert found.report["patterns"]["rewritten"] == {"recip-sqrt": 1}
    assert [r.op_types for r in found.regions] == [["Add", "Sqrt", "Reciprocal", "Mul"]]
