"""What `hessblocks curvature` shows on the terminal."""

from __future__ import annotations

from rich.table import Table

from hessblocks.cli.terminal.console import plain_table, significant
from hessblocks.report import short_names, with_interval
from hessblocks.storage import CurvatureResults, Norm


def curvature_table(results: CurvatureResults, most: int) -> Table:
    """The norms, one group a row, the largest first."""
    rows = [
        (group, *(number_with_error(results.norms[group][part]) for part in results.parts))
        for group in results.by_size()[:most]
    ]
    return plain_table(("group", *(f"‖{part}‖" for part in results.parts)), rows)


def summary_lines(results: CurvatureResults, most: int) -> list[str]:
    """What the table means, and the numbers of the model as a whole."""
    lines = ["Frobenius norms of the groups' own blocks (nats per token), ± 1 standard error"]
    if len(results.norms) > most:
        lines.append(f"the {most} largest of {len(results.norms)} groups; the report has them all")
    for part, ratio in results.heterogeneity.items():
        text = number_with_error(ratio)
        if ratio.low < ratio.high:
            text = f"{with_interval(ratio.value, ratio.low, ratio.high)} (95 % interval)"
        lines.append(f"heterogeneity of {part}, largest over smallest: {text}")
    for part, found in results.off_diagonal_shares.items():
        lines.append(f"off-diagonal share of {part}: {number_with_error(found)}")
    for part, names in results.zero_groups().items():
        lines.append(f"zero curvature ({part}): {short_names(names)}")
    return lines


def number_with_error(norm: Norm) -> str:
    """Three digits of the value and one of its error; `exact` where there is none."""
    if norm.method == "exact":
        return f"{significant(norm.value, 4)} exact" if norm.value else "0"
    if norm.value == 0:
        return "0"
    return f"{significant(norm.value, 3)} ± {significant(norm.standard_error, 1)}"
