"""Figures 1 and 4: sizes of the entries of the value and query blocks, with softmax and without."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from hessblocks.curvature import exact_attention_curvature
from hessblocks.data import addition_batch
from hessblocks.figures import Figure, Panel, Series
from hessblocks.storage import Row, Scalar
from hessblocks.studies.engine import (
    Check,
    Scale,
    Settings,
    Study,
    Summary,
    number,
    seed_of,
    whole,
    word,
)
from hessblocks.studies.shared import GAIN, addition_model

GROUPS = ("value", "query")
BLOCKS = ("softmax", "linear")
_SIZES: dict[Scale, tuple[int, int, int]] = {
    "smoke": (16, 64, 4),
    "laptop": (16, 64, 20),
    "paper": (16, 64, 20),
}
"""Width, sums, seeds."""
_LOWEST, _HIGHEST, _PER_DECADE = -14, 4, 5
PUBLISHED = {"value": 2e-5, "query": 6e-7}
"""Modes of the entries' sizes with softmax."""
FACTOR = 2.0
"""How far a mode may lie from the published one."""


def settings(scale: Scale, seeds: int | None) -> list[Settings]:
    """One point for each kind of scores and each seed."""
    width, sums, own = _SIZES[scale]
    return [
        {"block": block, "width": width, "sums": sums, "seed": seed}
        for block in BLOCKS
        for seed in range(seeds or own)
    ]


def measure(settings: Mapping[str, Scalar]) -> list[Row]:
    """Shares of |entry| in bins of a fifth of a decade, from the exact dense blocks of H."""
    width, seed = whole(settings, "width"), whole(settings, "seed")
    draw = seed_of("histograms", seed)
    model = addition_model(
        word(settings, "block"), layers=1, width=width, sigma=GAIN / math.sqrt(width), seed=draw
    )
    hessian = exact_attention_curvature(model, addition_batch(whole(settings, "sums"), seed=draw))
    shared = {"study": "histograms", "block": settings["block"], "seed": seed}
    return [
        {**shared, "group": group, "log10_size": centre, "share": share}
        for group in GROUPS
        for centre, share in _histogram(hessian.block(group, group).dense())
        if share
    ]


def _histogram(entries: torch.Tensor) -> list[tuple[float, float]]:
    """(centre of the bin as a logarithm, share of the entries); zeros are in none."""
    logarithms = entries.abs().flatten().log10()
    bins = (_HIGHEST - _LOWEST) * _PER_DECADE
    counts = torch.histc(logarithms, bins=bins, min=_LOWEST, max=_HIGHEST)
    centres = _LOWEST + (torch.arange(bins, dtype=torch.float64) + 0.5) / _PER_DECADE
    return list(zip(centres.tolist(), (counts / len(logarithms)).tolist(), strict=True))


def mean_histograms(rows: Sequence[Row]) -> dict[tuple[str, str], dict[float, float]]:
    """(block, group) → {log10 size: share}, averaged over seeds."""
    found: dict[tuple[str, str], dict[float, float]] = {}
    seeds: dict[str, set[Scalar]] = {}
    for row in rows:
        block = word(row, "block")
        seeds.setdefault(block, set()).add(row["seed"])
        shares = found.setdefault((block, word(row, "group")), {})
        centre = number(row, "log10_size")
        shares[centre] = shares.get(centre, 0.0) + number(row, "share")
    return {
        (block, group): {centre: shares[centre] / len(seeds[block]) for centre in sorted(shares)}
        for (block, group), shares in found.items()
    }


def summarise(rows: Sequence[Row]) -> Summary:
    """Modes against the published ones, and the histograms."""
    histograms = mean_histograms(rows)
    modes = {
        curve: 10 ** max(shares, key=lambda centre: shares[centre])
        for curve, shares in histograms.items()
    }
    seeds = len({row["seed"] for row in rows})
    return Summary(
        figure=Figure(
            title="Softmax makes query entries small; without it they are as large as value entries",
            caption=f"Shares of |entry| of the blocks of H in fifths of a decade, mean over {seeds} seeds.",
            panels=tuple(
                _panel(block, histograms)
                for block in BLOCKS
                if any(key[0] == block for key in histograms)
            ),
        ),
        checks=tuple(_checks(modes)),
        tables={
            "modes": [
                {"block": block, "group": group, "mode": mode}
                for (block, group), mode in modes.items()
            ]
        },
    )


def _panel(block: str, histograms: Mapping[tuple[str, str], Mapping[float, float]]) -> Panel:
    return Panel(
        title=f"{block} scores",
        x_label="|entry| of the block of H",
        y_label="share of entries",
        x_scale="log",
        series=tuple(
            Series(
                name=group,
                x=tuple(10**centre for centre in histograms[block, group]),
                y=tuple(histograms[block, group].values()),
            )
            for group in GROUPS
            if (block, group) in histograms
        ),
    )


def _checks(modes: Mapping[tuple[str, str], float]) -> list[Check]:
    checks = [
        Check(
            fact=f"most frequent size of the {group} entries with softmax",
            expected=f"{mode:g}, within a factor {FACTOR:g}",
            ours=f"{modes['softmax', group]:.1e}",
            holds=1 / FACTOR < modes["softmax", group] / mode < FACTOR,
        )
        for group, mode in PUBLISHED.items()
        if ("softmax", group) in modes
    ]
    if ("linear", "query") in modes and ("linear", "value") in modes:
        ratio = modes["linear", "query"] / modes["linear", "value"]
        checks.append(
            Check(
                fact="without softmax query entries reach the size of value entries",
                expected="ratio of the modes at least 0.5",
                ours=f"{ratio:.2g}",
                holds=ratio >= 0.5,
            )
        )
    return checks


STUDY = Study(
    name="histograms",
    title="sizes of the entries of the value and query blocks, softmax against linear scores",
    source="Hessian paper, Figures 1 and 4",
    published=(
        "With softmax value entries peak at 2e-5 and query entries at 6e-7; without it query entries "
        "rise to the size of value entries."
    ),
    settings=settings,
    measure=measure,
    summarise=summarise,
    columns=("study", "block", "group", "seed", "log10_size", "share"),
)
