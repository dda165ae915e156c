"""The plan takes the cheapest for what it saves, says so; healing helps and touches no more."""

import copy
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import hessblocks as hb
from hessblocks.simplify import Plan, heal, measure_removals
from hessblocks.simplify.passes import Held
from hessblocks.storage import POINTS, mended_store
from tests.breadth import everyday
from tests.simplify.test_candidates import entries, ids, model_of

KINDS = ["layer", "mlp units", "heads"]


@cache
def planned(name: str = "gpt2") -> tuple[object, Plan]:
    model, text, held_out = model_of(name).float(), ids(20), ids(6, seed=1)
    table = measure_removals(model, text, held_out, kinds=KINDS)
    plan = Plan(model, text, held_out, table.rows)
    plan.run(0.3)
    return model, plan


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_plan_saves_what_was_asked_and_says_what_it_costs(name: str) -> None:
    model, plan = planned(name)
    assert plan.saved == pytest.approx(1 - entries(plan.model) / entries(model))
    assert plan.saved >= 0.3 > plan.steps[-2].share
    cost = Held(model, ids(6, seed=1)).cost(list(plan.model.model.layers), 0)
    assert plan.steps[-1].kl == pytest.approx(cost.kl.value, rel=1e-4)
    assert [step.share for step in plan.steps] == sorted(step.share for step in plan.steps)


def test_each_step_is_the_cheapest_of_all_that_were_measured_anew() -> None:
    """An eager search over all candidates finds the same first steps."""
    model, text, held_out = model_of("gpt2").float(), ids(20), ids(6, seed=1)
    table = measure_removals(model, text, held_out, kinds=KINDS)
    best = min(table.rows, key=lambda row: row["kl"] / row["parameters"])
    plan = Plan(model, text, held_out, table.rows)
    plan.run(1e-6)
    assert (plan.steps[0].kind, plan.steps[0].layer) == (best["kind"], best["layer"])
    assert plan.steps[0].kl == pytest.approx(best["kl"], rel=1e-5)


def test_a_second_goal_begins_with_prices_of_whole_removals() -> None:
    """The last prices of a goal count only the parameters that it still lacks."""
    model, text, held_out = model_of("gpt2").float(), ids(20), ids(6, seed=1)
    rows = measure_removals(model, text, held_out).rows
    plan = Plan(model, text, held_out, rows)
    plan.run(0.02)
    before = plan.steps[-1].kl
    measured = {(r["kind"], r["layer"]): plan._measure((r["kind"], r["layer"])) for r in rows}
    prices = {
        key: (found[1].kl.value - before) / found[0].parameters
        for key, found in measured.items()
        if found and found[0].parameters > 0
    }
    plan.run(0.4)
    step = next(later for made, later in pairwise(plan.steps) if made.kl == before)
    assert prices[step.kind, step.layer] == pytest.approx(min(prices.values()), rel=1e-3)


@pytest.mark.slow
def test_steps_made_again_give_the_same_model() -> None:
    model, plan = planned()
    rows = measure_removals(model, ids(20), ids(6, seed=1), kinds=KINDS).rows
    again = Plan(model, ids(20), ids(6, seed=1), rows)
    for step in plan.steps:
        assert again.take((step.kind, step.layer)) == step
    state = again.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in plan.model.state_dict().items())
    with pytest.raises(hb.ArgumentError, match="plan: layer of layer 9 cannot be taken"):
        again.take(("layer", 9))


@pytest.fixture(scope="module")
def untorn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, tuple[Any, ...], list[bytes]]:
    """A plan, what it is made from, and the lines that it left."""
    folder = tmp_path_factory.mktemp("whole")
    model, text, held_out = model_of("llama").float(), ids(20), ids(6, seed=1)
    rows = measure_removals(model, text, held_out).rows
    given = model, text, held_out, rows
    whole = Plan(*given)
    whole.run(0.2, store := mended_store(folder))
    whole.run(0.4, store)
    return whole, given, (folder / POINTS).read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("done", everyday([1, 4], 4))
def test_a_plan_that_was_torn_ends_as_if_it_had_not_been(
    untorn: tuple[Plan, tuple[Any, ...], list[bytes]], tmp_path: Path, done: int
) -> None:
    whole, given, lines = untorn
    assert len(lines) == len(whole.steps) > 4
    (tmp_path / POINTS).write_bytes(b"".join(lines[:done]))
    again = Plan(*given)
    again.run(0.2, store := mended_store(tmp_path))
    again.run(0.4, store)
    assert again.steps == whole.steps
    assert (tmp_path / POINTS).read_bytes() == b"".join(lines)


