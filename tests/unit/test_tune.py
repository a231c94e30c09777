"""The tuner without a GPU: what is tried, what is decided from given times, and the database, which nobody need trust."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from graphfuse.cli.app import run
from graphfuse.codegen import generate
from graphfuse.codegen.config import BY_RULE, Config
from graphfuse.ir import Builder, GraphfuseError, Program, sym
from graphfuse.ir.dtypes import F16, F32
from graphfuse.jit import Unavailable, driver
from graphfuse.tune import copies, database, lookup, search
from graphfuse.tune.database import Entry
from graphfuse.tune.space import candidates

ARCH = "sm_90"
WISH = Config(lanes=4, items=2, threads=512)


def pointwise(dtype=F32, size=4096) -> Program:
    b = Builder()
    x, y = b.param(dtype, (size,)), b.param(dtype, (size,))
    return b.finish([b.map("exp", x) * y])


def open_rows() -> Program:
    b = Builder()
    x = b.param(F32, (sym("n"), 64))
    return b.finish([x / b.reduce("sum", x, [1], keepdims=True)])


def entry(config=WISH, **figures) -> Entry:
    return Entry(config, 1.0, 2.0, 10, "r", ("f32",), {}, "a GPU", 13000, "13.0", "2026-11-30", **figures)


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "tuned.json"
    monkeypatch.setenv("GRAPHFUSE_TUNED", str(path))
    monkeypatch.setattr(database, "SHIPPED", tmp_path / "shipped.json")
    return path


# --- the database


def test_an_entry_is_found_by_the_same_program_and_arch_alone(file) -> None:
    database.store({database.key(pointwise(), ARCH): entry()}, file)
    assert lookup(pointwise(), ARCH) == WISH
    assert lookup(pointwise(), "sm_80") is None
    assert lookup(pointwise(F16), ARCH) is None
    assert lookup(pointwise(size=4100), ARCH) is None


def test_another_version_of_graphfuse_tunes_anew(file, monkeypatch) -> None:
    database.store({database.key(pointwise(), ARCH): entry()}, file)
    monkeypatch.setattr("graphfuse.__version__", "99")
    assert lookup(pointwise(), ARCH) is None


def test_open_sizes_share_a_bucket_up_to_a_power_of_two(file) -> None:
    database.store({database.key(open_rows(), ARCH, {"n": 5}): entry()}, file)
    assert database.key(open_rows(), ARCH, {"n": 5}) == database.key(open_rows(), ARCH, {"n": 8})
    assert lookup(open_rows(), ARCH, {"n": 7}) == WISH
    assert lookup(open_rows(), ARCH, {"n": 9}) is None


def test_unknown_sizes_take_what_all_buckets_agree_on(file) -> None:
    database.store({database.key(open_rows(), ARCH, {"n": 5}): entry()}, file)
    assert lookup(open_rows(), ARCH) == WISH
    database.store({database.key(open_rows(), ARCH, {"n": 500}): entry(BY_RULE)}, file)
    assert lookup(open_rows(), ARCH) is None


def test_what_was_measured_here_goes_before_what_ships(file) -> None:
    name = database.key(pointwise(), ARCH)
    database.store({name: entry(Config(lanes=2))}, database.SHIPPED)
    assert lookup(pointwise(), ARCH) == Config(lanes=2)
    database.store({name: entry()}, file)
    assert lookup(pointwise(), ARCH) == WISH


def test_an_empty_variable_switches_the_own_file_off(file, monkeypatch) -> None:
    database.store({database.key(pointwise(), ARCH): entry()}, file)
    monkeypatch.setenv("GRAPHFUSE_TUNED", "")
    assert lookup(pointwise(), ARCH) is None


def test_storing_keeps_other_entries_and_records_the_hardware(file) -> None:
    database.store({"a": entry()}, file)
    database.store({"b": entry(BY_RULE)}, file)
    entries = json.loads(file.read_text())["entries"]
    assert set(entries) == {"a", "b"}
    assert entries["a"]["config"] == {"lanes": 4, "items": 2, "threads": 512}
    assert entries["b"]["config"] == {}
    assert (entries["a"]["gpu"], entries["a"]["nvrtc"], entries["a"]["default_us"]) == ("a GPU", "13.0", 2.0)


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", '{"version": 7, "entries": {}}', '{"version": 1, "entries": []}', "[" * 100_000, '{"version": 1}', "\0"]
)
def test_a_damaged_file_counts_as_none_and_says_so(file, text: str) -> None:
    file.write_text(text)
    with pytest.warns(UserWarning, match="going without it"):
        assert lookup(pointwise(), ARCH) is None


def test_a_file_that_is_too_large_is_not_read(file, monkeypatch) -> None:
    database.store({database.key(pointwise(), ARCH): entry()}, file)
    monkeypatch.setattr(database, "LIMIT", 50)
    with pytest.warns(UserWarning, match="too large"):
        assert lookup(pointwise(), ARCH) is None


@pytest.mark.parametrize(
    "config", [{"lanes": 3}, {"lanes": True}, {"threads": 4096}, {"team": -1}, {"items": "2"}, {"items": 2.0}, {"source": "x"}, [], None, 4]
)
def test_an_illegal_configuration_is_passed_over(file, config) -> None:
    good, bad = database.key(pointwise(F16), ARCH), database.key(pointwise(), ARCH)
    entries = {bad: {"config": config}, good: {"config": {"lanes": 8}}}
    file.write_text(json.dumps({"version": 1, "entries": entries}))
    with pytest.warns(UserWarning, match="passed over"):
        assert lookup(pointwise(), ARCH) is None
    assert lookup(pointwise(F16), ARCH) == Config(lanes=8)


def test_every_shipped_entry_is_legal() -> None:
    if database.SHIPPED.exists():
        found = json.loads(database.SHIPPED.read_text())
        assert found["version"] == database.VERSION
        assert all(Config.from_json(e["config"]) is not None and e["us"] > 0 for e in found["entries"].values())


# --- what is tried


def test_the_first_candidate_is_the_rule_and_no_kernel_comes_twice() -> None:
    found = candidates(pointwise(size=1 << 20))
    assert found[0].config == BY_RULE
    assert found[0].source == generate(pointwise(size=1 << 20))
    assert len({c.source.text for c in found}) == len(found) > 10
    assert all(generate(pointwise(size=1 << 20), c.config) == c.source for c in found)


def test_candidates_are_bounded() -> None:
    assert len(candidates(pointwise(size=1 << 20), most=5)) == 5


def test_wishes_change_what_they_name() -> None:
    program = pointwise(size=1 << 20)
    wide, narrow = (
        generate(program, Config(lanes=2, items=1, threads=1024)).variants[0],
        generate(program, Config(lanes=1, items=1, threads=64)).variants[0],
    )
    assert (wide.block, narrow.block) == (1024, 64)
    assert wide.grid == (1 << 20) // (2 * 1024)
    assert narrow.grid == (1 << 20) // 64
    assert narrow.align == (4, 4, 4)


def test_a_wish_that_cannot_be_followed_is_passed_over() -> None:
    odd = pointwise(size=4099)
    assert generate(odd, Config(lanes=8)).text == generate(odd).text
    assert generate(odd, Config(team=4)).text == generate(odd).text


@pytest.mark.parametrize("wish", [{"lanes": 3}, {"threads": 0}, {"team": 33}, {"items": 2.0}])
def test_an_illegal_wish_is_refused_with_what_is_legal(wish) -> None:
    with pytest.raises(GraphfuseError, match="choose one of"):
        Config(**wish)


# --- what is decided


class FakeTimer:
    """Gives each launch the time written on it, and counts the measurements."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def time(self, launches, count=20, least_us=500.0) -> float:
        self.asked.append(launches[0])
        return launches[0]


