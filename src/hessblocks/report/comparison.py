"""Compare the blocks of a run folder: means over seeds, for page, terminal and JSON alike."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from hessblocks.report.captions import short_names
from hessblocks.statistics import Average, Heterogeneity, average, ends
from hessblocks.storage import NORM, STAGES, FolderResults, Metric, Observation, ResultRow

MOMENTS = dict(zip(("before", "after"), STAGES, strict=True))
"""Field of a row → stage of its measurements."""
SIGNAL = {
    "token_similarity": "Token similarity (cosine)",
    "stable_rank": "Stable rank (of the token matrix)",
    "norm": "Root mean square (of the entries)",
    "kurtosis": "Kurtosis (1 is even)",
    "attention_entropy": "Attention entropy (nats)",
    "largest_logit": "Largest logit (before the softmax)",
    "second_moment": "Second moment (tr M₂)",
}
"""Quantity of the signal in the last layer → axis label."""
LossOrObservation = Metric | Observation


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """Row of one block; None means not measured yet."""

    preset: str
    """Name of the block."""
    seeds: tuple[int, ...]
    """Seeds with any value."""
    parameters: int | None
    """Number of trainable parameters."""
    tokens_per_second: Average | None
    """Training speed, tokens per second."""
    peak_memory: Average | None
    """Peak memory of an update, in bytes."""
    initial_loss: Average | None
    """Validation loss before training, nats per token."""
    final_loss: Average | None
    """Validation loss after training, nats per token; over the seeds that did not diverge."""
    before: Heterogeneity[Average] | None
    """Heterogeneity at initialisation."""
    after: Heterogeneity[Average] | None
    """Heterogeneity after training."""
    diverged: tuple[int, ...]
    """Seeds whose loss became infinite or not a number."""
    causes: Mapping[int, str] = field(default_factory=dict)
    """First quantity that was not finite, for each seed that recorded one."""
    end: float = math.inf
    """First step at which the loss of a seed is not finite. Curves end before it, since a mean over
    the other seeds would jump."""
    steps: int | None = None
    """Optimiser updates."""
    rate: float | None = None
    """Peak learning rate."""
    tokens: int | None = None
    """Training tokens so far."""

    @property
    def tokens_a_parameter(self) -> float | None:
        """Training tokens per parameter; None if either is unknown."""
        return self.tokens / self.parameters if self.tokens and self.parameters else None

    @property
    def ratios(self) -> dict[str, Heterogeneity[Average]]:
        """Moment (before, after) → heterogeneity, if it is measured."""
        return {moment: ratio for moment in MOMENTS if (ratio := getattr(self, moment)) is not None}


BASELINE = "pre-ln"


def baseline(rows: Sequence[ComparisonRow]) -> ComparisonRow:
    """Choose the block that others are compared with: pre-ln, or the first that has results."""
    measured = [row for row in rows if row.final_loss or row.ratios] or rows
    return next((row for row in measured if row.preset == BASELINE), measured[0])


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Curve of one preset along training: means of each seed's values, averaged over seeds."""

    preset: str
    """Name of the block."""
    quantity: str
    """`loss`, or a quantity of the observations."""
    role: str = ""
    """Role of the parameter groups of a norm."""
    part: str = ""
    """Part of the Hessian for a norm; `train` or `validation` for a loss."""
    layer: int | None = None
    """Layer of a signal; None for means over layers."""
    x: tuple[float, ...]
    """Optimiser steps."""
    means: tuple[Average, ...]
    """Ordinates; for one seed, the errors are those of its estimates, taken as independent."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison of the blocks in a run folder, averaged over seeds."""

    results: FolderResults
    """Results of the folder, with settings and a list of missing results."""
    rows: tuple[ComparisonRow, ...]
    """Rows, one per block, in the order of the settings."""
    norms: tuple[ResultRow, ...]
    """Mean norm over seeds for each block, stage, group and part; NaN if no value is finite."""
    curves: tuple[Curve, ...]
    """Losses, and quantities measured along training."""

    @property
    def presets(self) -> tuple[str, ...]:
        """Names of the blocks."""
        return tuple(row.preset for row in self.rows)

    @property
    def rate_words(self) -> str:
        """Description of the learning rates, and of how those of several blocks were chosen."""
        rates = sorted({row.rate for row in self.rows if row.rate is not None})
        shown = f"{rates[0]:g} " if len(rates) == 1 else ""
        if len(self.rows) < 2:
            return f"Learning rate: {shown.strip()}." if shown else ""
        if self.results.tried:
            return (
                f"Learning rates: {shown and f'{shown}for all blocks, '}the best of each block in "
                "half decades, searched with one seed that no run has (tuning.json)."
            )
        return (
            f"Learning rates are not tuned: {shown}for all blocks, whose best rates "
            "were up to a factor of 10 apart where they were searched (4 layers of width 64); "
            "--tune searches them."
        )

    @property
    def sample(self) -> str:
        """Numbers of tokens and probes of the curvature before and after training, as text."""
        return _sample(self.results.settings.section("curvature"))

    @property
    def sample_along(self) -> str:
        """Numbers of tokens and probes of the curvature along training, as text."""
        settings = self.results.settings
        sample = settings.section("observation").get("sample")
        return _sample(settings.section("curvature") if sample is None else sample)

    @property
    def finite_norms(self) -> list[ResultRow]:
        """Finite norms, sorted by layer; groups outside of layers come first."""
        return _by_layer(self.norms)

    @property
    def zero_groups(self) -> str:
        """Groups whose norm is exactly zero, with block and stage, as text; empty if none."""
        places: dict[str, list[str]] = defaultdict(list)
        for row in self.rows:
            for moment, ratio in row.ratios.items():
                if ratio.zero_groups:
                    places[short_names(ratio.zero_groups)].append(f"{row.preset} {moment} training")
        return " ".join(
            f"Exactly zero and left out: {groups} ({', '.join(where)})."
            for groups, where in places.items()
        )

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds with any value."""
        return tuple(sorted({seed for row in self.rows for seed in row.seeds}))


def _sample(curvature: Mapping[str, Any]) -> str:
    sequences, tokens = curvature.get("sequences"), curvature.get("tokens")
    if isinstance(sequences, int) and isinstance(tokens, int):
        n = f"n = {sequences * tokens:,} held-out tokens ({sequences} windows of {tokens})"
    else:
        n = "number of tokens not recorded"
    probes = curvature.get("probes")
    return f"{n}, {probes} random probes a group" if probes is not None else n


def compare_results(results: FolderResults | Comparison) -> Comparison:
    """Average the results of a run folder over its seeds.

    Args:
        results: results of a run folder; a `Comparison` is returned unchanged.

    Returns:
        Rows, norms and curves of all blocks.
    """
    if isinstance(results, Comparison):
        return results
    rows = tuple(_row(results, preset) for preset in results.presets)
    norms = tuple(_mean_norms(results.select(NORM)))
    return Comparison(results=results, rows=rows, norms=norms, curves=tuple(_curves(results, rows)))


def _row(results: FolderResults, preset: str) -> ComparisonRow:
    def over_seeds(quantity: str, stage: str = "") -> Average | None:
        return average_rows(results.select(quantity, preset=preset, stage=stage))

    def heterogeneity(stage: str) -> Heterogeneity[Average] | None:
        return _heterogeneity(results.select(NORM, preset=preset, stage=stage, part="full"))

    metrics = [row for row in results.metrics if row.preset == preset]
    not_finite = [row for row in metrics if not math.isfinite(row.loss)]
    losses = results.select("loss", preset=preset)
    diverged = {row.seed for row in losses if not math.isfinite(row.value)}
    measured = {row.seed for row in results.measurements if row.preset == preset}
    parameters, steps = over_seeds("parameters"), max((row.step for row in metrics), default=None)
    return ComparisonRow(
        preset=preset,
        seeds=tuple(sorted(measured | {row.seed for row in metrics})),
        parameters=round(parameters.value) if parameters else None,
        tokens_per_second=over_seeds("tokens_per_second"),
        peak_memory=over_seeds("peak_memory"),
        initial_loss=over_seeds("loss", "initial"),
        final_loss=over_seeds("loss", "final"),
        before=heterogeneity("initial"),
        after=heterogeneity("final"),
        diverged=tuple(sorted(diverged | {row.seed for row in not_finite})),
        causes={row.seed: row.diverged for row in reversed(metrics) if row.diverged},
        end=min((row.step for row in not_finite), default=math.inf),
        steps=steps,
        rate=results.rates.get(preset),
        tokens=max((row.tokens for row in metrics if row.tokens is not None), default=None),
    )


def average_rows(rows: Iterable[ResultRow]) -> Average | None:
    """Average rows that differ only by seed."""
    finite = [row for row in rows if math.isfinite(row.value)]
    return average([row.value for row in finite], finite[0].standard_error if finite else None)


def _mean_norms(rows: Iterable[ResultRow]) -> Iterator[ResultRow]:
    """Average each group's norm over seeds, in the order of the rows."""
    same: dict[tuple[str, ...], list[ResultRow]] = defaultdict(list)
    for row in rows:
        same[row.preset, row.stage, row.group, row.part].append(row)
    for norms in same.values():
        mean = average_rows(norms) or Average(value=math.nan, standard_error=None, seeds=0)
        yield replace(norms[0], value=mean.value, standard_error=mean.standard_error)


