"""Write the page of `hessblocks price`: the answer, bits of each matrix, the check, the bill."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hessblocks.conventions import AnyPath
from hessblocks.errors import RunError
from hessblocks.figures import Figure, Heatmap, number
from hessblocks.report.captions import with_error
from hessblocks.report.templates import (
    drawn_picture,
    environment_rows,
    inlined,
    setting_rows,
    write_page,
)
from hessblocks.statistics import Average
from hessblocks.storage import read_object

COSTS = ("Changed together", "Forecast KL", "Measured KL", "Forecast trusted")
COLUMNS = ("Change", "Forecast KL", "Diagonal", "Full form", "Loss, to first order",
           "Weight changed by", "Forecast trusted")  # fmt: skip
FILES = ("bill.csv", "together.csv", "allocation.csv", "tensor-types.txt", "check.csv")
LAYER = re.compile(r"(?:^|\.)\d+\.(.+?)(?:\.weight)?$")
"""Pattern of the text after the number of a layer in a parameter's name."""


def write_price_report(folder: AnyPath) -> Path:
    """Write figures/*.png, figures/*.svg and report.html of a folder of `hessblocks price`.

    Args:
        folder: that the command wrote.

    Returns:
        The path of report.html.

    Raises:
        RunError: a file is missing, damaged or cannot be written.
    """
    folder = Path(folder)
    found, picture = read_object(folder / "summary.json"), folder / "figures" / "check.svg"
    settings = [read_object(folder / f"{name}.json") for name in ("config", "environment")]
    try:
        figure = _map(found.get("shares", []))
        return write_page(
            folder,
            "price.html",
            title=f"hessblocks price: {found['model']}",
            heading=f"What compressing {found['model']} costs",
            headline=price_headline(found),
            found=found,
            allocation=drawn_picture(figure, folder, "allocation") if figure else "",
            check=inlined(picture.read_bytes()) if picture.is_file() else "",
            costs=(COSTS, [cost_cells(row) for row in found["together"]]),
            columns=COLUMNS,
            rows=list(map(_cells, found["bill"])),
            settings=[*setting_rows(settings[0]), *environment_rows(settings[1])],
            files=[name for name in FILES if (folder / name).exists()],
        )
    except (KeyError, TypeError) as error:
        raise RunError(f"{folder}: damaged; run the same `hessblocks price` again.") from error


def price_headline(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Say what the allocation costs beside one width for all, or what each edit of all costs.

    Args:
        found: summary.json.

    Returns:
        Sentences.
    """
    rows = {row["name"]: row for row in found["together"]}
    shown, between = list(rows.values()), "; "
    first = "Expected cost in nats per token of all matrices together: "
    first += "; ".join(f"{name}: {_nats(row)}" for name, row in rows.items()) + "."
    if "uniform" in found:
        width, between = f"{found['uniform']} bits", " and "
        shown = [rows["allocation"], rows[f"all, {width}"]]
        first = (
            f"At {found['bits']:.3g} bits on average the allocation is expected to cost "
            f"{_nats(shown[0])} nats per token; all matrices at {width} would cost "
            f"{_nats(shown[1])}."
        )
    if shown[0]["measured"] is not None:
        measured = between.join(_nats(row, "measured") for row in shown)
        first += f" Measured on other text: {measured}."
    if any(row["outside"] for row in shown):
        first += (
            " Changes so large are beyond what forecasts can tell: rather trust what is measured."
        )
    return (first, *([f"One at a time: {found['check']}."] if "check" in found else []))


def cost_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Write a row of together.csv."""
    measured = "" if row["measured"] is None else _nats(row, "measured")
    return row["name"], _nats(row), measured, _trusted(row)


def _nats(row: Mapping[str, Any], name: str = "forecast") -> str:
    return with_error(Average(value=row[name], standard_error=row[f"{name}_error"], seeds=1))


def _trusted(row: Mapping[str, Any]) -> str:
    return f"no: {row['outside']}" if row["outside"] else "yes"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    numbers = (number(row[name]) for name in ("diagonal", "full", "gradient"))
    size = f"{row['relative_size']:.1%}"
    return row["name"], _nats(row), *numbers, size, _trusted(row)


def _map(shares: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Map bits of each matrix, kinds by layers; None if the names of matrices hold no layers."""
    bits: dict[str, list[float]] = {}
    for row in shares:
        if found := LAYER.search(row["place"]):
            bits.setdefault(found[1], []).append(row["bits"])
    layers = max(map(len, bits.values()), default=0)
    kinds = {name: tuple(one) for name, one in bits.items() if len(one) == layers}
    if not kinds:
        return None
    title = "Layers from left to right, the first is 0"
    rows, columns = tuple(kinds), tuple(map(str, range(layers)))
    panel = Heatmap(
        title=title, values=tuple(kinds.values()), label="Bits", rows=rows, columns=columns
    )
    return Figure(title="", caption="", panels=(panel,), size=(9, 1.4 + 0.3 * len(kinds)))
