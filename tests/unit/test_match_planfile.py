"""Plans: written, read, edited, applied; and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
import pytest
import yaml

from graphfuse.ir import GraphfuseError
from graphfuse.match import Plan, load_plan, rewrite_model, save_plan
from graphfuse.match.planfile import parse_plan, plan_text
from tests.texts import assert_same_results, feeds_of, model, proto, regions, text

W = "float[8,8] w = {" + ", ".join(str((i * 7 % 13 - 6) / 8) for i in range(64)) + "}"
BODY = "a = Neg(x)\nb = Exp(a)\nc = Tanh(b)\nm = MatMul(c, w)\nd = Abs(m)\ne = Exp(d)\ny = Add(e, c)"


def given(body: str = BODY) -> ir.Model:
    made = model(body, weights=W)
    for node in made.graph:
        node.name = f"n_{node.outputs[0].name}"
    return made


def planned() -> Plan:
    plan = rewrite_model(given()).plan
    assert [r.nodes for r in plan.regions] == [["n_a", "n_b", "n_c"], ["n_d", "n_e", "n_y"]]
    return plan


@pytest.mark.parametrize("name", ["plan.yaml", "plan.yml", "plan.json"])
def test_a_plan_comes_back_as_it_was_written(tmp_path: Path, name: str) -> None:
    plan = planned()
    save_plan(plan, tmp_path / name)
    assert load_plan(tmp_path / name) == plan
    content = (tmp_path / name).read_text()
    assert (json.loads if name.endswith(".json") else yaml.safe_load)(content)["regions"][0]["nodes"] == ["n_a", "n_b", "n_c"]


def test_a_plan_applied_gives_what_it_was_made_from() -> None:
    found = rewrite_model(given())
    again = rewrite_model(given(), plan=parse_plan(plan_text(found.plan)))
    assert text(again.model) == text(found.model)
    assert again.plan == found.plan


def test_a_region_switched_off_is_left_alone_and_stays_in_the_plan() -> None:
    plan = planned()
    plan.regions[0].enabled = False
    found = rewrite_model(given(), plan=plan)
    assert regions(found) == ["Abs Exp Add"]
    assert ("disabled-in-plan", ["n_a", "n_b", "n_c"]) in [(r.rule, r.nodes) for r in found.refusals]
    assert [r.enabled for r in found.plan.regions] == [True, False]
    assert_same_results(proto(given()), found, feeds_of(proto(given())))


def test_a_node_taken_out_of_a_region_is_left_alone() -> None:
    plan = planned()
    plan.regions[0].nodes.remove("n_c")
    found = rewrite_model(given(), plan=plan)
    assert regions(found) == ["Neg Exp", "Abs Exp Add"]
    assert ("removed-in-plan", ["n_c"]) in [(r.rule, r.nodes) for r in found.refusals]


def test_regions_may_be_cut_in_two() -> None:
    plan = planned()
    plan.regions[0].nodes = ["n_a"]
    plan.regions.append(replace(plan.regions[0], name="mine", nodes=["n_b", "n_c"]))
    assert sorted(regions(rewrite_model(given(), plan=plan))) == ["Abs Exp Add", "Exp Tanh", "Neg"]


def edited(**changes: Any) -> Plan:
    plan = planned()
    for key, value in changes.items():
        if key == "nodes":
            plan.regions[0].nodes = value
        else:
            setattr(plan, key, value)
    return plan


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (lambda: edited(fingerprint="0" * 64), "another graph"),
        (lambda: edited(nodes=["n_a", "nobody"]), "does not have: 'nobody'"),
        (lambda: edited(nodes=["n_a", "n_d"]), "has node 'n_d'"),
        (lambda: edited(nodes=["n_a", "n_m"]), "MatMul is not a small op"),
        (lambda: edited(nodes=["n_c", "n_c"]), "has node 'n_c'"),
    ],
)
def test_wrong_plans_are_refused_in_one_line(plan: Any, message: str) -> None:
    with pytest.raises(GraphfuseError, match=message) as caught:
        rewrite_model(given(), plan=plan())
    assert "\n" not in str(caught.value)


def test_regions_around_a_wall_are_refused() -> None:
    plan = planned()
    plan.regions = [replace(plan.regions[0], nodes=["n_c", "n_d", "n_e", "n_y"])]
    with pytest.raises(GraphfuseError, match="need each other"):
        rewrite_model(given(), plan=plan)


def test_a_region_that_is_no_kernel_is_refused() -> None:
    body = "a = Neg(x)\ns = ReduceMean <axes = [-1]> (a)\nd = Sub(a, s)\nt = ReduceMax <axes = [0]> (d)\ny = Sub(d, t)"
    plan = rewrite_model(given(body)).plan
    plan.regions = [replace(plan.regions[0], nodes=["n_a", "n_s", "n_d", "n_t", "n_y"])]
    with pytest.raises(GraphfuseError, match="is not legal"):
        rewrite_model(given(body), plan=plan)


def test_a_plan_is_of_the_graph_and_not_of_the_file() -> None:
    plan = planned()
    other = given()
    other.doc_string, other.producer_name = "written elsewhere", "somebody"
    assert rewrite_model(other, plan=plan).plan == plan
    reordered = given()
    values = dict(reversed(list(reordered.graph.initializers.items())))
    reordered.graph.initializers.clear()
    for value in values.values():
        reordered.graph.register_initializer(value)
    assert rewrite_model(reordered, plan=plan).plan.fingerprint == plan.fingerprint


@pytest.mark.parametrize("change", ["Sin(b)", "Tanh(a)", "other name", "weight"])
def test_another_graph_has_another_fingerprint(change: str) -> None:
    other = given(BODY.replace("c = Tanh(b)", f"c = {change}")) if "(" in change else given()
    if change == "other name":
        next(iter(other.graph)).name = "other"
    if change == "weight":
        other.graph.initializers["w"].const_value = ir.tensor(np.zeros((8, 8), np.float32), name="w")
    assert rewrite_model(other).plan.fingerprint != planned().fingerprint


def test_nodes_without_a_name_of_their_own_go_by_place_and_type() -> None:
    made = model("a = Neg(x)\nb = Exp(a)\ny = Tanh(b)")
    names = ["same", "", "same"]
    for node, name in zip(made.graph, names, strict=True):
        node.name = name
    plan = rewrite_model(made).plan
    assert plan.regions[0].nodes == ["#0 Neg", "#1 Exp", "#2 Tanh"]
    assert regions(rewrite_model(made, plan=plan)) == ["Neg Exp Tanh"]


BAD = {
    "text": "hello",
    "list": "- 1\n- 2",
    "broken yaml": "a: [1, 2",
    "other version": plan_text(Plan(99, "", "auto")),
    "a number for a list": "version: 1\nfingerprint: a\npolicy: auto\nregions: 7",
    "a number for a name": "version: 1\nfingerprint: a\npolicy: auto\nregions: [{name: r, nodes: [1]}]",
    "missing keys": "version: 1",
    "aliases": "version: 1\nfingerprint: &a x\npolicy: *a",
    "tags": "version: !!python/object/apply:os.getcwd []",
    "deep": "[" * 5000,
    "empty": "",
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_no_plans_give_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(BAD[name])
    with pytest.raises(GraphfuseError, match="plan") as caught:
        load_plan(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_files_that_cannot_be_read_give_one_line(tmp_path: Path) -> None:
    with pytest.raises(GraphfuseError, match="No such file"):
        load_plan(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GraphfuseError, match="no UTF-8"):
        load_plan(tmp_path / "binary.yaml")


def test_large_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphfuse.match import planfile

    save_plan(planned(), tmp_path / "plan.yaml")
    monkeypatch.setattr(planfile, "MAX_PLAN_BYTES", 100)
    with pytest.raises(GraphfuseError, match="over the limit"):
        load_plan(tmp_path / "plan.yaml")


def test_names_of_any_kind_survive(tmp_path: Path) -> None:
    plan = planned()
    plan.regions[0].nodes = ["µ", "a: b", "- x", "'", '"\\', "yes", "1", "{n}", "\t", "a\nb"]
    for name in ("plan.yaml", "plan.json"):
        save_plan(plan, tmp_path / name)
        assert load_plan(tmp_path / name) == plan
    assert msgspec.convert(msgspec.to_builtins(plan), Plan) == plan
