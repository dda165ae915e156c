"""What stands in the page's tables, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hessblocks.report.comparison.budget import ABSENT
from hessblocks.report.comparison.captions import ratio_text, with_error
from hessblocks.report.comparison.table import ComparisonRow
from hessblocks.statistics import Average

COLUMNS = (
    "Preset",
    "Parameters",
    "Tokens per second",
    "Peak memory (MB)",
    "Initial loss (nats per token)",
    "Final loss (nats per token)",
    "Heterogeneity before",
    "Heterogeneity after",
)


def comparison_cells(row: ComparisonRow) -> tuple[str, ...]:
    """The texts of one row, one for each of COLUMNS."""
    final = _mean(row.final_loss)
    if row.diverged:
        seeds = ", ".join(map(str, row.diverged))
        final = f"diverged (seed {seeds})" if final == ABSENT else f"{final}; seed {seeds} diverged"
    return (
        row.preset,
        f"{row.parameters:,}" if row.parameters is not None else ABSENT,
        _mean(row.tokens_per_second),
        _mean(_megabytes(row.peak_memory)),
        _mean(row.initial_loss),
        final,
        ratio_text(row.before) if row.before else ABSENT,
        ratio_text(row.after) if row.after else ABSENT,
    )


def setting_rows(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as (name with dots, value) rows."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from setting_rows(value, f"{prefix}{name}.")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield f"{prefix}{name}", ", ".join(map(str, value))
        else:
            yield f"{prefix}{name}", ABSENT if value is None else str(value)


def environment_rows(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Versions and hardware as rows, memory in gigabytes."""
    memory = values.get("memory")
    if isinstance(memory, int):
        values = {**values, "memory": f"{memory / 1e9:.1f} GB"}
    yield from setting_rows(values)


def _mean(mean: Average | None) -> str:
    return ABSENT if mean is None else with_error(mean)


def _megabytes(mean: Average | None) -> Average | None:
    if mean is None:
        return None
    error = None if mean.standard_error is None else mean.standard_error * 1e-6
    return replace(mean, value=mean.value * 1e-6, standard_error=error)
