"""Ours: does the simplified block stand larger rates and need less warm-up, and does curvature say so beforehand?

Sharpness is the largest eigenvalue of D⁻¹H with D the preconditioner of AdamW as it stands, on windows of the training text; the edge is the
largest that a step of the current rate stands, 38 / η, with D held fixed (Cohen et al. 2022, arXiv 2207.14484).

The rule, written down before the first run:

1. pre-ln with zero queries and sas-p, both with rotary positions and the embeddings that `trial` found best (1/√width and 0.02), with AdamW, each with a warm-up over a tenth of the steps and
   without. Both kinds are run at every rate of a ladder of half decades (`RATES`) with three seeds; equal seeds have equal weights and data.
2. A block's best rate is that of one further seed with warm-up; that seed counts no further. The ladder is made longer by hand
   until the best rates lie inside, and so do the tolerated ones. transformers' GPT-2 is drawn beside them, and the bigram table.
3. A run's tolerated rate is the largest up to which it ends at most `TOLERANCE` nats above the best rate of its seed, on a line in log η between
   two rates of the ladder. The need for warm-up is the loss without above that with, at the block's best rate, and,
   in decades, by how much the tolerated rate falls without.
4. What curvature says is read off the runs at the lowest rate of the ladder, at which nothing is in danger: the forecast of the
   tolerated rate is 38 over the sharpness at the first step that is followed, with warm-up; that of the need for warm-up is
   that sharpness over the one after a tenth of the steps, without warm-up.
5. Verdicts, sas-p against pre-ln, seed by seed with 95 % intervals (Student's t), to both sides: it stands larger rates, with warm-up
   and without; it needs less warm-up, by both measures. A verdict holds or fails where the blocks differ by more than `ALIKE` decades or
   `CLOSE` nats; where they differ by less they are alike, which is said and is neither: between two rates of the ladder the tolerated
   one follows how badly the run at the upper one ends. Curvature says so beforehand where forecast and outcome differ
   between the blocks to the same side, or are both alike; it fails where they are decided otherwise.
6. Void: all verdicts where pre-ln does not end at least 0.3 nats below the bigram table, or a best rate is at an end; those on
   tolerated rates where one lies beyond the ladder; those on forecasts where a sharpness that they rest on is not known to a tenth,
   is lost, or is not above 0.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from torch import nn
from torch.optim import Optimizer

from hessblocks.curvature import (
    AttentionBackendWarning,
    Problem,
    Sharpness,
    preconditioned_sharpness,
)
from hessblocks.data import Example
from hessblocks.errors import RunError
from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks.studies import shared
from hessblocks.studies.engine import Check, Rows, Scale, Study, Summary
from hessblocks.training import RunTrainer

BASE, SIMPLE = "pre-ln, zero queries", "sas-p"
BLOCKS = (BASE, SIMPLE)
POSITION = ("position=rotary",)
WARM, COLD = "warm-up", "no warm-up"
KINDS = {WARM: 0.1, COLD: 0.0}
"""Kind of run → share of the steps in which the rate grows."""


def label_of(block: str, kind: str) -> str:
    """Name of a block with a warm-up or without."""
    return f"{block}, {kind}"


LABELS = {label_of(block, kind): (block, kind) for block in BLOCKS for kind in KINDS}
RATES: dict[Scale, tuple[float, ...]] = {
    "smoke": (3e-3, 1e-2),
    "laptop": (3e-3, 1e-2, 1e-3, 3e-2, 1e-1),
    "paper": (1e-3, 3e-3, 3e-4, 1e-2, 3e-2),
}
"""The ladder, the likeliest rates first; made longer as results come in."""
SIZES: dict[Scale, shared.TextSize] = {
    "smoke": replace(
        shared.SMOKE, depth=1, steps=10, batch_size=4, evaluations=5, evaluation_sequences=8
    ),
    "laptop": replace(shared.LAPTOP, steps=800, evaluations=80, evaluation_sequences=64),
    "paper": replace(shared.PAPER, evaluations=100),
}
"""The sharpness is followed whenever a validation loss is taken."""
_BATCHES: dict[Scale, tuple[int, int]] = {"smoke": (2, 8), "laptop": (8, 32), "paper": (8, 128)}
"""Windows of the training text, and tokens of each, on which it is measured."""
_SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3, "paper": 3}
PRODUCTS, FIRST_PRODUCTS = 5, 40
"""With H for the sharpness of a role, which starts from what was found before, and for the first of its run."""
WHOLE_PRODUCTS = 15
"""For that of all parameters, which forecasts rest on."""
SHARPNESS, SHARE = "preconditioned_sharpness", "share_of_the_edge"
WHOLE = "all"
"""In the place of a role: all parameters."""
DRAWN = ("query", "key", "value", "mlp_in", "mlp_out", "embedding")
"""Roles in the figure; the table has all."""
TOLERANCE = 0.2
"""Nats above a seed's best rate that a tolerated rate may end at."""
ALIKE = 0.25
"""Decades, half a step of the ladder, within which two blocks count as alike in rates, needs and forecasts."""
EDGE = 38.0
"""The edge times the rate, at AdamW's β₁ = 0.9."""


