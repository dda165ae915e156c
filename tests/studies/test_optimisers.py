"""Optimisers: each steps what it should, verdicts follow losses made up here, a run at smoke scale is drawn."""

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.optim import AdamW, Muon

from hessblocks.curvature import PreconditionedHessian, Problem
from hessblocks.drawing import draw, write_picture
from hessblocks.figures import read_figure
from hessblocks.figures.figure import Panel
from hessblocks.linalg import frobenius_norm
from hessblocks.storage.tables import Row
from hessblocks.studies.engine.study import Check
from hessblocks.studies.our_questions.optimiser_plan import (
    ADAMW,
    BASE,
    BEST,
    BLOCK_OF,
    BLOCKS,
    BLOCKWISE,
    METHODS,
    MUON,
    RATES,
    SGD,
    OptimiserSettings,
    label_of,
    points,
)
from hessblocks.studies.our_questions.optimiser_steps import (
    pilot_norms,
    with_muon,
    with_rates_of_roles,
)
from hessblocks.studies.our_questions.optimisers import STUDY, measure
from hessblocks.studies.runner import run_study
from hessblocks.studies.shared.measured_curvature import SETS, SPREAD, by_role, training_batch
from hessblocks.studies.shared.texts import text_of
from hessblocks.studies.shared.trained_points import (
    BIGRAMS,
    GPT2,
    LOSS,
    make_model,
    run_settings,
    train,
)
from hessblocks.training.trainer.run_trainer import ShuffledPasses

PLAN = points("laptop", None)


def point(block: str, method: str, steps: int = 6) -> OptimiserSettings:
    found = next(
        p for p in points("smoke", 1) if p.label == label_of(block, method) and p.seed == 1
    )
    return replace(found, size=replace(found.size, steps=steps))


def test_the_plan_tunes_every_block_under_every_optimiser_and_follows_adamw() -> None:
    assert len(BLOCK_OF) == len(BLOCKS) * len(METHODS) == 20
    tuning = [p for p in PLAN if p.phase == "tuning"]
    runs = [p for p in PLAN if p.phase == "runs"]
    assert {p.seed for p in tuning} == {0}
    assert {p.seed for p in runs} == {1, 2, 3}
    assert {p.label for p in runs} == {BIGRAMS, GPT2, *BLOCK_OF}
    for one in PLAN:
        assert one.slots == (("position=rotary",) if one.label in BLOCK_OF else ())
        assert one.optimiser == ("sgd" if one.method == SGD else None)
        followed = one.method == ADAMW and one.label != GPT2 and one.phase == "runs"
        assert bool(one.probe) == (followed or one.method == BLOCKWISE)
        assert one.size.steps == 1200
    for label, rates in RATES.items():
        assert BEST[label] in rates
        halves = sorted(round(2 * math.log10(rate)) for rate in rates)
        assert halves == list(range(halves[0], halves[0] + len(rates))), label
        assert len(rates) >= 3


