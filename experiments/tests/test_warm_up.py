"""Warm-up: sharpness is the largest eigenvalue of a group, runs differ as they say, and controls can void."""

from dataclasses import replace

import pytest
import torch

from hessblocks.curvature import Hessian, Problem, parameter_groups
from hessblocks.storage import Row
from hessblocks_studies.fair_trial.warm_up import (
    AGAIN,
    COLD,
    KINDS,
    STUDY,
    VOID,
    WARM,
    WarmUpSettings,
    beside,
    sharpness,
)
from hessblocks_studies.shared.trained_points import make_model, run_settings

GROUPS = ("query", "value")


def point(kind: str) -> WarmUpSettings:
    return next(p for p in STUDY.settings("smoke", 1) if p.kind == kind)


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
def test_sharpness_is_the_largest_eigenvalue_of_either_sign_of_all_layers_of_a_role() -> None:
    small = {"depth": 2, "width": 4, "heads": 1, "mlp_width": 4, "context": 6, "vocab_size": 12}
    settings = point(WARM)
    model = make_model(replace(settings, size=replace(settings.size, **small))).double()
    ids = torch.randint(0, 12, (3, 6), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids}
    found = {row["group"]: row for row in sharpness(model, batch)}
    groups = parameter_groups(model)
    assert set(found) == {group.role for group in groups.values()}
    problem = Problem(model.eval(), batch, loss="causal-lm")
    negative = False
    for role in ("query", "key", "value", "projection", "mlp_in", "mlp_out"):
        own = [group for group in groups.values() if group.role == role]
        assert len(own) == 2
        blocks = [Hessian(problem, rows=i, columns=j).dense() for i in own for j in own]
        whole = torch.cat([torch.cat(blocks[:2], dim=1), torch.cat(blocks[2:], dim=1)])
        values = torch.linalg.eigvalsh((whole + whole.T) / 2)
        largest = float(values.abs().max())
        negative |= float(-values.min()) == largest
        assert found[role]["value"] == pytest.approx(largest, rel=0.03)
        assert found[role]["standard_error"] <= 0.03 * largest
    assert negative


def test_runs_differ_in_their_warm_up_and_in_the_order_of_the_data_alone() -> None:
    made = {kind: run_settings(point(kind)) for kind in KINDS}
    assert {kind: run.training.warmup for kind, run in made.items()} == {
        WARM: 0.1,
        COLD: 0.0,
        AGAIN: 0.0,
    }
    assert {kind: run.seed for kind, run in made.items()} == {WARM: 0, COLD: 0, AGAIN: 1000}
    plain = made[WARM]
    for run in made.values():
        training = replace(run.training, warmup=0.1)
        assert replace(run, training=training, seed=0) == plain
    one, other = (make_model(point(kind)).state_dict() for kind in (COLD, AGAIN))
    assert all(torch.equal(one[name], other[name]) for name in one)
    usual = run_settings(replace(point(WARM), warmup=None, order=None))
    assert (usual.training.warmup, usual.seed) == (0.05, 0)


def rows(
    losses: dict[str, float], sharp: dict[str, dict[int, tuple[float, float]]], seeds: int = 3
) -> list[Row]:
    """Runs at one rate: final losses, and log10 sharpness of queries and values by step; seeds differ by 0.01."""
    found: list[Row] = []
    for kind, loss in losses.items():
        for seed in range(seeds):
            place: Row = {"variant": f"{kind}, rate 0.003", "seed": seed}
            sign = 1 if kind == AGAIN else -1
            found.append(
                {
                    **place, "step": 20, "quantity": "validation_loss",
                    "value": loss + 0.01 * seed * sign,
                }
            )  # fmt: skip
            found += [
                {
                    **place, "step": step, "quantity": "sharpness", "group": group,
                    "value": 10 ** (log + 0.01 * seed * sign * (group == "value")),
                }
                for step, logs in {**sharp[kind], 20: (0.0, 0.0)}.items()
                for group, log in zip(GROUPS, logs, strict=True)
            ]  # fmt: skip
    return found


AS_ARGUED = {
    WARM: {0: (-3.0, 0.0), 2: (-3.0, -1.0)},
    COLD: {0: (-3.0, 0.0), 2: (-3.0, 0.5)},
    AGAIN: {0: (-3.0, 0.0), 2: (-3.0, 0.48)},
}
LOSSES = {WARM: 4.0, COLD: 4.5, AGAIN: 4.48}


def verdicts(found: list[Row]) -> list[bool | None]:
    return [check.holds for check in STUDY.summarise(found).checks]


def test_verdicts_follow_the_sharpness() -> None:
    assert verdicts(rows(LOSSES, AS_ARGUED)) == [True] * 8
    turned = {WARM: AS_ARGUED[COLD], COLD: AS_ARGUED[WARM], AGAIN: AS_ARGUED[WARM]}
    opposite = {WARM: 4.5, COLD: 4.0, AGAIN: 3.98}
    assert verdicts(rows(opposite, turned)) == [True, False, False, True, False, False, True, False]


@pytest.mark.parametrize(("loss", "sharp"), [(4.0, -1.0), (5.0, 2.0)])
def test_what_the_order_of_the_data_does_too_is_void(loss: float, sharp: float) -> None:
    other = {**AS_ARGUED, AGAIN: {0: (-3.0, 0.0), 2: (-3.0, sharp)}}
    found = STUDY.summarise(rows({**LOSSES, AGAIN: loss}, other)).checks
    assert [check.holds for check in found] == [False, None, True, False, None, True, False, None]
    assert [check.ours.endswith(VOID) for check in found].count(True) == 3


@pytest.mark.parametrize(
    ("order", "holds"), [(0.4, True), (-0.3, True), (0.7, False), (-0.6, False)]
)
def test_warm_up_is_set_against_both_runs_without(order: float, holds: bool) -> None:
    values = {
        kind: {seed: start + shift * seed for seed in range(3)}
        for kind, start, shift in ((WARM, 0.0, 0.01), (COLD, 1.0, 0.0), (AGAIN, 1.0 + order, 0.0))
    }
    control, claim = beside(values, "loss", "higher", "nats", above=True)
    assert (control.holds, claim.holds) == (holds, True if holds else None)
    assert claim.ours.startswith(f"{1 + order / 2 - 0.01:+.3f} ± 0.006 nats (3 seeds)")


def test_one_seed_and_no_rows_decide_nothing() -> None:
    assert set(verdicts(rows(LOSSES, AS_ARGUED, seeds=1))) == {None}
    assert verdicts([]) == []


def test_a_moment_with_a_group_that_is_not_above_0_is_left_out() -> None:
    found = rows(LOSSES, AS_ARGUED)
    place = {"variant": f"{WARM}, rate 0.003", "seed": 0, "step": 2, "group": "query"}
    lost = [{**row, "value": -1.0} if place.items() <= row.items() else row for row in found]
    kept = STUDY.summarise(lost).checks
    assert "(2 seeds)" in kept[2].ours
    assert "(3 seeds)" in STUDY.summarise(found).checks[2].ours


def test_the_table_names_every_group() -> None:
    table = STUDY.summarise(rows(LOSSES, AS_ARGUED)).tables["sharpness"]
    assert [line["group"] for line in table] == list(GROUPS)
    assert table[1]["without_above_warm_up"] == pytest.approx(1.5)
    assert table[1]["without_above_other_order"] == pytest.approx(0.02 - 0.02)
