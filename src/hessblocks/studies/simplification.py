"""Ours: how the curvature changes as a block is simplified, one removal at a time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from torch import nn

from hessblocks.curvature import PARTS, AttentionBackendWarning
from hessblocks.data.addition import addition_batch
from hessblocks.studies import trained
from hessblocks.studies.addition_model import addition_model
from hessblocks.studies.curvature_rows import (
    DISTANCE,
    HETEROGENEITY,
    NORM,
    SPREAD,
    Probe,
    curvature_rows,
)
from hessblocks.studies.exact_norms import exact_norms
from hessblocks.studies.figure import Figure, mean_and_error
from hessblocks.studies.fits import fit_growth
from hessblocks.studies.growth import logspace
from hessblocks.studies.point import Row, Scalar
from hessblocks.studies.settings import number, whole, word
from hessblocks.studies.study import Check, Scale, Settings, Study, Summary
from hessblocks.studies.trained import LAPTOP, PAPER, SMOKE, TrainedSize, run, trained_settings
from hessblocks.studies.trained_summary import bars_panel, final_losses, loss_panel, loss_table
from hessblocks.studies.variants import Sizes, make_block

CHAIN = (
    "pre-ln",
    "pre-ln, no attention skip",
    "skipless",
    "sas, dense projection",
    "sas",
    "sas-p, with skip",
    "sas-p",
    "sas-p-no-norm",
)
"""Each block lacks one more part than the one before: attention skip, plain attention (shaped from
here on), values, projection, sequential order, MLP skip, norms."""
SIZES: dict[Scale, TrainedSize] = {
    "smoke": replace(SMOKE, steps=20),
    "laptop": replace(LAPTOP, depth=4, steps=600, evaluations=12),
    "paper": PAPER,
}
_PROBES: dict[Scale, Probe] = {
    "smoke": Probe(sequences=2, tokens=8, probes=4, spectrum_steps=4, spectrum_probes=1),
    "laptop": Probe(sequences=8, tokens=32, probes=8, spectrum_steps=24, spectrum_probes=4),
    "paper": Probe(sequences=16, tokens=128, probes=16, spectrum_steps=100, spectrum_probes=10),
}
_SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 2, "paper": 3}
STAGES = 4
"""Curvature is measured before training and after each fourth of it."""
EXPONENT = "growth_exponent"
"""Slope of ln ‖block‖ against ln σ of one layer on sums, σ from 0.01 to 0.1."""
_SIGMAS = logspace(-2, -1, 5)
_GROWTH = {"width": 16, "sums": 16}
INDICES = (HETEROGENEITY, SPREAD, DISTANCE)


def settings(scale: Scale, seeds: int | None) -> list[Settings]:
    """Points of a scale."""
    return trained_settings(
        "simplification", CHAIN, SIZES[scale], seeds or _SEEDS[scale], **asdict(_PROBES[scale])
    )


def measure(settings: Mapping[str, Scalar]) -> list[Row]:
    """Train one block; its curvature along the way, and its growth exponents at initialisation."""
    names = ("sequences", "tokens", "probes", "spectrum_steps", "spectrum_probes")
    probe = Probe(**{name: whole(settings, name) for name in names})
    steps = whole(settings, "steps")
    corpus = trained.corpus(whole(settings, "vocab_size"))

    def observe(model: nn.Module, step: int) -> list[Row]:
        if step not in {steps * stage // STAGES for stage in range(STAGES + 1)}:
            return []
        ends = replace(probe, spectrum_steps=probe.spectrum_steps * (step in (0, steps)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AttentionBackendWarning)
            return curvature_rows(model.eval(), corpus, ends)

    rows = run(settings, observe)
    return rows + growth_exponents(settings)


def growth_exponents(settings: Mapping[str, Scalar]) -> list[Row]:
    """Exponents of the query and value blocks of one layer, exactly, with one draw scaled by σ."""
    width, seed = _GROWTH["width"], whole(settings, "seed")
    block = make_block(word(settings, "variant"), Sizes(width=width, heads=1, mlp_width=4 * width))
    batch = addition_batch(_GROWTH["sums"], seed=seed)
    norms = [
        exact_norms(
            addition_model(block, layers=1, width=width, sigma=sigma, seed=seed),
            batch,
            "cross-entropy",
            ("query", "value"),
        )
        for sigma in _SIGMAS
    ]
    shared = {name: settings[name] for name in ("study", "variant", "seed")}
    rows: list[Row] = []
    for group in ("query", "value"):
        for part in PARTS:
            values = [norm[group, part].value for norm in norms]
            fit = fit_growth(_SIGMAS, values, [None] * len(values))
            if fit is not None:
                found: Row = {"group": group, "part": part, "method": "exact"}
                rows.append({**shared, **found, "quantity": EXPONENT, "value": fit.slope})
    return rows


Indices = dict[str, dict[str, dict[str, tuple[float, float]]]]
"""Quantity → {before | after → {variant: (mean over seeds, standard error)}}."""


def indices(rows: Sequence[Row]) -> Indices:
    """The indices of unevenness before and after training."""
    last = max((number(row, "step") for row in rows if row["quantity"] == NORM), default=0.0)
    gathered: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row["quantity"] in INDICES and row["step"] in (0, last):
            moment = "before" if row["step"] == 0 else "after"
            key = (word(row, "quantity"), moment, word(row, "variant"))
            gathered.setdefault(key, []).append(number(row, "value"))
    found: Indices = {}
    for (quantity, moment, variant), values in gathered.items():
        found.setdefault(quantity, {}).setdefault(moment, {})[variant] = mean_and_error(values)
    return found


def summarise(rows: Sequence[Row]) -> Summary:
    """Loss curves, unevenness before and after training, growth exponents."""
    losses, found = final_losses(rows), indices(rows)
    panels = [loss_panel(rows, CHAIN, "loss at equal tokens")] if losses else []
    labels = {
        HETEROGENEITY: "largest over smallest norm",
        SPREAD: "spread of log10 norm (decades)",
        DISTANCE: "mean Jensen-Shannon distance of spectra",
    }
    bars = [
        replace(
            bars_panel(found[quantity], label),
            y_scale="log" if quantity == HETEROGENEITY else "linear",
            title=quantity.replace("_", " "),
        )
        for quantity, label in labels.items()
        if quantity in found
    ]
    return Summary(
        figure=Figure(
            title="From pre-ln to sas-p without norm, one removal at a time",
            caption=(
                "Blocks of H of the weight matrices of all layers, on a fixed held-out batch. Python "
                "standard library; mean over seeds, bars are standard errors."
            ),
            panels=(*panels, *bars),
        ),
        checks=tuple(_checks(found)),
        tables={
            "losses": loss_table(losses, rows),
            "unevenness": _index_table(found),
            "growth": _growth_table(rows),
        },
    )


def _index_table(found: Indices) -> list[dict[str, object]]:
    return [
        {
            "quantity": quantity,
            "moment": moment,
            "variant": variant,
            "value": value,
            "standard_error": error,
        }
        for quantity, moments in found.items()
        for moment, variants in moments.items()
        for variant, (value, error) in variants.items()
    ]


def _growth_table(rows: Sequence[Row]) -> list[dict[str, object]]:
    gathered: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row["quantity"] == EXPONENT:
            key = (word(row, "variant"), word(row, "group"), word(row, "part"))
            gathered.setdefault(key, []).append(number(row, "value"))
    table: list[dict[str, object]] = []
    for (variant, group, part), values in gathered.items():
        slope, error = mean_and_error(values)
        names = {"variant": variant, "group": group, "part": part}
        table.append({**names, "slope": slope, "standard_error": error})
    return table


def _checks(found: Indices) -> list[Check]:
    """The question in two forms, before and after training; the answer may be no."""
    checks = []
    for moment, variants in found.get(SPREAD, {}).items():
        if {CHAIN[0], CHAIN[-2]} <= set(variants):
            (whole_block, error), (simple, other) = variants[CHAIN[0]], variants[CHAIN[-2]]
            checks.append(
                Check(
                    fact=f"sas-p has a more even curvature than pre-ln {moment} training",
                    expected="open question: a smaller spread of the norms",
                    ours=f"{simple:.2f} ± {other:.2f} against {whole_block:.2f} ± {error:.2f} decades",
                    holds=simple < whole_block,
                )
            )
    return checks


STUDY = Study(
    name="simplification",
    title="curvature from pre-ln to sas-p without norm, one removal at a time",
    source="ours, joining both papers",
    published="Nothing is published: does simplifying a block make its curvature more even?",
    settings=settings,
    measure=measure,
    summarise=summarise,
    columns=trained.COLUMNS,
)
