"""What is left of a pretrained model: methods save what they say, verdicts follow the costs."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from experiments.tests.smoke_runs import run_a_point_of_each_kind, run_whole
from hessblocks.errors import ArgumentError
from hessblocks.simplify import Pass
from hessblocks.storage import Row
from hessblocks_studies.data import SMOLLM2
from hessblocks_studies.engine.study import Check
from hessblocks_studies.pretrained import pretrained_ground as grounds
from hessblocks_studies.pretrained.simplify_methods import METHODS, PLAN
from hessblocks_studies.pretrained.simplify_pretrained import (
    ALONE,
    LAYERS,
    PLAIN,
    STUDY,
    summarise,
)


@pytest.fixture(scope="module")
def ground() -> grounds.Ground:
    return grounds.ground(grounds.TINY)


def entries(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", [name for name in METHODS if name != PLAN])
def test_each_method_saves_so_many_layers_or_more_and_no_unit_more_than_it_needs(
    name: str, ground: grounds.Ground
) -> None:
    layer = entries(ground.original.model.layers[0])
    unit = entries(ground.original.model.layers[0].mlp) // 40
    for count, model in zip((1, 3), METHODS[name](ground, (1, 3), 0), strict=True):
        saved = entries(ground.original) - entries(model)
        assert count * layer <= saved < count * layer + 6 * unit
        assert torch.isfinite(model(ground.judging.tokens).logits).all()


def changed(ground: grounds.Ground) -> grounds.Ground:
    """The same model with a layer that does nothing, and units that give nothing."""
    model = type(ground.original)(ground.original.config).eval()
    model.load_state_dict(ground.original.state_dict())
    with torch.no_grad():
        for name in ("attention.projection", "mlp.output"):
            model.model.layers[4].get_submodule(name).weight.zero_()
        for layer in model.model.layers:
            layer.mlp.input.weight[4:9] = 0
    held = [type(one)(model, one.tokens) for one in (ground.choosing, ground.judging)]
    text = Pass(model, ground.text.tokens)
    return replace(ground, original=model, text=text, choosing=held[0], judging=held[1])


@pytest.mark.parametrize("name", ["similar states", "magnitude", "units by activation"])
def test_what_does_nothing_goes_first(name: str, ground: grounds.Ground, monkeypatch) -> None:
    place = changed(ground)
    if name != "similar states":  # as many parameters as there are units that give nothing
        monkeypatch.setattr("hessblocks_studies.pretrained.simplify_methods._units", lambda *_: 30)
    (model,) = METHODS[name](place, (1,), 0)
    assert abs(place.judging.cost(list(model.model.layers), 0).kl.value) < 1e-5
    assert entries(model) < entries(place.original)


def test_the_last_layers_go_or_those_before_the_last_one(ground: grounds.Ground) -> None:
    (model,) = METHODS["last layers"](ground, (3,), 0)
    left = [layer.attention.query.weight.data_ptr() for layer in model.model.layers]
    every = [layer.attention.query.weight.data_ptr() for layer in ground.original.model.layers]
    assert left in (every[:3], [*every[:2], every[5]])
    costs = [
        ground.choosing.cost(list(ground.without(range(end - 3, end)).model.layers), 0).kl.value
        for end in (6, 5)
    ]
    found = ground.choosing.cost(list(model.model.layers), 0).kl.value
    assert found == pytest.approx(min(costs), rel=1e-6)
    assert costs[0] != pytest.approx(costs[1], rel=1e-3)


def test_a_seed_draws_the_same_and_another_seed_draws_others(ground: grounds.Ground) -> None:
    one, same, other = (
        ground.judging.cost(
            list(next(METHODS["random"](ground, (2,), seed)).model.layers), 0
        ).kl.value
        for seed in (0, 0, 1)
    )
    assert one == same != other


def rows_of(**costs: list[float]) -> list[Row]:
    """Rows of each method's costs at all sizes, with an error of 0.1."""
    return [
        {
            "rule": name.replace("_", " "),
            "seed": seed,
            "layers": layers,
            "share": layers / 40,
            "healing": 0,
            "quantity": "KL",
            "value": value,
            "standard_error": 0.1,
        }
        for name, values in costs.items()
        for layers, value in zip(LAYERS[SMOLLM2], values, strict=True)
        for seed in range(2 if name == "random" else 1)
    ]


