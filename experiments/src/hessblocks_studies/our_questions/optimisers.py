"""Compare SGD, AdamW, Muon and per-role rates on each block, and relate them to uneven curvature.

The rule and its amendments: PLAN.md beside this file, section `optimisers`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import cast

from torch import nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks.training import RunTrainer
from hessblocks_studies import shared
from hessblocks_studies.engine import Rows, Study, Summary
from hessblocks_studies.our_questions import optimiser_plan as plan
from hessblocks_studies.our_questions import optimiser_steps as steppers
from hessblocks_studies.our_questions import optimiser_verdicts as judge

PRECONDITIONED = "preconditioned_spread"
"""Spread like `SPREAD`, of D^(-1/2) H D^(-1/2) with AdamW's current preconditioner D."""
PILOT_STEPS = "pilot_steps"
"""Steps of the pilot, in addition to those of the run."""


def measure(settings: plan.OptimiserSettings) -> list[Row]:
    """Train one model; with AdamW, measure the unevenness of H and of the preconditioned H."""
    trainers: list[RunTrainer] = []

    def observe(model: nn.Module, step: int) -> list[Row]:
        if (
            settings.method != plan.ADAMW
            or not settings.probe
            or step not in (0, settings.size.steps)
        ):
            return []
        corpus, keys = shared.text_of(settings.size), () if step else ("key",)
        probe, seed = settings.probe, settings.seed
        found = shared.curvature_rows(model, corpus, probe, seed, keys, parts=("full",))
        found = shared.of_quantity(found, shared.SPREAD)
        if step:
            optimiser = cast(Optimizer, trainers[0].optimizer)
            met = steppers.preconditioned_rows(cast(PreTrainedModel, model), optimiser, settings)
            own = shared.of_quantity(met, shared.SPREAD)
            found = [*found, *({**row, "quantity": PRECONDITIONED} for row in own)]
        return found

    roles: list[Row] = []

    def by_role(trainer: RunTrainer) -> None:
        roles.extend(
            {**settings.owner, **row} for row in steppers.with_rates_of_roles(settings, trainer)
        )

    changes: dict[str | None, Callable[[RunTrainer], None]] = {
        plan.ADAMW: trainers.append,
        **dict.fromkeys(
            (plan.MUON, plan.INNER_SGD), partial(steppers.with_another_in_layers, settings)
        ),
        **dict.fromkeys((plan.BLOCKWISE, plan.PUBLISHED), by_role),
    }
    try:
        rows = shared.train_point(settings, observe, changes.get(settings.method))
    except steppers.PilotDivergedError:
        rows = [{**settings.owner, **shared.measured(shared.LOSS, None, step=settings.pilot)}]
    if settings.pilot:
        steps = shared.measured(PILOT_STEPS, settings.pilot, "exact")
        rows.append({**settings.owner, **steps})
    rows += roles
    return settings.placed(rows)


def summarise(rows: Rows) -> Summary:
    """Plot tuning, final losses, gap against unevenness, and steps; judge by the plan."""
    tuned = shared.Tuned.of(rows)
    uneven, met = judge.spreads(rows), judge.spreads(rows, PRECONDITIONED)
    learnt = judge.learnt_by_block(tuned.runs)
    gap = judge.gaps(tuned.runs.losses, learnt)
    verdicts = [
        *judge.need_checks(tuned, judge.rates_apart(rows)),
        *judge.curvature_checks(tuned, gap, uneven, learnt),
        *judge.even_checks(tuned, uneven, met),
    ]
    pilot = {row["variant"]: int(row["value"]) for row in shared.of_quantity(rows, PILOT_STEPS)}
    steps = steps_to_the_base(tuned.runs, pilot)
    return shared.summary(
        "Which optimiser does each block need?",
        "Rates by curvature are one for each role, published ones are multipliers of one base; "
        "Muon steps the matrices of the layers, AdamW the rest; so does SGD in the layers. Tuning "
        f"has one seed; runs are at the best rates, with seeds of their own. {shared.HOW}",
        [panel for panel in _panels(tuned, gap, uneven, steps) if panel.shown],
        [
            *tuned.rate_checks(),
            tuned.runs.below_the_table(plan.BASE, shared.BIGRAMS),
            *(tuned.runs.where_learnt(check, plan.BASE) for check in verdicts),
        ],
        losses=tuned.runs.table(),
        tuning=tuned.tuning_table(),
        needs=_need_table(tuned.runs),
        gaps=_gap_table(gap, uneven, met),
        steps=steps_table(steps),
        roles=_role_table(rows),
        correlations=judge.correlation_table(tuned.runs, gap, uneven),
    )


def _role_table(rows: Rows) -> list[dict[str, object]]:
    """Tabulate each role's rate relative to the tuned rate, and the norm that determines it."""
    kept = [row for row in rows if row.get("phase") == shared.COUNTED]
    norms = shared.gathered(shared.of_quantity(kept, steppers.NORM_OF_ROLE), "variant", "group")
    rates = shared.gathered(shared.of_quantity(kept, steppers.RATE_OF_ROLE), "variant", "group")
    return [
        {
            "variant": label,
            "role": role,
            "share_of_the_tuned_rate": mean,
            "standard_error": error,
            "norm": fmean(norms[label, role]) if (label, role) in norms else None,
            "seeds": len(each),
        }
        for (label, role), each in rates.items()
        for mean, error in [mean_and_error(each)]
    ]


