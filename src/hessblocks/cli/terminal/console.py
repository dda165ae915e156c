"""Print tables and closing lines on the terminal."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hessblocks import report
from hessblocks.escape import printable, printable_lines
from hessblocks.statistics import Average

NARROWEST = 120
"""Width of a line, in characters, if the output is not a terminal."""
WIDE = 140
"""The same for tables of comparisons, which several seeds make wider."""


def show(
    described: Mapping[str, Any],
    lines: Iterable[Table | report.Table | str],
    end: list[str] | None = None,
    *,
    as_json: bool,
    width: int = NARROWEST,
) -> None:
    """Print the results of a command on standard output.

    Args:
        described: results as JSON values.
        lines: tables, headings with rows, and text that is wrapped at the width.
        end: lines that are not wrapped, such as paths.
        as_json: print `described` as one JSON object, and nothing else.
        width: width of a line, in characters, if the output is a file or a pipe.
    """
    if as_json:
        print(json.dumps(described, allow_nan=False))
        return
    screen = Console(highlight=False, markup=False, emoji=False)
    if not screen.is_terminal:
        screen.width = width
    for line in lines:
        if isinstance(line, str):
            screen.print(printable(line))
        else:
            screen.print(plain_table(*line) if isinstance(line, tuple) else line)
    for line in end or []:
        print(printable(line))


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Table:
    """Make a table; the first `left` columns are aligned left, the others right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(
            printable_lines(column), justify="left" if index < left else "right", no_wrap=index == 0
        )
    for row in rows:
        table.add_row(*map(printable, row))
    return table


def comparison_table(comparison: report.Comparison) -> Table:
    """Make the table of a comparison, one block per row."""
    columns = (
        "block",
        "parameters",
        "tokens/s",
        "loss\nat start",
        "loss\nat end",
        "learning\nrate",
        "tokens a\nparameter",
        "heterogeneity\nbefore training",
        "heterogeneity\nafter training",
    )
    rows: list[tuple[str, ...]] = [
        (
            row.preset,
            "" if row.parameters is None else f"{row.parameters:,}",
            _number(row.tokens_per_second, ",.0f"),
            _number(row.initial_loss, ".3f"),
            "diverged" if row.diverged else _number(row.final_loss, ".3f"),
            "" if row.rate is None else f"{row.rate:g}",
            "" if row.tokens_a_parameter is None else f"{row.tokens_a_parameter:.3g}",
            report.ratio_text(row.before) if row.before else "",
            report.ratio_text(row.after) if row.after else "",
        )
        for row in comparison.rows
    ]
    if (reference := comparison.results.reference) is not None:
        rows.append(("bigram table", "", "", "", f"{reference:.3f}"))
    return plain_table(columns, rows)


def _number(average: Average | None, form: str) -> str:
    if average is None:
        return ""
    error = f" ± {average.standard_error:{form}}" if average.seeds > 1 else ""
    return f"{average.value:{form}}{error}"