def decide(times: list[float], margin: float = 0.03, wrong: tuple[float, ...] = ()):
    configs = [BY_RULE, *(Config(threads=t) for t in (64, 128, 256, 512, 1024))]
    found = [(SimpleNamespace(config=c), t) for c, t in zip(configs, times, strict=False)]
    bench = SimpleNamespace(launches=lambda executable: [executable], agree=lambda executable, default: executable not in wrong)
    timer = FakeTimer()
    return search._decide(bench, timer, found, margin, 0), timer


def test_the_fastest_is_kept_if_it_saves_more_than_the_margin() -> None:
    tuned, timer = decide([10.0, 9.9, 9.0, 9.5])
    assert tuned.config == Config(threads=128)
    assert (tuned.us, tuned.default_us, tuned.tried) == (9.0, 10.0, 4)
    assert timer.asked.count(10.0) >= search.TURNS
    assert timer.asked.count(9.0) >= search.TURNS


def test_a_gain_within_the_margin_leaves_the_rule() -> None:
    tuned, _ = decide([10.0, 9.8, 9.75])
    assert not tuned.kept
    assert tuned.us == tuned.default_us == 10.0


def test_the_rule_may_be_the_fastest() -> None:
    assert not decide([10.0, 11.0])[0].kept
    assert not decide([10.0])[0].kept


def test_a_kernel_that_computes_something_else_cannot_win() -> None:
    tuned, _ = decide([10.0, 5.0, 9.0, 9.5], wrong=(5.0,))
    assert tuned.config == Config(threads=128)
    assert tuned.wrong == (Config(threads=64),)


def test_the_default_is_measured_even_when_it_is_far_behind() -> None:
    tuned, _ = decide([10.0, 5.0, 5.1, 5.2, 5.3, 5.4])
    assert (tuned.us, tuned.default_us) == (5.0, 10.0)


def test_results_may_differ_by_the_order_of_summing_only() -> None:
    x = np.linspace(1, 2, 1000, dtype=np.float32)
    assert search.same(x, x * np.float32(1 + 1e-7))
    assert not search.same(x, x * np.float32(1 + 1e-4))
    assert not search.same(np.full(4, np.nan, np.float32), np.ones(4, np.float32))
    steps = np.zeros(10_000, np.int8)
    one_off, far_off = steps.copy(), steps.copy()
    one_off[5], far_off[5] = 1, 2
    assert search.same(one_off, steps)
    assert not search.same(far_off, steps)
    assert not search.same(np.ones(10_000, np.int8), steps)


