"""Summarise training: loss curves, final losses, and who trains slower than whom."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Scalar
from hessblocks_studies.engine import Check, Rows, Summary
from hessblocks_studies.shared.best_rates import Rate, at_best_rates, best_rate
from hessblocks_studies.shared.differences import Difference, difference, judged_by
from hessblocks_studies.shared.gathering import (
    Place,
    curve,
    mean_places,
    of_quantity,
    panel,
    summary,
)
from hessblocks_studies.shared.pooled_errors import Residual, Values, error_line, pooled_error
from hessblocks_studies.shared.trained_points import AT_RATE, BIGRAMS, LOSS, REFERENCES
from hessblocks_studies.shared.variants import BASES

HOW = "Python source; mean over seeds, bars are its standard errors."
"""Caption of losses in a figure."""
TUNED = (
    "Each block stands at the best learning rate of its grid; the first seed alone tries the "
    "others, and counts in the verdicts."
)
"""Caption of blocks that are trained at several rates."""
CURVES = f"{HOW} Loss curves begin after a fifth of the steps."
"""The same where there are loss curves."""
EARLY = 0.2
"""Share of the steps that loss curves leave out, beside which differences at the end would not be
seen."""
BASE = "pre-ln"
"""The block that all others are compared with."""
MARGIN = 0.3
"""Nats per token by which pre-ln must beat the bigram table, or its run was too short to compare
blocks."""
DRAWN = 12
"""Places of a curve beyond which its markers hide other curves."""
REVERSED = "a rate that one seed found better could reverse this"
"""Behind the numbers of a verdict that is closer than that."""
CLOSE = 0.05
"""Nats per token that count as no difference, in every claim about losses."""


def void_of(name: str) -> str:
    """Say that a verdict is void since its control, this block's loss, does not hold."""
    return f"void, since {name} does not end {MARGIN:g} nats below the bigram table"


