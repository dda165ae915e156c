"""What each preset of a matched comparison was given, as columns of the table."""

from __future__ import annotations

from hessblocks.figures import number
from hessblocks.report.comparison.averages import average_rows
from hessblocks.storage import FolderResults

ABSENT = "–"
"""What is not measured."""
UNITS = {
    "tokens": "training tokens",
    "time": "training time (s)",
    "flops": "training operations",
}
"""What was matched, in words."""


def matched(results: FolderResults) -> str:
    """What was matched: steps, tokens, time or flops."""
    return str(results.settings.values.get("match", "steps"))


def steps_of(results: FolderResults, preset: str) -> int | None:
    """Updates of one preset; None where none is recorded."""
    return max((row.step for row in results.metrics if row.preset == preset), default=None)


def _amount(results: FolderResults, preset: str, match: str) -> float | None:
    """What one preset used of what was matched, mean over seeds; None where it is not recorded."""
    if match == "tokens":
        tokens = [row.tokens for row in results.metrics if row.preset == preset]
        return max((each for each in tokens if each is not None), default=None)
    by_time = match == "time"
    each = average_rows(results.select("training_time" if by_time else "flops", preset=preset))
    times = 1 if by_time else steps_of(results, preset)
    return None if each is None or times is None else times * each.value


def budget_columns(results: FolderResults) -> tuple[str, ...]:
    """Headings beside those of every comparison; none at equal steps."""
    match = matched(results)
    return ("steps", UNITS[match]) if match in UNITS else ()


def budget_cells(results: FolderResults, preset: str) -> tuple[str, ...]:
    """The texts under `budget_columns`."""
    match = matched(results)
    if match not in UNITS:
        return ()
    steps, amount = steps_of(results, preset), _amount(results, preset, match)
    return (
        ABSENT if steps is None else f"{steps:,}",
        ABSENT if amount is None else number(amount),
    )
