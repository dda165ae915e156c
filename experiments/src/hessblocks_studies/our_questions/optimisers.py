"""Ours: which optimiser each block needs, and whether uneven curvature says so.

The rule, written down before the first run:

1. Five blocks, all with rotary positions and zero initial queries: pre-ln, parallel, sas, sas-p,
   sas-p-no-norm, each with the embeddings that `trial` found best at this width, 1/√width for the first two
   and 0.02 for the others. Four optimisers: SGD with momentum 0.9; AdamW; Muon for the matrices of the
   layers, beside AdamW for embeddings, norms and gains, both at one rate (Muon's steps are scaled to AdamW's
   size, `match_rms_adamw`); AdamW with a rate for each role. pre-ln and sas-p also have SGD for the matrices
   of the layers alone, beside AdamW at the rate that `trial` found (`BESIDE`): where SGD fails on all and not
   there, it is embeddings, norms or gains that need AdamW. Warm-up, linear decay and clipping are those of
   the other studies. Matrices decay by 0.1 of the rate a step with AdamW and Muon, by nothing with SGD: what
   is judged of SGD is both, momentum in AdamW's place and no decay. These five are two families (`FAMILIES`)
   of nearly equal unevenness each; so four blocks of further families, post-ln, v-skipinit, op and modern
   with rotary positions, are trained with SGD and AdamW too.
2. The rates of roles are c / ‖A‖_F (`blockwise_learning_rates`), their geometric mean over all entries of
   matrices the tuned rate; the decay of a step is plain AdamW's for all, 0.1 of the tuned rate. A is the
   role's block of the Hessian as AdamW's step meets it, all layers together. It is measured on training text
   once: a copy of the model at its first weights is trained with plain AdamW at the rate that `trial` found
   (`BESIDE`), for `PILOT` of the run's steps; then the run begins anew. These steps count where steps are
   told. Norms and gains keep the tuned rate: by their small curvature alone pre-ln's would have 1.2 where the
   tuned rate is 0.01, and steps as long as their entries. A run whose pilot diverges counts as one that does.
   Beside these rates stand the published multipliers of the same function, for pre-ln and sas-p, whose base
   is tuned too.
3. The rate of each block and optimiser is tuned with one seed in a grid by half decades (`RATES`) that is
   made longer by hand until the lowest final loss lies inside; transformers' GPT-2 with AdamW, about which no
   verdict is, has the rate that `trial` found. The runs that count are at these rates (`BEST`), as long as
   the tuning, with four seeds on which nothing was tuned.
4. Verdicts on needs: for every one of the five, does SGD, does Muon, do own rates end about where AdamW does,
   within `CLOSE` nats above or below? Fails where the optimiser is worse and where it is better by more.
5. Verdicts on curvature: rank correlation over all nine blocks of loss(SGD) − loss(AdamW) with the spread of
   the norms of H, before training and at the end of AdamW's, over all weight matrices and over those that all
   blocks have. The Hessian paper argues that it is positive. The first question is that of the common
   matrices after training (`FIRST`); the others stand beside it. It holds or fails where the interval, of a
   bootstrap over families and seeds, excludes 0; six families show a near perfect order at most: by
   simulation it decides about 15 % of cases where the correlation is 0.85, 35 % at 0.95, 65 % at 0.99
   (`experiments/tests/test_correlations.py`). So the question is exploratory. Nothing is decided before all blocks
   have all seeds. A block that with AdamW does not end 0.3 nats below the bigram table has no gap and is left
   out. A block of which one seed diverges with SGD ranks last with all its seeds. Seeds that diverge with
   AdamW have no gap and are left out, with their block where there is no other. Both are named. As in
   `simplification`, each seed has a held-out batch and probes of its own, and before training keys, whose
   curvature is 0 where queries are, are left out. For each of the five: is what AdamW's step meets after
   training, D^(-1/2) H D^(-1/2), more even than H beyond what units give, over the common matrices? D grows
   as gradients do and H as their square, so of a spread that comes from the size of gradients half remains:
   its spread is held against half of that of H.
6. A verdict is void where a best rate that it rests on is at an end of its grid, where the runs are not at
   it, and where pre-ln, or the block that it is about, with AdamW does not end at least 0.3 nats below the
   bigram table.
7. Steps to the loss that pre-ln ends with under AdamW, seed by seed, are told and not judged: all rates decay
   to the end of the run. So are the rates of roles, and the correlations of unevenness with each of the two
   losses: the gap may follow how well AdamW does alone.

Amended before the first run, by small runs: the pilot (at 1e-3, where it had been, the rates of roles lay 22
times apart; at 1e-2, where the runs are, they are alike), the further families, four seeds for three, the
published multipliers, the evenness of what AdamW meets. Then, after a reading by others: every block must
have learnt (three that had learnt nothing "trained as well" with all optimisers, and two of gap 0 decided the
first question); the pilot at one rate for all tuned ones (a rate at which plain AdamW diverges had counted as
a failure of the rates of roles); SGD in the layers alone; half of H's spread in place of all of it; norms of
matrices without the gains beside them. After the first 26 runs of the tuning, 1,000 steps long: 1,400 steps,
since post-ln, op and v-skipinit with AdamW had not ended 0.3 nats below the table, so that three of six
families would have had no gap; all of the tuning was begun anew.
"""

