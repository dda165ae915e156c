"""Tables and closing lines on the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hessblocks.cli.terminal.sizes import BlockSize
from hessblocks.escape import printable, printable_lines
from hessblocks.report import Comparison, ComparisonRow, by_name, ratio_text
from hessblocks.statistics import Average

NARROWEST = 120
"""Characters of a line where the output is not a terminal."""
WIDE = 140
"""The same where several seeds or what was matched make the table wider."""


def show(
    described: Mapping[str, Any],
    lines: Iterable[Table | str],
    end: list[str] | None = None,
    *,
    as_json: bool,
    width: int = NARROWEST,
) -> None:
    """What a command found, on standard output.

    Args:
        described: printed as one JSON object, where that was asked for; nothing else is then.
        lines: tables, and text that is wrapped at the width.
        end: lines that are not wrapped, such as paths.
        as_json: what was asked for.
        width: characters of a line where the output is a file or a pipe.
    """
    if as_json:
        print(json.dumps(described, allow_nan=False))
        return
    screen = Console(highlight=False, markup=False, emoji=False)
    if not screen.is_terminal:
        screen.width = width
    for line in lines:
        screen.print(printable(line) if isinstance(line, str) else line)
    for line in end or []:
        print(printable(line))


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Table:
    """A table; all but the first `left` columns are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(printable_lines(column), justify="left" if index < left else "right")
    for row in rows:
        table.add_row(*map(printable, row))
    return table


def comparison_table(found: Comparison) -> Table:
    """The comparison, one block a row; what was matched last."""
    columns = (
        "block",
        "parameters",
        "tokens/s",
        "loss\nat start",
        "loss\nat end",
        "heterogeneity\nbefore training",
        "heterogeneity\nafter training",
        *(name.replace(" ", "\n", 1) for name in found.budget_columns),
    )
    return plain_table(
        columns,
        [
            (
                row.preset,
                "" if row.parameters is None else f"{row.parameters:,}",
                _number(row.tokens_per_second, ",.0f"),
                _number(row.initial_loss, ".3f"),
                "diverged" if row.diverged else _number(row.final_loss, ".3f"),
                ratio_text(row.before) if row.before else "",
                ratio_text(row.after) if row.after else "",
                *row.budget,
            )
            for row in found.rows
        ],
    )


def sizes_table(sizes: Sequence[BlockSize]) -> Table:
    """The presets, one a row."""
    return plain_table(
        ("block", "what it is", "parameters", "matmuls", "multiply-adds"),
        [
            (
                s.preset,
                s.summary,
                f"{s.parameters:,}",
                f"{s.matmuls:,}",
                _millions(s.multiply_adds),
            )
            for s in sizes
        ],
        left=2,
    )


def _millions(count: int) -> str:
    """Write a count in millions; whole where little would be left of it."""
    return f"{count / 1e6:,.1f} M" if count >= 1e5 else f"{count:,}"


def zero_group_lines(rows: Sequence[ComparisonRow]) -> list[str]:
    """The groups that are left out of a ratio because their norm is exactly 0."""
    blocks: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for moment, ratio in row.ratios.items():
            if ratio.zero_groups:
                groups = _condensed(ratio.zero_groups)
                blocks.setdefault((moment, groups), []).append(row.preset)
    return [
        f"zero curvature {moment} training, left out of the ratio: {groups} ({', '.join(presets)})"
        for (moment, groups), presets in blocks.items()
    ]


def _condensed(groups: Sequence[str]) -> str:
    """Names of groups, those of several layers together: layers.{0,1}.attention.key."""
    numbers = {name: ",".join(map(str, own)) for name, own in by_name(groups).items()}
    braced = {name: f"{{{own}}}" if "," in own else own for name, own in numbers.items()}
    return ", ".join(f"layers.{own}.{name}" if own else name for name, own in braced.items())


def time_line(seconds: Mapping[str, float], total: float) -> str:
    """How long it took, and the share of each stage."""
    shares = ", ".join(f"{name} {100 * own / total:.0f} %" for name, own in seconds.items())
    return f"{total:.0f} s: {shares}"


def _number(average: Average | None, form: str) -> str:
    if average is None:
        return ""
    error = f" ± {average.standard_error:{form}}" if average.seeds > 1 else ""
    return f"{average.value:{form}}{error}"


def significant(value: float, digits: int) -> str:
    """So many significant digits, written out with thousands separators up to ten million."""
    if not 1e-3 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"
