"""The answer in one sentence, computed from the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hessblocks.report.comparison.captions import ratio_text, with_error
from hessblocks.report.comparison.table import ComparisonRow, comparison_rows
from hessblocks.statistics import Average, Heterogeneity
from hessblocks.storage import FolderResults

BASELINE = "pre-ln"
SURE = 2.0
"""Differences of fewer joint standard errors count as no difference."""


def headline(results: FolderResults) -> str:
    """Whether the other blocks' curvature is more even than the baseline's, and who trains best.

    The baseline is pre-ln, or the first block where pre-ln was not compared. Two values differ
    when they are more than two joint standard errors apart.

    Returns:
        One sentence; it says so where nothing is measured yet.
    """
    rows = comparison_rows(results)
    parts = [part for part in (_evenness(rows), _loss(rows), _diverged(rows)) if part]
    if not parts:
        return "Nothing is measured yet."
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}."


def difference(first: Average, second: Average) -> int:
    """The sign of first − second, 0 where it is within two joint standard errors."""
    error = math.hypot(first.standard_error or 0.0, second.standard_error or 0.0)
    gap = first.value - second.value
    if abs(gap) <= SURE * error:
        return 0
    return (gap > 0) - (gap < 0)


def _baseline(rows: Sequence[ComparisonRow]) -> ComparisonRow:
    return next((row for row in rows if row.preset == BASELINE), rows[0])


def _evenness(rows: Sequence[ComparisonRow]) -> str:
    for moment, stage in (("after training", "after"), ("before training", "before")):
        ratios = {row.preset: ratio for row in rows if (ratio := getattr(row, stage)) is not None}
        base = _baseline(rows).preset
        if base not in ratios:
            continue
        own = f"{ratio_text(ratios[base])} in {base}"
        if len(ratios) == 1:
            return f"{moment}, the largest group norm of the Hessian over the smallest is {own}"
        return f"{moment}, {_compared(base, ratios)}"
    return ""


def _compared(base: str, ratios: dict[str, Heterogeneity[Average]]) -> str:
    others = {name: found.ratio for name, found in ratios.items() if name != base}
    signs = {name: difference(ratio, ratios[base].ratio) for name, ratio in others.items()}
    more = [name for name, sign in signs.items() if sign < 0]
    less = [name for name, sign in signs.items() if sign > 0]
    text = f"curvature is more even than in {base} in {len(more)} of {len(others)} other blocks"
    if less:
        text += f" and less even in {len(less)}"
    if unsure := len(others) - len(more) - len(less):
        text += f", and not told apart within {SURE:g} standard errors in {unsure}"
    extreme = min(others, key=lambda name: others[name].value)
    return (
        f"{text} (largest over smallest group norm: {ratio_text(ratios[base])} in {base}, "
        f"{ratio_text(ratios[extreme])} in {extreme}, the lowest of them)"
    )


def _loss(rows: Sequence[ComparisonRow]) -> str:
    losses = {row.preset: row.final_loss for row in rows if row.final_loss is not None}
    if not losses:
        return ""
    best = min(losses, key=lambda name: losses[name].value)
    text = f"the lowest final loss is {with_error(losses[best])} nats per token, of {best}"
    base = _baseline(rows).preset
    if base in losses and base != best:
        text += f" ({with_error(losses[base])} in {base})"
    return text


def _diverged(rows: Sequence[ComparisonRow]) -> str:
    names = [row.preset for row in rows if row.diverged]
    return f"{', '.join(names)} diverged" if names else ""
