"""Choose the best pre-LN: positions, initial standard deviation, learning rate.

The rule: PLAN.md beside this file, section `baseline`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error, variance
from hessblocks.storage import Row
from hessblocks_studies import shared
from hessblocks_studies.engine import Check, Rows, Scale, Summary

POSITIONS: dict[str, tuple[str, ...]] = {
    "learned": ("position=learned",),
    "sinusoidal": ("position=sinusoidal",),
    "sinusoidal, amplitude 1": ("position=sinusoidal", "position.scale=1"),
    "rotary": ("position=rotary",),
}
"""Kind of position → its slots; the default amplitude of the sines is 0.02."""
DEVIATIONS = ("0.02", "0.55/√width")
"""Initial standard deviations of all weights and embeddings: GPT-2's 0.02, or the same value scaled
from GPT-2's width 768 to the study's width."""
_MATRICES = (
    *(f"attention.{name}" for name in ("query", "key", "value", "projection")),
    *("mlp.input", "mlp.output"),
)
RATES: dict[Scale, tuple[float, ...]] = {
    "smoke": (3e-3,),
    "laptop": (3e-3, 1e-2, 1e-3, 3e-2),
    "paper": (1e-3, 3e-3, 3e-4, 1e-2),
}
"""Learning rates by scale, the likeliest first."""
SIZES: dict[Scale, shared.TextSize] = {
    "smoke": shared.SMOKE,
    "laptop": replace(shared.LAPTOP, steps=2400),
    "paper": shared.PAPER,
}
_SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 2, "paper": 2}
Losses = Mapping[str, Mapping[float, Sequence[float]]]
"""Label → {rate: final losses of the seeds}."""
EQUAL = 2.0
"""Joint standard errors up to which two pairs count as equal."""


@dataclass(frozen=True, kw_only=True)
class BaselineSettings(shared.TrainedSettings):
    """Settings of a point: one pre-LN, or one reference."""

    label: str
    """Position and initial standard deviation, or the name of the reference."""


def deviation(name: str, width: int) -> float:
    """Compute the standard deviation of a name in `DEVIATIONS` at a width."""
    return 0.02 if name == "0.02" else 0.02 * math.sqrt(768 / width)


def label_of(position: str, std: str) -> str:
    """Name a pair of position and standard deviation."""
    return f"{position}, std {std}"


LABELS = tuple(label_of(position, std) for position in POSITIONS for std in DEVIATIONS)
"""Labels of all pairs; of equally good pairs the first is chosen."""


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """List every pair at every rate, GPT-2 at every rate, and the bigram table once."""
    found = []
    for rate in RATES[scale]:
        size = replace(SIZES[scale], learning_rate=rate)
        for position, slots in POSITIONS.items():
            for name in DEVIATIONS:
                std = deviation(name, size.width)
                chosen = {
                    "label": label_of(position, name),
                    "slots": (*slots, *(f"{matrix}.std={std:.6g}" for matrix in _MATRICES)),
                    "embedding_std": std,
                }
                found.append(shared.Sweep(variants=["pre-ln"], size=size, settings=chosen))
        references = shared.REFERENCES if rate == RATES[scale][0] else [shared.GPT2]
        found += [
            shared.Sweep(variants=[name], size=size, settings={"label": name})
            for name in references
        ]
    return found


def measure(settings: BaselineSettings) -> list[Row]:
    """Train one model; the variant of its rows is the label with the rate."""
    name = f"{settings.label}, rate {settings.size.learning_rate:g}"
    return [{**row, "variant": name} for row in shared.train_point(settings)]


def by_label(losses: shared.Values) -> Losses:
    """Group the final losses by label and rate; infinite if a seed diverged."""
    found: dict[str, dict[float, list[float]]] = {}
    for variant, seeds in losses.items():
        label, _, rate = variant.rpartition(", rate ")
        found.setdefault(label, {})[float(rate)] = list(seeds.values())
    return found


def best(by_rate: Mapping[float, Sequence[float]]) -> tuple[float, float, float]:
    """Return the best rate, its mean loss and standard error."""
    rate = min(by_rate, key=lambda one: mean_and_error(by_rate[one])[0])
    return rate, *mean_and_error(by_rate[rate])


def inside(by_rate: Mapping[float, Sequence[float]]) -> bool:
    """Tell whether the best rate lies between two worse rates; these may diverge."""
    return min(by_rate) < best(by_rate)[0] < max(by_rate)


def obstacle(losses: Losses) -> str | None:
    """Return the reason why the rule cannot choose yet; None if it can."""
    rates = {rate for label in LABELS for rate in losses.get(label, {})}
    complete = all(
        bool(rates)
        and set(losses.get(label, {})) == rates
        and min(map(len, losses[label].values())) >= 2
        for label in LABELS
    )
    if len(rates) < 3 or not complete:
        return "too little measured"
    at_end = [label for label in LABELS if not inside(losses[label])]
    return f"the grid must be longer for: {'; '.join(at_end)}" if at_end else None


def chosen(losses: Losses) -> str:
    """Choose the pair by the rule; requires that `obstacle` returns None.

    Args:
        losses: losses of every pair, with at least two seeds each.

    Returns:
        Label of the pair, in `LABELS`.
    """
    found = {label: losses[label][best(losses[label])[0]] for label in LABELS}
    means = {label: mean_and_error(seeds)[0] for label, seeds in found.items()}
    pooled = math.sqrt(mean_and_error([variance(seeds) for seeds in found.values()])[0])
    count = min(map(len, found.values()))
    limit = min(means.values()) + EQUAL * pooled * math.sqrt(2 / count)
    return next(label for label, mean in means.items() if mean <= limit)


def summarise(rows: Rows) -> Summary:
    """Plot final losses against the rate, and report the choice of the rule."""
    runs = shared.Runs(rows)
    losses = by_label(runs.losses)
    table = [
        {
            "label": label,
            "best_rate": rate,
            "final_loss": mean,
            "standard_error": error,
            "seeds": len(by_rate[rate]),
            "inside": inside(by_rate),
        }
        for label, by_rate in losses.items()
        for rate, mean, error in [best(by_rate)]
    ]
    return runs.summary(
        title="Which pre-LN is the best?",
        caption=f"Each pair of positions and initial standard deviation at each rate. {shared.HOW}",
        panels=[_panel(losses)] if losses else [],
        checks=_checks(runs, losses),
        best=table,
    )


def _checks(runs: shared.Runs, losses: Losses) -> list[Check]:
    hindered = obstacle(losses)
    choice = None if hindered else chosen(losses)
    checks = [
        Check(
            fact=f"{LABELS[0]}, the default so far, is the best pre-LN",
            expected=(
                "no pair more than two joint standard errors below it (the rule of this study)"
            ),
            ours=hindered or f"the rule takes {choice}",
            holds=None if hindered else choice == LABELS[0],
        )
    ]
    tables = [name for name in runs.losses if name.startswith(shared.BIGRAMS)]
    if choice and tables:
        rate = best(losses[choice])[0]
        checks.append(runs.below_the_table(f"{choice}, rate {rate:g}", tables[0]))
    return checks


def _panel(losses: Losses) -> Panel:
    """Plot a curve per pair; the bigram table, which has no rate, is a horizontal line."""
    rates = sorted({rate for by_rate in losses.values() for rate in by_rate})
    places = {
        label: [
            (rate, *mean_and_error(by_rate[rate]))
            for rate in sorted(by_rate)
            if math.isfinite(sum(by_rate[rate]))
        ]
        for label, by_rate in losses.items()
    }
    if level := places.get(shared.BIGRAMS):
        places[shared.BIGRAMS] = [(rate, *level[0][1:]) for rate in rates]
    labels = ("peak learning rate", "final validation loss (nats per token)")
    return shared.panel("", *labels, places, log="x")


STUDY = shared.trained_study(
    "baseline",
    title="the best pre-LN: positions, initial standard deviations, rates",
    source="ours; defaults chosen for the baseline before any simplified block is trained",
    published=(
        "The papers train pre-LN with GPT-2's initialisation and tuned rates at width 768; at "
        "small widths nothing is published."
    ),
    revision=3,  # the points name their positions, independently of the default
    kind=BaselineSettings,
    sweeps=sweeps,
    seeds=_SEEDS,
    measure=measure,
    summarise=summarise,
)
