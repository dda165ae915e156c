"""Measure the divergence of changes, and compare it with the forecasts.

The divergence of a token is the Bregman divergence of its loss, ℓ(f') − ℓ(f) − ⟨∂ℓ(f), f' − f⟩. It
does not depend on labels: it is KL(p ‖ p') for cross-entropy, (f' − f)² for squared error. Letters:
f logits before the change, f' logits after it, U pieces of the data, J sets of changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.bill.activations import rounding
from hessblocks.bill.changes import Change
from hessblocks.bill.draws import parts_of
from hessblocks.bill.prices import Price, ratio_estimate
from hessblocks.curvature import Batch, BatchLoss, CrossEntropy, Problem, make_plan
from hessblocks.errors import ArgumentError, RunError
from hessblocks.linalg import Estimate, working_dtype
from hessblocks.storage import Tabular

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEAR = 0.8, 1.25
"""Ratios of forecast and measurement that are called near."""
PIECES = 32
"""Number of pieces of data for the standard error: pieces of rows, or of a single row's tokens."""


@dataclass(frozen=True, kw_only=True, repr=False)
class BillCheck(Tabular):
    """Forecast and measured KL divergences of changes."""

    forecasts: tuple[Price, ...]
    """Prices from the bill."""
    measured: tuple[Estimate, ...]
    """Measured KL in nats per token, with its standard error over the data."""
    held_out: bool
    """Whether the data of the measurement differ from those of the forecasts."""

    def within(self, errors: float = 1.0) -> float:
        """Compute the share of changes whose forecast is within `errors` joint standard errors."""
        near = [
            abs(price.forecast.value - found.value)
            <= errors * math.hypot(price.forecast.standard_error, found.standard_error)
            for price, found in zip(self.forecasts, self.measured, strict=True)
        ]
        return sum(near) / len(near)

    def to_rows(self) -> list[dict[str, Any]]:
        """List name, forecast and measured KL, errors, ratio, and why a forecast is not trusted."""
        return [
            {
                "name": price.name,
                "forecast": price.forecast.value,
                "forecast_error": price.forecast.standard_error,
                "measured": found.value,
                "measured_error": found.standard_error,
                "ratio": _ratio(price.forecast.value, found.value),
                "outside": price.outside,
            }
            for price, found in zip(self.forecasts, self.measured, strict=True)
        ]

    def __str__(self) -> str:
        """Print ratios of forecast and measurement, and how many agree."""
        rows = [row for row in self.to_rows() if not math.isnan(row["ratio"])]
        ratios = [row["ratio"] for row in rows]
        text = "held-out data" if self.held_out else "the bill's own data"
        if not ratios:
            return f"{len(self.measured)} changes on {text}: none moved a logit, as was forecast"
        near = sum(NEAR[0] <= ratio <= NEAR[1] for ratio in ratios) / len(ratios)
        trusted = [row["ratio"] for row in rows if not row["outside"]]
        worst = max(
            trusted, key=lambda ratio: abs(math.log(ratio)) if ratio > 0 else math.inf, default=None
        )
        within = (f"{100 * self.within(errors):.0f} %" for errors in (1, 2, 3))
        return (
            f"{len(self.measured)} changes measured on {text}: median ratio forecast/measured "
            f"{median(ratios):.3g}, range {min(ratios):.3g} to {max(ratios):.3g}; "
            f"{100 * near:.0f} % from {NEAR[0]} to {NEAR[1]}, "
            + (f"the worst among the trusted {worst:.3g}" if trusted else "none trusted")
            + f"; {', '.join(within)} within 1, 2, 3 standard errors"
        )

    def plot(self, ax: Axes | None = None) -> Figure:
        """Plot measured KL over forecast KL, with error bars and the line of equality.

        Args:
            ax: axes of matplotlib to draw on; None: a new figure.

        Returns:
            The figure.
        """
        from hessblocks.drawing import plot
        from hessblocks.figures import Panel, Series

        rows = [row for row in self.to_rows() if min(row["forecast"], row["measured"]) > 0]
        both = [row[key] for row in rows for key in ("forecast", "measured")] or [1.0]
        ends, points = (min(both), max(both)), []
        for name, trusted in (("trusted", True), ("outside of the quadratic", False)):
            x, across, y, error = (
                tuple(row[key] for row in rows if trusted != bool(row["outside"]))
                for key in ("forecast", "forecast_error", "measured", "measured_error")
            )
            points.append(Series(name=name, x=x, y=y, error=error, across=across, line=False))
        panel = Panel(
            title="Forecast and measured cost",
            x_label="Forecast KL, nats per token",
            y_label="Measured KL, nats per token",
            x_scale="log",
            y_scale="log",
            series=(Series(name="equal", x=ends, y=ends, guide=True), *points),
        )
        return plot(panel, ax)