from __future__ import annotations

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
from hessblocks_studies.our_questions.optimiser_plan import (
    ADAMW,
    BASE,
    BLOCK_OF,
    BLOCKS,
    BLOCKWISE,
    FAMILY_OF,
    INNER_SGD,
    METHODS,
    MUON,
    PUBLISHED,
    SHOWN,
    OptimiserSettings,
    label_of,
    methods_of,
    points,
)
from hessblocks_studies.our_questions.optimiser_steps import (
    NORM_OF_ROLE,
    RATE_OF_ROLE,
    PilotDivergedError,
    preconditioned_rows,
    with_another_in_layers,
    with_rates_of_roles,
)
from hessblocks_studies.our_questions.optimiser_verdicts import (
    correlation_table,
    curvature_checks,
    even_checks,
    gaps,
    learnt_by_block,
    need_checks,
    rates_apart,
    spreads,
)

PRECONDITIONED = "preconditioned_spread"
"""As `SPREAD`, of D^(-1/2) H D^(-1/2), D the preconditioner of AdamW as it stands."""
PILOT_STEPS = "pilot_steps"
"""Steps of the pilot, beside those of the run."""


def measure(settings: OptimiserSettings) -> list[Row]:
    """Train one model; with AdamW, how uneven its curvature is before and after, and what AdamW's step meets after."""
    trainers: list[RunTrainer] = []

    def observe(model: nn.Module, step: int) -> list[Row]:
        if settings.method != ADAMW or not settings.probe or step not in (0, settings.size.steps):
            return []
        corpus, keys = shared.text_of(settings.size), () if step else ("key",)
        probe, seed = settings.probe, settings.seed
        found = shared.curvature_rows(model, corpus, probe, seed, keys, parts=("full",))
        found = shared.of_quantity(found, shared.SPREAD)
        if step:
            optimiser = cast(Optimizer, trainers[0].optimizer)
            met = preconditioned_rows(cast(PreTrainedModel, model), optimiser, settings)
            own = shared.of_quantity(met, shared.SPREAD)
            found = [*found, *({**row, "quantity": PRECONDITIONED} for row in own)]
        return found

    roles: list[Row] = []

    def by_role(trainer: RunTrainer) -> None:
        roles.extend({**settings.owner, **row} for row in with_rates_of_roles(settings, trainer))

    changes: dict[str | None, Callable[[RunTrainer], None]] = {
        ADAMW: trainers.append,
        **dict.fromkeys((MUON, INNER_SGD), partial(with_another_in_layers, settings)),
        **dict.fromkeys((BLOCKWISE, PUBLISHED), by_role),
    }
    try:
        rows = shared.train_point(settings, observe, changes.get(settings.method))
    except PilotDivergedError:
        rows = [{**settings.owner, **shared.measured(shared.LOSS, None, step=settings.pilot)}]
    if settings.pilot:
        steps = shared.measured(PILOT_STEPS, settings.pilot, "exact")
        rows.append({**settings.owner, **steps})
    rows += roles
    return settings.placed(rows)


def summarise(rows: Rows) -> Summary:
    """Tuning, final losses, the gap against unevenness, steps to pre-ln's loss; the verdicts of the rule."""
    tuned = shared.Tuned.of(rows)
    uneven, met = spreads(rows), spreads(rows, PRECONDITIONED)
    learnt = learnt_by_block(tuned.runs)
    gap = gaps(tuned.runs.losses, learnt)
    verdicts = [
        *need_checks(tuned, rates_apart(rows)),
        *curvature_checks(tuned, gap, uneven, learnt),
        *even_checks(tuned, uneven, met),
    ]
    steps = steps_to_the_base(tuned.runs, pilots(rows))
    return shared.summary(
        "Which optimiser does each block need?",
        "Rates by curvature are one for each role, published ones are multipliers of one base; Muon steps the matrices of the layers, AdamW the rest; so does SGD in the layers. Tuning has one "
        f"seed; runs are at the best rates, with seeds of their own. {shared.HOW}",
        [panel for panel in _panels(tuned, gap, uneven, steps) if panel.shown],
        [
            *tuned.rate_checks(),
            tuned.runs.below_the_table(BASE, shared.BIGRAMS),
            *(tuned.runs.where_learnt(check, BASE) for check in verdicts),
        ],
        losses=tuned.runs.table(),
        tuning=tuned.tuning_table(),
        needs=_need_table(tuned.runs),
        gaps=_gap_table(gap, uneven, met),
        steps=steps_table(steps),
        roles=_role_table(rows),
        correlations=correlation_table(tuned.runs, gap, uneven),
    )


