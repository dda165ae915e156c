"""Tables 1 and 2 of the simplified-blocks paper: scores after fine-tuning, size, speed, memory.

At smoke and laptop scale the tasks are stand-ins with labels true by construction, not GLUE.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hessblocks.data import TASKS, Task, load_docstrings, make_task
from hessblocks.figures import Figure, Panel, Series, mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks.studies.blocks_paper import masked_lm
from hessblocks.studies.blocks_paper.masked_lm import ALL, COLUMNS, PRESETS, SEEDS, SIZES
from hessblocks.studies.engine import Check, Scale, Settings, Study, Summary, number, whole, word
from hessblocks.studies.shared import (
    PUBLISHED_SPEED,
    Values,
    difference,
    exceeds,
    shown,
    speed_check,
    speeds,
    text_of,
    values,
)
from hessblocks.training import Finetuning, Pretraining, Score, finetune, pretrained

ACCURACY = "accuracy"
"""Share of right answers on the test split; empty where training diverged."""
CHANCE = "chance"
"""Share of the commonest class."""
FRESH = "pre-ln, not pretrained"
"""The control: the same fine-tuning from random weights."""
PUBLISHED_SCORES = {
    "pre-ln": (78.9, 0.7), "parallel": (78.5, 0.6), "v-skipinit": (78.0, 0.3), "sas": (78.4, 0.8),
    "sas-p": (78.3, 0.4),
}  # fmt: skip
"""GLUE and its error, table 1; SAS-P without norm has none (NaNs)."""
PUBLISHED_MILLIONS = {"pre-ln": 120, "sas": 101}
CLOSE = 2.0
"""Points of the mean score that still count as equal."""
GLUE = "cola,sst2,mrpc,qqp,mnli,qnli,rte"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Fine-tuning at one scale."""

    tasks: str
    """Names with commas, of `hessblocks.data.tasks.TASKS` or of GLUE."""
    epochs: int
    """Passes over the training examples."""
    tuning_batch_size: int
    """Examples of each update."""
    tuning_rate: float
    """Peak learning rate."""
    examples: int
    """Most training examples of a task; 0 means all."""


TUNINGS: dict[Scale, Tuning] = {
    "smoke": Tuning(
        tasks=",".join(TASKS), epochs=1, tuning_batch_size=32, tuning_rate=2e-3, examples=192
    ),
    "laptop": Tuning(
        tasks=",".join(TASKS), epochs=3, tuning_batch_size=32, tuning_rate=1e-3, examples=2400
    ),
    "paper": Tuning(tasks=GLUE, epochs=5, tuning_batch_size=16, tuning_rate=4e-5, examples=0),
}


def settings(scale: Scale, seeds: int | None) -> list[Settings]:
    """A point for each block and seed, the control, and one that times all blocks."""
    extra: dict[str, Scalar] = dict(vars(TUNINGS[scale]))
    points = masked_lm.masked_settings(
        "downstream", (*PRESETS[scale], FRESH), SIZES[scale], seeds or SEEDS[scale], **extra
    )
    return [masked_lm.timing_settings("downstream", PRESETS[scale], SIZES[scale]), *points]


def measure(settings: Mapping[str, Scalar]) -> list[Row]:
    """One block's scores, or the costs of all."""
    if settings["variant"] == ALL:
        return masked_lm.timed(settings) + _published_sizes()
    fresh = settings["variant"] == FRESH
    made = masked_lm.pretraining(settings, "pre-ln" if fresh else None)
    corpus = text_of(settings)
    model = None if fresh else pretrained(made, corpus)
    tuning = Finetuning(
        epochs=whole(settings, "epochs"),
        batch_size=whole(settings, "tuning_batch_size"),
        learning_rate=number(settings, "tuning_rate"),
        examples=whole(settings, "examples") or None,
        seed=whole(settings, "seed"),
    )
    rows: list[Row] = []
    for task in tasks(word(settings, "tasks")):
        score = Score(accuracy=None, examples=0, chance=0.0)
        if model is None or not model.diverged:
            score = finetune(made, model.folder if model else None, corpus, task, tuning)
        rows += _score_rows(settings, task.name, score)
    return rows


def tasks(names: str) -> list[Task]:
    """The labelled tasks of these names, stand-ins or GLUE."""
    chosen = names.split(",")
    if not set(chosen) <= set(TASKS):
        from hessblocks.data import load_glue

        return [load_glue(name) for name in chosen]
    records = load_docstrings()
    return [make_task(name, records) for name in chosen]


