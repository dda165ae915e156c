"""Make rows of measurements and aggregate them over seeds: means, curves, panels, summaries."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hessblocks.figures import Figure, Heatmap, Panel, Series
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks_studies.engine import Check, Rows, Summary
from hessblocks_studies.shared.pooled_errors import LEVEL

R = TypeVar("R", bound=Mapping[str, Any])
Place = tuple[float, float, float]
"""(x, y, standard error of y)."""


def measured(quantity: str, value: Scalar, method: str = "measured", /, **settings: Scalar) -> Row:
    """Make the row of one quantity.

    Args:
        quantity: name of the quantity.
        value: value of the quantity; None if there is none.
        method: measured, counted, exact or estimate.
        **settings: further columns, such as step or group, and the standard error if known.

    Returns:
        The row.
    """
    return {**settings, "quantity": quantity, "value": value, "method": method}


def validation_loss(line: Mapping[str, Any]) -> tuple[int, float | None] | None:
    """Read (step, validation loss) from a log line; the loss is None if training diverged.

    Returns:
        The pair; None for a training loss.
    """
    if line["split"] == "train" and "diverged" not in line:
        return None
    loss = line["loss"]
    return line["step"], loss if loss is not None and math.isfinite(loss) else None


def grouped(rows: Iterable[Mapping[str, Any]], *columns: str) -> dict[tuple[Any, ...], Rows]:
    """Group rows that have equal values in the given columns; the order of rows is preserved."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in columns), []).append(row)
    return {**groups}


def gathered(
    rows: Iterable[Mapping[str, Any]], *columns: str
) -> dict[tuple[Any, ...], list[float]]:
    """Group the values of rows by columns; the order of rows is preserved."""
    groups = grouped(rows, *columns).items()
    return {key: [float(row["value"]) for row in members] for key, members in groups}


def nested(
    rows: Iterable[Mapping[str, Any]], *keys: str | tuple[str, ...], value: str = "value"
) -> dict[Any, Any]:
    """Nest the values of rows in dictionaries, one level per key.

    Args:
        rows: rows of measurements.
        keys: columns, the outermost first; a tuple combines several columns in one key.
        value: column with the values.

    Returns:
        {first key: {second key: … value}}, in the order of the rows; of rows with equal keys the
        last one counts.
    """
    outermost: dict[Any, Any] = {}
    for row in rows:
        inner = outermost
        *outer, last = (row[k] if isinstance(k, str) else tuple(row[n] for n in k) for k in keys)
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = row[value]
    return outermost


def of_quantity(rows: Iterable[R], *quantities: str) -> list[R]:
    """Select the rows of some quantities."""
    return [row for row in rows if row["quantity"] in quantities]


def mean_table(
    values: Mapping[tuple[Any, ...], Sequence[float]], *columns: str, value: str = "value"
) -> list[dict[str, Any]]:
    """Make a table with mean and standard error of each group of `gathered` values.

    Args:
        values: key of the group → values.
        columns: column names for the parts of the key.
        value: column name of the mean.

    Returns:
        The rows of the table.
    """
    table = []
    for key, numbers in values.items():
        mean, error = mean_and_error(numbers)
        names = dict(zip(columns, key, strict=True))
        table.append({**names, value: mean, "standard_error": error})
    return table


def mean_places(values: Mapping[float, Sequence[float]]) -> list[Place]:
    """Compute (x, mean, standard error) of the values at each x; the order is preserved."""
    return [(x, *mean_and_error(numbers)) for x, numbers in values.items()]


def curve(name: str, places: Sequence[Place], **style: Any) -> Series:
    """Make a series that passes through points.

    Args:
        name: name in the legend.
        places: points of the series; none for a series that only appears in the legend.
        **style: fields line and published of the `Series`.

    Returns:
        The series, with standard errors as error bars.
    """
    x, y, error = (tuple(point[part] for point in places) for part in range(3))
    return Series(name=name, x=x, y=y, error=error, **style)


def panel(
    title: str,
    x_label: str,
    y_label: str,
    curves: Mapping[str, Sequence[Place]],
    *,
    log: str = "",
    line: bool = True,
    empty: bool = False,
) -> Panel:
    """Make a panel of curves.

    Args:
        title: title of the panel.
        x_label: label of the abscissa.
        y_label: label of the ordinate.
        curves: name in the legend → points.
        log: logarithmic axes: "x", "y", "xy" or none.
        line: whether lines connect the points.
        empty: whether the legend includes curves without points.

    Returns:
        The panel with the curves in the given order.
    """
    return Panel(
        title=title,
        x_label=x_label,
        y_label=y_label,
        x_scale="log" if "x" in log else "linear",
        y_scale="log" if "y" in log else "linear",
        series=tuple(
            curve(name, points, line=line) for name, points in curves.items() if points or empty
        ),
    )


def summary(
    title: str,
    caption: str,
    panels: Iterable[Panel | Heatmap],
    checks: Sequence[Check],
    **tables: Sequence[Mapping[str, Any]],
) -> Summary:
    """Summarise a study.

    Args:
        title: title of the figure.
        caption: caption of the figure.
        panels: panels of the figure.
        checks: checks of facts.
        **tables: tables of numbers by name.

    Returns:
        The summary.
    """
    figure = Figure(title=title, caption=caption, panels=tuple(panels))
    return Summary(figure=figure, checks=allowed_for(checks), tables=tables)


def allowed_for(checks: Sequence[Check]) -> list[Check]:
    """Leave verdicts undecided that multiple testing does not allow (Holm 1979).

    Of m tested facts, the fact with the k-th smallest p-value counts if it and all smaller ones are
    at most 0.05 / (m − k + 1). The probability of any wrong verdict is then at most 5 %. Void facts
    are not tested.

    Args:
        checks: checks of one study.

    Returns:
        The checks, in the same order.
    """
    tested = sorted(
        (check.p_value, index) for index, check in enumerate(checks) if check.p_value is not None
    )
    judged = list(checks)
    over = False
    for behind, (p_value, index) in enumerate(tested):
        over = over or p_value > LEVEL / (len(tested) - behind)
        if over and judged[index].holds is not None:
            ours = f"{judged[index].ours}; decided alone, not among {len(tested)} (Holm)"
            judged[index] = replace(judged[index], ours=ours, holds=None)
    return judged