@pytest.mark.slow
def test_more_than_can_go_is_refused_with_what_can() -> None:
    model, text, held_out = model_of("gpt2"), ids(20), ids(6, seed=1)
    table = measure_removals(model, text, held_out, kinds=["heads"])
    with pytest.raises(hb.ArgumentError, match=r"90\.0% of the parameters are more than can go"):
        Plan(model, text, held_out, table.rows).run(0.9)
    for save in (0.0, 1.0, float("nan"), "0.3"):
        with pytest.raises(hb.ArgumentError, match="save: expected a share between 0 and 1"):
            Plan(model, text, held_out, table.rows).run(save)


def test_text_that_tells_no_candidates_apart_is_refused() -> None:
    model, text, held_out = model_of("gpt2"), ids(20), ids(6, seed=1)
    rows = measure_removals(model, text, held_out, kinds=KINDS).rows
    unclear = [{**row, "kl_error": row["kl"]} for row in rows[: len(rows) // 2]]
    with pytest.raises(hb.ArgumentError, match=r"give more than 6 sequences, or longer ones"):
        Plan(model, text, held_out, [*unclear, *rows[: len(unclear) - 1]])
    Plan(model, text, held_out, [*unclear, *rows[: len(unclear)]])


@pytest.mark.parametrize("teacher", everyday([True, False], True))
def test_healing_lowers_the_divergence_and_touches_what_it_says_alone(teacher: bool) -> None:
    model, plan = planned()
    before, original = copy.deepcopy(plan.model.state_dict()), copy.deepcopy(model.state_dict())
    text = ids(64, seed=2)
    settings = {"layers": plan.touched, "steps": 20, "learning_rate": 3e-3, "batch": 8}
    healed = heal(plan.model, model if teacher else None, text, **settings)
    assert all(torch.equal(v, original[k]) for k, v in model.state_dict().items())
    assert all(torch.equal(v, before[k]) for k, v in plan.model.state_dict().items())
    for name, value in healed.state_dict().items():
        touched = any(name.startswith(f"model.layers.{n}.") for n in plan.touched)
        assert touched or torch.equal(value, before[name]), name
    assert any(not torch.equal(v, before[k]) for k, v in healed.state_dict().items())
    assert all(parameter.requires_grad for parameter in healed.parameters())
    if teacher:
        held = Held(model, ids(16, seed=3))
        costs = [held.cost(list(one.model.layers), 0).kl.value for one in (healed, plan.model)]
        assert costs[0] < costs[1]
    still = heal(plan.model, model, text, layers=[], steps=0)
    assert all(torch.equal(v, before[k]) for k, v in still.state_dict().items())


def test_layers_beside_a_gap_are_touched() -> None:
    model, text, held_out = model_of("gpt2").float(), ids(20), ids(6, seed=1)
    table = measure_removals(model, text, held_out, kinds=["layer"])
    plan = Plan(model, text, held_out, table.rows)
    plan.take(("layer", 1))
    assert plan.touched == [0, 1]
    assert plan.numbers == [0, 2]


def test_a_healing_whose_last_update_ruins_the_model_is_refused() -> None:
    model, plan = planned()
    with pytest.raises(hb.RunError, match="healing: the logits are not finite; try a lower"):
        heal(plan.model, model, ids(8, seed=2), layers=[], steps=1, learning_rate=1e30)


def test_each_target_has_records_of_its_own(tmp_path: Path) -> None:
    model, text, held_out = model_of("gpt2").float(), ids(20), ids(6, seed=1)
    store = mended_store(tmp_path)
    rows = measure_removals(model, text, held_out, kinds=["layer"], store=store).rows
    for save in (1e-6, 1.00000001e-6):
        Plan(model, text, held_out, rows).run(save, store)
    steps = {key for key in store if not key.startswith("layer")}
    assert steps == {"removal 1 to 1e-06", "removal 1 to 1.00000001e-06"}


def test_a_kind_that_is_given_twice_is_measured_once() -> None:
    model, text, held_out = model_of("gpt2").float(), ids(20), ids(6, seed=1)
    rows = measure_removals(model, text, held_out, kinds=["mlp", "mlp"]).rows
    assert [row["layer"] for row in rows] == [*range(model.config.depth)]