def _score_rows(settings: Mapping[str, Scalar], task: str, score: Score) -> list[Row]:
    shared = {name: settings[name] for name in ("study", "variant", "seed")}
    values = [(ACCURACY, score.accuracy), (CHANCE, score.chance if score.examples else None)]
    return [
        {**shared, "task": task, "quantity": quantity, "value": value, "method": "measured"}
        for quantity, value in values
    ]


def _published_sizes() -> list[Row]:
    """Parameters at the published size, counted without memory."""
    rows: list[Row] = []
    for name in PUBLISHED_MILLIONS:
        size = vars(SIZES["paper"])
        with torch.device("meta"):
            model = Pretraining(preset=name, seed=0, **size).model()
        count = sum(parameter.numel() for parameter in model.parameters())
        rows.append(
            {
                "study": "downstream", "variant": name, "seed": 0, "quantity": "parameters_at_16x768",
                "value": count, "method": "exact",
            }
        )  # fmt: skip
    return rows


Scores = dict[str, dict[Scalar, dict[str, float | None]]]
"""Block → {seed: {task: accuracy in percent, or None}}."""


def scores(rows: Sequence[Row]) -> Scores:
    """The accuracies, in percent."""
    found: Scores = {}
    for row in rows:
        if row["quantity"] == ACCURACY:
            value = None if row["value"] is None else 100 * number(row, "value")
            runs = found.setdefault(word(row, "variant"), {})
            runs.setdefault(row["seed"], {})[word(row, "task")] = value
    return found


def means(found: Scores) -> dict[str, dict[Scalar, float]]:
    """Block → {seed: mean over its tasks}; that of a diverged seed is −∞."""
    return {
        block: {
            seed: sum(-math.inf if v is None else v for v in each.values()) / len(each)
            for seed, each in runs.items()
        }
        for block, runs in found.items()
    }


def finished(runs: Mapping[Scalar, float]) -> list[float]:
    """The means of the seeds that did not diverge."""
    return [value for value in runs.values() if math.isfinite(value)]


def summarise(rows: Sequence[Row]) -> Summary:
    """The table of the paper's kind, and its facts."""
    found = scores(rows)
    return Summary(
        figure=Figure(
            title="Downstream scores, training speed and parameters",
            caption=(
                f"{_about(found)}: mean accuracy over seeds, bars are standard errors; beside the speeds, "
                "of the difference. The published scores are GLUE at 16 layers, width 768: compare "
                "differences between blocks, not levels."
            ),
            panels=_panels(rows, found),
        ),
        checks=tuple(_checks(rows, means(found))),
        tables={"downstream": table(rows, found)},
    )


def task_names(found: Scores) -> list[str]:
    """The tasks, each once."""
    every = (task for runs in found.values() for each in runs.values() for task in each)
    return list(dict.fromkeys(every))


def _about(found: Scores) -> str:
    if set(task_names(found)) <= set(TASKS):
        return "Stand-ins with labels true by construction (not GLUE), split by file"
    return "Tasks of GLUE"


def table(rows: Sequence[Row], found: Scores) -> list[dict[str, object]]:
    """One block a row: scores, parameters, speed and memory."""
    average = means(found)
    training, answering = speeds(rows), speeds(rows, "answer_time")
    costs = {
        quantity: values(rows, quantity)
        for quantity in ("parameters", "step_memory", "answer_memory")
    }
    lines: list[dict[str, object]] = []
    for block in dict.fromkeys((*found, *training)):
        kept = finished(average.get(block, {}))
        score, error = mean_and_error(kept) if kept else (None, None)
        line: dict[str, object] = {
            "block": block,
            "score": score,
            "standard_error": error,
            "seeds": len(kept),
            "diverged": len(found.get(block, {})) - len(kept),
            "published_glue": PUBLISHED_SCORES.get(block, (None, None))[0],
        }
        line |= {name: each.get(block, (None,))[0] for name, each in costs.items()}
        line |= {
            "training_speed": training.get(block, (None,))[0],
            "inference_speed": answering.get(block, (None,))[0],
            "published_speed": PUBLISHED_SPEED.get(block),
        }
        lines.append(line)
    return lines


