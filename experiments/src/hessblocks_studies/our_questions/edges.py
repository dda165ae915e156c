"""Compute tolerated rates, the need for warm-up and forecasts from runs of `edge-of-stability`."""

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
"""Quantity like `SHARPNESS`, but with ten times AdamW's eps in D."""
WHOLE = "all"
"""Group of all parameters, used in place of a role."""
TOLERANCE = 0.2
"""Nats above a seed's best loss up to which a rate counts as tolerated."""
EARLY = plan.FIRST_LOOKS[-1]
"""Step of the early sharpness in forecasts. After step 1, keys beside zero queries have no second
moment yet, so that D is eps there."""
EDGE = 38.0
"""Sharpness at the edge of stability times the rate, for AdamW's β₁ = 0.9."""


def tolerated(losses: Mapping[float, float], limit: float) -> float | None:
    """Compute log10 of the largest rate up to which losses stay below a limit.

    Args:
        losses: rate → final loss of one seed; infinite if the run diverged.
        limit: `TOLERANCE` above the best loss of this seed with warm-up.

    Returns:
        Interpolated between two rates; the lower rate if the run at the upper rate diverged; None
        if it is outside the ladder: no rate is tolerated, or the largest still is.
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
    """Forecasts from the sharpness, with its errors."""

    values: dict[str, dict[Scalar, float]]
    """Block → {seed: decades}, if all required sharpnesses are above 0; a missing step is not
    replaced by another."""
    residuals: dict[str, float]
    """Label, seed and step of each required sharpness → relative residual; infinite if the
    sharpness is missing or not above 0."""


@dataclass(frozen=True, kw_only=True)
class Edges:
    """Measurements of the edge of stability, and derived rates."""

    tuned: shared.Tuned
    """Losses of all runs, and the best rate of each block."""
    sharp: Mapping[str, Mapping[Scalar, Mapping[float, tuple[float, float]]]]
    """Label with rate → {seed: {step: (sharpness of all parameters, residual)}}; only sharpnesses
    above 0."""
    followed: Sequence[float]
    """Steps with a measurement of the sharpness, in order."""
    moved: Mapping[str, float]
    """Run without warm-up at the lowest rate → decades by which ten times eps changes its early
    sharpness."""

    def tolerances(self) -> dict[str, dict[Scalar, float | None]]:
        """Compute log10 of each tolerated rate: label → {seed: value}; None if outside the ladder.

        Returns:
            Rates of ladders with at least three rates, for seeds with all runs, also with warm-up.
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
        """Return the best rate of a block with warm-up, from the tuning seed."""
        rate = self.tuned.tuning.rates.get(plan.label_of(block, plan.WARM))
        return rate.best if rate else None

    def extra_losses(self) -> dict[str, dict[Scalar, float]]:
        """Compute loss without minus loss with warm-up, at the lower of both blocks' best rates."""
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
        """Return the sharpness along each run at the lowest rate, which is `SAFE`."""
        grid = self.tuned.runs.grids.get(label, {})
        if not grid:
            return {}
        sharp = self.sharp.get(f"{label}{shared.AT_RATE}{min(grid):g}", {})
        return {seed: sharp.get(seed, {}) for seed in grid[min(grid)]}

    def forecasts(self) -> tuple[Forecast, Forecast]:
        """Forecast tolerated rate and need for warm-up of each block from its sharpness.

        Returns:
            For rates: log10 of the rate whose edge equals the sharpness at the end of the warm-up.
            For needs: log10 of sharpness after `EARLY` steps over sharpness after a tenth of all.
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
    """Collect the measurements; sharpnesses that are not above 0 are left out."""
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