@dataclass(frozen=True, kw_only=True)
class EdgeSettings(shared.TunedSettings):
    """A point of this study: one run, or one reference."""

    sequences: int | None = None
    """Windows on which sharpness is measured; None where it is not followed."""
    tokens: int | None = None
    """Of each."""


def points(scale: Scale, count: int | None) -> list[EdgeSettings]:
    """The ladder of each block with warm-up at the tuning seed, then all ladders seed by seed.

    Args:
        scale: of the study.
        count: seeds of the runs; None for the scale's own.

    Returns:
        The points' settings.
    """
    warm = (*(label_of(block, WARM) for block in BLOCKS), shared.GPT2)
    ladders = dict.fromkeys((*LABELS, shared.GPT2), RATES[scale])
    runs: list[tuple[str, float | None]] = [(shared.BIGRAMS, None)]
    runs += [(label, rate) for label, rates in ladders.items() for rate in rates]
    return [
        *shared.tuning_points(
            partial(_point, scale, shared.TUNING), {label: ladders[label] for label in warm}
        ),
        *(
            _point(scale, shared.COUNTED, label, rate, seed)
            for seed in shared.run_seeds(count or _SEEDS[scale])
            for label, rate in runs
        ),
    ]


def _point(scale: Scale, phase: str, label: str, rate: float | None, seed: int) -> EdgeSettings:
    size = SIZES[scale]
    block, kind = LABELS.get(label, (None, WARM))
    followed = bool(block) and phase == shared.COUNTED
    sequences, tokens = _BATCHES[scale] if followed else (None, None)
    return EdgeSettings(
        study="edge-of-stability",
        variant=block or label,
        seed=seed,
        size=replace(size, learning_rate=rate or size.learning_rate),
        slots=POSITION if block else (),
        embedding_std=shared.best_start(block, size.width) if block else None,
        warmup=KINDS[kind] if rate else None,
        phase=phase,
        label=label,
        tuned=True if rate else None,
        sequences=sequences,
        tokens=tokens,
    )


def measure(settings: EdgeSettings) -> list[Row]:
    """Train one model; the sharpness of all parameters and of every role along the way."""
    trainers: list[RunTrainer] = []
    found: dict[str, Sharpness] = {}

    def observe(model: nn.Module, step: int) -> list[Row]:
        if not step or not settings.sequences or not settings.tokens:
            return []
        corpus = shared.text_of(settings.size)
        batch = shared.training_batch(corpus, settings.sequences, settings.tokens)
        optimiser = cast(Optimizer, trainers[0].optimizer)
        return sharpness(model, optimiser, batch, found)

    return settings.placed(shared.train_point(settings, observe, trainers.append))