def _by_layer(norms: Iterable[ResultRow]) -> list[ResultRow]:
    """Sort the finite norms by layer; groups outside of layers come first."""
    finite = [norm for norm in norms if math.isfinite(norm.value)]
    return sorted(finite, key=lambda norm: (norm.layer is not None, norm.layer or 0))


def _heterogeneity(rows: Sequence[ResultRow]) -> Heterogeneity[Average] | None:
    """Compute largest over smallest group norm of the full Hessian, for one block and stage.

    Each seed has one ratio, without zero norms; a seed with a norm that is not finite has none. The
    error is the 95 % interval of the estimates for one seed, the standard error for several seeds.

    Returns:
        The mean ratio, and the groups with the largest and smallest mean norm over seeds; None if
        no positive finite norm was measured.
    """
    seeds: dict[int, dict[str, tuple[float, float | None]]] = defaultdict(dict)
    for row in rows:
        seeds[row.seed][row.group] = row.value, row.standard_error
    finite = [norms for norms in seeds.values() if all(math.isfinite(n) for n, _ in norms.values())]
    extremes = [pair for norms in finite if (pair := ends(norms)) is not None]
    mean = average([e.ratio for e in extremes], extremes[0].standard_error if extremes else None)
    mean_ends = ends({norm.group: (norm.value, None) for norm in _by_layer(_mean_norms(rows))})
    if mean is None or mean_ends is None:
        return None
    return Heterogeneity(
        ratio=mean,
        low=extremes[0].low if len(extremes) == 1 else None,
        high=extremes[0].high if len(extremes) == 1 else None,
        largest=mean_ends.largest,
        smallest=mean_ends.smallest,
        zero_groups=tuple(dict.fromkeys(row.group for row in rows if row.value == 0)),
    )


