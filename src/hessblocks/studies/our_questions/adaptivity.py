"""Ours: is a block with uneven curvature the one that needs Adam?

For each preset the best final loss of SGD with momentum and of AdamW, each over its own grid of
learning rates, against how uneven the Hessian's blocks are at initialisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import nn

from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row
from hessblocks.studies import shared
from hessblocks.studies.engine import Check, Rows, Scale, Summary

PRESETS = ("pre-ln", "parallel", "skipless", "v-skipinit", "sas", "sas-p", "sas-p-no-norm")
RATES: dict[str, dict[Scale, tuple[float, ...]]] = {
    "adamw": {
        "smoke": (3e-3,),
        "laptop": (1e-3, 3e-3, 1e-2, 3e-2),
        "paper": (3e-4, 1e-3, 3e-3, 1e-2),
    },
    "sgd": {
        "smoke": (0.3,),
        "laptop": (0.1, 0.3, 1.0, 3.0),
        "paper": (0.03, 0.1, 0.3, 1.0, 3.0),
    },
}
"""Learning rates of each optimiser."""
SIZES: dict[Scale, shared.TextSize] = {
    "smoke": replace(shared.SMOKE, steps=12),
    "laptop": replace(shared.LAPTOP, depth=4, steps=400, evaluations=4),
    "paper": shared.PAPER,
}
_SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 2, "paper": 3}
_PROBE = shared.Probe(sequences=8, tokens=32, probes=8, spectrum_steps=0, spectrum_probes=0)


@dataclass(frozen=True, kw_only=True)
class RateSettings(shared.TrainedSettings):
    """A point of this study: one model, one optimiser, one learning rate."""

    curvature: bool
    """Whether the spread of the curvature at initialisation is measured: once a block and seed."""


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """Every preset with each optimiser and rate."""
    return [
        shared.Sweep(
            variants=PRESETS,
            size=replace(SIZES[scale], learning_rate=rate),
            settings={
                "optimiser": optimiser,
                "curvature": (optimiser, rate) == ("adamw", rates[scale][0]),
            },
        )
        for optimiser, rates in RATES.items()
        for rate in rates[scale]
    ]


def measure(settings: RateSettings) -> list[Row]:
    """Train one model, named with its optimiser and rate; one of a block and seed also maps curvature."""
    corpus = shared.text_of(settings.size)
    probe = replace(_PROBE, tokens=min(_PROBE.tokens, settings.size.context))

    def observe(model: nn.Module, step: int) -> list[Row]:
        if step or not settings.curvature:
            return []
        return shared.of_quantity(shared.curvature_rows(model, corpus, probe), shared.SPREAD)

    name = f"{settings.variant}, {settings.optimiser} {settings.size.learning_rate:g}"
    return [{**row, "variant": name} for row in shared.train_point(settings, observe)]


def best_losses(losses: shared.Values) -> dict[str, dict[str, tuple[float, str]]]:
    """Preset → {optimiser: (mean final loss at its best rate, that rate)}; diverged rates are out."""
    found: dict[str, dict[str, tuple[float, str]]] = {}
    for variant, runs in losses.items():
        preset, _, how = variant.partition(", ")
        optimiser, _, rate = how.partition(" ")
        mean = sum(runs.values()) / len(runs)
        best = found.setdefault(preset, {})
        if mean < best.get(optimiser, (float("inf"), ""))[0]:
            best[optimiser] = (mean, rate)
    return found


def gaps(losses: shared.Values) -> dict[str, tuple[float, float]]:
    """Preset → loss(SGD) − loss(AdamW), each at its best rate, over common seeds, with its error."""
    found = {}
    for preset, best in best_losses(losses).items():
        if {"adamw", "sgd"} <= set(best):
            adam, sgd = (losses[f"{preset}, {o} {best[o][1]}"] for o in ("adamw", "sgd"))
            common = [sgd[seed] - adam[seed] for seed in sgd if seed in adam]
            if common:
                found[preset] = mean_and_error(common)
    return found


def spreads(rows: Rows) -> dict[str, tuple[float, float]]:
    """Preset → spread of the norms at initialisation, mean over seeds, with its error."""
    known = shared.of_quantity(rows, shared.SPREAD)
    named = [{**row, "variant": row["variant"].partition(", ")[0]} for row in known]
    every = shared.gathered(named, "variant")
    return {preset: mean_and_error(values) for (preset,), values in every.items()}


def summarise(rows: Rows) -> Summary:
    """The gap between the optimisers against the spread of the curvature."""
    runs = shared.Runs(rows)
    losses = runs.losses
    gap, spread = gaps(losses), spreads(rows)
    common = [preset for preset in PRESETS if preset in gap and preset in spread]
    panel = Panel(
        title="",
        x_label="spread of log10 ‖H‖ over weight matrices at initialisation (decades)",
        y_label="loss of SGD above that of AdamW (nats per token)",
        series=tuple(
            shared.curve(preset, [(spread[preset][0], *gap[preset])], line=False)
            for preset in common
        ),
    )
    best = best_losses(losses)
    table = [
        {
            "preset": preset,
            "gap": gap[preset][0],
            "standard_error": gap[preset][1],
            "spread": spread[preset][0],
            **{f"best_{name}_rate": best[preset][name][1] for name in ("adamw", "sgd")},
            "at_the_edge_of_the_grid": at_edge(preset, best[preset], losses),
        }
        for preset in common
    ]
    return runs.summary(
        title="Does uneven curvature call for Adam?",
        caption="Each optimiser at the best rate of its grid; bars are standard errors over seeds.",
        panels=[panel] if common else [],
        checks=_checks(spread, gap),
        gaps=table,
    )


def at_edge(preset: str, best: Mapping[str, tuple[float, str]], losses: shared.Values) -> str:
    """Optimisers whose best rate is the smallest or largest that was tried, with commas."""
    found = []
    for optimiser, (_, rate) in best.items():
        start = f"{preset}, {optimiser} "
        tried = sorted(float(name.removeprefix(start)) for name in losses if name.startswith(start))
        if len(tried) > 1 and float(rate) in (tried[0], tried[-1]):
            found.append(f"{optimiser} at {rate}")
    return ", ".join(found)


def _checks(
    spread: Mapping[str, tuple[float, float]], gap: Mapping[str, tuple[float, float]]
) -> list[Check]:
    """A clear correlation either way decides; with seven presets it must be strong."""
    common = [preset for preset in spread if preset in gap]
    if len(common) < 4:
        return []
    found = shared.rank_correlation([spread[p][0] for p in common], [gap[p][0] for p in common])
    out = [preset for preset in spread if preset not in gap]
    left = f"; without a finite loss of both optimisers: {', '.join(out)}" if out else ""
    return [
        Check(
            fact="the gap between SGD and AdamW grows with the unevenness of the curvature",
            expected="positive rank correlation over the presets (argued in the Hessian paper, not tested)",
            ours=f"{found}{left}",
            holds=found.agrees(),
        )
    ]


STUDY = shared.trained_study(
    "adaptivity",
    title="gap between SGD and AdamW against the unevenness of the curvature",
    source="ours, testing a claim of the Hessian paper",
    published="Argued, not tested: heterogeneous blocks of the Hessian are why transformers need Adam.",
    kind=RateSettings,
    sweeps=sweeps,
    seeds=_SEEDS,
    measure=measure,
    summarise=summarise,
)