def sharpness(
    model: nn.Module, optimiser: Optimizer, batch: Example, found: dict[str, Sharpness]
) -> list[Row]:
    """The largest eigenvalue of D⁻¹H of all parameters and of every role, and how near the edge the next step is.

    Args:
        model: put into evaluation mode.
        optimiser: AdamW of this model, after its first step.
        batch: of the training text.
        found: what was found before, by role; is brought up to date.

    Returns:
        A row of each, with the residual as its error; none where a product is not finite, and of the edge none
        where the rate is 0.
    """
    problem = Problem(model.eval(), batch, loss="causal-lm")
    rows = []
    with warnings.catch_warnings(action="ignore", category=AttentionBackendWarning):
        for name, group in {WHOLE: None, **shared.by_role(model)}.items():
            start = found.get(name)
            usual = PRODUCTS if group else WHOLE_PRODUCTS
            products = usual if start else FIRST_PRODUCTS
            try:
                one = preconditioned_sharpness(
                    problem, optimiser, group, start=start, products=products
                )
            except RunError:  # about to diverge
                continue
            found[name] = one
            place: Row = {"group": name, "standard_error": one.residual}
            rows.append(shared.measured(SHARPNESS, one.value, "estimate", **place))
            if name == WHOLE and math.isfinite(one.threshold):
                share = one.value / one.threshold
                place = {"group": name, "standard_error": one.residual / one.threshold}
                rows.append(shared.measured(SHARE, share, "estimate", **place))
    return rows


def tolerated(losses: Mapping[float, float]) -> float | None:
    """log10 of the largest rate up to which losses stay within `TOLERANCE` of the best.

    Args:
        losses: rate → final loss of one seed; infinite where it diverged.

    Returns:
        On a line between two rates; the lower one where the run at the upper diverged; None where it lies beyond
        the largest rate, or nothing trained.
    """
    best = min(losses, key=losses.__getitem__)
    limit = losses[best] + TOLERANCE
    for low, high in itertools.pairwise(sorted(rate for rate in losses if rate >= best)):
        if losses[high] > limit:
            part = (limit - losses[low]) / (losses[high] - losses[low])
            return math.log10(low) + part * math.log10(high / low)
    return None


@dataclass(frozen=True, kw_only=True)
class Edges:
    """What is measured, and what is read off."""

    tuned: shared.Tuned
    """Losses of all runs; the best rate of each block."""
    sharp: Mapping[str, Mapping[Scalar, Mapping[float, tuple[float, float]]]]
    """Label with its rate → {seed: {step: (sharpness of all parameters, residual)}}, of those above 0."""
    followed: Sequence[float]
    """Steps after which runs are looked at, in order."""

    def tolerances(self) -> dict[str, dict[Scalar, float | None]]:
        """Label → {seed: log10 of its tolerated rate}, of whole ladders of three rates or more; None where it lies beyond."""
        found: dict[str, dict[Scalar, float | None]] = {}
        grids = self.tuned.runs.grids
        ladder = {rate for label in LABELS for rate in grids.get(label, {})}
        for label in LABELS:
            grid = grids.get(label, {})
            if len(ladder) < 3 or grid.keys() != ladder:
                continue
            for seed in sorted(set.intersection(*map(set, grid.values())), key=str):
                own = {rate: seeds[seed] for rate, seeds in grid.items()}
                found.setdefault(label, {})[seed] = tolerated(own)
        return found

    def best(self, block: str) -> float | None:
        """The best rate of a block with warm-up, by the tuning seed."""
        rate = self.tuned.tuning.rates.get(label_of(block, WARM))
        return rate.best if rate else None

    def extra_losses(self) -> dict[str, dict[Scalar, float]]:
        """Block → {seed: loss without warm-up above that with, at its best rate}."""
        found: dict[str, dict[Scalar, float]] = {}
        for block in BLOCKS:
            rate = self.best(block)
            warm, cold = (
                self.tuned.runs.grids.get(label_of(block, kind), {}).get(rate or 0.0, {})
                for kind in (WARM, COLD)
            )
            found[block] = {
                seed: cold[seed] - warm[seed]
                for seed in cold
                if math.isfinite(warm.get(seed, math.inf))
            }
        return found

    def lowest(self, label: str) -> dict[Scalar, Mapping[float, tuple[float, float]]]:
        """The sharpness along every run at the lowest rate of the ladder."""
        grid = self.tuned.runs.grids.get(label, {})
        if not grid:
            return {}
        sharp = self.sharp.get(f"{label}{shared.AT_RATE}{min(grid):g}", {})
        return {seed: sharp.get(seed, {}) for seed in grid[min(grid)]}

    def forecasts(
        self,
    ) -> tuple[dict[str, dict[Scalar, float]], dict[str, dict[Scalar, float]], dict[str, float]]:
        """What curvature says beforehand.

        Returns:
            Block → {seed: log10 of the rate whose edge the first sharpness is}; block → {seed: log10 of the first
            sharpness over that after a tenth of the steps}; run and step → the residual of each of these, as a share,
            infinite where the sharpness is lost or not above 0: no other step stands in for it.
        """
        rates: dict[str, dict[Scalar, float]] = {}
        needs: dict[str, dict[Scalar, float]] = {}
        unsure: dict[str, float] = {}
        for label, (block, kind) in LABELS.items():
            for seed, sharp in self.lowest(label).items():
                tenth = KINDS[WARM] * self.followed[-1]
                later = next(step for step in self.followed if step >= tenth)
                wanted = [self.followed[0], later][: 1 if kind == WARM else 2]
                for step in wanted:
                    value, residual = sharp.get(step, (1.0, math.inf))
                    unsure[f"{label}, seed {seed}, step {step:g}"] = residual / value
                values = [sharp[step][0] for step in wanted if step in sharp]
                if len(values) == len(wanted):
                    of, top = (rates, EDGE) if kind == WARM else (needs, values[0])
                    of.setdefault(block, {})[seed] = math.log10(top / values[-1])
        return rates, needs, unsure


