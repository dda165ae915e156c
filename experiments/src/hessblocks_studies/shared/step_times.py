"""Measure the time of training steps and compare it with that of pre-ln."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks_studies.data import text_of
from hessblocks_studies.engine import Check, Rows
from hessblocks_studies.shared.differences import Difference, difference, over_seeds
from hessblocks_studies.shared.gathering import gathered, measured, nested, of_quantity
from hessblocks_studies.shared.pooled_errors import LEVEL
from hessblocks_studies.shared.trained_points import (
    BIGRAMS,
    TrainedSettings,
    make_model,
    run_settings,
)
from hessblocks_studies.shared.trained_summary import CLOSE, Runs
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
    batch = torch.stack([windows[place]["input_ids"] for place in range(size.batch_size)])
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
    return {name: statistics.fmean(each) for (name,), each in times.items()}


def repeated(rows: Rows, quantity: str = STEP_TIME) -> dict[str, dict[Scalar, float]]:
    """Collect {repetition: seconds per step, or another cost} of each block."""
    return nested(of_quantity(rows, quantity), "variant", "seed")


def time_ratio(times: Mapping[str, Mapping[Scalar, float]], one: str, other: str) -> Difference:
    """Divide the step time of one block by that of another; average over repetitions.

    Args:
        times: times of `repeated`.
        one: block in the numerator.
        other: block in the denominator.

    Returns:
        The mean ratio with its error. A slow repetition slows all blocks that take turns in it, and
        does not change the ratio.
    """
    common = times.get(one, {}).keys() & times.get(other, {}).keys()
    found = over_seeds({each: times[one][each] / times[other][each] for each in common})
    return found if one == other else clocked(found)


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
    found = {
        name: {seed: base[seed] / cost for seed, cost in each.items() if seed in base}
        for name, each in costs.items()
    }
    return {name: each for name, each in found.items() if each}


def speeds(rows: Rows, quantity: str = STEP_TIME) -> dict[str, Difference]:
    """Map each block to its speed relative to pre-ln, averaged over repetitions."""
    return {
        name: found if name == "pre-ln" else clocked(found)
        for name, each in ratios(rows, quantity).items()
        for found in [over_seeds(each)]
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
    known = {BIGRAMS: max(times.values()), **times}
    series = (
        replace(one, x=tuple(step * known[one.name] for step in one.x))
        for one in panel.series
        if one.name in known
    )
    return replace(panel, title=title, x_label="training time (s)", series=tuple(series))


def at_equal_time(
    runs: Runs, times: Mapping[str, Mapping[Scalar, float]], block: str, base: str
) -> Check:
    """Judge whether two blocks end with equal losses in equal time, with more steps for the faster.

    Runs of equal steps give two bounds. With the slower block's run cut short, its learning rate
    has not decayed yet, which favours the faster block. At equal steps the faster block has time
    left, which disfavours it.

    Args:
        runs: runs of equal steps.
        times: times of `repeated`.
        block: block that is judged.
        base: block that it is compared with.

    Returns:
        The check with both bounds; decided if both bounds agree. With one repetition the error of
        the times is unknown, and the check is undecided.
    """
    check = Check(
        fact=f"{block} about matches {base} in equal time",
        expected=f"final losses within {CLOSE:g} of each other, above or below, by both bounds",
        ours="not finished",
        holds=None,
    )
    losses = runs.losses
    quick, slow = block, base
    if time_ratio(times, quick, slow).mean > 1:
        quick, slow = slow, quick
    ratio = time_ratio(times, quick, slow)
    if not ratio.seeds or not {block, base} <= losses.keys():
        return check
    share = ratio.mean
    error = ratio.whole if ratio.seeds > 1 else 0.0

    def gap(part: float) -> Difference:
        shorter = {slow: cut_short(runs, slow, part)}
        return difference({**losses, **shorter}, block, base, runs.residual)

    common = abs(gap(share + error).mean - gap(share - error).mean) / 2
    freedom = ratio.whole_freedom if ratio.seeds > 1 else 0.0
    bounds = (
        replace(gap(share), common=common, common_freedom=freedom),
        runs.apart(block, base),
    )
    cut, even = (each.text("nats") for each in bounds)
    ours = f"{cut} with {slow} cut short at {share:.0%} of its steps, {even} at equal steps"
    holds, p_value = bounded(bounds, CLOSE)
    check = replace(check, ours=ours, holds=holds, p_value=p_value)
    return runs.if_it_counts(check, block, base)


def cut_short(runs: Runs, label: str, share: float) -> dict[Scalar, float]:
    """Interpolate each seed's loss after a share of the steps; infinite if the run diverged."""
    found = {}
    for seed, last in runs.losses[label].items():
        steps, losses = zip(*runs.curve(label, seed), strict=True)
        cut = float(np.interp(share * steps[-1], steps, losses))
        found[seed] = cut if math.isfinite(last) else math.inf
    return found


def bounded(bounds: Sequence[Difference], limit: float) -> tuple[bool | None, float | None]:
    """Test whether all values between two differences lie within ±limit.

    Returns:
        The verdict, None if undecided, and the larger p-value: 1 if the means lie on different
        sides of a limit; None if a p-value is unknown.
    """
    p_values = [one.p_value(-limit, limit) for one in bounds]
    sides = {(one.mean > limit) - (one.mean < -limit) for one in bounds}
    known = [one for one in p_values if one is not None]
    if len(known) < len(p_values):
        return None, None
    p_value = max(known) if len(sides) == 1 else 1.0
    return None if p_value > LEVEL else sides == {0}, p_value


def speed_check(rows: Rows) -> list[Check]:
    """Judge whether a training step of sas-p takes less time than one of pre-ln."""
    found, block = speeds(rows), "sas-p"
    if block not in found:
        return []
    fact = f"a training step of {block} takes less time than one of pre-ln"
    expected = f"above 1 (published {PUBLISHED_SPEED[block]}: 16 layers, width 768, one GPU)"
    return [found[block].judged(fact, expected, limit=1.0, unit="times", signed=False)]