def pilots(rows: Rows) -> dict[str, int]:
    """Label → the steps of its pilot."""
    return {row["variant"]: int(row["value"]) for row in shared.of_quantity(rows, PILOT_STEPS)}


def _role_table(rows: Rows) -> list[dict[str, object]]:
    """Rate of each role as a share of the tuned one, and the norm that it is of, over the seeds of the runs that count."""
    kept = [row for row in rows if row.get("phase") == shared.COUNTED]
    norms = shared.gathered(shared.of_quantity(kept, NORM_OF_ROLE), "variant", "group")
    rates = shared.gathered(shared.of_quantity(kept, RATE_OF_ROLE), "variant", "group")
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
    """Label → {seed: steps to the loss that `BASE` ends with, those of its pilot too, as a share of a run's}; infinite where it never gets there."""
    found: dict[str, dict[Scalar, float]] = {}
    for label in BLOCK_OF:
        for seed in runs.losses.get(label, {}).keys() & runs.losses.get(BASE, {}).keys():
            target, last = runs.losses[BASE][seed], runs.curve(BASE, seed)[-1][0]
            if math.isfinite(target) and last:
                steps = shared.steps_to(runs.curve(label, seed), target)
                found.setdefault(label, {})[seed] = (steps + pilot.get(label, 0)) / last
    return found


def steps_table(steps: shared.Values) -> list[dict[str, object]]:
    """Mean share of the steps of the seeds that get there, and how many do."""
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
    """The best optimiser of each block, and those that end no more than `CLOSE` above it."""
    means = shared.finite(runs.losses)
    table: list[dict[str, object]] = []
    for block in BLOCKS:
        own = {m: means[label_of(block, m)][0] for m in METHODS if label_of(block, m) in means}
        if own:
            best = min(own, key=own.__getitem__)
            good = [method for method in own if own[method] <= own[best] + shared.CLOSE]
            line = {"block": block, "best": best, "within_close": ", ".join(good)}
            table.append(line | {f"loss_{method}": own.get(method) for method in METHODS})
    return table


def _gap_table(
    gap: shared.Values,
    uneven: dict[tuple[str, str], shared.Values],
    met: dict[tuple[str, str], shared.Values],
) -> list[dict[str, object]]:
    """Gap and unevenness of each block, of H and of what AdamW meets."""
    return [
        {
            "block": block,
            "groups": matrices,
            "moment": moment,
            "spread": shared.over_seeds(values[block]).mean,
            "spread_error": shared.over_seeds(values[block]).error,
            "spread_that_adamw_meets": fmean(there.values()) if there else None,
            "gap": mean if math.isfinite(mean) else None,
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
    """The tuning of each optimiser, final losses, steps, and the gap against unevenness."""
    panels = [
        tuned.tuning.tuning_panel(
            {block: label_of(block, method) for block in FAMILY_OF if method in methods_of(block)},
            f"tuning: {SHOWN[method]}",
        )
        for method in METHODS
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
    """Block → {optimiser: mean and error}, and the level of the bigram table where it is there."""
    means = shared.finite(values)
    found = {
        block: {m: means[label_of(block, m)] for m in METHODS if label_of(block, m) in means}
        for block in FAMILY_OF
    }
    for name, methods in ((shared.GPT2, (ADAMW,)), (shared.BIGRAMS, METHODS)):
        if name in means:
            found[name] = dict.fromkeys(methods, means[name])
    return {name: {SHOWN[m]: each[m] for m in METHODS if m in each} for name, each in found.items()}


def _scatter(
    moment: str, even: dict[str, tuple[float, float]], gap: dict[str, tuple[float, float]]
) -> Panel:
    """The gap against the spread, one point a block."""
    return Panel(
        title=f"gap and unevenness {moment}",
        x_label="spread of log10 ‖H‖ (decades)",
        y_label="SGD above AdamW (nats per token)",
        series=tuple(
            shared.curve(block, [(even[block][0], *gap[block])], line=False)
            for block in FAMILY_OF
            if block in even and block in gap
        ),
    )


STUDY = Study(
    name="optimisers",
    title="SGD, AdamW, Muon and rates of roles, each block at its best rate, against the unevenness of its curvature",
    source="ours, testing a claim of the Hessian paper",
    published="Argued, not tested: heterogeneous blocks of the Hessian are why transformers need Adam.",
    settings=points,
    measure=measure,
    summarise=summarise,
    columns=shared.TUNED_COLUMNS,
    gpus=1,
)
