"""Read tolerated rates, the need for warm-up and forecasts off the runs of `edge-of-stability`."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hessblocks.storage import Scalar
from hessblocks_studies import shared
from hessblocks_studies.engine import Rows
from hessblocks_studies.our_questions import edge_plan as plan

SHARPNESS, SHARE = "preconditioned_sharpness", "share_of_the_edge"
AT_TEN_EPS = "preconditioned_sharpness_at_ten_eps"
"""As `SHARPNESS`, with ten times AdamW's eps in D."""
WHOLE = "all"
"""In the place of a role: all parameters."""
TOLERANCE = 0.2
"""Nats above a seed's best rate that a tolerated rate may end at."""
EARLY = plan.FIRST_LOOKS[-1]
"""The step of the early sharpness that a forecast rests on: after the first one, keys beside zero
queries have no second moment yet, and D is eps there."""
EDGE = 38.0
"""The edge times the rate, at AdamW's β₁ = 0.9."""


def tolerated(losses: Mapping[float, float], limit: float) -> float | None:
    """log10 of the largest rate up to which losses stay below a limit.

    Args:
        losses: rate → final loss of one seed; infinite where it diverged.
        limit: `TOLERANCE` above the best loss of this seed with warm-up.

    Returns:
        On a line between two rates; the lower one where the run at the upper diverged; None where
        it lies outside the ladder: no rate is good enough, or the largest still is.
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
class Forecast:
    """Forecast of the edge from curvature, with its error."""

    values: dict[str, dict[Scalar, float]]
    """Block → {seed: decades}, of those whose every sharpness is above 0: no other step stands in
    for one."""
    residuals: dict[str, float]
    """Run and step of each sharpness that it rests on → the residual, as a share; infinite where it
    is lost or not above 0."""


@dataclass(frozen=True, kw_only=True)
class Edges:
    """Measurements of the edge of stability, and the rates read off them."""

    tuned: shared.Tuned
    """Losses of all runs; the best rate of each block."""
    sharp: Mapping[str, Mapping[Scalar, Mapping[float, tuple[float, float]]]]
    """Label with its rate → {seed: {step: (sharpness of all parameters, residual)}}, of those above
    0."""
    followed: Sequence[float]
    """Steps after which runs are looked at, in order."""
    moved: Mapping[str, float]
    """Run without warm-up at the lowest rate → decades by which ten times eps moves its early
    sharpness."""

    def tolerances(self) -> dict[str, dict[Scalar, float | None]]:
        """Read log10 of each tolerated rate: label → {seed: value}; None where it lies outside.

        Returns:
            Rates of ladders of three rates or more that are whole for the seed, with warm-up too.
        """
        found: dict[str, dict[Scalar, float | None]] = {}
        grids = self.tuned.runs.grids
        ladder = {rate for label in plan.LABELS for rate in grids.get(label, {})}
        for label in plan.LABELS:
            grid = grids.get(label, {})
            if len(ladder) < 3 or grid.keys() != ladder:
                continue
            warm = grids.get(plan.label_of(plan.LABELS[label][0], plan.WARM), {})
            whole = set.intersection(*map(set, (*grid.values(), *warm.values())))
            for seed in sorted(whole if warm.keys() == ladder else (), key=str):
                own = {rate: seeds[seed] for rate, seeds in grid.items()}
                limit = min(seeds[seed] for seeds in warm.values()) + TOLERANCE
                found.setdefault(label, {})[seed] = tolerated(own, limit)
        return found

    def best(self, block: str) -> float | None:
        """The best rate of a block with warm-up, by the tuning seed."""
        rate = self.tuned.tuning.rates.get(plan.label_of(block, plan.WARM))
        return rate.best if rate else None

    def extra_losses(self) -> dict[str, dict[Scalar, float]]:
        """Compute losses without warm-up above those with, at the lower best rate."""
        found: dict[str, dict[Scalar, float]] = {}
        rates = [self.best(block) for block in plan.BLOCKS]
        rate = None if None in rates else min(rate for rate in rates if rate)
        for block in plan.BLOCKS:
            warm, cold = (
                self.tuned.runs.grids.get(plan.label_of(block, kind), {}).get(rate or 0.0, {})
                for kind in (plan.WARM, plan.COLD)
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

    def forecasts(self) -> tuple[Forecast, Forecast]:
        """Forecast the edge of each block from curvature.

        Returns:
            Of rates: log10 of the rate whose edge the sharpness at the end of the warm-up is. Of
            needs: log10 of the sharpness after `EARLY` steps over that after a tenth of all.
        """
        rates, needs = (Forecast(values={}, residuals={}) for _ in range(2))
        for label, (block, kind) in plan.LABELS.items():
            for seed, sharp in self.lowest(label).items():
                tenth = plan.KINDS[plan.WARM] * self.followed[-1]
                later = next(step for step in self.followed if step >= tenth)
                found, wanted = (rates, [later]) if kind == plan.WARM else (needs, [EARLY, later])
                for step in wanted:
                    value, residual = sharp.get(step, (1.0, math.inf))
                    found.residuals[f"{label}, seed {seed}, step {step:g}"] = residual / value
                values = [sharp[step][0] for step in wanted if step in sharp]
                if len(values) == len(wanted):
                    top = EDGE if kind == plan.WARM else values[0]
                    found.values.setdefault(block, {})[seed] = math.log10(top / values[-1])
        return rates, needs


def edges_of(rows: Rows) -> Edges:
    """Collect the measurements; a sharpness that is not above 0 is left out."""
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
