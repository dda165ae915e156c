"""Figures of `hessblocks signal` over depth, drawn from results.csv."""

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from hessblocks.conventions import AnyPath
from hessblocks.figures import Figure, Panel, Scaling, Series
from hessblocks.storage import SignalRow, read_signal

QUANTITIES: dict[str, tuple[str, str, Scaling]] = {
    "token_similarity": ("token similarity", "mean cosine between tokens", "linear"),
    "stable_rank": ("stable rank", "‖X‖²_F / ‖X‖²_2", "linear"),
    "attention_entropy": ("attention entropy", "of the rows, or shaped rows (nats)", "linear"),
    "largest_logit": ("largest logit", "before the softmax", "linear"),
    "second_moment": ("second moment", "tr M₂, mean over tokens and heads", "log"),
    "norm": ("norm", "root mean square of the entries", "log"),
    "kurtosis": ("kurtosis", "of the entries' mean squares", "linear"),
    "jacobian_condition": ("Jacobian", "condition number, or a lower bound", "log"),
}
"""Quantity → title, label and scale of the ordinate."""
GRADIENTS = ("gradient, query", "gradient, mlp_out")
"""Gradients that are also in the first figure; the second figure has all."""
CAPTION = (
    "Layer 0 is the first; input is what enters it. A token similarity or a stable rank of 1 is "
    "rank collapse. One seed, one batch of held-out tokens; values of 0 and infinite ones are "
    "left out of logarithmic axes."
)


def write_signal_figures(folder: AnyPath) -> list[Path]:
    """Draw results.csv to figures/signal and figures/gradients, each as .png and .svg.

    Args:
        folder: folder that `hessblocks signal` wrote.

    Returns:
        The files; the PNG of the signal is the first.

    Raises:
        RunError: results.csv is missing or damaged, or a file cannot be written.
    """
    from hessblocks.drawing import draw, write_picture

    folder = Path(folder)
    rows = read_signal(folder / "results.csv")
    signal = [
        _panel(title, y_label, scale, (row for row in rows if row.quantity == quantity))
        for quantity, (title, y_label, scale) in QUANTITIES.items()
    ]
    norms = [row for row in rows if row.quantity == "gradient_norm"]
    label = "norm of the loss gradient"
    gradients = [
        _panel(f"gradient, {role}", label, "log", (row for row in norms if row.role == role))
        for role in dict.fromkeys(row.role for row in norms)
    ]
    signal += [panel for panel in gradients if panel.title in GRADIENTS]
    why = {f"{row.model}: no {row.quantity}: {row.method}." for row in rows if row.value is None}
    caption = " ".join([CAPTION, *sorted(why)]).replace("_", " ")
    written, every = [], {"Signal in the layers": signal, "Gradients of each group": gradients}
    for title, panels in every.items():
        if shown := tuple(panel for panel in panels if panel.series):
            drawing = draw(Figure(title=title, caption=caption, panels=shown))
            path = write_picture(drawing, folder / "figures", title.split()[0].lower())
            written += [path, path.with_suffix(".svg")]
    return written


def _panel(title: str, y_label: str, scale: Scaling, rows: Iterable[SignalRow]) -> Panel:
    """Draw one line per model, with the values that the axis can show; inputs precede layer 0."""
    models: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        least = 0 if scale == "log" else -math.inf
        if row.value is not None and least < row.value < math.inf:  # nor is NaN
            models[row.model].append((0 if row.layer is None else row.layer + 1, row.value))
    last = max((x for points in models.values() for x, _ in points), default=0)
    series = tuple(
        Series(name=name, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))
        for name, points in models.items()
    )
    return Panel(
        title=title,
        x_label="layer",
        y_label=y_label,
        series=series,
        y_scale=scale,
        ticks=("input", *map(str, range(last))),
    )
