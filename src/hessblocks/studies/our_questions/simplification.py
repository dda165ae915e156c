"""Ours: how the curvature changes as a block is simplified, one removal at a time."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from torch import nn

from hessblocks.conventions import PARTS
from hessblocks.curvature import AttentionBackendWarning, exact_norms
from hessblocks.data import addition_batch
from hessblocks.figures import Figure, Panel, Scaling, Series, mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks.studies.engine import Check, Scale, Settings, Study, Summary, number, whole, word
from hessblocks.studies.shared import (
    DISTANCE,
    HETEROGENEITY,
    LAPTOP,
    NORM,
    PAPER,
    SMOKE,
    SPREAD,
    TRAINED_COLUMNS,
    TRAINED_REVISION,
    Losses,
    Probe,
    Sizes,
    addition_model,
    curvature_rows,
    final_losses,
    fit_growth,
    less_check,
    logspace,
    loss_panel,
    loss_table,
    make_block,
    places_panel,
    rank_correlation,
    text_of,
    train_point,
    trained_settings,
)
from hessblocks.training import RunSize

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
SIZES: dict[Scale, RunSize] = {
    "smoke": replace(SMOKE, steps=20),
    "laptop": replace(LAPTOP, depth=4, steps=600, evaluations=12),
    "paper": replace(PAPER, evaluations=40),
}
_PROBES: dict[Scale, Probe] = {
    "smoke": Probe(sequences=2, tokens=8, probes=4, spectrum_steps=4, spectrum_probes=1),
    "laptop": Probe(sequences=8, tokens=32, probes=8, spectrum_steps=16, spectrum_probes=2),
    "paper": Probe(sequences=16, tokens=128, probes=16, spectrum_steps=100, spectrum_probes=10),
}
_SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3, "paper": 3}
STAGES = 4
"""Curvature is measured before training and after each fourth of it."""
EXPONENT = "growth_exponent"
"""Slope of ln ‖block‖ against ln σ of one layer on sums, σ from 0.01 to 0.1."""
_SIGMAS = logspace(-2, -1, 5)
_GROWTH = {"width": 16, "sums": 16}
SIMPLE = "sas-p"
"""The simplified block that is set against the first of the chain."""
COMMON = ("attention.query", "mlp.in", "mlp.out")
"""The matrices that every block of the chain has."""
COMMON_SPREAD = "spread_of_common_matrices"
"""The spread over `COMMON` alone: a block may not look even for having fewer matrices."""
LABELS = {
    HETEROGENEITY: "largest over smallest norm",
    SPREAD: "spread of log10 norm (decades)",
    COMMON_SPREAD: "spread of log10 norm (decades)",
    DISTANCE: "Jensen-Shannon distance",
}
"""Indices of unevenness, as axes name them."""
INDICES = tuple(LABELS)


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
    corpus = text_of(settings)

    def observe(model: nn.Module, step: int) -> list[Row]:
        if step not in {steps * stage // STAGES for stage in range(STAGES + 1)}:
            return []
        ends = replace(probe, spectrum_steps=probe.spectrum_steps * (step in (0, steps)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AttentionBackendWarning)
            return curvature_rows(model.eval(), corpus, ends)

    rows = train_point(settings, observe)
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


Values = dict[str, dict[str, dict[str, dict[Scalar, float]]]]
"""Quantity → before | after → variant → {seed: value}."""


def indices(rows: Sequence[Row]) -> Values:
    """The indices of unevenness before and after training."""
    last = max((number(row, "step") for row in rows if row["quantity"] == NORM), default=0.0)
    found: Values = {}
    for row in rows:
        if row["quantity"] in INDICES and row["step"] in (0, last):
            moments = found.setdefault(word(row, "quantity"), {})
            variants = moments.setdefault("before" if row["step"] == 0 else "after", {})
            variants.setdefault(word(row, "variant"), {})[row["seed"]] = number(row, "value")
    common = {
        moment: common_spreads(rows, step) for moment, step in (("before", 0.0), ("after", last))
    }
    if common["after"]:
        found[COMMON_SPREAD] = common
    return found


def common_spreads(rows: Sequence[Row], step: float) -> dict[str, dict[Scalar, float]]:
    """Variant → {seed: spread of the norms of H over the matrices that all blocks have}."""
    norms: dict[str, dict[Scalar, list[float]]] = {}
    measured = (row for row in rows if row["quantity"] == NORM and row["part"] == "full")
    for row in measured:
        value = number(row, "value")
        if row["step"] == step and word(row, "group").endswith(COMMON) and value > 0:
            seeds = norms.setdefault(word(row, "variant"), {})
            seeds.setdefault(row["seed"], []).append(math.log10(value))
    return {
        variant: {seed: statistics.stdev(values) for seed, values in seeds.items()}
        for variant, seeds in norms.items()
    }


def summarise(rows: Sequence[Row]) -> Summary:
    """Loss curves, unevenness before and after training, growth exponents."""
    losses, found = final_losses(rows), indices(rows)
    panels = [loss_panel(rows, CHAIN, "loss at equal tokens")] if losses else []
    spreads = found.get(SPREAD, {})
    panels += [_scatter(moment, spreads[moment], losses) for moment in spreads if losses]
    return Summary(
        figure=Figure(
            title="From pre-ln to sas-p without norm, one removal at a time",
            caption=(
                "Blocks of H of the weight matrices of all layers, on a fixed held-out batch. Python "
                "source; mean over seeds, bars are standard errors."
            ),
            panels=(*panels, *_bars(found)),
        ),
        checks=(
            *_even_checks(spreads),
            *_training_checks(spreads, losses, "all weight matrices"),
            *_training_checks(found.get(COMMON_SPREAD, {}), losses, "queries and MLPs alone"),
        ),
        tables={
            "losses": loss_table(losses, rows),
            "unevenness": _index_table(found),
            "growth": _growth_table(rows),
        },
    )


def _bars(found: Values) -> list[Panel]:
    """Each index before and after training, block by block."""
    panels = []
    for quantity, label in LABELS.items():
        if quantity in found:
            means = {
                moment: {variant: mean_and_error(list(v.values())) for variant, v in each.items()}
                for moment, each in found[quantity].items()
            }
            scale: Scaling = "log" if quantity == HETEROGENEITY else "linear"
            panel = places_panel(means, label, bars=scale == "linear")
            panels.append(replace(panel, y_scale=scale, title=quantity.replace("_", " ")))
    return panels


def _scatter(moment: str, spreads: Mapping[str, Mapping[Scalar, float]], losses: Losses) -> Panel:
    """Final loss against unevenness, one point a block."""
    points = []
    for variant in CHAIN:
        if variant in spreads and math.isfinite(sum(losses[variant].values())):
            x, _ = mean_and_error(list(spreads[variant].values()))
            y, error = mean_and_error(list(losses[variant].values()))
            points.append(Series(name=variant, x=(x,), y=(y,), error=(error,), line=False))
    return Panel(
        title=f"final loss and unevenness {moment} training",
        x_label=f"{LABELS[SPREAD]}, {moment} training",
        y_label="final validation loss (nats per token)",
        series=tuple(points),
    )


def _index_table(found: Values) -> list[dict[str, object]]:
    table: list[dict[str, object]] = []
    for quantity, moments in found.items():
        for moment, variants in moments.items():
            for variant, seeds in variants.items():
                value, error = mean_and_error(list(seeds.values()))
                names = {"quantity": quantity, "moment": moment, "variant": variant}
                table.append(
                    {**names, "value": value, "standard_error": error, "seeds": len(seeds)}
                )
    return table


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


def _even_checks(spreads: Mapping[str, Losses]) -> list[Check]:
    """Whether the simplified block has the more even curvature; the answer may be no."""
    return [
        less_check(
            spreads[moment],
            SIMPLE,
            CHAIN[0],
            f"{SIMPLE} has a more even curvature than {CHAIN[0]} {moment} training",
            expected="open question: a smaller spread of the norms",
            unit="decades",
        )
        for moment in spreads
    ]


def _training_checks(spreads: Mapping[str, Losses], losses: Losses, matrices: str) -> list[Check]:
    """Whether the blocks with the more even curvature are those that train well."""
    checks = []
    for moment, variants in spreads.items():
        common = [v for v in variants if v in losses]
        if len(common) < 4:
            continue
        found = rank_correlation(
            [mean_and_error(list(variants[v].values()))[0] for v in common],
            [mean_and_error(list(losses[v].values()))[0] for v in common],
        )
        lost = [v for v in common if not math.isfinite(sum(losses[v].values()))]
        last = f"; diverged, so ranked last: {', '.join(lost)}" if lost else ""
        checks.append(
            Check(
                fact=f"the more uneven the curvature of {matrices} {moment} training, the higher the loss",
                expected="open question: positive rank correlation over the blocks",
                ours=f"{found}{last}",
                holds=found.agrees(),
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
    columns=TRAINED_COLUMNS,
    revision=TRAINED_REVISION,
    gpus=1,
)
