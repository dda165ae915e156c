"""What each preset of a matched comparison was given, as columns of the table."""

from __future__ import annotations

from dataclasses import dataclass

from hessblocks.figures import number
from hessblocks.report.comparison.averages import average_rows
from hessblocks.storage import FolderResults

UNITS = {
    "tokens": "training tokens",
    "time": "training time (s)",
    "flops": "training operations",
}
"""What was matched, in words."""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What one preset used."""

    steps: int | None
    """Updates; None where none is recorded."""
    amount: float | None
    """Of what was matched, mean over seeds; None where it is not recorded."""


def matched(results: FolderResults) -> str:
    """What was matched: steps, tokens, time or flops."""
    return str(results.settings.values.get("match", "steps"))


def spent(results: FolderResults, preset: str) -> Spent:
    """What one preset used of what was matched."""
    rows = [row for row in results.metrics if row.preset == preset]
    steps = max((row.step for row in rows), default=None)
    match = matched(results)
    amount: float | None = steps
    if match == "tokens":
        amount = max((row.tokens for row in rows if row.tokens is not None), default=None)
    elif match == "time":
        time = average_rows(results.select("training_time", preset=preset))
        amount = time.value if time else None
    elif match == "flops":
        each = average_rows(results.select("flops", preset=preset))
        amount = steps * each.value if steps is not None and each else None
    return Spent(steps=steps, amount=amount)


def budget_columns(results: FolderResults) -> tuple[str, ...]:
    """Headings beside those of every comparison; none at equal steps."""
    match = matched(results)
    return ("steps", UNITS[match]) if match in UNITS else ()


def budget_cells(results: FolderResults, preset: str) -> tuple[str, ...]:
    """The texts under `budget_columns`."""
    match = matched(results)
    if match not in UNITS:
        return ()
    used = spent(results, preset)
    steps = "–" if used.steps is None else f"{used.steps:,}"
    return steps, "–" if used.amount is None else number(used.amount)