def steps_to_the_base(
    runs: shared.Runs, pilot: Mapping[str, int]
) -> dict[str, dict[Scalar, float]]:
    """Count steps to the last loss of `BASE`, relative to a run: label → {seed: share}.

    Returns:
        Shares, including a pilot's steps; infinite if the run never reaches the loss.
    """
    found: dict[str, dict[Scalar, float]] = {}
    for label in plan.BLOCK_OF:
        for seed in runs.losses.get(label, {}).keys() & runs.losses.get(plan.BASE, {}).keys():
            target, last = runs.losses[plan.BASE][seed], runs.curve(plan.BASE, seed)[-1][0]
            if math.isfinite(target) and last:
                steps = shared.steps_to(runs.curve(label, seed), target)
                found.setdefault(label, {})[seed] = (steps + pilot.get(label, 0)) / last
    return found


def steps_table(steps: shared.Values) -> list[dict[str, object]]:
    """Tabulate the mean share of steps over seeds that reach the loss, and their number."""
    table: list[dict[str, object]] = []
    for label, seeds in steps.items():
        there = [share for share in seeds.values() if math.isfinite(share)]
        mean, error = mean_and_error(there) if there else (None, None)
        table.append(
            {
                "variant": label,
                "share_of_the_steps": mean,
                "standard_error": error,
                "seeds": len(seeds),
                "reached": len(there),
            }
        )
    return table


def _need_table(runs: shared.Runs) -> list[dict[str, object]]:
    """Tabulate the best optimiser of each block, and those at most `CLOSE` above it."""
    means = shared.finite(runs.losses)
    table: list[dict[str, object]] = []
    for block in plan.BLOCKS:
        own = {
            m: means[plan.label_of(block, m)][0]
            for m in plan.METHODS
            if plan.label_of(block, m) in means
        }
        if own:
            best = min(own, key=own.__getitem__)
            good = [method for method in own if own[method] <= own[best] + shared.CLOSE]
            line = {"block": block, "best": best, "within_close": ", ".join(good)}
            table.append(line | {f"loss_{method}": own.get(method) for method in plan.METHODS})
    return table


def _gap_table(
    gap: shared.Values,
    uneven: dict[tuple[str, str], shared.Values],
    met: dict[tuple[str, str], shared.Values],
) -> list[dict[str, object]]:
    """Tabulate gap and unevenness of each block, for H and the preconditioned Hessian."""
    return [
        {
            "block": block,
            "groups": matrices,
            "moment": moment,
            "spread": shared.over_seeds(values[block]).mean,
            "spread_error": shared.over_seeds(values[block]).error,
            "spread_that_adamw_meets": fmean(there.values()) if there else None,
            "gap": mean,
            "gap_error": error,
        }
        for (matrices, moment), values in uneven.items()
        for block in values
        if block in gap
        for there in [met.get((matrices, moment), {}).get(block)]
        for mean, error in [mean_and_error(list(gap[block].values()))]
    ]


def _panels(
    tuned: shared.Tuned,
    gap: shared.Values,
    uneven: dict[tuple[str, str], shared.Values],
    steps: shared.Values,
) -> list[Panel]:
    """Plot the tuning of each optimiser, final losses, steps, and the gap against unevenness."""
    panels = [
        tuned.tuning.tuning_panel(
            {
                block: plan.label_of(block, method)
                for block in plan.FAMILY_OF
                if method in plan.methods_of(block)
            },
            f"tuning: {plan.SHOWN[method]}",
        )
        for method in plan.METHODS
    ]
    losses = shared.places_panel(
        _by_method(tuned.runs.losses), "final validation loss (nats per token)", bars=False
    )
    reached = shared.places_panel(
        _by_method(steps), "steps to pre-ln's loss with AdamW (share)", bars=False
    )
    panels += [replace(losses, title="runs"), replace(reached, title="steps to pre-ln's loss")]
    for (matrices, moment), values in uneven.items():
        if matrices == shared.COMMON_MATRICES:
            panels.append(_scatter(moment, shared.finite(values), shared.finite(gap)))
    return panels


def _by_method(values: shared.Values) -> dict[str, dict[str, tuple[float, float]]]:
    """Map block → {optimiser: (mean, error)}, with the bigram table if measured."""
    means = shared.finite(values)
    found = {
        block: {
            m: means[plan.label_of(block, m)]
            for m in plan.METHODS
            if plan.label_of(block, m) in means
        }
        for block in plan.FAMILY_OF
    }
    for name, methods in ((shared.GPT2, (plan.ADAMW,)), (shared.BIGRAMS, plan.METHODS)):
        if name in means:
            found[name] = dict.fromkeys(methods, means[name])
    return {
        name: {plan.SHOWN[m]: each[m] for m in plan.METHODS if m in each}
        for name, each in found.items()
    }


def _scatter(
    moment: str, even: dict[str, tuple[float, float]], gap: dict[str, tuple[float, float]]
) -> Panel:
    """Plot the gap against the spread, one point per block."""
    places = {b: [(even[b][0], *gap[b])] for b in plan.FAMILY_OF if b in even and b in gap}
    labels = ("spread of log10 ‖H‖ (decades)", "SGD above AdamW (nats per token)")
    return shared.panel(f"gap and unevenness {moment}", *labels, places, line=False)


STUDY = Study(
    name="optimisers",
    title=(
        "SGD, AdamW, Muon and rates of roles, each block at its best rate, against the unevenness "
        "of its curvature"
    ),
    source="ours, testing a claim of the Hessian paper",
    published=(
        "Argued, not tested: heterogeneous blocks of the Hessian are why transformers need Adam."
    ),
    settings=plan.points,
    measure=measure,
    summarise=summarise,
    columns=shared.TUNED_COLUMNS,
    gpus=1,
)