def measure(
    problem: Problem,
    forecasts: Sequence[Price],
    sets: Sequence[Sequence[Change]],
    *,
    held_out: bool,
    pieces: int = PIECES,
    most_passes: int | None = None,
) -> BillCheck:
    """Measure the divergence of each set of changes, made together.

    Args:
        problem: model, loss, and data to measure on.
        forecasts: price of each set.
        sets: sets of changes; for each pass over data, they replace the parameters in turn.
        held_out: whether the data differ from those of the forecasts.
        pieces: fewest passes over data, if there are as many rows.
        most_passes: passes over data to make, of as many as there are; None: all.

    Returns:
        Forecasts and measurements; divided by all tokens, whatever passes are made.

    Raises:
        ArgumentError: there is a single row.
        RunError: a divergence is not finite.
    """
    rows, passes, counts = sum(problem.batches.rows), [], []
    with problem.computing(), torch.no_grad():
        plan = make_plan(problem, twice=False, most_rows=max(1, rows // pieces))
        most_parts = PIECES if len(plan.passes) == 1 else 1  # tokens of a row are alike
        parameters = problem.parameters
        only = _together(sets[0], parameters) if len(sets) == 1 else None
        for batch in islice(plan.passes, most_passes):
            before = DivergenceFrom(problem, batch, parameters, most_parts)
            moved = []
            for changes in sets:
                new = only or _together(changes, parameters)
                moved.append(before.divergences(new, changes))
            passes.append(torch.tensor(moved, dtype=torch.float64).view(len(sets), -1).T)
            counts += before.counts
    if len(counts) < 2:
        raise ArgumentError("held_out: one row gives no error bar over data; give several")
    sums, tokens = torch.cat(passes), torch.tensor(counts, dtype=torch.float64)
    if not sums.isfinite().all():
        raise RunError("check: a divergence is not finite; look at the changes")
    shares = tokens / tokens.sum()
    measured = tuple(
        replace(ratio_estimate(column / problem.valid, shares, len(shares)), method="measured")
        for column in sums.T
    )
    return BillCheck(forecasts=tuple(forecasts), measured=measured, held_out=held_out)


def _ratio(forecast: float, measured: float) -> float:
    """Divide; NaN if both are 0."""
    if measured:
        return forecast / measured
    return math.inf if forecast else math.nan


def _together(
    changes: Sequence[Change], parameters: Mapping[str, Float[Tensor, "..."]]
) -> dict[str, Float[Tensor, "..."]]:
    """Apply several changes to the parameters; two changes may edit one parameter."""
    together = dict(parameters)
    for change in changes:
        for name, new in change.made(together):
            dtype = working_dtype(new.dtype)
            change.check_same(name, new.to(dtype) - together[name].to(dtype))
            together[name] = new
    return together


class DivergenceFrom:
    """Logits, loss and gradient of a pass at the model's own weights, part by part."""

    def __init__(
        self,
        problem: Problem,
        batch: Batch,
        parameters: Mapping[str, Float[Tensor, "..."]],
        most_parts: int,
    ) -> None:
        self.problem, self._batch = problem, batch
        logits, loss = self._logits(parameters)
        several = most_parts if isinstance(loss, CrossEntropy) else 1
        self._parts: list[tuple[Tensor | None, BatchLoss, Tensor, Tensor, float]] = []
        self.counts: list[float] = []
        for part, count in parts_of(loss, logits, several):
            indices = part if isinstance(loss, CrossEntropy) else None
            part_loss = loss.of_rows(part) if isinstance(loss, CrossEntropy) else loss
            before = _some(logits, indices)
            gradient = part_loss.derivatives(before, 1.0).gradient
            self._parts.append((indices, part_loss, before, gradient, part_loss.total(before)))
            self.counts.append(count)

    def divergences(
        self,
        parameters: Mapping[str, Float[Tensor, "..."]],
        changes: Sequence[Change],
        shares: Sequence[float] = (1.0,),
    ) -> list[float]:
        """Sum divergences over each part, at other parameters and activations.

        Args:
            parameters: the changed parameters.
            changes: changes of activations.
            shares: shares of the change of the logits.

        Returns:
            The sums of the first part at each share, then those of the next.
        """
        with rounding(self.problem, changes):
            logits, _ = self._logits(parameters)
        sums = []
        for indices, loss, before, gradient, total in self._parts:
            step = _some(logits, indices) - before
            first = float(gradient.flatten() @ step.flatten())
            sums += [loss.total(before + s * step) - total - s * first for s in shares]
        return sums

    def _logits(self, parameters: Mapping[str, Tensor]) -> tuple[Tensor, BatchLoss]:
        readout, loss = self.problem.forward(self._batch, parameters, twice=False)
        return readout.hidden, loss


def _some(logits: Tensor, part: Tensor | None) -> Tensor:
    """Select the logits of a part, in float64: small differences of large losses follow."""
    return (logits if part is None else logits.flatten(0, -2)[part.to(logits.device)]).double()
