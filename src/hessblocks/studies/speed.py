"""Figure 5 of the simplified-blocks paper: loss against time.

Losses come from ordinary runs. Time comes from a point of its own in which all blocks take turns, a
few steps each, so that whatever else the machine does strikes all of them alike; a curve's time is its
steps times the median time of a step.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from hessblocks.studies import trained
from hessblocks.studies.figure import Figure, Panel, Series, mean_and_error
from hessblocks.studies.point import Row, Scalar
from hessblocks.studies.settings import number, whole, word
from hessblocks.studies.study import Check, Scale, Settings, Study, Summary
from hessblocks.studies.trained import (
    COLUMNS,
    REVISION,
    SEEDS,
    SIZES,
    make_model,
    run,
    run_settings,
    trained_settings,
)
from hessblocks.studies.trained_summary import final_losses, loss_table
from hessblocks.studies.training import LOSS
from hessblocks.training.pace import step_seconds

VARIANTS = ("pre-ln", "parallel", "sas", "sas-p", "sas-p-no-norm")
TIMED = "step_time"
"""Seconds of a training step, median over the turns."""
ROUNDS = 12
"""Turns of every block, a few steps each."""


def settings(scale: Scale, seeds: int | None) -> list[Settings]:
    """The runs, and one point for the time of their steps."""
    size = SIZES[scale]
    timing: Settings = {"study": "speed", "variant": "all", "seed": 0, **asdict(size)}
    return [timing, *trained_settings("speed", VARIANTS, size, seeds or SEEDS[scale])]


def measure(settings: Mapping[str, Scalar]) -> list[Row]:
    """One run's losses, or the time of a step of every block."""
    return step_times(settings) if settings["variant"] == "all" else run(settings)


def step_times(settings: Mapping[str, Scalar]) -> list[Row]:
    """Median time of a training step of each block, all taking turns."""
    runs = {name: {**settings, "variant": name} for name in VARIANTS}
    models = {name: make_model(run) for name, run in runs.items()}
    text = trained.corpus(whole(settings, "vocab_size"))
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(ROUNDS):
        for name, model in models.items():
            times[name].append(statistics.mean(step_seconds(run_settings(runs[name]), text, model)))
    return [
        {
            "study": "speed",
            "variant": name,
            "seed": 0,
            "quantity": TIMED,
            "value": statistics.median(seconds),
            "standard_error": 1.25 * mean_and_error(seconds)[1],
            "method": "measured",
        }
        for name, seconds in times.items()
    ]


def time_to(rows: Sequence[Row], variant: str, loss: float, step_time: float) -> float | None:
    """Seconds until the mean validation loss is at most `loss`; None where it never is."""
    for step, mean in mean_curve(rows, variant):
        if mean <= loss:
            return step * step_time
    return None


def mean_curve(rows: Sequence[Row], variant: str) -> list[tuple[float, float]]:
    """(step, validation loss averaged over seeds)."""
    at: dict[float, list[float]] = {}
    for row in rows:
        if row["quantity"] == LOSS and row["variant"] == variant and row["value"] is not None:
            at.setdefault(number(row, "step"), []).append(number(row, "value"))
    return [(step, mean_and_error(at[step])[0]) for step in sorted(at)]


def summarise(rows: Sequence[Row]) -> Summary:
    """Loss against time, and the time to the loss that pre-ln ends with."""
    step_time = {
        word(row, "variant"): number(row, "value") for row in rows if row["quantity"] == TIMED
    }
    target = mean_curve(rows, "pre-ln")[-1][1] if mean_curve(rows, "pre-ln") else None
    needed: dict[str, float | None] = {}
    if target is not None:
        needed = {name: time_to(rows, name, target, step_time[name]) for name in step_time}
    table = [
        {"variant": name, "step_time": seconds, "time_to_the_loss_of_pre_ln": needed.get(name)}
        for name, seconds in step_time.items()
    ]
    return Summary(
        figure=Figure(
            title="Loss against training time",
            caption=(
                "Time is steps times the median time of a step, blocks timed in turns. Python standard "
                "library; mean over seeds."
            ),
            panels=(_panel(rows, step_time),) if step_time else (),
        ),
        checks=tuple(_checks(step_time, needed)),
        tables={"times": table, "losses": loss_table(final_losses(rows), rows)},
    )


def _panel(rows: Sequence[Row], step_time: Mapping[str, float]) -> Panel:
    found = {name: mean_curve(rows, name) for name in VARIANTS if name in step_time}
    return Panel(
        title="",
        x_label="training time (s)",
        y_label="validation loss (nats per token)",
        series=tuple(
            Series(
                name=name,
                x=tuple(step * step_time[name] for step, _ in curve),
                y=tuple(loss for _, loss in curve),
            )
            for name, curve in found.items()
            if curve
        ),
    )


def _checks(step_time: Mapping[str, float], needed: Mapping[str, float | None]) -> list[Check]:
    if not {"pre-ln", "sas-p"} <= set(step_time):
        return []
    faster = step_time["pre-ln"] / step_time["sas-p"]
    checks = [
        Check(
            fact="a step of sas-p takes less time than one of pre-ln",
            expected="1.16 times as fast (16 layers, width 768, one GPU)",
            ours=f"{faster:.2f} times",
            holds=faster > 1,
        )
    ]
    theirs, ours = needed.get("pre-ln"), needed.get("sas-p")
    if theirs is not None:
        checks.append(
            Check(
                fact="sas-p needs less time than pre-ln to the loss that pre-ln ends with",
                expected="less time",
                ours="never gets there" if ours is None else f"{ours / theirs:.2f} of the time",
                holds=ours is not None and ours < theirs,
            )
        )
    return checks


STUDY = Study(
    name="speed",
    title="loss against training time",
    source="Simplified blocks, Figure 5",
    published="SAS trains at least as fast in time as pre-ln, SAS-P about as fast as the parallel block with 13 % fewer parameters.",
    settings=settings,
    measure=measure,
    summarise=summarise,
    columns=COLUMNS,
    revision=REVISION,
)
