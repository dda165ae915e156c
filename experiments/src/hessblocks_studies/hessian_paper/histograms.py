"""Histogram the entries of value and query blocks, with softmax and without (Figures 1 and 4)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hessblocks.curvature import exact_attention_curvature
from hessblocks.figures import Panel, Series
from hessblocks.storage import Row, Scalar
from hessblocks_studies import growth, shared
from hessblocks_studies.data import addition_batch
from hessblocks_studies.engine import Check, Rows, Scale, Study, Summary, seed_of

GROUPS = ("value", "query")
BLOCKS = ("softmax", "linear")
_SIZES: dict[Scale, growth.Size] = {
    "smoke": growth.Size(width=16, sums=64, seeds=4),
    "laptop": growth.Size(width=16, sums=64, seeds=20),
    "paper": growth.Size(width=16, sums=64, seeds=20),
}
_LOWEST, _HIGHEST, _PER_DECADE = -14, 4, 10
PUBLISHED = {"value": 2e-5, "query": 6e-7}
"""Published modes of the sizes of entries with softmax, from one model."""
FACTOR = 2.0
"""Largest factor between a mode and the published one."""


@dataclass(frozen=True, kw_only=True)
class EntrySettings(growth.DrawSettings):
    """Settings of a point: the entries of one model's blocks."""

    block: str
    """Kind of scores, softmax or linear."""


def measure(settings: EntrySettings) -> list[Row]:
    """Count |entry| of the exact dense blocks of H in bins of a tenth of a decade, as shares."""
    width, seed = settings.width, settings.seed
    draw = seed_of("histograms", seed)
    model = growth.addition_model(
        settings.block, layers=1, width=width, sigma=growth.weight_size(width), seed=draw
    )
    hessian = exact_attention_curvature(model, addition_batch(settings.sums, seed=draw))
    columns: Row = {"study": "histograms", "block": settings.block, "seed": seed}
    return [
        {**columns, "group": group, "log10_size": centre, "share": share}
        for group in GROUPS
        for centre, share in _histogram(hessian.block(group, group).dense())
        if share
    ]


def _histogram(entries: torch.Tensor) -> list[tuple[float, float]]:
    """List (logarithm of the bin's centre, share of the entries); zeros are in no bin."""
    logarithms = entries.abs().flatten().log10()
    bins = (_HIGHEST - _LOWEST) * _PER_DECADE
    counts = torch.histc(logarithms, bins=bins, min=_LOWEST, max=_HIGHEST)
    centres = _LOWEST + (torch.arange(bins, dtype=torch.float64) + 0.5) / _PER_DECADE
    return list(zip(centres.tolist(), (counts / len(logarithms)).tolist(), strict=True))


def _by_seed(rows: Rows) -> dict[tuple[str, str], dict[Scalar, dict[float, float]]]:
    """Nest (block, group) → {seed: {log10 size: share}}."""
    return shared.nested(rows, ("block", "group"), "seed", "log10_size", value="share")


def mean_histograms(rows: Rows) -> dict[tuple[str, str], dict[float, float]]:
    """Average the shares of each size over seeds: (block, group) → {log10 size: share}."""
    return {
        curve: {
            centre: sum(shares.get(centre, 0.0) for shares in seeds.values()) / len(seeds)
            for centre in sorted({centre for shares in seeds.values() for centre in shares})
        }
        for curve, seeds in _by_seed(rows).items()
    }


Modes = Mapping[tuple[str, str], Mapping[Scalar, float]]
"""(block, group) → {seed: log10 of the most frequent size}."""


def modes_of(rows: Rows) -> Modes:
    """Find the centre of the fullest bin of each seed; the smallest if several are equally full."""
    return {
        curve: {seed: max(sorted(shares), key=shares.__getitem__) for seed, shares in seeds.items()}
        for curve, seeds in _by_seed(rows).items()
    }


def summarise(rows: Rows) -> Summary:
    """Compare modes with the published ones, and plot the histograms."""
    histograms, modes = mean_histograms(rows), modes_of(rows)
    seeds = len({row["seed"] for row in rows})
    blocks = {block for block, _ in histograms}
    return shared.summary(
        "Softmax makes query entries small; without it they are as large as value entries",
        f"Shares of |entry| of the blocks of H in tenths of a decade, mean over {seeds} seeds.",
        (_panel(block, histograms) for block in BLOCKS if block in blocks),
        _checks(modes),
        modes=shared.mean_table(
            {curve: list(by_seed.values()) for curve, by_seed in modes.items()},
            "block",
            "group",
            value="log10_mode",
        ),
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


def _checks(modes: Modes) -> list[Check]:
    checks = [
        _check(
            f"most frequent size of the {group} entries with softmax",
            f"{mode:g}, within a factor {FACTOR:g}",
            shared.over_seeds(modes["softmax", group]),
            mode,
        )
        for group, mode in PUBLISHED.items()
        if ("softmax", group) in modes
    ]
    linear = {group: modes.get(("linear", group), {}) for group in GROUPS}
    ratio = shared.difference(linear, "query", "value")
    if ratio.seeds:
        fact = "without softmax query entries have the size of value entries"
        expected = f"ratio of the modes 1, within a factor {FACTOR:g}"
        checks.append(_check(fact, expected, ratio, 1.0))
    return checks


def _check(fact: str, expected: str, logarithm: shared.Difference, published: float) -> Check:
    """Judge a size against a published one, with the error of its logarithm over seeds."""
    count, reach, expected_log = logarithm.seeds, math.log10(FACTOR), math.log10(published)
    spread = f" ± {logarithm.error:.2f} decades" if count > 1 else ""
    return Check(
        fact=fact,
        expected=expected,
        ours=f"{10**logarithm.mean:.2g}{spread} ({count} seed{'s' * (count > 1)})",
        holds=logarithm.within(reach, around=expected_log),
        p_value=logarithm.p_value(expected_log - reach, expected_log + reach),
    )


STUDY = Study(
    name="histograms",
    title="sizes of the entries of the value and query blocks, softmax against linear scores",
    source="Hessian paper, Figures 1 and 4",
    published=(
        "With softmax value entries peak at 2e-5 and query entries at 6e-7; without it query "
        "entries rise to the size of value entries."
    ),
    settings=growth.draws(_SIZES, EntrySettings, block=BLOCKS),
    measure=measure,
    summarise=summarise,
    columns=("study", "block", "group", "seed", "log10_size", "share"),
    revision=2,  # bins of a tenth of a decade
)