def test_an_open_size_must_be_given() -> None:
    assert search.open_sizes(open_rows(), {"n": 8, "m": 3}) == {"n": 8}
    with pytest.raises(GraphfuseError, match="--size n=8"):
        search.open_sizes(open_rows(), {})


# --- copy kernels


@pytest.mark.parametrize("shape", [copies.SHAPES[0], copies.SHAPES[-1]])
@pytest.mark.parametrize(("reads", "writes"), [(1, 1), (3, 1), (1, 4)])
def test_a_copy_moves_each_vector_once(reads: int, writes: int, shape) -> None:
    source = copies.mix(reads, writes, shape)
    assert source.text.count("const uint4 a") == reads * shape.each
    assert sum(source.text.count(f"q{k} + first") for k in range(writes)) == writes * shape.each
    assert source.variants[0].blocks({"n": 1 << 20}) * shape.each * shape.threads == 1 << 20
    assert ("__ldcs" in source.text) == shape.streaming


def test_copy_kernels_compile() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed: pip install 'graphfuse[cuda]'")
    from graphfuse.jit import compile_cubin

    for source in (copies.empty(), copies.mix(2, 1, copies.SHAPES[-1]), copies.same_grid([100, 64_000], [5_000], 7, 256)):
        used = compile_cubin(source.text, "sm_90").resources[source.variants[0].entry]
        assert used.stack_bytes == used.spill_stores == 0


# --- without a GPU


@pytest.fixture
def no_gpu(monkeypatch):
    def absent():
        raise Unavailable("CUDA: no driver; install the NVIDIA driver")

    monkeypatch.setattr(driver, "api", absent)


@pytest.mark.parametrize("command", [["calibrate"], ["tune", "fused.onnx"]])
def test_without_a_gpu_one_line_says_so(command, no_gpu, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRAPHFUSE_TUNED", str(tmp_path / "tuned.json"))
    assert run(command) == 2
    shown = capsys.readouterr()
    assert shown.err == "graphfuse: CUDA: no driver; install the NVIDIA driver\n"
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("options", "text"), [(["--margin", "120"], "not a percentage"), ([], "GRAPHFUSE_TUNED is set to nothing")])
def test_wrong_options_of_tune(options, text, monkeypatch, capsys) -> None:
    monkeypatch.setenv("GRAPHFUSE_TUNED", "")
    assert run(["tune", "fused.onnx", *options]) == 2
    assert text in capsys.readouterr().err


def test_an_engine_for_one_architecture_takes_what_was_tuned(file) -> None:
    from graphfuse_plugin.kernels import generate_hardened

    hard = open_rows().specialise({"n": 8})
    database.store({database.key(hard, ARCH): entry(Config(lanes=1, team=64))}, file)
    assert generate_hardened(open_rows(), {"n": 8}, ARCH)[0] == generate(hard, Config(lanes=1, team=64)) != generate(hard)
    assert generate_hardened(open_rows(), {"n": 8})[0] == generate(hard)
    assert generate_hardened(open_rows(), {"n": 8}, "sm_80")[0] == generate(hard)


def test_a_program_with_open_sizes_is_tuned_as_sessions_and_as_engines_run_it(file, monkeypatch) -> None:
    from graphfuse.tune import model

    tuned: list[tuple[Program, dict[str, int]]] = []
    decision = search.Tuned(WISH, 1.0, 2.0, 3, 0, ())
    device = SimpleNamespace(capability=(9, 0), title="a GPU")
    monkeypatch.setattr(model, "CudaDevice", lambda: device)
    monkeypatch.setattr(model, "shown_regions", lambda *_: [SimpleNamespace(program=open_rows(), name=n) for n in ("a", "b")])
    monkeypatch.setattr(search, "tune", lambda program, _, sizes, **options: tuned.append((program, sizes)) or decision)
    monkeypatch.setattr(search.Tuned, "entry", lambda *_: entry())
    found = model.tune_model("m.onnx", file, sizes={"n": 8})
    assert tuned == [(open_rows(), {"n": 8}), (open_rows().specialise({"n": 8}), {})]
    assert [region.name for region in found] == ["a", "a at n=8"]
    assert lookup(open_rows(), ARCH) == lookup(open_rows().specialise({"n": 8}), ARCH) == WISH


@pytest.mark.parametrize("value", ["9" * 4000, '"' + "x" * 9999 + '"', "[" * 200 + "]" * 200, '{"a":' * 200 + "1" + "}" * 200])
def test_what_is_said_of_an_entry_is_short(value: str, tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(f'{{"version": 1, "entries": {{"k": {{"config": {{"lanes": {value}}}}}}}}}')
    with pytest.warns(UserWarning, match="passed over") as said:
        assert database._entries(path) == {}
    assert all(len(str(w.message)) < 400 + len(str(path)) for w in said)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.warns(UserWarning, match="not a file of tuned"):
        assert database._entries(tmp_path / "pipe") == {}
