"""Summarise training runs: loss curves, final losses, and comparisons of blocks."""

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
from hessblocks_studies.shared.trained_points import AT_RATE, BIGRAMS, CONDITIONS, LOSS, REFERENCES
from hessblocks_studies.shared.variants import BASES

HOW = "Python source; mean over seeds, bars are its standard errors."
"""Caption of figures with losses."""
TUNED = (
    "Each block stands at the best learning rate of its grid; the first seed alone tries the "
    "others, and counts in the verdicts."
)
"""Caption of figures with blocks that are trained at several learning rates."""
CURVES = f"{HOW} Loss curves begin after a fifth of the steps."
"""Caption of figures with loss curves."""
EARLY = 0.2
"""Share of the steps that loss curves omit, since high early losses would hide differences at the
end."""
BASE = "pre-ln"
"""Block that all others are compared with."""
MARGIN = 0.3
"""Nats per token by which pre-ln must beat the bigram table; otherwise its run was too short for
comparisons of blocks."""
DRAWN = 12
"""Largest number of points per curve; with more, markers hide other curves."""
REVERSED = "a rate that one seed found better could reverse this"
"""Note added to a verdict that another rate, better with one seed, could reverse."""
CLOSE = 0.05
"""Difference in nats per token that counts as none, in every claim about losses."""


def void_of(name: str) -> str:
    """Format the note that a verdict is void, since the control of block `name` fails."""
    return f"void, since {name} does not end {MARGIN:g} nats below the bigram table"