def edges_of(rows: Rows) -> Edges:
    """What is measured; sharpnesses that are not above 0 are left out."""
    sharp: dict[str, dict[Scalar, dict[float, tuple[float, float]]]] = {}
    for row in shared.of_quantity(rows, SHARPNESS):
        if row["group"] == WHOLE and row["value"] > 0:
            steps = sharp.setdefault(row["variant"], {}).setdefault(row["seed"], {})
            steps[float(row["step"])] = row["value"], row["standard_error"]
    looked = {float(row["step"]) for row in shared.of_quantity(rows, shared.LOSS)}
    return Edges(tuned=shared.Tuned.of(rows), sharp=sharp, followed=sorted(looked - {0.0}))


def summarise(rows: Rows) -> Summary:
    """Losses against the rate, the edge and the sharpness of roles along training, what is tolerated and forecast."""
    edges = edges_of(rows)
    tuned = edges.tuned
    return shared.summary(
        "At the edge of stability with and without warm-up",
        "Sharpness is the largest eigenvalue of D⁻¹H with AdamW's preconditioner, on training text; the edge is 38 over the current rate. Each block "
        f"at its best rate where the step is the abscissa. {shared.HOW}",
        [panel for panel in _panels(rows, edges) if panel.shown],
        _checks(edges),
        losses=tuned.runs.table(),
        tuning=tuned.tuning_table(),
        edges=_edge_table(edges),
        sharpness=_sharpness_table(rows, edges),
    )


