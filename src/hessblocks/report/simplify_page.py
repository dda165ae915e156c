"""Write the page of `hessblocks simplify`: the answer, the map, the steps, the table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from hessblocks.conventions import AnyPath
from hessblocks.errors import RunError
from hessblocks.figures import Figure, Heatmap
from hessblocks.report.captions import with_error
from hessblocks.report.templates import (
    ABSENT,
    drawn_picture,
    environment_rows,
    setting_rows,
    write_page,
)
from hessblocks.statistics import Average
from hessblocks.storage import read_object

STEPS = ("Taken", "Layer", "KL after it", "KL alone", "Saved so far")
COLUMNS = ("Part", "Layer", "KL", "Loss", "Parameters", "Operations a token", "Cache a token",
           "Nats for 1 %", "Forecast KL")  # fmt: skip


def write_simplify_report(folder: AnyPath) -> Path:
    """Write figures/*.png, figures/*.svg and report.html of a folder of `hessblocks simplify`.

    Args:
        folder: that the command wrote.

    Returns:
        The path of report.html.

    Raises:
        RunError: a file is missing, damaged or cannot be written.
    """
    folder = Path(folder)
    found = read_object(folder / "summary.json")
    settings = [read_object(folder / f"{name}.json") for name in ("config", "environment")]
    try:
        figure = removal_map(found["removals"], found["depth"])
        return write_page(
            folder,
            "simplify.html",
            title=f"hessblocks simplify: {found['model']}",
            heading=f"What can be taken from {found['model']}",
            headline=simplify_headline(found),
            found=found,
            picture=drawn_picture(figure, folder, "removals") if figure else "",
            steps=(STEPS, list(map(step_cells, found.get("steps", [])))),
            columns=COLUMNS,
            rows=list(map(_cells, found["cheapest"])),
            kinds=_by_kind(found["removals"]),
            settings=[*setting_rows(settings[0]), *environment_rows(settings[1])],
        )
    except (KeyError, TypeError) as error:
        raise RunError(f"{folder}: damaged; run the same `hessblocks simplify` again.") from error


def simplify_headline(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Say what was saved and what it costs before and after healing, or what is cheapest.

    Args:
        found: summary.json.

    Returns:
        Sentences.
    """
    alone = f"One at a time: {found['said']}."
    if "steps" not in found:
        return (alone,)
    removed, healed = found["removed"], found["healed"]
    whole, once = found["sum_alone"], found["kl_chosen"]
    layers = f"{found['healed_layers']} of {found['layers_left']} layers"
    return (
        f"{found['saved']:.1%} fewer parameters cost {_nats(removed)} nats per token of KL, and "
        f"{_nats(healed)} after {found['healing_seconds']:.0f} s of healing {layers}; the loss of "
        f"{found['loss_before']:.3f} rises by {_nats(healed, 'loss')}. Measured on text that "
        "nothing was chosen by.",
        f"Of the layers {found['layer_parameters']:.1%} of the parameters, "
        f"{found['operations']:.1%} of the operations per token and "
        f"{found['cache']:.1%} of the cache are gone.",
        f"The steps alone cost {whole:.3g} nats together, made one after the other {once:.3g}: the "
        f"sum is {abs(whole / once - 1):.0%} too {'high' if whole > once else 'low'}.",
        alone,
    )


def step_cells(step: Mapping[str, Any]) -> tuple[str, ...]:
    """Write a step of the plan."""
    alone, saved = f"{step['alone']:.3g}", f"{step['share']:.1%}"
    return step["kind"], str(step["layer"]), _nats(step), alone, saved


def removal_map(rows: Sequence[Mapping[str, Any]], depth: int) -> Figure | None:
    """Build maps of kinds by layers, log₁₀ nats: each removal, and 1 % of the parameters by it.

    Args:
        rows: with kind, layer, kl and nats_per_percent.
        depth: layers.

    Returns:
        The figure; None where no removal costs anything.
    """
    panels = [
        panel
        for name, title in (
            ("kl", "What each removal costs, layers from left to right"),
            ("nats_per_percent", "What it costs for each percent of the parameters that it saves"),
        )
        if (panel := _map(rows, depth, name, title))
    ]
    if not panels:
        return None
    size = (9, 1.4 + 0.3 * len(panels[0].rows))
    return Figure(title="", caption="", panels=tuple(panels), size=size, columns=1)


def _map(rows: Sequence[Mapping[str, Any]], depth: int, name: str, title: str) -> Heatmap | None:
    found = {(row["kind"], row["layer"]): _log(row[name]) for row in rows}
    known = {kind for (kind, _), value in found.items() if not math.isnan(value)}
    kinds = [kind for kind in _kinds(rows) if kind in known]
    return (
        Heatmap(
            title=title,
            values=tuple(
                tuple(found.get((kind, n), math.nan) for n in range(depth)) for kind in kinds
            ),
            label="log₁₀ nats",
            rows=tuple(kinds),
            columns=tuple(map(str, range(depth))),
        )
        if kinds
        else None
    )


def _kinds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the kinds in the order of the layer that has most of them."""
    counted = Counter(row["layer"] for row in rows)
    fullest = sorted(rows, key=lambda row: -counted[row["layer"]])
    return list(dict.fromkeys(row["kind"] for row in fullest))


def _log(value: float | None) -> float:
    return math.log10(value) if value and value > 0 else math.nan


def _nats(row: Mapping[str, Any], name: str = "kl") -> str:
    return with_error(Average(value=row[name], standard_error=row[f"{name}_error"], seeds=1))


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    forecast = ABSENT if row["forecast"] is None else _nats(row, "forecast")
    trusted = f" (no: {row['outside']})" if row["outside"] else ""
    return (
        row["kind"],
        str(row["layer"]),
        _nats(row),
        _nats(row, "loss"),
        f"{row['parameters']:,}",
        f"{row['operations']:,.0f}",
        f"{row['cache']:,}",
        f"{row['nats_per_percent']:.3g}",
        forecast + trusted,
    )


def _by_kind(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Median and range of the KL over layers, and how forecasts compare, kind by kind."""
    found: list[tuple[str, ...]] = []
    for kind in _kinds(rows):
        own = [row for row in rows if row["kind"] == kind]
        kl = [row["kl"] for row in own]
        ratios = [r["forecast"] / r["kl"] for r in own if r["forecast"] is not None and r["kl"] > 0]
        middle = (
            f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ABSENT
        )
        saved = sum(row["share"] for row in own) / len(own)
        found.append(
            (
                kind,
                f"{median(kl):.3g}",
                f"{min(kl):.3g} to {max(kl):.3g}",
                f"{saved:.2%}",
                middle,
            )
        )
    return found
