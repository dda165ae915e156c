"""What the study `edge-of-stability` reads off its runs: tolerated rates, the need for warm-up, forecasts; and its verdicts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hessblocks.storage import Scalar
from hessblocks.studies import shared
from hessblocks.studies.engine import Check, Rows
from hessblocks.studies.our_questions.edge_plan import (
    BASE,
    BLOCKS,
    COLD,
    FIRST_LOOKS,
    KINDS,
    LABELS,
    SIMPLE,
    WARM,
    label_of,
)

SHARPNESS, SHARE = "preconditioned_sharpness", "share_of_the_edge"
AT_TEN_EPS = "preconditioned_sharpness_at_ten_eps"
"""As `SHARPNESS`, with ten times AdamW's eps in D."""
WHOLE = "all"
"""In the place of a role: all parameters."""
TOLERANCE = 0.2
"""Nats above a seed's best rate that a tolerated rate may end at."""
ALIKE = 0.25
"""Decades, a step of the ladder, within which two blocks count as alike in rates, needs and forecasts."""
CALIBRATED = 0.25
"""Decades within which a forecast of a tolerated rate is right."""
GUESS = 1.8e-2
"""The middle of the ladder as it was planned: a forecast that asks no curvature."""
EARLY = FIRST_LOOKS[-1]
"""The step of the early sharpness that a forecast rests on: after the first one, keys beside zero queries have no second moment yet, and D is eps there."""
MOVED = 0.1
"""Decades by which ten times eps may move it."""
LESS = f"{SIMPLE} needs less warm-up than {BASE}, by"
"""How verdicts on the need for it begin."""
EDGE = 38.0
"""The edge times the rate, at AdamW's β₁ = 0.9."""


