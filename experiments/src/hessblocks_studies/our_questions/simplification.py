"""Correlate the unevenness of each block's Hessian with its final loss.

The rule and its amendments: PLAN.md beside this file, section `simplification`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from hessblocks.figures import Panel
from hessblocks.storage import Row, Scalar
from hessblocks_studies import shared
from hessblocks_studies.engine import Check, Rows, Scale, Study, Summary

ROTARY, SINUSOIDAL = "position=rotary", "position=sinusoidal"
LAYER_NORM = ("norm=layer-norm", "first_norm=layer-norm", "final_norm=layer-norm")
BASE, SIMPLE = "pre-ln, zero queries", "sas-p"
"""The simplified block and the block that it is compared with."""
FAMILIES: dict[str, tuple[str, ...]] = {
    "pre-ln": (
        "pre-ln",
        BASE,
        "pre-ln, sinusoidal",
        "pre-ln, LayerNorm",
        "parallel",
        "parallel, zero queries",
    ),
    "post-ln": ("post-ln",),
    "skipless": ("skipless", "v-skipinit"),
    "sas-p": (SIMPLE, "sas", "sas-p-no-norm", "sas-p, sinusoidal", "sas, LayerNorm"),
    "op": ("op",),
    "modern": ("modern",),
}
"""Block of each family whose curves are drawn → blocks of the family."""
FAMILY_OF = {block: family for family, blocks in FAMILIES.items() for block in blocks}
BLOCKS = tuple(FAMILY_OF)
SLOTS: dict[str, tuple[str, ...]] = {
    ", sinusoidal": (SINUSOIDAL,),
    ", LayerNorm": (ROTARY, *LAYER_NORM),
}
"""Suffix of a variant → slots of its block; without a suffix, positions are rotary."""
RATES: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(BLOCKS, (1e-2, 3e-3, 3e-2)),
    **dict.fromkeys(
        ("post-ln", "skipless", "v-skipinit", "pre-ln, sinusoidal"), (3e-3, 1e-2, 1e-3)
    ),
    SIMPLE: (3e-2, 1e-2, 3e-3, 1e-1),
    "op": (3e-3, 1e-2, 3e-2, 1e-3),
}
"""Tuned block → its rates at laptop scale, the best first; extended as results came in."""
BEST: dict[str, float] = {**{label: rates[0] for label, rates in RATES.items()}, shared.GPT2: 1e-2}
"""Rates of the judged runs at laptop scale: results of the tuning."""
OTHER_RATES: dict[Scale, tuple[float, ...]] = {"smoke": (3e-3,), "paper": (1e-3, 3e-4, 3e-3, 1e-2)}
SIZES: dict[Scale, shared.TextSize] = {
    "smoke": shared.SMALLEST,
    "laptop": replace(shared.LAPTOP, depth=4, steps=1200, evaluations=12),
    "paper": replace(shared.PAPER, evaluations=40),
}
_SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3, "paper": 3}
STAGES = 4
"""Curvature is measured before training and after each quarter of it."""
MOMENTS = {0: "before", STAGES // 2: "halfway through", STAGES: "after"}
"""Stages of the verdicts → their description."""
FIRST = (shared.COMMON_MATRICES, STAGES)
"""Groups and stage of the first question."""
LABELS = {
    shared.SPREAD: "spread of log10 norm (decades)",
    shared.HETEROGENEITY: "largest over smallest norm",
}
"""Indices of unevenness → their axis labels."""


@dataclass(frozen=True, kw_only=True)
class SimplificationSettings(shared.TunedSettings):
    """Settings of a point: one model, or one reference."""

    probe: shared.Probe | None = None
    """Curvature measurement during training; None for no measurement."""


def points(scale: Scale, count: int | None) -> list[SimplificationSettings]:
    """List all tuning points, then the judged runs seed by seed.

    Args:
        scale: scale of the study.
        count: seeds of the runs; None for the scale's default.

    Returns:
        The points' settings.
    """
    grids, best = RATES, BEST
    if scale in OTHER_RATES:
        grids = dict.fromkeys(RATES, OTHER_RATES[scale])
        best = dict.fromkeys(BEST, OTHER_RATES[scale][0])
    return [
        *shared.tuning_points(partial(_point, scale, shared.TUNING), grids),
        *shared.run_points(partial(_point, scale, shared.COUNTED), best, count or _SEEDS[scale]),
    ]


def _point(
    scale: Scale, phase: str, label: str, rate: float | None, seed: int
) -> SimplificationSettings:
    size, block = SIZES[scale], label in BLOCKS
    kind = next((kind for kind in SLOTS if label.endswith(kind)), "")
    return SimplificationSettings(
        study="simplification",
        variant=label.removesuffix(kind),
        seed=seed,
        size=replace(size, learning_rate=rate or size.learning_rate),
        phase=phase,
        label=label,
        tuned=True if rate and phase == shared.TUNING else None,
        slots=SLOTS.get(kind, (ROTARY,)) if block else (),
        embedding_std=_start(label.removesuffix(kind), kind, size.width) if block else None,
        probe=shared.PROBES[scale] if block and phase == shared.COUNTED else None,
    )


def _start(variant: str, kind: str, width: int) -> float | None:
    """Return the initial std of the embeddings; None for 0.02, also the amplitude of sines."""
    return shared.best_start(variant, width) if SLOTS.get(kind) != (SINUSOIDAL,) else None


def measure(settings: SimplificationSettings) -> list[Row]:
    """Train one block and measure its curvature during training."""
    steps = settings.size.steps
    stages = {steps * stage // STAGES for stage in range(STAGES + 1)}

    def observe(model: nn.Module, step: int) -> list[Row]:
        if step not in stages or not settings.probe:
            return []
        corpus, keys = shared.text_of(settings.size), () if step else ("key",)
        return shared.curvature_rows(model, corpus, settings.probe, settings.seed, keys)

    return settings.placed(shared.train_point(settings, observe))


Unevenness = dict[tuple[str, str, int], dict[str, dict[Scalar, float]]]
"""(quantity, set of groups, stage) → block → {seed: value}."""


def unevenness(rows: Rows) -> Unevenness:
    """Collect spread and heterogeneity at the five stages."""
    last = max((float(row["step"]) for row in shared.of_quantity(rows, shared.LOSS)), default=0.0)
    staged = (
        {**row, "stage": round(STAGES * float(row["step"]) / last) if last else 0}
        for row in shared.of_quantity(rows, *LABELS)
    )
    return shared.nested(staged, ("quantity", "group", "stage"), "variant", "seed")


def summarise(rows: Rows) -> Summary:
    """Plot tuning, losses and unevenness over training and against loss; judge by the plan."""
    tuned, found = shared.Tuned.of(rows), unevenness(rows)
    even = _even_checks(tuned, found)
    verdicts = [
        *(tuned.runs.where_learnt(check, SIMPLE) for check in even),
        *_training_checks(tuned, found),
    ]
    return shared.summary(
        "Uneven curvature and loss, sixteen blocks",
        "Diagonal blocks of H on a fixed held-out batch, before training and after each fourth of "
        "it; every block at its best rate. Curves are of the head of each family. "
        "Tuning has one seed, the runs have seeds of their own. "
        f"{shared.CURVES}",
        [panel for panel in _panels(tuned, found) if panel.shown],
        [
            *tuned.rate_checks(),
            tuned.runs.below_the_table(BASE, shared.BIGRAMS),
            *(tuned.runs.where_learnt(check, BASE) for check in verdicts),
        ],
        losses=tuned.runs.table(),
        tuning=tuned.tuning_table(),
        unevenness=_table(found),
    )


def _even_checks(tuned: shared.Tuned, found: Unevenness) -> list[Check]:
    """Judge whether the simplified block has the more even curvature."""
    return [
        tuned.judged(
            shared.difference(found.get((shared.SPREAD, groups, stage), {}), SIMPLE, BASE).judged(
                f"{SIMPLE} has a more even curvature than {BASE} {MOMENTS[stage]} training, "
                f"{groups}",
                f"{_question(groups, stage)}: a smaller spread of the norms",
                above=False,
                unit="decades",
            ),
            SIMPLE,
            BASE,
        )
        for groups in shared.SETS
        for stage in (0, STAGES)
    ]


def _question(groups: str, stage: int) -> str:
    return "the first question, open" if (groups, stage) == FIRST else "open question"


def _training_checks(tuned: shared.Tuned, found: Unevenness) -> list[Check]:
    """Judge whether blocks with more even curvature train better."""
    checks = []
    known = {block: tuned.runs.losses[block] for block in BLOCKS if block in tuned.runs.losses}
    diverged = [block for block, seeds in known.items() if math.inf in seeds.values()]
    losses = known | {block: dict.fromkeys(known[block], math.inf) for block in diverged}
    seeds = {seed for each in known.values() for seed in each}
    missing = [block for block in BLOCKS if not seeds or known.get(block, {}).keys() != seeds]
    poor = [
        block
        for block in losses
        if block not in diverged
        and tuned.runs.below_the_table(block, shared.BIGRAMS).holds is False
    ]
    for groups in shared.SETS:
        for stage, moment in MOMENTS.items():
            values = found.get((shared.SPREAD, groups, stage), {})
            learnt = {block: each for block, each in values.items() if block not in poor}
            told = {
                "nothing is decided before all their seeds are measured": missing,
                "diverged, so ranked last": [one for one in diverged if one in values],
                "without curvature, so left out": [one for one in losses if one not in values],
            }
            if poor and (others := shared.correlation(learnt, losses, FAMILY_OF)):
                told[
                    f"without those that do not end {shared.MARGIN:g} nats below the bigram table "
                    f"({' / '.join(poor)})"
                ] = [str(others)]
            check = shared.correlation_check(
                values,
                losses,
                f"the more uneven the curvature of {groups} {moment} training, the higher the loss",
                expected=f"{_question(groups, stage)}: positive rank correlation over the blocks",
                told=told,
                families=FAMILY_OF,
            )
            checks.append(
                tuned.judged(
                    replace(check, holds=None, p_value=None) if missing else check, *losses
                )
            )
    return checks


def _table(found: Unevenness) -> list[dict[str, object]]:
    by_block = {
        (quantity, groups, stage / STAGES, variant): list(seeds.values())
        for (quantity, groups, stage), variants in found.items()
        for variant, seeds in variants.items()
    }
    lines = shared.mean_table(by_block, "quantity", "groups", "share_of_the_steps", "variant")
    return [
        {**line, "seeds": len(values)}
        for line, values in zip(lines, by_block.values(), strict=True)
    ]


def _panels(tuned: shared.Tuned, found: Unevenness) -> list[Panel]:
    """Plot tuning, losses, each index over training, and losses against the spread."""
    labels = {label: label for label in (*FAMILIES, shared.GPT2)}
    panels = [
        tuned.tuning.tuning_panel(labels, "tuning"),
        tuned.runs.panel(tuple(FAMILIES), "runs"),
        *(_along(quantity, found) for quantity in LABELS),
    ]
    final = shared.finite(tuned.runs.losses)
    for groups in (shared.ALL_MATRICES, shared.COMMON_MATRICES):
        for stage, moment in MOMENTS.items():
            even = shared.finite(found.get((shared.SPREAD, groups, stage), {}))
            panels.append(_scatter(f"{groups}, {moment} training", even, final))
    return panels


def _along(quantity: str, found: Unevenness) -> Panel:
    """Plot an index of all weight matrices over training, one curve per family."""
    places: dict[str, dict[float, list[float]]] = {}
    for (name, groups, stage), blocks in sorted(found.items()):
        if (name, groups) == (quantity, shared.ALL_MATRICES):
            for block, seeds in blocks.items():
                places.setdefault(block, {})[stage / STAGES] = list(seeds.values())
    return shared.panel(
        f"{quantity}, {shared.ALL_MATRICES}",
        "share of the training steps",
        LABELS[quantity],
        {block: shared.mean_places(places.get(block, {})) for block in FAMILIES},
        log="y" if quantity == shared.HETEROGENEITY else "",
    )


def _scatter(
    title: str,
    even: Mapping[str, tuple[float, float]],
    final: Mapping[str, tuple[float, float]],
) -> Panel:
    """Plot final loss against the spread, one point with its own marker per block."""
    places = {
        block: [(even[block][0], *final[block])]
        for blocks in FAMILIES.values()
        for block in blocks
        if block in even and block in final
    }
    labels = (LABELS[shared.SPREAD], "final validation loss (nats per token)")
    return shared.panel(title, *labels, places, line=False)


STUDY = Study(
    name="simplification",
    title=(
        "unevenness of curvature along training and loss of sixteen blocks, each at its best rate"
    ),
    source="ours, joining both papers",
    published="Nothing is published: does simplifying a block make its curvature more even?",
    settings=points,
    measure=measure,
    summarise=summarise,
    columns=shared.TUNED_COLUMNS,
    gpus=1,
)
