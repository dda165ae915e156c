"""Gains, signal and curvature along training, each preset's seeds averaged step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from hessblocks.figures import Figure, Panel, log_scale, plain_math
from hessblocks.report.comparison.averages import curve
from hessblocks.report.comparison.captions import sample, seeds_and_error
from hessblocks.report.comparison.curvature_points import CURVATURE, PARTS
from hessblocks.report.comparison.loss_curves import AXES, NO_BAND
from hessblocks.storage import NORM, FolderResults, Observation

GAINS = ("alpha", "beta", "gamma")
SIGNAL = {
    "token_similarity": "Token similarity (cosine)",
    "stable_rank": "Stable rank (of the token matrix)",
    "norm": "Root mean square (of the entries)",
    "kurtosis": "Kurtosis (1 is even)",
    "attention_entropy": "Attention entropy (nats)",
    "spectral_gap": "Spectral gap (1 − s₂/s₁)",
}
ALIGNMENTS = ("steps", "tokens", "seconds", "loss")
"""What curvature along training is drawn against."""


def along_figures(results: FolderResults) -> tuple[Figure | None, ...]:
    """Every figure of what was measured along training, None where it was not."""
    return (
        gains_figure(results),
        signal_figure(results),
        *(curvature_along_figure(results, against) for against in ALIGNMENTS),
    )


def gains_figure(results: FolderResults) -> Figure | None:
    """One panel a gain, each the mean over layers and heads; None where none was measured."""
    panels: dict[str, list[Observation]] = defaultdict(list)
    for row in sorted(results.observations, key=lambda row: ("_" in row.quantity, row.quantity)):
        letter, _, of = row.quantity.partition("_")
        if letter in GAINS:
            title = f"$\\{letter}_\\mathrm{{{of}}}$" if of else f"$\\{letter}$"
            panels[title].append(row)
    return _figure(
        results,
        "gains",
        "Gains along training",
        panels,
        "Gain (mean over layers and heads)",
        "Trained gains: α, β, γ of shaped attention; α, β with SA or FF of the skip and the branch of "
        "a sub-block; with a weight's letter those of W = α W_init + β ΔW.",
    )


def signal_figure(results: FolderResults) -> Figure | None:
    """One panel a quantity, at the last layer; None where none was measured."""
    found = [row for row in results.observations if row.quantity in SIGNAL and not row.group]
    last = max((row.layer for row in found if row.layer is not None), default=None)
    panels = {
        title: [row for row in found if row.quantity == name and row.layer == last]
        for name, title in SIGNAL.items()
    }
    return _figure(
        results,
        "signal",
        "Signal along training",
        {title: rows for title, rows in panels.items() if rows},
        "Value (unit above each panel)",
        f"At the last layer (number {last}, counted from 0), on {sample(results, observed=True)}. "
        "All layers and the gradient norms are in observations.jsonl.",
    )


def curvature_along_figure(results: FolderResults, against: str) -> Figure | None:
    """One panel a role and part, the mean over its groups; None where none was measured.

    Args:
        results: a run folder.
        against: what presets are aligned by, one of `ALIGNMENTS`.

    Returns:
        The figure's content; None where no curvature was measured along training.
    """
    found = [row for row in results.observations if row.quantity == NORM]
    panels = {
        f"{plain_math(role.replace('_', ' '))}: {words}": [
            row for row in found if (row.role, row.part) == (role, part)
        ]
        for role in dict.fromkeys(row.role for row in found)
        for part, words in PARTS.items()
    }
    by = "step" if against == "steps" else AXES[against][0]
    about = f"Mean over the observed groups of a role; {sample(results, observed=True)}."
    if against == "loss":
        about += " The loss is that on the same batch; training goes from right to left."
    return _figure(
        results,
        f"curvature-along-{against}",
        f"Curvature along training, by {by}",
        panels,
        CURVATURE,
        about,
        against,
    )


def _figure(
    results: FolderResults,
    name: str,
    title: str,
    panels: Mapping[str, Sequence[Observation]],
    y: str,
    about: str,
    against: str = "",
) -> Figure | None:
    """Values over steps, each panel with an ordinate of its own, or curvature against an abscissa."""
    _, label, x = AXES[against or "steps"]
    curves = {
        title: tuple(
            curve(preset, own, x, "value")
            for preset in results.presets
            if (own := [row for row in rows if row.preset == preset])
        )
        for title, rows in panels.items()
    }
    values = [y for series in curves.values() for one in series for y in one.y]
    if not values:
        return None
    scale = log_scale(values) if against else None
    single = "the band is ± 1 standard error of the estimate" if against else NO_BAND
    return Figure(
        name=name,
        title=title,
        panels=tuple(
            Panel(title=panel, x_label=label, y_label=y, series=series, log=scale, band=True)
            for panel, series in curves.items()
        ),
        columns=min(3, len(curves)),
        caption=plain_math(f"{about} {seeds_and_error(results, 'the band', single)}"),
        shares="both" if against else "x",
        marked=results.presets,
    )