class Runs:
    """Training runs of a study that are measured so far."""

    def __init__(self, rows: Rows) -> None:
        """Collect losses and parameters from rows.

        Args:
            rows: rows with validation losses and parameters, and others.
        """
        self.losses: dict[str, dict[Scalar, float]] = {}
        """Variant → {seed: last validation loss}; diverged runs are infinite. A variant trained at
        several rates is listed without a rate, with the losses at its best rate."""
        self.rates: dict[str, Rate] = {}
        """Variant trained at several rates → its best rate."""
        self.grids: dict[str, dict[float, dict[Scalar, float]]] = {}
        """Variant trained at several rates → {rate: {seed: last validation loss}}."""
        self.conditions: dict[tuple[str, Scalar], dict[str, set[Scalar]]] = {}
        """(variant, seed) → condition → its values over rates; none for the bigram table."""
        self._curves: dict[tuple[str, Scalar], dict[float, float | None]] = {}
        for row in of_quantity(rows, LOSS):
            if not row["variant"].startswith(BIGRAMS):  # counted on no device
                point = (row["variant"].partition(AT_RATE)[0], row["seed"])
                for name in CONDITIONS:
                    self.conditions.setdefault(point, {}).setdefault(name, set()).add(row.get(name))
            steps = self._curves.setdefault((row["variant"], row["seed"]), {})
            steps[float(row["step"])] = row["value"]
        for (variant, seed), steps in self._curves.items():
            last = steps[max(steps)]
            self.losses.setdefault(variant, {})[seed] = math.inf if last is None else last
        self._take_best_rates()
        judged = {v: by_seed for v, by_seed in self.losses.items() if not v.startswith(REFERENCES)}
        self.residual: Residual | None = pooled_error(judged)
        """Standard deviation of one run, from all blocks and seeds except the references."""
        kinds = [name.removeprefix(BIGRAMS) for name in self.losses if name.startswith(BIGRAMS)]
        self._kinds = sorted(kinds, key=len, reverse=True)
        self.controls = {
            kind: self.below_the_table(BASE + kind, BIGRAMS + kind)
            for kind in self._kinds
            if BASE + kind in self.losses
        }
        """Suffix of variants' names → check that pre-ln has learnt more than bigrams there.
        Verdicts about losses count only if it holds."""
        self._parameters = {
            row["variant"].partition(AT_RATE)[0]: row["value"]
            for row in of_quantity(rows, "parameters")
        }

    def _take_best_rates(self) -> None:
        """Set the losses and curves of each variant to those at its best rate."""
        for name in [name for name in self.losses if AT_RATE in name]:
            variant, _, rate = name.partition(AT_RATE)
            self.grids.setdefault(variant, {})[float(rate)] = self.losses.pop(name)
        for variant, grid in self.grids.items():
            self.rates[variant] = best_rate(grid)
            best = self.rates[variant].best
            self.losses[variant] = grid[best]
            for seed in grid[best]:
                self._curves[variant, seed] = self._curves[f"{variant}{AT_RATE}{best:g}", seed]

    def apart(self, block: str, rival: str) -> Difference:
        """Compute the final loss of `block` minus that of `rival`."""
        unlike = self.unlike(block, rival)
        if unlike:
            return Difference(mean=math.nan, error=math.nan, seeds=0, unlike=unlike)
        return difference(self.losses, block, rival, self.residual)

    def unlike(self, block: str, rival: str) -> str:
        """List conditions, with their values, in which runs of one seed differ; empty if none.

        The spacing of the rates, in decades, counts if both variants have several.

        Returns:
            Each condition with its values, as text.
        """
        values_of: dict[str, set[Scalar]] = {}
        for seed in {*self.losses.get(block, {})} & {*self.losses.get(rival, {})}:
            points = [self.conditions.get((variant, seed), {}) for variant in (block, rival)]
            for name in CONDITIONS:
                values = set[Scalar]().union(*(point.get(name, ()) for point in points))
                values_of.setdefault(name, set()).update(values if len(values) > 1 else ())
        grids = [sorted(self.grids[v]) for v in (block, rival) if len(self.grids.get(v, ())) > 1]
        spacings: set[Scalar] = {
            max(round(math.log10(b / a), 1) for a, b in itertools.pairwise(g)) for g in grids
        }
        values_of["spacing of rates"] = spacings if len(spacings) > 1 else set()
        return "; ".join(
            f"{name} ({', '.join(sorted(str(value or 'not recorded') for value in values))})"
            for name, values in values_of.items()
            if values
        )

    def curve(self, variant: str, seed: Scalar) -> list[tuple[float, float]]:
        """List (step, validation loss) of one run; losses that are not finite are left out."""
        steps = self._curves[variant, seed]
        return [(step, loss) for step, loss in steps.items() if loss is not None]

    def mean_curve(self, variant: str) -> list[Place]:
        """List (step, mean loss over seeds, standard error) up to the first diverged seed."""
        at: dict[float, list[float]] = {}
        seeds = self.losses.get(variant, {})
        for seed in seeds:
            for step, loss in self.curve(variant, seed):
                at.setdefault(step, []).append(loss)
        return mean_places({step: at[step] for step in sorted(at) if len(at[step]) == len(seeds)})

    def panel(self, blocks: Sequence[str], title: str, kind: str = "") -> Panel:
        """Plot validation loss (mean over seeds) against steps, up to the first diverged seed.

        Args:
            blocks: blocks to draw; names of the series.
            title: title of the panel.
            kind: suffix of the variants' names after the blocks' names.

        Returns:
            The panel with the references, without blocks that have no measurements.
        """
        drawn = (*blocks, *REFERENCES)
        curves = {block: self.mean_curve(block + kind) for block in drawn}
        return late(panel(title, "training step", "validation loss (nats per token)", curves))

    def table(self) -> list[dict[str, object]]:
        """List final loss and parameters of each variant, with the pooled error if there is one."""
        pooled = self.residual if self.residual and self.residual.fits else None
        table: list[dict[str, object]] = []
        for variant, seeds in self.losses.items():
            finite = [loss for loss in seeds.values() if math.isfinite(loss)]
            mean, error = mean_and_error(finite) if finite else (None, None)
            if pooled and len(set(finite)) > 1 and not variant.startswith(REFERENCES):
                error = pooled.deviation / math.sqrt(len(finite))
            table.append(
                {
                    "variant": variant,
                    "final_loss": mean,
                    "standard_error": error,
                    "seeds": len(seeds),
                    "diverged": len(seeds) - len(finite),
                    "parameters": self._parameters.get(variant),
                }
            )
            if variant in self.rates:
                rate = self.rates[variant]
                table[-1] |= {"best_rate": rate.best, "rate_settled": rate.settled}
        return table

    def below_the_table(self, base: str, table: str) -> Check:
        """Check that `base` ends `MARGIN` below the bigram table."""
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
        """Leave a check undecided if its control fails or a best rate is not inside its grid.

        The control: pre-ln has learnt more than bigrams; pre-ln with zero queries, too, if the fact
        is about it.

        Args:
            check: a fact about losses.
            *variants: variants of the fact; their names determine the bigram tables.

        Returns:
            The check, or an undecided copy.
        """
        for variant in variants or ("",):
            kind = self._kind(variant)
            bases = [variant] if variant.removesuffix(kind) in BASES else []
            for base in dict.fromkeys((BASE + kind, *bases)):
                check = judged_by(self.below_the_table(base, BIGRAMS + kind), check, void_of(base))
        return at_best_rates(check, self.rates, *variants)

    def _kind(self, variant: str) -> str:
        """Return the suffix of a variant after its block's name; its bigram table has the same."""
        return next((kind for kind in self._kinds if variant.endswith(kind)), "")

    def where_learnt(self, check: Check, variant: str, name: str | None = None) -> Check:
        """Leave a check undecided if a variant has learnt no more than bigrams.

        Args:
            check: check of a fact.
            variant: variant that must have learnt more.
            name: name of the variant in the note; None for `variant`.

        Returns:
            The check, or an undecided copy.
        """
        learnt = self.below_the_table(variant, BIGRAMS + self._kind(variant))
        return judged_by(learnt, check, void_of(name or variant))

    def slower(self, slow: str, fast: str, fact: str, by: float = 0.0) -> Check:
        """Judge whether `slow` ends more than `by` nats above `fast` at equal tokens.

        Args:
            slow: name of a variant.
            fast: name of another.
            fact: the fact, as a sentence.
            by: margin in nats.

        Returns:
            The check; void if `fast` has learnt no more than bigrams; undecided if a rate that is
            better than the best with one seed could reverse it.
        """
        margin = f"more than {by:g}" if by else "any amount"
        expected = f"final loss of {slow} above that of {fast}, by {margin}"
        gap = self.apart(slow, fast)
        check = gap.judged(fact, expected, limit=by)
        slower_by, others = (
            self.rates[name].above_the_lowest if name in self.rates else 0.0
            for name in (slow, fast)
        )
        reversed_at = (by + slower_by, by - others)
        if check.holds is not None and {*map(gap.above, reversed_at)} != {check.holds}:
            check = check.void(REVERSED)
        elif check.holds is not None:
            check = replace(check, p_value=gap.p_value(by, *reversed_at))
        return self.if_it_counts(self.where_learnt(check, fast), slow, fast)

    def close(self, block: str, rival: str, fact: str, within: float = CLOSE) -> Check:
        """Judge whether `block` ends no more than `within` nats above `rival`.

        Returns:
            The check; void if the better block has learnt no more than bigrams.
        """
        expected = f"final loss of {block} at most {within:g} above that of {rival}"
        check = self.apart(block, rival).judged(fact, expected, limit=within, above=False)
        return self.if_it_counts(self._where_the_better_learnt(check, block, rival), block, rival)

    def match(self, block: str, rival: str, fact: str) -> Check:
        """Judge whether `block` and `rival` end no more than `CLOSE` apart, whichever is better.

        Returns:
            The check; void if the better block has learnt no more than bigrams.
        """
        check = self._where_the_better_learnt(self.alike(block, rival, fact), block, rival)
        return self.if_it_counts(check, block, rival)

    def _where_the_better_learnt(self, check: Check, *variants: str) -> Check:
        """Leave a check undecided if the best of these variants has learnt no more than bigrams."""
        means = {
            name: statistics.fmean(self.losses[name].values())
            for name in variants
            if name in self.losses
        }
        best = min(means, key=lambda name: means[name]) if means else None
        return self.where_learnt(check, best) if best else check

    def alike(self, block: str, rival: str, fact: str) -> Check:
        """Judge as `match` does, but without its control, for studies with another control."""
        expected = f"final loss of {block} within {CLOSE:g} of that of {rival}, above or below"
        return self.apart(block, rival).matches(fact, expected, limit=CLOSE)

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
            checks: checks of facts.
            caption: caption of the figure.
            **tables: further tables by name.

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


