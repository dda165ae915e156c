"""Fit how the norms of H_o and H_f fall with the batch size.

The control draws the labels from the model itself. What is expected: PLAN.md beside this file, section `batch-size`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessblocks.conventions import Part
from hessblocks.curvature import exact_attention_curvature
from hessblocks.figures import Panel
from hessblocks.storage import NORM, Row, Scalar
from hessblocks_studies import shared
from hessblocks_studies.engine import Check, Rows, Scale, Summary

GROUPS = ("query", "key", "value", "projection")
JUDGED = ("query", "value")
"""The groups that verdicts are about; the others have their slopes in the table."""
PARTS: tuple[Part, ...] = ("outer", "functional")
TEXT, DRAWN = "text", "model"
"""Whose labels: those of the text, or drawn from what the model predicts."""
TOLERANCE = 0.1
"""Distance from an exponent that still agrees."""
VOID = "void, since labels of the model's own do not average out either"
SIZES: dict[Scale, shared.TextSize] = {
    "smoke": replace(shared.SMOKE, depth=1, width=16, mlp_width=64, steps=20, evaluations=1),
    "laptop": replace(shared.SIZES["laptop"], depth=2, evaluations=1, learning_rate=1e-2),
    "paper": replace(shared.PAPER, evaluations=1),
}
_BATCHES: dict[Scale, tuple[tuple[int, ...], int]] = {
    "smoke": ((1, 4, 16), 8),
    "laptop": ((1, 2, 4, 8, 16, 32, 64), 32),
    "paper": ((1, 2, 4, 8, 16), 32),
}
"""Sequences, each batch the beginning of the next, and tokens of each."""


@dataclass(frozen=True, kw_only=True)
class BatchSettings(shared.TrainedSettings):
    """A point of this study: one model, measured before and after its training."""

    batches: tuple[int, ...]
    """Sequences of each batch, in rising order; a batch begins with those of the one before."""
    tokens: int
    """Of each sequence."""


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """One pre-LN."""
    batches, tokens = _BATCHES[scale]
    return [
        shared.Sweep(
            variants=["pre-ln"],
            size=SIZES[scale],
            settings={"batches": batches, "tokens": tokens},
        )
    ]


def measure(settings: BatchSettings) -> list[Row]:
    """Train one model; the exact norms of its last attention's blocks before and after."""
    corpus = shared.text_of(settings.size)
    largest = settings.batches[-1]
    windows = corpus.curvature_batch(largest, settings.tokens, settings.seed)["input_ids"]

    def observe(model: nn.Module, step: int) -> list[Row]:
        exact = copy.deepcopy(model).double().eval()
        own = windows.to(next(exact.parameters()).device)
        return [
            {**row, "labels": kind}
            for kind, labels in ((TEXT, own), (DRAWN, drawn_labels(exact, own, settings.seed)))
            for count in settings.batches
            for row in norms(exact, own[:count], labels[:count])
        ]

    return shared.train_point(settings, observe)


def drawn_labels(
    model: nn.Module, windows: Int[Tensor, "sequences tokens"], seed: int
) -> Int[Tensor, "sequences tokens"]:
    """A label for each token, drawn from what the model predicts for it from the text before.

    Args:
        model: a causal language model.
        windows: its inputs.
        seed: of the draw.

    Returns:
        Labels; the first of a sequence, which nothing predicts, is the text's.
    """
    with torch.no_grad():
        logits: Float[Tensor, "..."] = model(input_ids=windows).logits[:, :-1].cpu()
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.multinomial(logits.flatten(0, 1).softmax(-1), 1, generator=generator)
    return torch.cat([windows[:, :1], chosen.view(logits.shape[:2]).to(windows)], dim=1)


def norms(
    model: nn.Module,
    windows: Int[Tensor, "sequences tokens"],
    labels: Int[Tensor, "sequences tokens"],
) -> list[Row]:
    """Frobenius norms of H_o and H_f of every group of the last attention; the loss is the batch's mean."""
    hessian = exact_attention_curvature(model, {"input_ids": windows, "labels": labels})
    return [
        shared.measured(
            NORM,
            hessian.block(group, group, part).frobenius_norm(),
            "exact",
            group=group,
            part=part,
            sequences=len(windows),
        )
        for group in GROUPS
        for part in PARTS
    ]


Curves = dict[tuple[str, str, str, str], dict[Scalar, dict[float, float]]]
"""(before or after, labels, group, part) → {seed: {sequences: norm}}."""