def _checks(edges: Edges) -> list[Check]:
    """Controls, and the verdicts of the rule."""
    tuned, all_rates = edges.tuned, edges.tolerances()
    known = {
        label: {seed: rate for seed, rate in seeds.items() if rate is not None}
        for label, seeds in all_rates.items()
    }
    beyond = [
        f"{label}, seed {seed}"
        for label, seeds in all_rates.items()
        for seed, rate in seeds.items()
        if rate is None
    ]
    below = tuned.runs.below_the_table(label_of(BASE, WARM), shared.BIGRAMS)
    inside = Check(
        fact="each tolerated rate lies inside the ladder",
        expected="none beyond it (rule of this study)",
        ours=f"beyond: {'; '.join(beyond)}" if beyond else f"so for all of {len(all_rates)} kinds",
        holds=not beyond if len(all_rates) == len(LABELS) else None,
    )
    stands = [
        apart_check(
            {block: known.get(label_of(block, kind), {}) for block in BLOCKS},
            f"{SIMPLE} stands larger rates than {BASE}, with {kind}",
            expected=f"open question: a tolerated rate larger by more than {ALIKE:g} decades",
            above=True,
        )
        for kind in KINDS
    ]
    lost, less = _lost(known), f"{SIMPLE} needs less warm-up than {BASE}, by"
    needs = [
        apart_check(
            edges.extra_losses(),
            f"{less} the loss at the best rate",
            expected=f"open question: less is lost without, by more than {shared.CLOSE:g} nats",
            above=False,
            limit=shared.CLOSE,
            unit="nats",
        ),
        apart_check(
            lost,
            f"{less} the tolerated rate",
            expected=f"open question: it falls without by a number of decades smaller by more than {ALIKE:g}",
            above=False,
        ),
    ]
    rates, humps, unsure = edges.forecasts()
    largest = max(unsure.values(), default=math.nan)
    gone = [place for place, share in unsure.items() if math.isinf(share)]
    found = f"lost or not above 0: {'; '.join(gone)}" if gone else f"at most {largest:.2g}"
    control = Check(
        fact="the sharpness that forecasts rest on is known",
        expected="residuals of a tenth at most (control)",
        ours=found if unsure else "not finished",
        holds=largest <= 0.1 if unsure else None,
    )
    warm = {block: known.get(label_of(block, WARM), {}) for block in BLOCKS}
    said = [
        forecast_check("which block stands the larger rates", rates, warm),
        forecast_check("which block needs more warm-up", humps, lost),
    ]
    ladder = "void, since a tolerated rate lies beyond the ladder"
    unknown = "void, since the sharpness is not known well enough"
    void = [shared.judged_by(inside, one, ladder) for one in (*stands, needs[1])]
    void.insert(2, needs[0])
    void += [
        shared.judged_by(control, shared.judged_by(inside, one, ladder), unknown) for one in said
    ]
    best = [label_of(block, WARM) for block in BLOCKS]
    return [
        tuned.rate_checks()[0],
        below,
        inside,
        control,
        *(shared.judged_by(below, tuned.judged(one, *best), shared.VOID) for one in void),
    ]


def _lost(known: shared.Values) -> dict[str, dict[Scalar, float]]:
    """Block → {seed: decades by which the tolerated rate falls without warm-up}."""
    found = {}
    for block in BLOCKS:
        warm, cold = (known.get(label_of(block, kind), {}) for kind in (WARM, COLD))
        found[block] = {seed: warm[seed] - cold[seed] for seed in warm if seed in cold}
    return found


def apart_check(
    values: shared.Values,
    fact: str,
    *,
    expected: str,
    above: bool,
    limit: float = ALIKE,
    unit: str = "decades",
) -> Check:
    """A fact that holds where the blocks differ to one side, and fails where they do to the other.

    Args:
        values: block → {seed: value}.
        fact: in a sentence.
        expected: its direction.
        above: whether the fact says that sas-p's is the larger.
        limit: up to which blocks are alike.
        unit: of the values.

    Returns:
        The fact; undecided where the seeds are, and where the blocks are alike, which is then said.
    """
    found = shared.difference(values, SIMPLE, BASE)
    where = side(found, limit)
    alike = f"; alike, within {limit:g} {unit}" if where == 0 else ""
    return Check(
        fact=fact,
        expected=expected,
        ours=f"{found.text(unit)}{alike}",
        holds=(where > 0) == above if where else None,
    )


def forecast_check(what: str, forecast: shared.Values, outcome: shared.Values) -> Check:
    """Whether forecast and outcome differ between the blocks to the same side.

    Args:
        what: is forecast.
        forecast: block → {seed: decades}.
        outcome: likewise.

    Returns:
        The fact; undecided where either is.
    """
    found = [shared.difference(values, SIMPLE, BASE) for values in (forecast, outcome)]
    sides = [side(one) for one in found]
    said, came = (one.text("decades") for one in found)
    return Check(
        fact=f"curvature says beforehand {what}",
        expected=f"{SIMPLE} differs from {BASE} to the same side, or both by {ALIKE:g} decades at most",
        ours=f"forecast {said}, outcome {came}",
        holds=None if None in sides else sides[0] == sides[1],
    )


def side(found: shared.Difference, limit: float = ALIKE) -> int | None:
    """1 above and −1 below what is alike, 0 alike; None where the seeds do not decide."""
    if found.within(limit):
        return 0
    if found.above(limit):
        return 1
    return -1 if found.above(-limit) is False else None


