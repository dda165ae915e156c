"""Masked LM and downstream: facts judged fairly, partial results, killed points, published
settings."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from experiments.tests.data.library import write_library
from hessblocks.drawing import draw, write_picture
from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage.tables import Row
from hessblocks_studies.blocks_paper import finetuning as downstream
from hessblocks_studies.blocks_paper import masked_lm
from hessblocks_studies.blocks_paper import tuning_recipe as recipe
from hessblocks_studies.blocks_paper.finetuning import ACCURACY, FRESH, PUBLISHED_SCORES, VALIDATION
from hessblocks_studies.catalogue import find
from hessblocks_studies.data import docstrings
from hessblocks_studies.engine import figure_fields
from hessblocks_studies.engine.study import SCALES, Check, Scale
from hessblocks_studies.gallery import read_figure
from hessblocks_studies.runner import run_study
from hessblocks_studies.shared.step_times import STEP_TIME, speeds
from hessblocks_studies.shared.trained_points import BIGRAMS, LOSS
from hessblocks_studies.shared.variants import BASES

NAMES = ("masked-lm", "downstream")
EVERY_BLOCK = masked_lm.PRESETS["smoke"]
"""Of smoke scale; every day two of them are trained."""


@pytest.fixture(scope="module", autouse=True)
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Smoke scale, smaller still, on a little library."""
    small = replace(
        masked_lm.SIZES["smoke"], depth=1, width=16, mlp_width=16, context=16, vocab_size=400,
        steps=4, evaluations=2, evaluation_sequences=8,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        source = write_library(tmp_path_factory.mktemp("library"))
        patch.setenv("HESSBLOCKS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(docstrings.data, "standard_library", lambda: source)
        patch.setitem(masked_lm.SIZES, "smoke", small)
        patch.setitem(masked_lm.PRESETS, "smoke", ("pre-ln", "sas-p"))
        patch.setitem(
            downstream.TUNINGS, "smoke", replace(downstream.TUNINGS["smoke"], examples=32)
        )
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    for name in NAMES:
        run_study(name, out=folder, scale="smoke", seeds=1)
    return folder


def test_the_recipe_pretrains_decays_by_a_cosine_and_counts_runs_that_diverge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decays: list[str] = []
    finetune = import_module("hessblocks_studies.masked.finetune")  # the face has its function
    usual = finetune.quiet_arguments

    def arguments(*folder: Any, **fields: Any) -> Any:
        decays.append(fields["lr_scheduler_type"])
        return usual(*folder, **fields)

    monkeypatch.setattr(finetune, "quiet_arguments", arguments)
    rows = [
        dict(row) for row in run_study("tuning-recipe", out=tmp_path, scale="smoke", seeds=1).rows
    ]
    assert {*decays} == {"cosine"}
    assert {row["variant"] for row in rows if row["quantity"] == ACCURACY} == {*recipe.VARIANTS}
    fact = "without norms some fine-tuning runs diverge, with norms none"

    def holds() -> bool | None:
        (check,) = (one for one in recipe.STUDY.summarise(rows).checks if one.fact == fact)
        return check.holds

    assert holds() is False
    scores = {row["variant"]: row for row in rows if row["quantity"] == ACCURACY}
    scores[recipe.NO_NORM]["value"] = None
    assert holds() is True
    scores["pre-ln"]["value"] = None
    assert holds() is False


@pytest.mark.slow
def test_the_studies_run_with_every_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(masked_lm.PRESETS, "smoke", EVERY_BLOCK)
    for name in NAMES:
        result = run_study(name, out=tmp_path, scale="smoke", seeds=1)
        assert result.points == result.measured
        assert set(EVERY_BLOCK) <= {row["variant"] for row in result.rows}
        assert all(set(row) <= set(find(name).columns) for row in result.rows)
        assert len(read_figure(tmp_path / name / "figure.json").panels) == 2


@pytest.mark.parametrize("name", NAMES)
def test_a_study_runs_is_summed_up_from_any_part_and_drawn(finished: Path, name: str) -> None:
    study = find(name)
    result = run_study(name, out=finished, scale="smoke", seeds=1)
    assert result.measured == 0
    assert all(set(row) <= set(study.columns) for row in result.rows)
    for count in range(len(result.rows) + 1):
        summary = study.summarise(result.rows[:count])
        json.dumps([summary.to_dict(), figure_fields(summary.figure)], allow_nan=False)
    assert len(summary.figure.panels) == 2
    figure = read_figure(finished / name / "figure.json")
    png = write_picture(draw(figure), finished / name / "figures", name)
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("scale", SCALES)
def test_downstream_takes_the_models_that_masked_lm_pretrained(scale: Scale) -> None:
    made = [
        {
            (p.settings.variant, p.settings.seed): masked_lm.pretraining(p.settings)
            for p in reversed(find(name).points(scale, 3))
            if p.settings.variant in masked_lm.blocks(scale)
        }
        for name in NAMES
    ]
    assert made[0] == made[1]
    assert len(made[0]) == 3 * len(masked_lm.blocks(scale))


def test_what_is_tuned_was_pretrained_at_the_best_rate_that_was_found() -> None:
    told = Path(__file__).parents[2] / "docs" / "results" / "masked-lm.json"
    lines = json.loads(told.read_text(encoding="utf-8"))["tables"]["losses"]
    found = {line["variant"]: line["best_rate"] for line in lines if "best_rate" in line}
    tuned = {
        p.settings.variant: p.settings.size.learning_rate
        for p in find("downstream").points("laptop", 1)
        if p.settings.variant in masked_lm.blocks("laptop")
    }
    assert tuned == found


def test_the_control_differs_from_its_block_in_the_pretraining_alone() -> None:
    points = [p.settings for p in find("downstream").points("laptop", 1)]
    (block,), (fresh,) = ([p for p in points if p.variant == name] for name in ("pre-ln", FRESH))
    assert replace(fresh, variant="pre-ln", tuning=block.tuning) == block
    assert block.tuning
    assert fresh.tuning
    more = fresh.tuning.tuning_rates
    assert more[: len(block.tuning.tuning_rates)] == block.tuning.tuning_rates
    assert replace(fresh.tuning, tuning_rates=block.tuning.tuning_rates) == block.tuning


def test_the_other_pre_ln_begins_with_zero_queries_and_differs_in_nothing_else() -> None:
    points = [p.settings for p in find("masked-lm").points("laptop", 1)]
    usual, zero = (
        masked_lm.pretraining(next(p for p in points if p.variant == name)) for name in BASES
    )
    assert replace(zero, slots=()) == usual
    sizes = {"depth": 1, "width": 16, "heads": 2, "mlp_width": 16, "vocab_size": 300}
    weights = replace(zero, **sizes).model().state_dict()
    queries = [name for name, each in weights.items() if not each.any() and "query" in name]
    assert len(queries) == 1


def test_every_block_has_every_task_and_the_control(finished: Path) -> None:
    rows = run_study("downstream", out=finished, scale="smoke", seeds=1).rows
    scored = {(row["variant"], row["task"]) for row in rows if row["quantity"] == ACCURACY}
    blocks = (*masked_lm.blocks("smoke"), FRESH)
    assert scored == {(b, t) for b in blocks for t in ("matching", "acceptability", "topic")}
    lines = {line["block"]: line for line in downstream.table(rows, downstream.scores(rows))}
    assert set(lines) == set(blocks)
    for name in masked_lm.PRESETS["smoke"]:
        line = lines[name]
        assert 0 <= line["score"] <= 100
        assert line["step_memory"] > line["answer_memory"] > 4 * line["parameters"]
        assert line["training_speed"] > 0
        assert line["inference_speed"] > 0


@pytest.mark.parametrize("name", ["masked-lm", pytest.param("downstream", marks=pytest.mark.slow)])
def test_a_point_that_was_killed_is_measured_again_to_the_same_numbers(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    study = find(name)
    module = downstream if name == "downstream" else masked_lm

    def dies(*_: object) -> list[Row]:
        raise RunError("killed half-way")

    with monkeypatch.context() as patch:
        patch.setattr(module, "pretrained", dies)
        with pytest.raises(RunError, match="killed half-way"):
            run_study(name, out=tmp_path, scale="smoke", seeds=1)
    points = study.points("smoke", 1)
    kept = [point for point in points if point.settings.variant in ("all", "bigram table", FRESH)]
    result = run_study(name, out=tmp_path, scale="smoke", seeds=1)
    assert result.measured == len(points) - len(kept) > 0
    timed = {STEP_TIME, "answer_time"}
    undisturbed = run_study(name, out=finished, scale="smoke", seeds=1).rows
    ours, theirs = (
        [row for row in rows if row["quantity"] not in timed] for rows in (result.rows, undisturbed)
    )
    assert ours == theirs


def losses(**finals: list[float]) -> list[Row]:
    """Final losses of blocks, seed by seed."""
    return [
        {
            "variant": name.replace("_", "-"),
            "seed": seed,
            "step": 1,
            "quantity": LOSS,
            "value": value,
        }
        for name, values in finals.items()
        for seed, value in enumerate(values)
    ]


def times(**seconds: tuple[float, ...]) -> list[Row]:
    """Times of a step, repetition by repetition."""
    return [
        {"variant": name.replace("_", "-"), "seed": seed, "quantity": STEP_TIME, "value": value}
        for name, values in seconds.items()
        for seed, value in enumerate(values)
    ]


def accuracies(best: float = 2.0, task: str = "topic", **scores: list[float | None]) -> list[Row]:
    """Accuracy of blocks on one task, seed by seed, at three rates; at other rates than the best
    the test split says more and the validation split less."""
    return [
        {
            "variant": FRESH if name == "fresh" else name.replace("_", "-"), "seed": seed,
            "task": task, "quantity": quantity, "learning_rate": rate,
            "value": None if value is None else value + (off if rate != best else 0.0),
        }
        for name, values in scores.items()
        for seed, value in enumerate(values)
        for rate in (1.0, 2.0, 3.0)
        for quantity, off in ((ACCURACY, 0.05), (VALIDATION, -0.2))
    ]  # fmt: skip


def verdict(checks: tuple[Check, ...], words: str) -> bool | None:
    (check,) = (check for check in checks if words in check.fact)
    return check.holds


@pytest.mark.parametrize(
    ("sas_p", "holds"),
    [
        ([3.01, 3.02, 3.01], True),
        ([2.80, 2.81, 2.80], False),
        ([3.31, 3.32, 3.31], False),
        ([2.60, 3.60, 3.00], None),
        ([3.01], None),
        ([math.inf, 3.0, 3.0], None),
        ([math.inf, math.inf, math.inf], False),
    ],
)
def test_to_pretrain_alike_is_to_be_neither_worse_nor_better(
    sas_p: list[float], holds: bool | None
) -> None:
    rows = losses(pre_ln=[3.0, 3.01, 3.0], sas_p=sas_p)
    rows += [{**row, "variant": BIGRAMS} for row in losses(table=[4.0, 4.0, 4.0])]
    rows = [{**r, "value": None if r["value"] == math.inf else r["value"]} for r in rows]
    assert verdict(find("masked-lm").summarise(rows).checks, "sas-p pretrains") is holds


@pytest.mark.parametrize(
    ("seconds", "holds"),
    [
        ((0.8, 1.61, 2.4), True),
        ((1.2, 2.41, 3.6), False),
        ((0.9, 2.2, 3.0), None),
        ((0.8,), None),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_speed_is_judged_with_its_error(
    name: str, seconds: tuple[float, ...], holds: bool | None
) -> None:
    rows = times(pre_ln=(1.0, 2.0, 3.0), sas_p=seconds)
    assert verdict(find(name).summarise(rows).checks, "a training step of sas-p") is holds


@pytest.mark.parametrize(
    ("sas_p", "holds"),
    [
        ([0.80, 0.81, 0.79], True),
        ([0.90, 0.91, 0.90], False),
        ([0.70, 0.71, 0.70], False),
        ([0.60, 0.95, 0.80], None),
        ([0.80], None),
        ([None, 0.81, 0.80], None),
        ([None, None, None], None),
    ],
)
def test_scores_are_judged_by_pairs_of_seeds_to_both_sides(
    sas_p: list[float | None], holds: bool | None
) -> None:
    rows = accuracies(pre_ln=[0.80, 0.81, 0.80], sas_p=sas_p, fresh=[0.5, 0.5, 0.5])
    assert verdict(find("downstream").summarise(rows).checks, "sas-p scores") is holds


@pytest.mark.parametrize(
    "fresh", [{}, {"fresh": [0.79, 0.79, 0.79]}, {"fresh": [0.5, 0.9, 0.7]}, {"fresh": [0.5]}]
)
def test_scores_say_nothing_where_pretraining_is_not_shown_to_help(
    fresh: dict[str, list[float | None]],
) -> None:
    rows = accuracies(pre_ln=[0.80, 0.81, 0.80], sas_p=[0.80, 0.81, 0.80], **fresh)
    checks = find("downstream").summarise(rows).checks
    assert verdict(checks, "sas-p scores") is None
    assert verdict(checks, "pretraining helps") in {None, False}


def test_a_task_with_which_pretraining_does_not_help_is_left_out_of_the_verdicts() -> None:
    """On topic sas-p is three points behind; the mean over both tasks would hide it."""
    rows = accuracies(pre_ln=[0.80, 0.81, 0.80], sas_p=[0.77, 0.78, 0.77], fresh=[0.5, 0.5, 0.5])
    rows += accuracies(
        task="matching", pre_ln=[0.5, 0.51, 0.5], sas_p=[0.5, 0.51, 0.5], fresh=[0.5, 0.51, 0.5]
    )
    checks = find("downstream").summarise(rows).checks
    (found,) = (check for check in checks if "sas-p scores" in check.fact)
    assert found.holds is False
    assert "-3.0 ± 0.0 [-3.0, -3.0] points (topic)" in found.ours
    assert verdict(checks, "pretraining helps with topic") is True
    assert verdict(checks, "pretraining helps with matching") is False


@pytest.mark.parametrize(("best", "holds"), [(1.0, None), (2.0, True), (3.0, None)])
def test_scores_count_at_the_rate_of_the_validation_split_where_it_is_inside_its_grid(
    best: float, holds: bool | None
) -> None:
    rows = accuracies(pre_ln=[0.80, 0.81, 0.80], fresh=[0.5, 0.5, 0.5])
    rows += accuracies(best, sas_p=[0.80, 0.81, 0.79])
    (line,) = (d for d in downstream.table(rows, downstream.scores(rows)) if d["block"] == "sas-p")
    assert line["score"] == pytest.approx(80)
    assert (line["best_rate"], line["rate_settled"]) == (best, bool(holds))
    assert verdict(find("downstream").summarise(rows).checks, "sas-p scores") is holds


def test_a_rate_that_not_every_seed_has_settles_nothing() -> None:
    rows = accuracies(sas_p=[0.80, 0.81, 0.79])
    assert downstream.best_rates(rows)["sas-p"].settled
    part = [row for row in rows if (row["seed"], row["learning_rate"]) != (2, 3.0)]
    assert not downstream.best_rates(part)["sas-p"].settled


@pytest.mark.parametrize(("fresh", "holds"), [([0.5, 0.5, 0.51], True), ([0.9, 0.9, 0.91], False)])
def test_the_control_says_whether_pretraining_helps(fresh: list[float], holds: bool) -> None:
    rows = accuracies(pre_ln=[0.80, 0.81, 0.80], fresh=fresh)
    assert verdict(find("downstream").summarise(rows).checks, "pretraining helps") is holds


@pytest.mark.parametrize(("count", "holds"), [(120.4e6, True), (111e6, False)])
def test_the_published_sizes_are_compared(count: float, holds: bool) -> None:
    row: Row = {"variant": "pre-ln", "quantity": "parameters_at_16x768", "value": count}
    assert verdict(find("downstream").summarise([row]).checks, "parameters of pre-ln") is holds


def test_a_diverged_seed_is_counted_and_has_no_score() -> None:
    rows = accuracies(pre_ln=[0.8, 0.9], sas_p=[None, 0.7])
    lines = {line["block"]: line for line in downstream.table(rows, downstream.scores(rows))}
    assert (lines["sas-p"]["diverged"], lines["sas-p"]["seeds"]) == (1, 1)
    assert lines["sas-p"]["score"] == pytest.approx(70)
    assert math.isnan(lines["sas-p"]["standard_error"])
    assert lines["pre-ln"]["standard_error"] == pytest.approx(5)


def test_speeds_and_their_errors() -> None:
    """Repetition by repetition, so that one which is slower for all adds no error."""
    found = speeds(times(pre_ln=(1.0, 2.0), sas=(0.8, 1.7)))["sas"]
    assert found.mean == pytest.approx((1 / 0.8 + 2 / 1.7) / 2)
    assert found.error == pytest.approx((1 / 0.8 - 2 / 1.7) / 2)
    assert found.seeds == 2
    assert speeds(times(sas=(0.8, 0.1))) == {}


def test_paper_scale_has_the_published_settings() -> None:
    size = masked_lm.SIZES["paper"]
    assert (size.depth, size.width, size.context, size.vocab_size) == (16, 768, 128, 32_768)
    assert size.mlp_width == 3072 // 2
    made = masked_lm.pretraining(find("masked-lm").points("paper")[-1].settings)
    assert made.mask_share == 0.25
    from hessblocks_studies.masked.pretrain import BETAS, CLIP, EPSILON

    assert (BETAS, EPSILON, CLIP) == ((0.9, 0.98), 1e-12, 0.5)
    assert set(PUBLISHED_SCORES) <= set(masked_lm.PRESETS["paper"])


def test_unknown_tasks_are_refused_with_near_names() -> None:
    with pytest.raises(ArgumentError, match="task: 'rtee' is unknown; did you mean 'rte'"):
        downstream.tasks("rtee")
