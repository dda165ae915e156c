"""Time training steps, as rows of a study, and compare them with pre-ln's."""

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
"""Seconds of a training step, of processor time on a CPU, median over the turns."""
PUBLISHED_SPEED = {
    "pre-ln": 1.0, "parallel": 1.05, "v-skipinit": 0.95, "sas": 1.09, "sas-p": 1.16,
    "sas-p-no-norm": 1.20,
}  # fmt: skip
"""Training speed against pre-ln, table 2."""
CLOCK = 0.02
"""Share that a ratio of two clocks is good to, however often it is read: parallel with and without
zero queries, the same operations, read 2.1 % apart in `trial`, with errors of 1 to 2 %."""


def timed_models(turns: Mapping[str, TrainedSettings]) -> dict[str, TimedModel]:
    """Fresh models of one size on one batch, ready to take turns.

    Args:
        turns: name → the settings of its model; all have the same sizes.

    Returns:
        Name → its model with an optimiser.

    Cost:
        All models, with their optimisers, are in memory at once.
    """
    size = next(iter(turns.values())).size
    windows = text_of(size).windows("train", size.context)
    batch = torch.stack([windows[place]["input_ids"] for place in range(size.batch_size)])
    return {
        name: TimedModel(make_model(turn), batch, batch, run_settings(turn).training.clip)
        for name, turn in turns.items()
    }


def timed(quantity: str, times: Sequence[float], owner: Mapping[str, Scalar]) -> Row:
    """The median of some times as a row, with the standard error that it has for normal ones."""
    error = 1.25 * mean_and_error(times)[1]
    return measured(quantity, statistics.median(times), standard_error=error, **owner)


def values(rows: Rows, quantity: str) -> dict[str, tuple[float, float]]:
    """Block → (value, standard error) of a cost."""
    return {
        row["variant"]: (float(row["value"]), float(row.get("standard_error") or 0.0))
        for row in of_quantity(rows, quantity)
    }


def for_all_bases(times: Mapping[str, float]) -> dict[str, float]:
    """Give pre-ln's times to its twin of zero queries too, whose steps are the same operations."""
    return {**times, **{base: times["pre-ln"] for base in BASES if "pre-ln" in times}}


def mean_clocks(rows: Rows) -> dict[str, float]:
    """Average seconds of a step over repetitions, by block."""
    times = gathered(of_quantity(rows, STEP_TIME), "variant")
    return {name: statistics.fmean(each) for (name,), each in times.items()}


def repeated(rows: Rows, quantity: str = STEP_TIME) -> dict[str, dict[Scalar, float]]:
    """What was timed → {repetition: seconds of a step, or another cost}; in each all take turns."""
    return nested(of_quantity(rows, quantity), "variant", "seed")


def time_ratio(times: Mapping[str, Mapping[Scalar, float]], one: str, other: str) -> Difference:
    """The time of a step of one as a share of another's, mean over repetitions.

    Args:
        times: of `repeated`.
        one: what is asked about.
        other: what it is a share of.

    Returns:
        The mean with its error: what slows a repetition slows all that take turns in it, and leaves
        the share alone.
    """
    common = times.get(one, {}).keys() & times.get(other, {}).keys()
    found = over_seeds({each: times[one][each] / times[other][each] for each in common})
    return found if one == other else clocked(found)


def clocked(ratio: Difference) -> Difference:
    """A ratio of times with the error that every clock has."""
    return replace(ratio, common=CLOCK * ratio.mean)


def ratios(rows: Rows, quantity: str = STEP_TIME) -> dict[str, dict[Scalar, float]]:
    """Divide pre-ln's cost by each block's: for times, how many times as fast it is.

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
    """Block → times as fast as pre-ln, mean over repetitions."""
    return {
        name: found if name == "pre-ln" else clocked(found)
        for name, each in ratios(rows, quantity).items()
        for found in [over_seeds(each)]
    }


def against_time(panel: Panel, times: Mapping[str, float], title: str) -> Panel:
    """Losses against steps times the time of a step.

    Args:
        panel: losses against steps, a series for each block.
        times: block → seconds of a step; a block without them is left out. The
            bigram table, which takes none, is as long as the longest.
        title: of the new panel.

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
    """Whether two blocks end alike in equal time, in which the quicker one would have more steps.

    Runs of equal steps bound the difference from both sides. The slower block cut short has not yet
    let its rate decay: that is in favour of the quicker. At equal steps the quicker block has time
    left: that is against it.

    Args:
        runs: of equal steps.
        times: of `repeated`.
        block: that is judged.
        base: against this one.

    Returns:
        The fact beside both bounds; it holds, or does not, where both say so. Of a single
        repetition the error of the clock is not known, and nothing is decided.
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
    """Interpolate each seed's loss after a share of the steps; infinite where it diverged."""
    found = {}
    for seed, last in runs.losses[label].items():
        steps, losses = zip(*runs.curve(label, seed), strict=True)
        cut = float(np.interp(share * steps[-1], steps, losses))
        found[seed] = cut if math.isfinite(last) else math.inf
    return found


def bounded(bounds: Sequence[Difference], limit: float) -> tuple[bool | None, float | None]:
    """Test whether what lies between differences is within a limit.

    Returns:
        The verdict, None where they disagree, and the largest of their p-values: 1 where their
        means are on different sides, None where one is not known.
    """
    p_values = [one.p_value(-limit, limit) for one in bounds]
    sides = {(one.mean > limit) - (one.mean < -limit) for one in bounds}
    known = [one for one in p_values if one is not None]
    if len(known) < len(p_values):
        return None, None
    p_value = max(known) if len(sides) == 1 else 1.0
    return None if p_value > LEVEL else sides == {0}, p_value


def speed_check(rows: Rows) -> list[Check]:
    """Whether a training step of sas-p takes less time than one of pre-ln."""
    found, block = speeds(rows), "sas-p"
    if block not in found:
        return []
    fact = f"a training step of {block} takes less time than one of pre-ln"
    expected = f"above 1 (published {PUBLISHED_SPEED[block]}: 16 layers, width 768, one GPU)"
    return [found[block].judged(fact, expected, limit=1.0, unit="times", signed=False)]