def tolerated(losses: Mapping[float, float], limit: float) -> float | None:
    """log10 of the largest rate up to which losses stay below a limit.

    Args:
        losses: rate → final loss of one seed; infinite where it diverged.
        limit: `TOLERANCE` above the best loss of this seed with warm-up.

    Returns:
        On a line between two rates; the lower one where the run at the upper diverged; None where it lies outside
        the ladder: no rate is good enough, or the largest still is.
    """
    best = min(losses, key=losses.__getitem__)
    if not losses[best] <= limit < math.inf:
        return None
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
    moved: Mapping[str, float]
    """Run without warm-up at the lowest rate → decades by which ten times eps moves its early sharpness."""

    def tolerances(self) -> dict[str, dict[Scalar, float | None]]:
        """Label → {seed: log10 of its tolerated rate}, of ladders of three rates or more that are whole for the seed, with warm-up too; None where it lies outside."""
        found: dict[str, dict[Scalar, float | None]] = {}
        grids = self.tuned.runs.grids
        ladder = {rate for label in LABELS for rate in grids.get(label, {})}
        for label in LABELS:
            grid = grids.get(label, {})
            if len(ladder) < 3 or grid.keys() != ladder:
                continue
            warm = self._warm(label)
            whole = set.intersection(*map(set, (*grid.values(), *warm.values())))
            for seed in sorted(whole if warm.keys() == ladder else (), key=str):
                own = {rate: seeds[seed] for rate, seeds in grid.items()}
                limit = min(seeds[seed] for seeds in warm.values()) + TOLERANCE
                found.setdefault(label, {})[seed] = tolerated(own, limit)
        return found

    def _warm(self, label: str) -> Mapping[float, Mapping[Scalar, float]]:
        """Losses of the same block with warm-up."""
        return self.tuned.runs.grids.get(label_of(LABELS[label][0], WARM), {})

    def best(self, block: str) -> float | None:
        """The best rate of a block with warm-up, by the tuning seed."""
        rate = self.tuned.tuning.rates.get(label_of(block, WARM))
        return rate.best if rate else None

    def extra_losses(self) -> dict[str, dict[Scalar, float]]:
        """Block → {seed: loss without warm-up above that with, at the lower of the blocks' best rates}."""
        found: dict[str, dict[Scalar, float]] = {}
        rates = [self.best(block) for block in BLOCKS]
        rate = None if None in rates else min(rate for rate in rates if rate)
        for block in BLOCKS:
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
        """The sharpness along every run at the lowest rate, which is `SAFE`."""
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
            Block → {seed: log10 of the rate whose edge the sharpness at the end of the warm-up is}; block → {seed: log10 of the
            sharpness after `EARLY` steps over that after a tenth of all}; run and step → the residual of each of these, as a share,
            infinite where the sharpness is lost or not above 0: no other step stands in for it.
        """
        rates: dict[str, dict[Scalar, float]] = {}
        needs: dict[str, dict[Scalar, float]] = {}
        unsure: dict[str, float] = {}
        for label, (block, kind) in LABELS.items():
            for seed, sharp in self.lowest(label).items():
                tenth = KINDS[WARM] * self.followed[-1]
                later = next(step for step in self.followed if step >= tenth)
                wanted = [later] if kind == WARM else [EARLY, later]
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
    others = {
        (row["variant"], row["seed"]): row["value"]
        for row in shared.of_quantity(rows, AT_TEN_EPS)
        if row["value"] > 0
    }
    moved = {
        f"{name}, seed {seed}": abs(math.log10(value / sharp[name][seed][EARLY][0]))
        for (name, seed), value in others.items()
        if EARLY in sharp.get(name, {}).get(seed, {})
    }
    looked = {float(row["step"]) for row in shared.of_quantity(rows, shared.LOSS)}
    followed = sorted(looked - {0.0})
    return Edges(tuned=shared.Tuned.of(rows), sharp=sharp, followed=followed, moved=moved)


def verdicts(edges: Edges) -> list[Check]:
    """Controls, and the verdicts of the rule."""
    tuned, tolerances = edges.tuned, edges.tolerances()
    known = {
        label: {seed: rate for seed, rate in seeds.items() if rate is not None}
        for label, seeds in tolerances.items()
    }
    inside = _inside_check(tolerances)
    rates, humps, unsure = edges.forecasts()
    sharp, of_eps = _residual_check(unsure), _eps_check(edges)
    ladder = "void, since a tolerated rate lies outside the ladder"
    unknown = "void, since the sharpness is not known well enough"
    found = [
        *(shared.judged_by(inside, check, ladder) for check in _tolerance_checks(known)),
        _loss_check(edges),
        *(
            shared.judged_by(sharp, shared.judged_by(inside, check, ladder), unknown)
            for check in (
                shared.judged_by(
                    of_eps,
                    forecast_check("which block needs more warm-up", humps, _lost(known)),
                    "void, since it moves with AdamW's eps",
                ),
                *_rate_forecasts(rates, known),
            )
        ),
    ]
    best = {block: label_of(block, WARM) for block in BLOCKS}
    judged = [tuned.judged(check, *best.values()) for check in found]
    for block, label in best.items():
        judged = [tuned.runs.where_learnt(check, label, block) for check in judged]
    learnt = [tuned.runs.below_the_table(label, shared.BIGRAMS) for label in best.values()]
    return [tuned.rate_checks()[0], *learnt, inside, sharp, of_eps, *judged]


def _inside_check(tolerances: Mapping[str, Mapping[Scalar, float | None]]) -> Check:
    """A control: each tolerated rate is known, for the same seeds of all kinds."""
    outside = [
        f"{label}, seed {seed}"
        for label, seeds in tolerances.items()
        for seed, rate in seeds.items()
        if rate is None
    ]
    whole = len(tolerances) == len(LABELS) and len(set(map(frozenset, tolerances.values()))) == 1
    return Check(
        fact="each tolerated rate lies inside the ladder",
        expected="none outside it (rule of this study)",
        ours=f"outside: {'; '.join(outside)}"
        if outside
        else f"so for {'all of ' if whole else ''}{len(tolerances)} kinds",
        holds=not outside if whole else None,
    )


def _residual_check(unsure: Mapping[str, float]) -> Check:
    """A control: the products sufficed for the sharpness."""
    largest = max(unsure.values(), default=math.nan)
    gone = [place for place, share in unsure.items() if math.isinf(share)]
    found = f"lost or not above 0: {'; '.join(gone)}" if gone else f"at most {largest:.2g}"
    return Check(
        fact="the sharpness that forecasts rest on is known",
        expected="residuals of a tenth at most (control)",
        ours=found if unsure else "not finished",
        holds=largest <= 0.1 if unsure else None,
    )


def _eps_check(edges: Edges) -> Check:
    """A control: the early sharpness speaks of the block and not of a constant of AdamW."""
    most = max(edges.moved.values(), default=math.nan)
    runs = sum(map(len, map(edges.lowest, (label_of(block, COLD) for block in BLOCKS))))
    return Check(
        fact="the early sharpness without warm-up is not that of AdamW's eps",
        expected=f"ten times eps moves it by {MOVED:g} decades at most (control)",
        ours=f"by {most:.2g} at most" if edges.moved else "not finished",
        holds=most <= MOVED if len(edges.moved) == runs > 0 else None,
    )


def _tolerance_checks(known: shared.Values) -> list[Check]:
    """Which block stands the larger rates, and which loses less of them without warm-up."""
    stands = [
        apart_check(
            {block: known.get(label_of(block, kind), {}) for block in BLOCKS},
            f"{SIMPLE} stands larger rates than {BASE}, with {kind}",
            expected=f"open question: a tolerated rate larger by more than {ALIKE:g} decades",
            above=True,
        )
        for kind in KINDS
    ]
    needs = apart_check(
        _lost(known),
        f"{LESS} the tolerated rate",
        expected=f"open question: it falls without by a number of decades smaller by more than {ALIKE:g}",
        above=False,
    )
    return [*stands, needs]


def _loss_check(edges: Edges) -> Check:
    """Which block loses less without warm-up at one rate; no ladder is asked."""
    return apart_check(
        edges.extra_losses(),
        f"{LESS} the loss at one rate",
        expected=f"open question: less is lost without, by more than {shared.CLOSE:g} nats",
        above=False,
        limit=shared.CLOSE,
        unit="nats",
    )


def _rate_forecasts(rates: shared.Values, known: shared.Values) -> list[Check]:
    """Whether the sharpness at the end of the warm-up says which rates are stood: which block the larger, how large, better than a guess."""
    warm = {block: known.get(label_of(block, WARM), {}) for block in BLOCKS}
    order = forecast_check("which block stands the larger rates", rates, warm)
    right = [
        shared.match_check(
            {"forecast": rates.get(block, {}), "outcome": warm[block]},
            *("forecast", "outcome"),
            fact=f"curvature says beforehand which rate {block} stands",
            expected=f"the forecast is right to {CALIBRATED:g} decades (above 0: it is too large)",
            limit=CALIBRATED,
            unit="decades",
        )
        for block in BLOCKS
    ]
    better = [
        shared.difference_check(
            _misses(rates.get(block, {}), warm[block]),
            *("forecast", "guess"),
            fact=f"curvature says better than a guess which rate {block} stands",
            expected=f"nearer than {GUESS:g}, the middle of the ladder, by any amount",
            above=False,
            unit="decades",
        )
        for block in BLOCKS
    ]
    return [order, *right, *better]


def _misses(
    forecast: Mapping[Scalar, float], outcome: Mapping[Scalar, float]
) -> dict[str, dict[Scalar, float]]:
    """How far the forecast and the guess are from the tolerated rate of each seed, in decades."""
    guess = math.log10(GUESS)
    seeds = forecast.keys() & outcome.keys()
    return {
        "forecast": {seed: abs(forecast[seed] - outcome[seed]) for seed in seeds},
        "guess": {seed: abs(guess - outcome[seed]) for seed in seeds},
    }


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
