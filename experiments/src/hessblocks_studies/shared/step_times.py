"""Measure the time of training steps and compare it with that of pre-ln."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks_studies.data import text_of
from hessblocks_studies.engine import Check, Rows
from hessblocks_studies.shared.differences import Difference, over_seeds
from hessblocks_studies.shared.gathering import gathered, measured, nested, of_quantity
from hessblocks_studies.shared.trained_points import (
    BIGRAMS,
    TrainedSettings,
    make_model,
    run_settings,
)
from hessblocks_studies.shared.turns import TimedModel
from hessblocks_studies.shared.variants import BASES

STEP_TIME = "step_time"
"""Seconds of a training step (on a CPU processor time), median over the rounds."""
PUBLISHED_SPEED = {
    "pre-ln": 1.0, "parallel": 1.05, "v-skipinit": 0.95, "sas": 1.09, "sas-p": 1.16,
    "sas-p-no-norm": 1.20,
}  # fmt: skip
"""Training speed relative to pre-ln, table 2."""
CLOCK = 0.02
"""Relative error of a ratio of two times that repetitions do not reduce: in `trial`, parallel with
and without zero queries, the same operations, differ by 2.1 %, with errors of 1 to 2 %."""


def timed_models(turns: Mapping[str, TrainedSettings]) -> dict[str, TimedModel]:
    """Build models of one size with the same batch, to be timed in turns.

    Args:
        turns: name → settings of the model; all have the same sizes.

    Returns:
        Name → model with an optimiser.

    Cost:
        All models and their optimisers are in memory at the same time.
    """
    size = next(iter(turns.values())).size
    windows = text_of(size).windows("train", size.context)
    batch = torch.stack([windows[index]["input_ids"] for index in range(size.batch_size)])
    return {
        name: TimedModel(make_model(turn), batch, batch, run_settings(turn).training.clip)
        for name, turn in turns.items()
    }


def timed(quantity: str, times: Sequence[float], owner: Mapping[str, Scalar]) -> Row:
    """Make a row of the median of times, with the standard error of a median of normal values."""
    error = 1.25 * mean_and_error(times)[1]
    return measured(quantity, statistics.median(times), standard_error=error, **owner)


def values(rows: Rows, quantity: str) -> dict[str, tuple[float, float]]:
    """Map each block to (value, standard error) of a cost."""
    return {
        row["variant"]: (float(row["value"]), float(row.get("standard_error") or 0.0))
        for row in of_quantity(rows, quantity)
    }


def for_all_bases(times: Mapping[str, float]) -> dict[str, float]:
    """Add pre-ln's times for pre-ln with zero queries, which executes the same operations."""
    return {**times, **{base: times["pre-ln"] for base in BASES if "pre-ln" in times}}


def mean_clocks(rows: Rows) -> dict[str, float]:
    """Average the seconds per step over repetitions, by block."""
    times = gathered(of_quantity(rows, STEP_TIME), "variant")
    return {name: statistics.fmean(seconds) for (name,), seconds in times.items()}


def repeated(rows: Rows, quantity: str = STEP_TIME) -> dict[str, dict[Scalar, float]]:
    """Collect {repetition: seconds per step, or another cost} of each block."""
    return nested(of_quantity(rows, quantity), "variant", "seed")


def time_ratio(
    times: Mapping[str, Mapping[Scalar, float]], numerator: str, denominator: str
) -> Difference:
    """Divide the step time of one block by that of another; average over repetitions.

    Args:
        times: times of `repeated`.
        numerator: block in the numerator.
        denominator: block in the denominator.

    Returns:
        The mean ratio with its error. A slow repetition slows all blocks that take turns in it, and
        does not change the ratio.
    """
    common = times.get(numerator, {}).keys() & times.get(denominator, {}).keys()
    ratio = over_seeds({seed: times[numerator][seed] / times[denominator][seed] for seed in common})
    return ratio if numerator == denominator else clocked(ratio)


def clocked(ratio: Difference) -> Difference:
    """Add the common error `CLOCK` to a ratio of times."""
    return replace(ratio, common=CLOCK * ratio.mean)


def ratios(rows: Rows, quantity: str = STEP_TIME) -> dict[str, dict[Scalar, float]]:
    """Divide pre-ln's cost by each block's cost; for times this is the relative speed.

    Returns:
        Block → {repetition: ratio}.
    """
    costs = repeated(rows, quantity)
    base = costs.get("pre-ln", {})
    speeds = {
        name: {seed: base[seed] / cost for seed, cost in by_seed.items() if seed in base}
        for name, by_seed in costs.items()
    }
    return {name: by_seed for name, by_seed in speeds.items() if by_seed}


def speeds(rows: Rows, quantity: str = STEP_TIME) -> dict[str, Difference]:
    """Map each block to its speed relative to pre-ln, averaged over repetitions."""
    return {
        name: speed if name == "pre-ln" else clocked(speed)
        for name, by_seed in ratios(rows, quantity).items()
        for speed in [over_seeds(by_seed)]
    }


def against_time(panel: Panel, times: Mapping[str, float], title: str) -> Panel:
    """Plot losses against training time: steps times seconds per step.

    Args:
        panel: losses against steps, one series per block.
        times: block → seconds per step; blocks without a time are left out. The line of the bigram
            table, which takes no time, is as long as the longest.
        title: title of the new panel.

    Returns:
        The same losses against training time.
    """
    seconds = {BIGRAMS: max(times.values()), **times}
    series = (
        replace(timed, x=tuple(step * seconds[timed.name] for step in timed.x))
        for timed in panel.series
        if timed.name in seconds
    )
    return replace(panel, title=title, x_label="training time (s)", series=tuple(series))


def speed_check(rows: Rows) -> list[Check]:
    """Judge whether a training step of sas-p takes less time than one of pre-ln."""
    speed_of, block = speeds(rows), "sas-p"
    if block not in speed_of:
        return []
    fact = f"a training step of {block} takes less time than one of pre-ln"
    expected = f"above 1 (published {PUBLISHED_SPEED[block]}: 16 layers, width 768, one GPU)"
    return [speed_of[block].judged(fact, expected, limit=1.0, unit="times", signed=False)]