def _edge_table(edges: Edges) -> list[dict[str, object]]:
    """Tolerated rates of all runs beside what curvature says of their block."""
    rates, humps, _ = edges.forecasts()
    extra = edges.extra_losses()
    return [
        {
            "block": LABELS[label][0],
            "kind": LABELS[label][1],
            "seed": seed,
            "log10_tolerated_rate": rate,
            "log10_forecast_rate": rates.get(LABELS[label][0], {}).get(seed),
            "log10_first_over_later_sharpness": humps.get(LABELS[label][0], {}).get(seed),
            "loss_without_above_with_warm_up": _known(extra[LABELS[label][0]].get(seed)),
        }
        for label, seeds in edges.tolerances().items()
        for seed, rate in seeds.items()
    ]


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _at_best(rows: Rows, edges: Edges, quantity: str) -> dict[str, Rows]:
    """Label → rows above 0 of its runs at its block's best rate."""
    found: dict[str, Rows] = {}
    for label, (block, _) in LABELS.items():
        rate = edges.best(block)
        name = f"{label}{shared.AT_RATE}{rate:g}" if rate else ""
        found[label] = [
            row
            for row in shared.of_quantity(rows, quantity)
            if row["variant"] == name and row["value"] > 0
        ]
    return found


def _curves(rows: Rows) -> dict[str, dict[float, list[float]]]:
    """Role → {step: values of the seeds}."""
    found: dict[str, dict[float, list[float]]] = {}
    for row in sorted(rows, key=lambda row: float(row["step"])):
        found.setdefault(row["group"], {}).setdefault(float(row["step"]), []).append(row["value"])
    return found


def _sharpness_table(rows: Rows, edges: Edges) -> list[dict[str, object]]:
    """Sharpness of every role at the best rate, every step that was followed, mean over seeds."""
    table: list[dict[str, object]] = []
    for label, own in _at_best(rows, edges, SHARPNESS).items():
        for group, steps in _curves(own).items():
            for step, values in steps.items():
                mean, error = mean_and_error(values)
                line = {"run": label, "group": group, "step": step, "sharpness": mean}
                table.append(line | {"standard_error": error, "seeds": len(values)})
    return table


def _panels(rows: Rows, edges: Edges) -> list[Panel]:
    """Losses against the rate, the edge along training, and the sharpness of roles, each with warm-up and without."""
    panels = [
        edges.tuned.runs.tuning_panel(
            {block: label_of(block, kind) for block in BLOCKS} | {shared.GPT2: shared.GPT2}, kind
        )
        for kind in KINDS
    ]
    named = _at_best(rows, edges, SHARE)
    for kind in KINDS:
        shares = {block: _curves(named[label_of(block, kind)]).get(WHOLE, {}) for block in BLOCKS}
        panels.append(_along(f"{kind}: how near the edge", "sharpness over the edge", shares))
    for label, own in _at_best(rows, edges, SHARPNESS).items():
        roles = {name: each for name, each in _curves(own).items() if name in DRAWN}
        panels.append(_along(label, "largest eigenvalue of D⁻¹H", roles))
    return panels


def _along(title: str, y_label: str, curves: Mapping[str, Mapping[float, list[float]]]) -> Panel:
    """Curves along training on a logarithmic ordinate."""
    return Panel(
        title=title,
        x_label="training step",
        y_label=y_label,
        y_scale="log",
        series=tuple(
            shared.curve(name, shared.mean_places(each)) for name, each in curves.items() if each
        ),
    )


STUDY = Study(
    name="edge-of-stability",
    title="sharpness as AdamW's step meets it, tolerated rates and the need for warm-up, pre-ln against sas-p",
    source="ours, from the edge of stability of adaptive optimisers",
    published=(
        "Training hovers where the preconditioned sharpness is 38 over the rate (Cohen et al. 2022); nothing is "
        "published of simplified blocks."
    ),
    settings=points,
    measure=measure,
    summarise=summarise,
    columns=shared.TUNED_COLUMNS,
    gpus=1,
)