def checks(**costs: list[float]) -> list[Check]:
    return list(summarise(rows_of(**costs)).checks)


def test_verdicts_follow_the_costs() -> None:
    others = {"random": [9.0] * 4, "last_layers": [3.0] * 4, "units_by_activation": [0.1] * 4}
    *sizes, whole = checks(plan=[1.0, 2.9, 2.0, 4.0], **others)
    assert [check.holds for check in sizes] == [True, None, True, False]
    assert "last layers 3 ±" in sizes[0].ours
    assert whole.holds is None
    assert checks(plan=[1.0, 2.0, 2.0, 4.0], **others)[-1].holds is True
    assert checks(plan=[1.0, 2.0, 4.0, 4.0], **others)[-1].holds is False
    assert checks(**others) == []


def test_a_refit_is_held_against_none_layer_by_layer() -> None:
    places = {"study": "simplify-pretrained", "rule": ALONE, "kind": "query = identity"}
    places["share"] = 0.01
    rows = [
        {**places, "layer": layer, "quantity": quantity, "value": value}
        for layer in range(10)
        for quantity, value in (("KL", 1.0), (PLAIN, 2.0 if layer else 0.5))
    ]
    (check,) = summarise(rows).checks
    assert (check.ours, check.holds) == ("on 9 of 10", True)
    rows[3]["value"] = 1.0  # no less
    (check,) = summarise(rows).checks
    assert (check.ours, check.holds) == ("on 8 of 10", False)
    assert summarise(rows).tables["kinds"][0]["median"] == 1.0


def test_a_model_that_is_not_there_is_refused_in_a_sentence() -> None:
    with pytest.raises(ArgumentError, match=r"the package no_such_llm is not there; `pip install"):
        grounds.ground("no_such_llm")


@pytest.mark.slow
def test_a_point_is_measured_at_smoke_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole plan is a slow test."""
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path / "cache"))
    run_a_point_of_each_kind(STUDY, lambda _: None, tmp_path / "out", monkeypatch)


@pytest.mark.slow
def test_the_smoke_scale_runs_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path / "cache"))
    result, figure = run_whole(STUDY, tmp_path / "out")
    assert [panel.title for panel in figure.panels] == [
        "Without healing",
        "After 2 updates of healing",
    ]
    assert {series.name for series in figure.panels[0].series} == {*METHODS}
    (kept,) = (tmp_path / "cache").glob("simplify-pretrained-*/points.jsonl")
    assert kept.read_bytes().count(b'"key":"layer ') == 6
    kl = [row for row in result.rows if row["quantity"] == "KL" and row.get("layers")]
    assert len(kl) == 8 * 2 + 6 * 2  # of chance three seeds, healed one
    assert all(row["value"] > 0 for row in kl)


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("healing", [0, 30])
@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("plan", "the plan"),
        ("similar states", "layers of similar states (ShortGPT)"),
        ("random", "random layers or MLP units"),
        ("last layers", "last layers"),
        ("magnitude", "MLP units of small weights"),
        (
            "units by activation",
            "equal shares of MLP units by activation, refitted (no baseline)",
        ),
    ],
)
def test_the_page_has_the_measured_costs(rule: str, words: str, healing: int) -> None:
    told = json.loads((DOCS / "results" / "simplify-pretrained.json").read_text(encoding="utf-8"))
    kl = [
        row
        for row in told["tables"]["together"]
        if (row["rule"], row["quantity"], row["healing"]) == (rule, "KL", healing)
    ]
    means = (
        fmean(row["value"] for row in kl if row["layers"] == layers) for layers in LAYERS[SMOLLM2]
    )
    page = (DOCS / "simplify.md").read_text(encoding="utf-8").replace("**", "")
    assert f"| {words} | {' | '.join(f'{one:.2g}' for one in means)} |" in page
