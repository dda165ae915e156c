"""Figure 5 of the simplified-blocks paper: loss against time.

Losses come from ordinary runs. Time comes from a point of its own in which all blocks take turns, a
few steps each, so that whatever else the machine does strikes all of them alike; a curve's time is its
steps times the median time of a step.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from dataclasses import replace

from hessblocks.figures import Figure, Panel, mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks.studies.engine import Check, Rows, Scale, Summary
from hessblocks.studies.shared import (
    ALL,
    SEEDS,
    SIZES,
    STEP_TIME,
    TrainedSettings,
    curve,
    difference,
    every_run,
    exceeds,
    final_losses,
    loss_table,
    make_model,
    mean_curve,
    median_error,
    run_curve,
    run_seeds,
    run_settings,
    shown,
    speed_check,
    text_of,
    train_point,
    trained_study,
    values,
)
from hessblocks.training import step_seconds

VARIANTS = ("pre-ln", "parallel", "sas", "sas-p", "sas-p-no-norm")
ROUNDS = 12
"""Turns of every block, a few steps each."""


def settings(scale: Scale, seeds: int | None) -> list[TrainedSettings]:
    """The runs, and one point for the time of their steps."""
    timing = every_run(TrainedSettings, "speed", [ALL], SIZES[scale], 1)
    return timing + every_run(
        TrainedSettings, "speed", VARIANTS, SIZES[scale], seeds or SEEDS[scale]
    )


def measure(settings: TrainedSettings) -> list[Row]:
    """One run's losses, or the time of a step of every block."""
    return step_times(settings) if settings.variant == ALL else train_point(settings)


def step_times(settings: TrainedSettings) -> list[Row]:
    """Median time of a training step of each block, all taking turns."""
    turns = {name: replace(settings, variant=name) for name in VARIANTS}
    models = {name: make_model(turn) for name, turn in turns.items()}
    text = text_of(settings.size)
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(ROUNDS):
        for name, model in models.items():
            times[name].append(
                statistics.mean(step_seconds(run_settings(turns[name]), text, model))
            )
    return [
        {
            "study": "speed",
            "variant": name,
            "seed": 0,
            "quantity": STEP_TIME,
            "value": statistics.median(seconds),
            "standard_error": median_error(seconds),
            "method": "measured",
        }
        for name, seconds in times.items()
    ]


def steps_to(rows: Rows, variant: str, seed: Scalar, loss: float) -> float:
    """Steps until a run's validation loss is `loss`, on a line between evaluations; infinite if never."""
    for (step, before), (later, after) in itertools.pairwise(run_curve(rows, variant, seed)):
        if after <= loss <= before:
            return step + (later - step) * (before - loss) / ((before - after) or 1.0)
    return math.inf


def time_shares(rows: Rows, step_time: Mapping[str, float]) -> dict[str, dict[Scalar, float]]:
    """Block → {seed: its time to the last loss of pre-ln, as a share of pre-ln's}; infinite if never."""
    found: dict[str, dict[Scalar, float]] = {}
    for seed, target in final_losses(rows).get("pre-ln", {}).items():
        if math.isinf(target):
            continue
        last = run_curve(rows, "pre-ln", seed)[-1][0]
        for name, seconds in step_time.items():
            if seed in run_seeds(rows, name):
                steps = last if name == "pre-ln" else steps_to(rows, name, seed, target)
                share = steps * seconds / (last * step_time["pre-ln"])
                found.setdefault(name, {})[seed] = share
    return found


def summarise(rows: Rows) -> Summary:
    """Loss against time, and the time to the loss that pre-ln ends with."""
    clocks = values(rows, STEP_TIME)
    step_time = {name: seconds for name, (seconds, _) in clocks.items()}
    shares = time_shares(rows, step_time) if "pre-ln" in step_time else {}
    table = [
        {
            "variant": name,
            "step_time": seconds,
            "share_of_the_time_to_the_loss_of_pre_ln": _mean(shares.get(name, {})),
        }
        for name, seconds in step_time.items()
    ]
    return Summary(
        figure=Figure(
            title="Loss against training time",
            caption=(
                "Time is steps times the median time of a step, blocks timed in turns. Python "
                "source; mean over seeds, bars are its standard errors."
            ),
            panels=(_panel(rows, step_time),) if step_time else (),
        ),
        checks=(*speed_check(rows), *_time_checks(shares, clocks)),
        tables={"times": table, "losses": loss_table(final_losses(rows), rows)},
    )


def _panel(rows: Rows, step_time: Mapping[str, float]) -> Panel:
    found = {name: mean_curve(rows, name) for name in VARIANTS if name in step_time}
    return Panel(
        title="",
        x_label="training time (s)",
        y_label="validation loss (nats per token)",
        series=tuple(
            curve(name, [(step * step_time[name], loss, error) for step, loss, error in places])
            for name, places in found.items()
            if places
        ),
    )


def _mean(shares: Mapping[Scalar, float]) -> float | None:
    """The mean over seeds; None where a seed never gets there."""
    if not shares or not all(map(math.isfinite, shares.values())):
        return None
    return mean_and_error(list(shares.values()))[0]


def _time_checks(
    shares: Mapping[str, Mapping[Scalar, float]], clocks: Mapping[str, tuple[float, float]]
) -> list[Check]:
    """Whether sas-p needs less time to pre-ln's last loss; no where it never gets there.

    The error of the step times, which all seeds share, counts beside that over seeds.
    """
    if not {"pre-ln", "sas-p"} <= set(shares):
        return []
    found = difference(shares, "sas-p", "pre-ln")
    never = [seed for seed, share in shares["sas-p"].items() if math.isinf(share)]
    if found is not None and not never:
        clock = math.hypot(*(clocks[name][1] / clocks[name][0] for name in ("sas-p", "pre-ln")))
        found = replace(found, common=(1 + found.mean) * clock)
    more = exceeds(found, 0.0)
    return [
        Check(
            fact="sas-p needs less time than pre-ln to the loss that pre-ln ends with",
            expected="below 0 % more time",
            ours=f"not reached by {len(never)} of {len(shares['sas-p'])} seeds"
            if never
            else shown(found and found.times(100), "% more time", digits=0),
            holds=None if more is None else not more,
        )
    ]


STUDY = trained_study(
    "speed",
    title="loss against training time",
    source="Simplified blocks, Figure 5",
    published="SAS trains at least as fast in time as pre-ln, SAS-P about as fast as the parallel block with 13 % fewer parameters.",
    settings=settings,
    measure=measure,
    summarise=summarise,
)
