"""Fit the growth of one softmax layer's blocks, without norm (Figure 3a)."""

import csv
from importlib.resources import files

from hessblocks_studies.engine import Rows, Summary
from hessblocks_studies.growth import Expected, growth_study, growth_summary, logspace, one_layer

EXPECTED = (
    Expected(group="query", part="outer", slope=6),
    Expected(group="query", part="functional", slope=5),
    Expected(group="query", part="full", slope=5),
    Expected(group="value", part="outer", slope=2),
    Expected(group="value", part="full", slope=2),
)


def published() -> Rows:
    """Load the authors' released means over 20 seeds, estimated with 20 probes."""
    text = files("hessblocks_studies.hessian_paper").joinpath("fig3a.csv").read_text("utf-8")
    numbers = ("layers", "layer", "sigma", "standard_error")
    return [
        {**row, **{name: float(row[name]) for name in numbers}, "value": float(row["mean"])}
        for row in csv.DictReader(text.splitlines())
    ]


def summarise(rows: Rows) -> Summary:
    """Fit slopes for σ ≤ 0.1, and plot our curves beside the paper's."""
    return growth_summary(
        rows,
        title="Softmax attention makes queries and values grow apart",
        caption=(
            "Hollow points: the paper's, at width 128 and 64 sums. The functional value block is 0."
        ),
        expected=EXPECTED,
        published=published(),
    )


STUDY = growth_study(
    "fig3a",
    title="query and value blocks of one softmax layer against the size of the data",
    source="Hessian paper, Figure 3a",
    published=(
        "For σ ≤ 0.1 the value block grows as σ² and the query block as σ⁵ (outer part σ⁶), so "
        "that they differ by a factor of 5e5 at σ = 0.01 and meet at 0.8."
    ),
    block="softmax",
    loss="cross-entropy",
    precision="float32",
    sizes=one_layer(logspace(-2, 1, 20), seeds=5),
    summarise=summarise,
)