def curves(rows: Rows) -> Curves:
    """The norms of each group and part, before training and at its end."""
    staged = (
        {**row, "stage": "after" if row["step"] else "before"}
        for row in shared.of_quantity(rows, NORM)
    )
    return shared.nested(staged, ("stage", "labels", "group", "part"), "seed", "sequences")


def upper(curve: Mapping[float, float]) -> dict[float, float]:
    """The batches from the root of the largest on: few tokens have little in common, and even H_o falls there."""
    return {count: norm for count, norm in curve.items() if count**2 >= max(curve)}


def summarise(rows: Rows) -> Summary:
    """Slopes in the size of the batch, and the curves."""
    found = curves(rows)
    slopes = {
        place: shared.slopes({seed: upper(curve) for seed, curve in seeds.items()})
        for place, seeds in found.items()
    }
    table = [
        {
            **dict(zip(("stage", "labels", "group", "part"), place, strict=True)),
            "slope": mean.mean,
            "standard_error": mean.error,
            "seeds": mean.seeds,
        }
        for place, each in slopes.items()
        if (mean := shared.over_seeds(each)).seeds
    ]
    stages = dict.fromkeys(place[0] for place in found)
    return shared.summary(
        "H_o and H_f as the batch grows",
        "Exact norms of the last attention's diagonal blocks on held-out text, the loss a mean over tokens; each "
        "batch begins with the smaller ones. Slopes are fitted from the root of the largest batch on. Python source; mean over seeds, bars are its standard errors.",
        [_panel(stage, labels, found) for stage in stages for labels in (TEXT, DRAWN)],
        [check for stage in stages for check in _checks(stage, slopes)],
        slopes=table,
    )


def _panel(stage: str, labels: str, found: Curves) -> Panel:
    whose = "labels of the text" if labels == TEXT else "labels drawn from the model"
    curves = {}
    for group, part in itertools.product(GROUPS, PARTS):
        seeds = found.get((stage, labels, group, part), {})
        counts = sorted({count for each in seeds.values() for count in each})
        values = {n: [each[n] for each in seeds.values() if n in each] for n in counts}
        curves[f"{group}, {part}"] = shared.mean_places(values)
    axes = ("sequences in the batch", "Frobenius norm of the block")
    return shared.panel(f"{stage} training, {whose}", *axes, curves, log="xy", empty=True)


Slopes = dict[tuple[str, str, str, str], dict[Scalar, float]]
"""(before or after, labels, group, part) → {seed: slope}."""


def _checks(stage: str, slopes: Slopes) -> list[Check]:
    """Whether H_f averages out and H_o does not, judged only where the control does."""

    def of(labels: str, group: str, part: str) -> dict[Scalar, float]:
        return slopes.get((stage, labels, group, part), {})

    def check(values: dict[Scalar, float], fact: str, expected: float, source: str) -> Check:
        return shared.over_seeds(values).matches(
            f"{fact}, {stage} training",
            f"{expected:g} ± {TOLERANCE:g} ({source})",
            limit=TOLERANCE,
            around=expected,
            unit="powers of the batch",
        )

    drawn = [of(DRAWN, group, "functional") for group in GROUPS]
    common = set.intersection(*map(set, drawn))
    control = check(
        {seed: sum(each[seed] for each in drawn) / len(drawn) for seed in common},
        "slope of H_f where labels are drawn from the model, mean over groups",
        -0.5,
        "control: residuals that are independent",
    )
    checks = []
    for group in JUDGED:
        functional, outer = of(TEXT, group, "functional"), of(TEXT, group, "outer")
        steeper = shared.over_seeds(shared.gaps(functional, outer))
        checks += [
            check(functional, f"slope of the {group} block's H_f", -0.5, "residuals that cancel"),
            check(outer, f"slope of the {group} block's H_o", 0, "a mean of positive terms"),
            steeper.judged(
                f"the {group} block's H_f falls faster than its H_o, {stage} training",
                "slope of H_f below that of H_o (argued)",
                above=False,
                unit="powers of the batch",
            ),
        ]
    return [control, *(shared.judged_by(control, one, VOID) for one in checks)]


STUDY = shared.trained_study(
    "batch-size",
    title="norms of H_o and H_f against the size of the batch, before and after training",
    source="ours, testing a claim of the Hessian paper",
    published=(
        "Argued, not tested: residuals of many tokens cancel in H_f, so that a large batch leaves H_o."
    ),
    kind=BatchSettings,
    sweeps=sweeps,
    seeds={"smoke": 2, "laptop": 5, "paper": 5},
    measure=measure,
    summarise=summarise,
    columns=(*shared.TRAINED_COLUMNS, "labels", "sequences"),
)
