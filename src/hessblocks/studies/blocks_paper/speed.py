"""Figure 5 of the simplified-blocks paper: loss against time.

Losses come from ordinary runs. Time comes from a point of its own in which all blocks take turns, a
few steps each, so that whatever else the machine does strikes all of them alike; a curve's time is its
steps times the median time of a step.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks.studies import shared
from hessblocks.studies.engine import Check, Rows, Scale, Summary
from hessblocks.training import step_seconds

VARIANTS = ("pre-ln", "parallel", "sas", "sas-p", "sas-p-no-norm")
TIMED = (*VARIANTS, shared.GPT2)
ROUNDS = 12
"""Turns of every block, a few steps each."""


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """The runs, and one point for the time of their steps."""
    size = shared.SIZES[scale]
    return [
        shared.Sweep(variants=[shared.ALL], size=size, seeds=1),
        shared.Sweep(variants=(*VARIANTS, *shared.REFERENCES), size=size),
    ]


def measure(settings: shared.TrainedSettings) -> list[Row]:
    """One run's losses, or the time of a step of every block."""
    return step_times(settings) if settings.variant == shared.ALL else shared.train_point(settings)


def step_times(settings: shared.TrainedSettings) -> list[Row]:
    """Median time of a training step of each block, all taking turns."""
    turns = {name: replace(settings, variant=name) for name in TIMED}
    models = {name: shared.make_model(turn) for name, turn in turns.items()}
    text = shared.text_of(settings.size)
    times: dict[str, list[float]] = {name: [] for name in TIMED}
    for _ in range(ROUNDS):
        for name, model in models.items():
            seconds = step_seconds(shared.run_settings(turns[name]), text, model)
            times[name].append(statistics.mean(seconds))
    return [shared.timed(shared.STEP_TIME, times[name], turns[name].owner) for name in TIMED]


def steps_to(run: Sequence[tuple[float, float]], loss: float) -> float:
    """Steps until a run's validation loss is `loss`, on a line between evaluations; infinite if never."""
    for (step, before), (later, after) in itertools.pairwise(run):
        if after <= loss <= before:
            return step + (later - step) * (before - loss) / ((before - after) or 1.0)
    return math.inf


def time_shares(
    runs: shared.Runs, step_time: Mapping[str, float]
) -> dict[str, dict[Scalar, float]]:
    """Block → {seed: its time to the last loss of pre-ln, as a share of pre-ln's}; infinite if never."""
    found: dict[str, dict[Scalar, float]] = {}
    for seed, target in runs.losses.get("pre-ln", {}).items():
        if math.isinf(target):
            continue
        last = runs.curve("pre-ln", seed)[-1][0]
        for name, seconds in step_time.items():
            if seed in runs.losses.get(name, {}):
                steps = last if name == "pre-ln" else steps_to(runs.curve(name, seed), target)
                share = steps * seconds / (last * step_time["pre-ln"])
                found.setdefault(name, {})[seed] = share
    return found


def summarise(rows: Rows) -> Summary:
    """Loss against time, and the time to the loss that pre-ln ends with."""
    runs, clocks = shared.Runs(rows), shared.values(rows, shared.STEP_TIME)
    step_time = {name: seconds for name, (seconds, _) in clocks.items()}
    shares = time_shares(runs, step_time) if "pre-ln" in step_time else {}
    table = [
        {
            "variant": name,
            "step_time": seconds,
            "share_of_the_time_to_the_loss_of_pre_ln": _mean(shares.get(name, {})),
        }
        for name, seconds in step_time.items()
    ]
    return runs.summary(
        title="Loss against training time",
        caption=f"Time is steps times the median time of a step (of processor time on a CPU), blocks timed in turns. {shared.HOW}",
        panels=[shared.against_time(runs.panel(VARIANTS, ""), clocks, "")] if clocks else [],
        checks=[*shared.speed_check(rows), *map(runs.if_it_counts, _time_checks(shares, clocks))],
        times=table,
    )


def _mean(shares: Mapping[Scalar, float]) -> float | None:
    """The mean over seeds; None where a seed never gets there."""
    if not shares or not all(map(math.isfinite, shares.values())):
        return None
    return mean_and_error(list(shares.values()))[0]


def _time_checks(shares: shared.Values, clocks: Mapping[str, tuple[float, float]]) -> list[Check]:
    """Whether sas-p needs less time to pre-ln's last loss; no where it never gets there.

    The error of the step times, which all seeds share, counts beside that over seeds.

    Args:
        shares: block → {seed: its time, as a share of pre-ln's}.
        clocks: block → (seconds of a step, standard error).

    Returns:
        The fact; none where one of the two blocks is not measured.
    """
    if not {"pre-ln", "sas-p"} <= set(shares):
        return []
    found = shared.difference(shares, "sas-p", "pre-ln")
    never = [seed for seed, share in shares["sas-p"].items() if math.isinf(share)]
    if not never:
        clock = math.hypot(*(clocks[name][1] / clocks[name][0] for name in ("sas-p", "pre-ln")))
        found = replace(found, common=(1 + found.mean) * clock)
    more = found.above(0.0)
    return [
        Check(
            fact="sas-p needs less time than pre-ln to the loss that pre-ln ends with",
            expected="below 0 % more time",
            ours=f"not reached by {len(never)} of {len(shares['sas-p'])} seeds"
            if never
            else found.times(100).text("% more time", digits=0),
            holds=None if more is None else not more,
        )
    ]


STUDY = shared.trained_study(
    "speed",
    title="loss against training time",
    source="Simplified blocks, Figure 5",
    published="SAS trains at least as fast in time as pre-ln, SAS-P about as fast as the parallel block with 13 % fewer parameters.",
    sweeps=sweeps,
    measure=measure,
    summarise=summarise,
)