def _curves(results: FolderResults, rows: Iterable[ComparisonRow]) -> Iterator[Curve]:
    """Average losses and observations by what they measure; losses end where a seed diverged."""
    ends_at = {row.preset: row.end for row in rows}
    observations = results.observations
    signal = [row for row in observations if row.quantity in SIGNAL and not row.group]
    last = max((row.layer for row in signal if row.layer is not None), default=None)
    lines: dict[tuple[str, str, str], dict[str, list[LossOrObservation]]]
    lines = defaultdict(lambda: defaultdict(list))  # (quantity, role, part) → preset → its lines
    for metric in results.metrics:
        if metric.step < ends_at[metric.preset]:
            lines["loss", "", metric.split][metric.preset].append(metric)
    for row in observations:
        if row.quantity == NORM:
            lines[NORM, row.role, row.part][row.preset].append(row)
        elif row.quantity not in SIGNAL or (row.layer == last and not row.group):
            lines[row.quantity, "", ""][row.preset].append(row)
    for (quantity, role, part), presets in lines.items():
        for block in rows:
            if block.preset in presets:
                yield _curve(presets[block.preset], block, quantity=quantity, role=role, part=part)


def _curve(lines: Sequence[LossOrObservation], row: ComparisonRow, **about: str) -> Curve:
    """Average the lines of each step to one point; values that are not finite are left out."""
    value = "loss" if isinstance(lines[0], Metric) else "value"
    steps: dict[int, dict[int, list[LossOrObservation]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if math.isfinite(getattr(line, value)):
            steps[line.step][line.seed].append(line)
    return Curve(
        preset=row.preset,
        **about,
        layer=getattr(lines[0], "layer", None) if about["quantity"] in SIGNAL else None,
        x=tuple(sorted(steps)),
        means=tuple(_over_seeds([*steps[step].values()], value) for step in sorted(steps)),
    )


def _over_seeds(seeds: Sequence[Sequence[LossOrObservation]], label: str) -> Average:
    """Average a field over the lines of each seed, then over seeds."""
    errors = [error for line in seeds[0] if (error := getattr(line, "standard_error", None))]
    error = math.hypot(*errors) / len(seeds[0]) if errors else None
    mean = average([fmean(getattr(line, label) for line in seed) for seed in seeds], error)
    assert mean is not None, "only finite values were collected"
    return mean
