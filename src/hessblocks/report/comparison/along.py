"""Gains, signal and curvature along training, each preset's seeds averaged step by step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from hessblocks.figures import Figure, Panel, Series, log_scale, plain_math
from hessblocks.report.comparison.averages import averaged
from hessblocks.report.comparison.captions import sample, seeds_and_error
from hessblocks.report.comparison.curvature_points import CURVATURE, PARTS
from hessblocks.report.comparison.loss_curves import AXES, LOSS
from hessblocks.statistics import average
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
ALIGNMENTS: Mapping[str, tuple[str, str]] = {
    "steps": ("step", AXES["steps"]),
    "tokens": ("tokens", AXES["tokens"]),
    "seconds": ("training time", AXES["seconds"]),
    "loss": ("loss", LOSS),
}
"""What curvature along training is drawn against: words, axis."""
Rows = Sequence[Observation]


def along_figures(results: FolderResults) -> tuple[Figure | None, ...]:
    """Every figure of what was measured along training, None where it was not."""
    return (
        gains_figure(results),
        signal_figure(results),
        *(curvature_along_figure(results, against) for against in ALIGNMENTS),
    )


def gains_figure(results: FolderResults) -> Figure | None:
    """One panel a gain, each the mean over layers and heads; None where none was measured."""
    found = [row for row in results.observations if _is_gain(row.quantity)]
    names = sorted({row.quantity for row in found}, key=lambda name: ("_" in name, name))
    return _figure(
        results,
        name="gains",
        title="Gains along training",
        panels={name: [row for row in found if row.quantity == name] for name in names},
        titles={name: _gain_label(name) for name in names},
        y="Gain (mean over layers and heads)",
        about="Trained gains: α, β, γ of shaped attention; α, β with SA or FF of the skip and the branch of "
        "a sub-block; with a weight's letter those of W = α W_init + β ΔW.",
        own_scales=True,
    )


def signal_figure(results: FolderResults) -> Figure | None:
    """One panel a quantity, at the last layer; None where none was measured."""
    found = [row for row in results.observations if row.quantity in SIGNAL and not row.group]
    last = max((row.layer for row in found if row.layer is not None), default=None)
    panels = {
        name: [row for row in found if row.quantity == name and row.layer == last]
        for name in SIGNAL
    }
    return _figure(
        results,
        name="signal",
        title="Signal along training",
        panels={name: rows for name, rows in panels.items() if rows},
        titles=SIGNAL,
        y="Value (unit above each panel)",
        about=f"At the last layer (number {last}, counted from 0), on {sample(results, observed=True)}. "
        "All layers and the gradient norms are in observations.jsonl.",
        own_scales=True,
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
    panels: dict[str, Rows] = {}
    titles: dict[str, str] = {}
    for role in dict.fromkeys(row.role for row in found):
        for part, words in PARTS.items():
            key, shown = f"{role} {part}", role.replace("_", " ")
            panels[key] = [row for row in found if (row.role, row.part) == (role, part)]
            titles[key] = f"{plain_math(shown)}: {words}"
    by, axis = ALIGNMENTS[against]
    backwards = ""
    if against == "loss":
        backwards = " The loss is that on the same batch; training goes from right to left."
    return _figure(
        results,
        name=f"curvature-along-{against}",
        title=f"Curvature along training, by {by}",
        panels=panels,
        titles=titles,
        x=axis,
        against=against,
        y=CURVATURE,
        about=f"Mean over the observed groups of a role; {sample(results, observed=True)}.{backwards}",
        log=True,
        single="the band is ± 1 standard error of the estimate",
    )


def _figure(
    results: FolderResults,
    *,
    name: str,
    title: str,
    panels: Mapping[str, Rows],
    titles: Mapping[str, str],
    y: str,
    about: str,
    x: str = AXES["steps"],
    against: str = "steps",
    log: bool = False,
    own_scales: bool = False,
    single: str = "no band, since there is one seed",
) -> Figure | None:
    curves = {key: _series(results.presets, rows, against) for key, rows in panels.items()}
    values = [y for series in curves.values() for one in series for y in one.y]
    if not values:
        return None
    scale = log_scale(values) if log else None
    return Figure(
        name=name,
        title=title,
        panels=tuple(
            Panel(title=titles[key], x_label=x, y_label=y, series=series, log=scale, band=True)
            for key, series in curves.items()
        ),
        columns=min(3, len(curves)),
        caption=plain_math(f"{about} {seeds_and_error(results, 'the band', single)}"),
        shares="x" if own_scales else "both",
        marked=results.presets,
    )


def _series(presets: Iterable[str], rows: Rows, against: str) -> tuple[Series, ...]:
    curves = {preset: [row for row in rows if row.preset == preset] for preset in presets}
    return tuple(_curve(preset, own, AXIS_VALUES[against]) for preset, own in curves.items() if own)


def _curve(preset: str, rows: Rows, x: Callable[[Observation], float]) -> Series:
    """One point a step: the mean over layers, heads and groups of each seed, then over seeds."""
    steps: dict[int, dict[int, list[Observation]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if math.isfinite(row.value):
            steps[row.step][row.seed].append(row)
    places = []
    for step in sorted(steps):
        own = list(steps[step].values())
        mean = average([_mean(row.value for row in seed) for seed in own], _error(own[0]))
        assert mean is not None, "only finite values were collected"
        places.append((_mean(_mean(map(x, seed)) for seed in own), mean, f"step {step:,}"))
    return averaged(preset, places)


AXIS_VALUES: Mapping[str, Callable[[Observation], float]] = {
    "steps": lambda row: row.step,
    "tokens": lambda row: row.tokens,
    "seconds": lambda row: row.seconds,
    "loss": lambda row: math.nan if row.batch_loss is None else row.batch_loss,
}


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)


def _error(rows: Rows) -> float | None:
    """Standard error of the mean of independent estimates; None where there are none."""
    errors = [row.standard_error for row in rows if row.standard_error is not None]
    return math.hypot(*errors) / len(rows) if errors else None


def _is_gain(quantity: str) -> bool:
    return quantity.partition("_")[0] in GAINS


def _gain_label(name: str) -> str:
    letter, _, of = name.partition("_")
    return f"$\\{letter}_\\mathrm{{{of}}}$" if of else f"$\\{letter}$"