def _panels(rows: Sequence[Row], found: Scores) -> tuple[Panel, ...]:
    if not found:
        return ()
    names = task_names(found)
    bars = []
    for block, runs in found.items():
        per_task = [
            [v for each in runs.values() if (v := each.get(task)) is not None] for task in names
        ]
        places = [*per_task, finished(means(found)[block])]
        kept = [(x, mean_and_error(v)) for x, v in enumerate(places) if v]
        bars.append(
            Series(
                name=block,
                x=tuple(float(x) for x, _ in kept),
                y=tuple(mean for _, (mean, _) in kept),
                error=tuple(error for _, (_, error) in kept),
            )
        )
    panels = [
        Panel(
            title="accuracy", x_label="", y_label="accuracy (%)", kind="bars",
            ticks=(*(_with_chance(rows, task) for task in names), "mean"), series=tuple(bars),
        )
    ]  # fmt: skip
    return (*panels, *_speed_panel(rows, found))


def _with_chance(rows: Sequence[Row], task: str) -> str:
    """The task, and what answering with the commonest class would score."""
    for row in rows:
        if row["quantity"] == CHANCE and row["task"] == task and row["value"] is not None:
            return f"{task}\n(chance {100 * number(row, 'value'):.0f} %)"
    return task


def _speed_panel(rows: Sequence[Row], found: Scores) -> list[Panel]:
    """Score above pre-ln's against training speed, ours beside the published ones."""
    average = means(found)
    times = speeds(rows)
    gaps = {name: difference(average, name, "pre-ln") for name in times}
    ours = {name: gap for name, gap in gaps.items() if gap and not gap.diverged}
    if not ours:
        return []
    series = [
        Series(name=name, x=(times[name][0],), y=(gap.mean,), error=(gap.error,), line=False)
        for name, gap in ours.items()
    ]
    series += [
        Series(
            name=name,
            x=(PUBLISHED_SPEED[name],),
            y=(PUBLISHED_SCORES[name][0] - PUBLISHED_SCORES["pre-ln"][0],),
            error=(PUBLISHED_SCORES[name][1],),
            published=True,
        )
        for name in ours
        if name in PUBLISHED_SCORES
    ]
    return [
        Panel(
            title="score against speed",
            x_label="training speed (times pre-ln)",
            y_label="mean score above pre-ln's (points)",
            series=tuple(series),
        )
    ]


def _checks(rows: Sequence[Row], average: Values) -> list[Check]:
    checks = [_score_check(average, block) for block in ("sas", "sas-p") if block in average]
    if "pre-ln" in average and FRESH in average:
        checks.append(_pretraining_check(average))
    at_size = values(rows, "parameters_at_16x768")
    for block, millions in PUBLISHED_MILLIONS.items():
        if block in at_size:
            count = at_size[block][0] / 1e6
            checks.append(
                Check(
                    fact=f"parameters of {block} at 16 layers, width 768",
                    expected=f"{millions}M",
                    ours=f"{count:.1f}M",
                    holds=abs(count - millions) < 1,
                )
            )
    return [*checks, *speed_check(rows)]


def _score_check(average: Values, block: str) -> Check:
    theirs = PUBLISHED_SCORES[block][0] - PUBLISHED_SCORES["pre-ln"][0]
    found = difference(average, block, "pre-ln")
    return Check(
        fact=f"{block} scores within {CLOSE:g} points of pre-ln, or above",
        expected=f"{theirs:+.1f} points (GLUE)",
        ours=shown(found, "points", digits=1),
        holds=exceeds(found, -CLOSE),
    )


def _pretraining_check(average: Values) -> Check:
    found = difference(average, "pre-ln", FRESH)
    return Check(
        fact="pretraining helps: pre-ln scores above the same model from random weights",
        expected="above 0 points (ours; without it the scores say nothing about pretraining)",
        ours=shown(found, "points", digits=1),
        holds=exceeds(found, 0.0),
    )


STUDY = Study(
    name="downstream",
    title="scores after fine-tuning, parameters, speed and memory",
    source="Simplified blocks, Tables 1 and 2",
    published="On GLUE SAS-P scores 78.3 ± 0.4 against 78.9 ± 0.7 of pre-ln, with 16 % fewer parameters at 1.16 times the speed.",
    settings=settings,
    measure=measure,
    summarise=summarise,
    columns=COLUMNS,
    revision=2,  # training texts that stand in a held-out file too are left out
    gpus=1,
)
