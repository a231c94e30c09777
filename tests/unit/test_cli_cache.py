"""``graphfuse cache``: kernels made beforehand are the ones that a build asks for; listing; deleting."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import graphfuse
from graphfuse.cli import main
from graphfuse.jit import cache as caches
from graphfuse.jit.cache import Cache
from tests.conftest import rtx_absence
from tests.portable import info, model

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
node = onnx.helper.make_node
TARGET = ["--target", "sm_89"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fused model of two different regions of sizes n and m, and an empty cache."""
    nodes = [
        node("Sigmoid", ["x"], ["a"]), node("Mul", ["a", "x"], ["b"]), node("Add", ["b", "x"], ["y"]),
        node("Relu", ["z"], ["d"]), node("Tanh", ["d"], ["e"]), node("Mul", ["e", "z"], ["w"]),
    ]  # fmt: skip
    made = model(nodes, [info("x", shape=["n", 8]), info("z", shape=["m", 4])], [info("y", shape=["n", 8]), info("w", shape=["m", 4])])
    graphfuse.rewrite(made, policy="aggressive").save(tmp_path / "f.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRAPHFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(caches, "_caches", {})
    return tmp_path


def warm(*options: str) -> dict[str, int]:
    assert main(["cache", "warm", "f.onnx", *TARGET, "--json", "w.json", *options]) == 0
    found: dict[str, int] = json.loads(Path("w.json").read_text())
    return found


def test_warm_compiles_once(place, capsys) -> None:
    shapes = ["--shapes", "x:1x8,4x8,8x8", "--shapes", "z:2x4"]
    first = warm(*shapes)
    assert (first["regions"], first["kernels"], first["compiled"]) == (2, 3, 3)  # n: 4 and any; m: 2 only
    second = warm(*shapes)
    assert (second["kernels"], second["compiled"]) == (3, 0)
    more = warm(*shapes, "--shapes", "x:16x8,32x8,64x8")
    assert (more["kernels"], more["compiled"]) == (4, 1)
    both = warm(*shapes, "--target", "sm_120")
    assert (both["kernels"], both["compiled"]) == (6, 3)
    assert "2 regions, 6 kernels: 3 compiled" in capsys.readouterr().out


def test_without_shapes_the_kernels_for_any_size(place) -> None:
    assert warm()["compiled"] == 2


@pytest.mark.skipif(rtx_absence() is not None, reason=rtx_absence() or "")
def test_a_build_finds_what_was_made(place, monkeypatch) -> None:
    from graphfuse.jit import nvrtc

    warm("--shapes", "x:1x8,4x8,8x8", "--shapes", "z:2x4,3x4,4x4")
    monkeypatch.setattr(nvrtc, "compile_image", lambda *a, **k: pytest.fail("the build compiled a kernel"))
    shapes = {"x": ((1, 8), (4, 8), (8, 8)), "z": ((2, 4), (3, 4), (4, 4))}
    engine = graphfuse.build_engine("f.onnx", shapes=shapes, flavour="tensorrt_rtx", targets=["sm_89"])
    assert len(engine.plugin_layers) == 2


@pytest.mark.skipif(rtx_absence() is not None, reason=rtx_absence() or "")
def test_warming_an_engine_for_another_gpu(place, monkeypatch, capsys) -> None:
    """What loading it there asks for; what it holds already is left alone."""
    from graphfuse.engine.contents import regions_in
    from graphfuse.jit import nvrtc
    from graphfuse_plugin.adapt import adapt

    shapes = ["--shapes", "x:1x8,4x8,8x8", "--shapes", "z:2x4,3x4,4x4"]
    assert main(["build", "f.onnx", "-o", "e.engine", "--flavour", "tensorrt_rtx", *TARGET, *shapes]) == 0

    def warm_engine(*targets: str) -> dict[str, int]:
        assert main(["cache", "warm", "e.engine", *(w for t in targets for w in ("--target", t)), "--json", "w.json"]) == 0
        found: dict[str, int] = json.loads(Path("w.json").read_text())
        return found

    assert warm_engine("sm_89")["compiled"] == 0
    found = warm_engine("sm_90", "sm_89")
    assert (found["regions"], found["kernels"], found["compiled"]) == (2, 8, 4)
    assert warm_engine("sm_90")["compiled"] == 0
    monkeypatch.setattr(nvrtc, "compile_image", lambda *a, **k: pytest.fail("the load compiled a kernel"))
    for region, kernels in regions_in(Path("e.engine").read_bytes()):
        for kernel in kernels:
            assert adapt(region, kernel, "sm_90")[1].startswith(b"\x7fELF")
    capsys.readouterr()
    assert main(["cache", "warm", "e.engine", *shapes]) == 2
    assert "leave --shapes out" in capsys.readouterr().err


def test_what_is_neither_a_model_nor_an_engine(place, capsys) -> None:
    Path("plain.engine").write_bytes(b"ftrt" + bytes(64))
    for name in ("plain.engine", "absent.engine", "absent.onnx"):
        assert main(["cache", "warm", name]) == 2
        err = capsys.readouterr().err
        assert name in err
        assert err.count("\n") == 1


def test_ls_and_clear(place, capsys) -> None:
    warm()
    cache = Cache(place / "cache")
    cache.put("a" * 64, b"\x7fELF of the host")
    cache.put("b" * 64, b"a" * 64)
    capsys.readouterr()
    assert main(["cache", "ls", "--json", "ls.json"]) == 0
    out = capsys.readouterr().out
    assert "4 files" in out
    found = json.loads(Path("ls.json").read_text())
    assert sorted(e["kind"] for e in found["entries"]) == ["host index", "host library", "sm_89", "sm_89"]
    assert sum(e["bytes"] for e in found["entries"]) == sum(p.stat().st_size for p in (place / "cache").rglob("*.bin"))
    assert main(["cache", "ls", "--all"]) == 0
    assert "a" * 64 in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert "4 files deleted" in capsys.readouterr().out
    assert not list((place / "cache").rglob("*.bin"))
    assert warm()["compiled"] == 2  # nothing stale is left in memory either


def test_looking_is_no_use(place) -> None:
    warm()
    files = sorted((place / "cache").rglob("*.bin"))
    before = [p.stat().st_mtime_ns for p in files]
    assert main(["cache", "ls"]) == 0
    assert [p.stat().st_mtime_ns for p in files] == before


BAD = {
    "another input": (["--shapes", "q:1x8"], "shapes are given for 'q'"),
    "another size": (["--shapes", "x:1x9"], "1x9 does not fit"),
    "another rank": (["--shapes", "x:8"], "does not fit"),
    "no target": (["--target", "sm_7"], "sm_7"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_one_line(place, case, capsys) -> None:
    options, message = BAD[case]
    assert main(["cache", "warm", "f.onnx", *options]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_without_a_folder(place, monkeypatch, capsys) -> None:
    monkeypatch.setenv("GRAPHFUSE_CACHE_DIR", "")
    assert main(["cache", "ls"]) == 0
    assert "kept in memory only" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 2