class Runs:
    """The runs of a study, as far as they are measured."""

    def __init__(self, rows: Rows) -> None:
        """Take the rows in.

        Args:
            rows: validation losses and parameters, among others.
        """
        self.losses: dict[str, dict[Scalar, float]] = {}
        """Variant → {seed: last validation loss}; diverged runs are infinite. A variant that was
        trained at several rates stands here with its best, under its own name."""
        self.rates: dict[str, Rate] = {}
        """Variant that was trained at several rates → the best of them."""
        self.grids: dict[str, dict[float, dict[Scalar, float]]] = {}
        """Variant that was trained at several rates → {rate: {seed: last validation loss}}."""
        self._curves: dict[tuple[str, Scalar], dict[float, float | None]] = {}
        for row in of_quantity(rows, LOSS):
            steps = self._curves.setdefault((row["variant"], row["seed"]), {})
            steps[float(row["step"])] = row["value"]
        for (variant, seed), steps in self._curves.items():
            last = steps[max(steps)]
            self.losses.setdefault(variant, {})[seed] = math.inf if last is None else last
        self._take_best_rates()
        judged = {v: each for v, each in self.losses.items() if not v.startswith(REFERENCES)}
        self.residual: Residual | None = pooled_error(judged)
        """The error of one run, from all blocks and seeds; of references no verdict is."""
        kinds = [name.removeprefix(BIGRAMS) for name in self.losses if name.startswith(BIGRAMS)]
        self._kinds = sorted(kinds, key=len, reverse=True)
        self.controls = {
            kind: self.below_the_table(BASE + kind, BIGRAMS + kind)
            for kind in self._kinds
            if BASE + kind in self.losses
        }
        """Suffix of the names of variants → whether pre-ln has learnt more than pairs of tokens
        there. Only then does a verdict about losses count."""
        self._parameters = {
            row["variant"].partition(AT_RATE)[0]: row["value"]
            for row in of_quantity(rows, "parameters")
        }

    def _take_best_rates(self) -> None:
        """Let the best rate of each variant stand for it."""
        for name in [name for name in self.losses if AT_RATE in name]:
            variant, _, rate = name.partition(AT_RATE)
            self.grids.setdefault(variant, {})[float(rate)] = self.losses.pop(name)
        for variant, grid in self.grids.items():
            self.rates[variant] = best_rate(grid)
            best = self.rates[variant].best
            self.losses[variant] = grid[best]
            for seed in grid[best]:
                self._curves[variant, seed] = self._curves[f"{variant}{AT_RATE}{best:g}", seed]

    def apart(self, one: str, other: str) -> Difference:
        """How far the final loss of `one` is above that of `other`."""
        return difference(self.losses, one, other, self.residual)

    def curve(self, variant: str, seed: Scalar) -> list[tuple[float, float]]:
        """(step, validation loss) of one run; a loss that is not a number is left out."""
        steps = self._curves[variant, seed]
        return [(step, loss) for step, loss in steps.items() if loss is not None]

    def mean_curve(self, variant: str) -> list[Place]:
        """(step, loss averaged over seeds, its standard error), as far as no seed diverged."""
        at: dict[float, list[float]] = {}
        seeds = self.losses.get(variant, {})
        for seed in seeds:
            for step, loss in self.curve(variant, seed):
                at.setdefault(step, []).append(loss)
        return mean_places({step: at[step] for step in sorted(at) if len(at[step]) == len(seeds)})

    def panel(self, blocks: Sequence[str], title: str, kind: str = "") -> Panel:
        """Plot validation loss against later steps, mean over seeds, up to where a seed diverged.

        Args:
            blocks: what is drawn, and the names of the series.
            title: title of the panel.
            kind: suffix of the variants' names after those of the blocks.

        Returns:
            The panel, without the blocks of which nothing is known, and with the references.
        """
        drawn = (*blocks, *REFERENCES)
        found = {block: self.mean_curve(block + kind) for block in drawn}
        return late(panel(title, "training step", "validation loss (nats per token)", found))

    def tuning_panel(self, labels: Mapping[str, str], title: str) -> Panel:
        """Plot final loss against the rate, mean over seeds, without rates at which one diverged.

        Args:
            labels: name of the series → variant that was trained at several rates.
            title: title of the panel.

        Returns:
            The panel, with the bigram table, which has no rate, as a level line; losses far above
            all that matters are beyond its upper end.
        """
        grids = {name: self.grids.get(variant, {}) for name, variant in labels.items()}
        rates = dict.fromkeys(sorted({rate for grid in grids.values() for rate in grid}))
        if table := self.losses.get(BIGRAMS):
            grids[BIGRAMS] = dict.fromkeys(rates, table)
        finite = {
            name: {
                rate: seeds
                for rate in rates
                if (seeds := [*grid.get(rate, {}).values()]) and math.isfinite(sum(seeds))
            }
            for name, grid in grids.items()
        }
        curves = {name: mean_places(each) for name, each in finite.items()}
        axes = ("peak learning rate", "final loss (nats per token)")
        return _close_up(panel(title, *axes, curves, log="x"))

    def table(self) -> list[dict[str, object]]:
        """Final loss and parameters of every variant, with the error of all runs if one fits."""
        pooled = self.residual if self.residual and self.residual.fits else None
        table: list[dict[str, object]] = []
        for variant, seeds in self.losses.items():
            kept = [loss for loss in seeds.values() if math.isfinite(loss)]
            mean, error = mean_and_error(kept) if kept else (None, None)
            if pooled and len(set(kept)) > 1 and not variant.startswith(REFERENCES):
                error = pooled.deviation / math.sqrt(len(kept))
            table.append(
                {
                    "variant": variant,
                    "final_loss": mean,
                    "standard_error": error,
                    "seeds": len(seeds),
                    "diverged": len(seeds) - len(kept),
                    "parameters": self._parameters.get(variant),
                }
            )
            if variant in self.rates:
                found = self.rates[variant]
                table[-1] |= {"best_rate": found.best, "rate_settled": found.settled}
        return table

    def below_the_table(self, base: str, table: str) -> Check:
        """Whether `base` ends `MARGIN` below the bigram table."""
        return (
            self.apart(base, table)
            .judged(
                f"{base} has learnt more than pairs of tokens",
                f"at least {MARGIN:g} below the {table} (ours; without it "
                "no loss here says anything)",
                limit=-MARGIN,
                above=False,
            )
            .as_control()
        )

    def if_it_counts(self, check: Check, *variants: str) -> Check:
        """Leave a check undecided where its control fails or a best rate is not inside its grid.

        The control is that pre-ln, and pre-ln with zero queries where the fact is about that, has
        learnt more than pairs of tokens.

        Args:
            check: a fact about losses.
            *variants: that it is about; their names say which bigram tables count.

        Returns:
            The check, or one that holds neither way.
        """
        for variant in variants or ("",):
            kind = self._kind(variant)
            own = [variant] if variant.removesuffix(kind) in BASES else []
            for base in dict.fromkeys((BASE + kind, *own)):
                check = judged_by(self.below_the_table(base, BIGRAMS + kind), check, void_of(base))
        return at_best_rates(check, self.rates, *variants)

    def _kind(self, variant: str) -> str:
        """Return the suffix of a variant after its block, as the table of bigrams has it too."""
        return next((kind for kind in self._kinds if variant.endswith(kind)), "")

    def where_learnt(self, check: Check, variant: str, name: str | None = None) -> Check:
        """Leave a check undecided where a variant has learnt no more than pairs of tokens.

        Args:
            check: a fact.
            variant: that must have learnt for it to count.
            name: name of it in the reason; None for its own.

        Returns:
            The check, or one that holds neither way.
        """
        learnt = self.below_the_table(variant, BIGRAMS + self._kind(variant))
        return judged_by(learnt, check, void_of(name or variant))

    def slower(self, slow: str, fast: str, fact: str, by: float = 0.0) -> Check:
        """Whether `slow` ends with the higher loss at equal tokens, by more than `by`.

        Args:
            slow: name of a variant.
            fast: name of another.
            fact: in a sentence.
            by: nats.

        Returns:
            The fact; void where `fast` has learnt no more than pairs of tokens, undecided where a
            rate that one seed found better than the best could reverse it.
        """
        margin = f"more than {by:g}" if by else "any amount"
        expected = f"final loss of {slow} above that of {fast}, by {margin}"
        found = self.apart(slow, fast)
        check = found.judged(fact, expected, limit=by)
        own, others = (
            self.rates[name].above_the_lowest if name in self.rates else 0.0
            for name in (slow, fast)
        )
        reversed_at = (by + own, by - others)
        if check.holds is not None and {*map(found.above, reversed_at)} != {check.holds}:
            check = check.void(REVERSED)
        elif check.holds is not None:
            check = replace(check, p_value=found.p_value(by, *reversed_at))
        return self.if_it_counts(self.where_learnt(check, fast), slow, fast)

    def close(self, one: str, other: str, fact: str, within: float = CLOSE) -> Check:
        """Judge whether `one` ends no more than `within` nats above `other`.

        Returns:
            The fact; void where the better has learnt no more than pairs.
        """
        expected = f"final loss of {one} at most {within:g} above that of {other}"
        check = self.apart(one, other).judged(fact, expected, limit=within, above=False)
        return self.if_it_counts(self._where_the_better_learnt(check, one, other), one, other)

    def match(self, one: str, other: str, fact: str) -> Check:
        """Judge whether `one` and `other` end no more than `CLOSE` apart, whichever is better.

        Returns:
            The fact; void where the better has learnt no more than pairs.
        """
        check = self._where_the_better_learnt(self.alike(one, other, fact), one, other)
        return self.if_it_counts(check, one, other)

    def _where_the_better_learnt(self, check: Check, *variants: str) -> Check:
        """The check; undecided where all of these have learnt no more than pairs of tokens."""
        means = {
            name: statistics.fmean(self.losses[name].values())
            for name in variants
            if name in self.losses
        }
        best = min(means, key=lambda name: means[name]) if means else None
        return self.where_learnt(check, best) if best else check

    def alike(self, one: str, other: str, fact: str) -> Check:
        """The same without a control, for studies that have one of their own."""
        expected = f"final loss of {one} within {CLOSE:g} of that of {other}, above or below"
        return self.apart(one, other).matches(fact, expected, limit=CLOSE)

    def summary(
        self,
        title: str,
        panels: Sequence[Panel],
        checks: Sequence[Check],
        caption: str = CURVES,
        **tables: Sequence[Mapping[str, Any]],
    ) -> Summary:
        """Summarise the study, with its control and the table of final losses.

        Args:
            title: title of the figure.
            panels: panels of the figure.
            checks: facts.
            caption: caption of the figure.
            **tables: further ones, by name.

        Returns:
            The summary.
        """
        every = [*checks, *self.controls.values()]
        if self.rates:
            caption = f"{caption} {TUNED}"
        error = [error_line(self.residual)]
        return summary(title, caption, panels, every, losses=self.table(), error=error, **tables)


