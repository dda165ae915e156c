"""Figures of `hessblocks signal` over depth, drawn from results.csv."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG

from hessblocks.errors import RunError
from hessblocks.figures import MATPLOTLIB, RESOLUTION, draw_study_figure
from hessblocks.storage import atomic_path

Row = dict[str, str]
QUANTITIES = {
    "token_similarity": ("token similarity", "mean cosine between tokens", "linear"),
    "stable_rank": ("stable rank", "‖X‖²_F / ‖X‖²_2", "linear"),
    "attention_entropy": ("attention entropy", "of the shaped matrix (nats)", "linear"),
    "spectral_gap": ("spectral gap", "1 − s₂/s₁ of the shaped matrix", "linear"),
    "norm": ("norm", "root mean square of the entries", "log"),
    "kurtosis": ("kurtosis", "of the entries' mean squares", "linear"),
    "jacobian_condition": ("Jacobian", "condition number, or a lower bound", "log"),
}
"""Quantity → title, ordinate, scale of the ordinate."""
GRADIENTS = ("gradient, query", "gradient, mlp_out")
"""Groups whose gradients are in the first figure too; the second has them all."""
CAPTION = (
    "Layer 0 is the first; the point at −1 is what enters it. A token similarity or a stable rank of 1 "
    "is rank collapse. One seed, one batch of held-out tokens; values of 0 and infinite ones are left "
    "out of logarithmic axes."
)


def write_signal_figures(folder: Path) -> list[Path]:
    """Draw results.csv to figures/signal.png, .svg and figures/gradients.png, .svg.

    Args:
        folder: as `hessblocks signal` writes it.

    Returns:
        The files, the signal's png first.

    Raises:
        RunError: results.csv is missing or damaged, or a file cannot be written.
    """
    rows = _read(folder / "results.csv")
    paths = []
    for name, described in (("signal", _signal(rows)), ("gradients", _gradients(rows))):
        if not described["panels"]:
            continue
        for kind, canvas in (("png", FigureCanvasAgg), ("svg", FigureCanvasSVG)):
            path = folder / "figures" / f"{name}.{kind}"
            with mpl.rc_context(dict(MATPLOTLIB)):
                figure = draw_study_figure(described)
                canvas(figure)
                plain = {"Date": None, "Creator": None} if kind == "svg" else {}
                with atomic_path(path) as temporary:
                    figure.savefig(temporary, dpi=RESOLUTION, metadata=plain)
            paths.append(path)
    return paths


def _signal(rows: Sequence[Row]) -> dict[str, Any]:
    panels = [
        _panel(title, y_label, scale, [row for row in rows if row["quantity"] == quantity])
        for quantity, (title, y_label, scale) in QUANTITIES.items()
    ]
    panels += [panel for panel in _gradients(rows)["panels"] if panel["title"] in GRADIENTS]
    return _figure("How signal passes through the layers", panels)


def _gradients(rows: Sequence[Row]) -> dict[str, Any]:
    found = [row for row in rows if row["quantity"] == "gradient_norm"]
    panels = [
        _panel(
            f"gradient, {role}",
            "norm of the loss gradient",
            "log",
            [row for row in found if row["role"] == role],
        )
        for role in dict.fromkeys(row["role"] for row in found)
    ]
    return _figure("Gradient norms of each group over depth", panels)


def _figure(title: str, panels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "title": title,
        "caption": CAPTION,
        "panels": [panel for panel in panels if panel["series"]],
    }


def _panel(title: str, y_label: str, scale: str, rows: Sequence[Row]) -> dict[str, Any]:
    models = dict.fromkeys(row["model"] for row in rows)
    series = [
        (name, list(_points([row for row in rows if row["model"] == name], scale)))
        for name in models
    ]
    return {
        "title": title,
        "x_label": "layer",
        "y_label": y_label,
        "x_scale": "linear",
        "y_scale": scale,
        "kind": "lines",
        "ticks": (),
        "series": [
            {
                "name": name,
                "x": [x for x, _ in points],
                "y": [y for _, y in points],
                "error": (),
                "published": False,
                "line": True,
            }
            for name, points in series
            if points
        ],
    }


def _points(rows: Sequence[Row], scale: str) -> Iterator[tuple[int, float]]:
    for row in rows:
        value = float(row["value"])
        if math.isfinite(value) and (value > 0 or scale == "linear"):
            yield (int(row["layer"]) if row["layer"] else -1), value


def _read(path: Path) -> list[Row]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            row["model"], row["quantity"], row["role"], float(row["value"])
            int(row["layer"] or 0)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: damaged; run the same `hessblocks signal` again.") from error
    return rows