@pytest.mark.parametrize("block", ["pre-ln, zero queries", "sas-p"])
def test_muon_steps_the_matrices_of_the_layers_and_adamw_all_else(block: str) -> None:
    """Against a loop by hand, on one schedule, to the rounding of Muon's bfloat16; decay is strong so that it shows."""
    settings = point(block, MUON)
    made, theirs = make_model(settings), make_model(settings)
    run, corpus, size = run_settings(settings), text_of(settings.size), settings.size
    strong = replace(run.training, weight_decay=5.0)
    train(made, replace(run, training=strong), corpus, change=with_muon)
    named = dict(theirs.named_parameters())
    start = {name: parameter.detach().clone() for name, parameter in named.items()}
    inner = {name for name in named if named[name].ndim == 2 and "embedding" not in name}
    assert len(inner) == (6 if block.startswith("pre-ln") else 5) * size.depth
    groups = [
        {
            "params": [p for n, p in named.items() if n not in inner and p.ndim >= 2],
            "weight_decay": 5.0,
        },
        {"params": [p for n, p in named.items() if p.ndim < 2], "weight_decay": 0.0},
    ]
    pair = [
        AdamW(groups, lr=size.learning_rate),
        Muon(
            [named[n] for n in named if n in inner],
            weight_decay=5.0,
            adjust_lr_fn="match_rms_adamw",
        ),
    ]
    windows = corpus.windows("train", size.context)
    order = list(ShuffledPasses(windows, size.batch_size * size.steps, run.seed))
    for step in range(size.steps):
        for group in (group for one in pair for group in one.param_groups):
            group["lr"] = size.learning_rate * (size.steps - step) / size.steps
        batch = [
            windows[order[size.batch_size * step + k]]["input_ids"] for k in range(size.batch_size)
        ]
        ids = torch.stack(batch)
        theirs.zero_grad()
        theirs(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        for one in pair:
            one.step()
    for name, ours in made.named_parameters():
        moved, apart = (float((one - named[name]).detach().norm()) for one in (start[name], ours))
        assert apart < 0.05 * moved, name


def test_rates_of_roles_are_inverse_to_the_curvature_that_the_pilot_meets() -> None:
    """One share of the stable rate for all matrices, their geometric mean the tuned rate, and one decay a step.

    Norms keep the rate, and nothing moves before.
    """
    settings = point("pre-ln, zero queries", BLOCKWISE)
    made = make_model(settings)
    fresh = copy.deepcopy(made.state_dict())
    seen: dict[str, dict[str, float]] = {}

    def change(trainer: object) -> None:
        with_rates_of_roles(settings, trainer)  # type: ignore[arg-type]
        assert all(torch.equal(fresh[name], tensor) for name, tensor in made.state_dict().items())
        for group in trainer.optimizer.param_groups:  # type: ignore[attr-defined]
            own = {id(p) for p in group["params"]}
            for name, parameter in made.named_parameters():
                if id(parameter) in own:
                    seen[name] = {"lr": group["lr"], "decay": group["weight_decay"]}

    rows = train(made, run_settings(settings), text_of(settings.size), change=change)
    assert rows[-1]["step"] == settings.size.steps
    rate, parameters = settings.size.learning_rate, dict(made.named_parameters())
    assert seen.keys() == parameters.keys()
    vectors = [name for name, p in parameters.items() if p.ndim < 2]
    assert vectors
    assert all(seen[name] == {"lr": rate, "decay": 0.0} for name in vectors)
    matrices = parameters.keys() - set(vectors)
    for name in matrices:
        assert seen[name]["lr"] * seen[name]["decay"] == pytest.approx(0.1 * rate), name
    entries = {name: parameters[name].numel() for name in matrices}
    total = sum(n * math.log(seen[name]["lr"]) for name, n in entries.items())
    assert math.exp(total / sum(entries.values())) == pytest.approx(rate)
    twin = copy.deepcopy(make_model(settings))
    norms = pilot_norms(settings, twin)
    shares = [
        seen[name]["lr"] * norms[role].value
        for role, group in by_role(made).items()
        for name in group.parameters
        if name in matrices
    ]
    assert shares == pytest.approx([shares[0]] * len(shares))
    assert max(seen[name]["lr"] for name in matrices) > 2 * min(
        seen[name]["lr"] for name in matrices
    )


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
def test_the_pilot_is_plain_adamw_at_a_rate_of_its_own() -> None:
    """Its norms are those after as many steps by hand, whatever rate is tuned."""
    settings = point("sas-p", BLOCKWISE)
    assert settings.probe is not None
    model, trainers = make_model(settings), []
    run, corpus = run_settings(settings), text_of(settings.size)
    short = replace(run.training, steps=2, evaluate_every=2, learning_rate=1e-3)
    train(model, replace(run, training=short), corpus, change=trainers.append)
    batch = training_batch(corpus, settings.probe.sequences, settings.probe.tokens)
    problem = Problem(model.eval(), batch, loss="causal-lm")
    want = {
        role: frobenius_norm(PreconditionedHessian(problem, trainers[0].optimizer, group), probes=4)
        for role, group in by_role(model).items()
    }
    for rate in (3e-3, 0.1):
        asked = replace(settings, size=replace(settings.size, learning_rate=rate))
        found = pilot_norms(asked, make_model(asked))
        assert {role: norm.value for role, norm in found.items()} == {
            role: pytest.approx(norm.value, rel=1e-4) for role, norm in want.items()
        }


@pytest.mark.parametrize("method", METHODS)
def test_every_optimiser_learns_and_adamw_alone_is_measured(method: str) -> None:
    rows = measure(point("sas", method, steps=16))
    losses = [row["value"] for row in rows if row["quantity"] == LOSS]
    assert losses[-1] < losses[0]
    spreads = [(row["step"], row["group"]) for row in rows if row["quantity"] == SPREAD]
    want = [(step, name) for step in (0, 16) for name in SETS] if method == ADAMW else []
    assert spreads == want
    assert {row["phase"] for row in rows} == {"runs"}


Level = Callable[[OptimiserSettings], float]
UNEVEN = {block: 2.0 - 0.3 * place for place, block in enumerate(BLOCKS)}
"""Spread of each block: pre-ln the most uneven."""


def as_argued(point: OptimiserSettings, slope: float = 0.2) -> float:
    """Losses lowest at the rates of the runs; SGD is the worse the more uneven the block; seeds differ a little."""
    loss = {BIGRAMS: 3.6, GPT2: 3.1}.get(point.label, 3.0) + 0.001 * point.seed
    if point.method == SGD:
        loss += 0.5 + slope * (UNEVEN[point.variant] - 1.5)
    if point.tuned:
        loss += math.log10(point.size.learning_rate / BEST[point.label]) ** 2
    return loss


def rows(level: Level = as_argued) -> list[Row]:
    with pytest.MonkeyPatch.context() as patch:
        for label, rate in BEST.items():
            patch.setitem(RATES, label, (rate, rate * 10**0.5, rate / 10**0.5))
        plan = points("laptop", None)
    found: list[Row] = []
    for one in plan:
        end = level(one)
        for step, above in ((0, 3.0), (600, 0.4), (1200, 0.0)):
            loss = end + (above if one.label != BIGRAMS else 0.0)
            known = loss if math.isfinite(loss) else None
            found += one.placed([one.owner | {"quantity": LOSS, "step": step, "value": known}])
        measured = (0, 1200) if math.isfinite(end) else (0,)
        if one.method == ADAMW and one.phase == "runs" and one.label != GPT2:
            found += one.placed(
                [
                    one.owner
                    | {
                        "quantity": SPREAD,
                        "step": step,
                        "group": group,
                        "value": UNEVEN[one.variant],
                    }
                    for step in measured
                    for group in SETS
                ]
            )
    return found


def checks(found: list[Row]) -> dict[str, Check]:
    return {check.fact: check for check in STUDY.summarise(found).checks}


def gap_verdicts(found: list[Row]) -> set[bool | None]:
    each = [check.holds for fact, check in checks(found).items() if fact.startswith("the gap")]
    assert len(each) == 4
    return set(each)


def test_verdicts_follow_the_losses() -> None:
    found = checks(rows())
    assert gap_verdicts(rows()) == {True}
    for block in BLOCKS:
        verdicts = [
            found[f"{block} trains as well with {m} as with AdamW"].holds
            for m in (SGD, MUON, BLOCKWISE)
        ]
        assert verdicts == [False, True, True]
    assert found[f"{BASE} has learnt more than pairs of tokens"].holds is True
    assert len(found) == 3 + 15 + 4


@pytest.mark.parametrize(("slope", "holds"), [(-0.2, False), (0.0, None)])
def test_a_gap_that_falls_or_does_not_follow_is_said(slope: float, holds: bool | None) -> None:
    noise = dict(zip(BLOCKS, (0.02, 0.05, 0.01, 0.04, 0.03), strict=True))

    def level(point: OptimiserSettings) -> float:
        extra = noise.get(point.variant, 0.0) if point.method == SGD and not slope else 0.0
        return as_argued(point, slope) + extra

    assert gap_verdicts(rows(level)) == {holds}


@pytest.mark.parametrize("more", [-0.2, 0.2])
def test_to_train_as_well_is_to_be_neither_worse_nor_better(more: float) -> None:
    found = checks(rows(lambda p: as_argued(p) + more * (p.method == MUON)))
    assert found["sas trains as well with muon as with AdamW"].holds is False


def test_sgd_that_diverges_ranks_last_and_one_block_is_judged() -> None:
    def level(point: OptimiserSettings) -> float:
        lost = point.label == label_of(BLOCKS[0], SGD) and point.phase == "runs"
        return math.inf if lost else as_argued(point)

    found = checks(rows(level))
    assert found[f"{BLOCKS[0]} trains as well with sgd as with AdamW"].holds is False
    assert gap_verdicts(rows(level)) == {True}


def test_a_block_of_which_one_seed_diverges_with_sgd_ranks_last_with_all() -> None:
    def level(point: OptimiserSettings) -> float:
        lost = point.label == label_of(BLOCKS[-1], SGD) and point.phase == "runs"
        return math.inf if lost and point.seed == 2 else as_argued(point)

    for fact, check in checks(rows(level)).items():
        if fact.startswith("the gap"):
            assert (
                "ρ = +0.00 [" in check.ours
            )  # 1 − 6 · (4² + 4) / (5 · 24) = 0, as last, not first
            assert check.ours.endswith(f"diverged with SGD, so ranked last: {BLOCKS[-1]}")


@pytest.mark.parametrize("seeds", [(2,), (1, 2, 3)])
def test_seeds_that_diverge_with_adamw_are_left_out_and_named(seeds: tuple[int, ...]) -> None:
    def level(point: OptimiserSettings) -> float:
        lost = point.label == label_of("sas", ADAMW) and point.phase == "runs"
        return math.inf if lost and point.seed in seeds else as_argued(point)

    found = [c for fact, c in checks(rows(level)).items() if fact.startswith("the gap")]
    assert len(found) == 4
    names = ", ".join(f"sas, seed {seed}" for seed in seeds)
    for check in found:
        assert f"{5 - (len(seeds) == 3)} blocks" in check.ours
        assert check.ours.endswith(f"diverged with AdamW, so left out: {names}")


def test_a_verdict_that_has_too_few_blocks_left_says_so() -> None:
    def level(point: OptimiserSettings) -> float:
        lost = point.variant in BLOCKS[2:] and point.method == ADAMW and point.phase == "runs"
        return math.inf if lost else as_argued(point)

    found = [c for fact, c in checks(rows(level)).items() if fact.startswith("the gap")]
    assert [check.holds for check in found] == [None] * 4
    for check in found:
        assert check.ours.startswith(
            "fewer than three blocks; diverged with AdamW, so left out: sas, seed 1"
        )


def test_verdicts_are_void_at_the_end_of_a_grid_and_without_learning() -> None:
    def rising(point: OptimiserSettings) -> float:
        high = (
            point.tuned
            and point.label == "sas, sgd"
            and point.size.learning_rate > BEST["sas, sgd"] * 2
        )
        return as_argued(point) - 2.0 * bool(high)

    found = checks(rows(rising))
    check = found["sas trains as well with sgd as with AdamW"]
    assert check.holds is None
    assert check.ours.endswith("void, since the best rate of sas, sgd is not inside its grid")
    assert found["sas-p trains as well with sgd as with AdamW"].holds is False
    assert gap_verdicts(rows(rising)) == {None}
    short = checks(rows(lambda p: as_argued(p) - 0.4 * (p.label == BIGRAMS)))
    verdicts = [check for fact, check in short.items() if "trains as well" in fact or "gap" in fact]
    assert {check.holds for check in verdicts} == {None}
    assert all("void, since pre-ln has not learnt" in check.ours for check in verdicts)


def test_steps_are_counted_to_the_loss_of_pre_ln_under_adamw() -> None:
    table = STUDY.summarise(rows(lambda p: as_argued(p) - 0.2 * (p.method == MUON))).tables["steps"]
    found = {line["variant"]: line for line in table}
    assert found[BASE]["share_of_the_steps"] == pytest.approx(1.0)
    muon = found[label_of("sas", MUON)]
    assert muon["share_of_the_steps"] == pytest.approx(
        0.75
    )  # from 0.4 above at half, 0.2 lower at the end
    assert (found[label_of("sas", SGD)]["reached"], muon["reached"]) == (0, 3)


def test_the_table_of_needs_names_what_is_close_to_the_best() -> None:
    table = STUDY.summarise(rows(lambda p: as_argued(p) - 0.01 * (p.method == MUON))).tables[
        "needs"
    ]
    assert [line["best"] for line in table] == [MUON] * 5
    assert {line["within_close"] for line in table} == {"adamw, muon, blockwise"}


@pytest.mark.parametrize("share", [0, 0.05, 0.3, 0.5, 0.7, 0.9])
def test_partial_results_are_summarised_too(share: float) -> None:
    whole = rows()
    summary = STUDY.summarise(whole[: int(share * len(whole))])
    assert json.dumps([summary.to_dict(), summary.figure.to_dict()], allow_nan=False)


def test_a_run_at_smoke_scale_is_complete_and_drawn(tmp_path: Path) -> None:
    result = run_study("optimisers", out=tmp_path, scale="smoke")
    assert result.points == result.measured == len(points("smoke", None))
    assert {column for row in result.rows for column in row} <= set(STUDY.columns)
    assert {check.holds for check in result.checks} == {None}
    figure = read_figure(tmp_path / "optimisers" / "figure.json")
    titles = [panel.title for panel in figure.panels]
    assert titles == [
        *(f"tuning: {method}" for method in METHODS),
        "runs",
        "steps to pre-ln's loss",
        "gap and unevenness before training",
        "gap and unevenness after training with AdamW",
    ]
    runs = figure.panels[4]
    assert isinstance(runs, Panel)
    assert {series.name for series in runs.series} == {BIGRAMS, GPT2, *BLOCKS}
    png = write_picture(draw(figure), tmp_path / "figures", "optimisers")
    assert png.read_bytes().startswith(b"\x89PNG")