def steps_to(run: Sequence[tuple[float, float]], loss: float) -> float:
    """Interpolate the steps until a run's validation loss is `loss`; infinite if never."""
    for (step, before), (later, after) in itertools.pairwise(run):
        if after <= loss <= before:
            return step + (later - step) * (before - loss) / ((before - after) or 1.0)
    return math.inf


def _close_up(whole: Panel) -> Panel:
    """Cut a panel off above the best of every series by half of its reach, `MARGIN` at least.

    Returns:
        The panel; unchanged where nothing is above that.
    """
    best = [min(one.y) for one in whole.series]
    if not best:
        return whole
    low, highest = min(best), max(max(one.y) for one in whole.series)
    reach = max(max(best) - low, MARGIN)
    end = max(best) + reach / 2
    return replace(whole, limits=(low - reach / 10, end)) if highest > end else whole


def late(whole: Panel, share: float = EARLY) -> Panel:
    """A panel of losses against steps without its beginning.

    Args:
        whole: panel of curves along training.
        share: share of the steps that is left out.

    Returns:
        The panel, with `DRAWN` places of each curve at most, the last among them; the bigram table,
        which has two places, begins where the others do.
    """
    start = share * max((step for one in whole.series for step in one.x), default=0.0)
    series = []
    for one in whole.series:
        if one.name == BIGRAMS:
            series.append(replace(one, x=(start, *one.x[1:])))
            continue
        places = [place for place, step in enumerate(one.x) if step >= start]
        kept = places[:: -max(1, math.ceil(len(places) / DRAWN))][::-1]
        x, y, error = (
            [each[place] for place in kept if each] for each in (one.x, one.y, one.error)
        )
        if kept:
            series.append(replace(one, x=tuple(x), y=tuple(y), error=tuple(error)))
    return replace(whole, series=tuple(series))


def finite(values: Values) -> dict[str, tuple[float, float]]:
    """Variant → (mean, standard error) over seeds, of those of which no seed diverged."""
    return {
        name: mean_and_error(list(seeds.values()))
        for name, seeds in values.items()
        if math.isfinite(sum(seeds.values()))
    }


def places_panel(
    values: Mapping[str, Mapping[str, tuple[float, float]]], y_label: str, *, bars: bool
) -> Panel:
    """Named places side by side: name of the series → {place: (value, standard error)}.

    Args:
        values: values of each series.
        y_label: label of the values.
        bars: bars from 0, for what has a meaningful 0; points on an axis of their own otherwise.

    Returns:
        The panel, the places in the order in which they first come.
    """
    places = list(dict.fromkeys(place for each in values.values() for place in each))
    return Panel(
        title="",
        x_label="",
        y_label=y_label,
        kind="bars" if bars else "lines",
        ticks=tuple(places),
        series=tuple(
            curve(name, [(float(places.index(at)), *each[at]) for at in each], line=False)
            for name, each in values.items()
        ),
    )