def late(drawn: Panel, share: float = EARLY) -> Panel:
    """Cut off the beginning of a panel of losses against steps.

    Args:
        drawn: panel of curves along training.
        share: share of the steps to cut off.

    Returns:
        The panel with at most `DRAWN` points per curve, including the last. The bigram table, with
        two points, begins where the others do.
    """
    start = share * max((step for line in drawn.series for step in line.x), default=0.0)
    series = []
    for line in drawn.series:
        if line.name == BIGRAMS:
            series.append(replace(line, x=(start, *line.x[1:])))
            continue
        places = [index for index, step in enumerate(line.x) if step >= start]
        indices = places[:: -max(1, math.ceil(len(places) / DRAWN))][::-1]
        x, y, error = (
            [column[index] for index in indices if column]
            for column in (line.x, line.y, line.error)
        )
        if indices:
            series.append(replace(line, x=tuple(x), y=tuple(y), error=tuple(error)))
    return replace(drawn, series=tuple(series))


def finite(values: Values) -> dict[str, tuple[float, float]]:
    """Map each variant without diverged seeds to (mean, standard error) over seeds."""
    return {
        name: mean_and_error(list(seeds.values()))
        for name, seeds in values.items()
        if math.isfinite(sum(seeds.values()))
    }


def places_panel(
    values: Mapping[str, Mapping[str, tuple[float, float]]], y_label: str, *, bars: bool
) -> Panel:
    """Plot categories side by side: name of the series → {category: (value, standard error)}.

    Args:
        values: values of each series.
        y_label: label of the values.
        bars: True: bars from 0, for values with a meaningful 0; False: points on a separate axis.

    Returns:
        The panel with the categories in order of first occurrence.
    """
    places = list(dict.fromkeys(label for by_place in values.values() for label in by_place))
    return Panel(
        title="",
        x_label="",
        y_label=y_label,
        kind="bars" if bars else "lines",
        ticks=tuple(places),
        series=tuple(
            curve(name, [(float(places.index(at)), *by_place[at]) for at in by_place], line=False)
            for name, by_place in values.items()
        ),
    )
