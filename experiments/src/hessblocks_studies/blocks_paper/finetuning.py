"""Fine-tune the pretrained blocks; measure scores, size, speed, memory (Tables 1 and 2).

At smoke and laptop scale, substitute tasks with exact labels replace GLUE.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks_studies import shared
from hessblocks_studies.blocks_paper import masked_lm
from hessblocks_studies.data import TASKS, Task, load_docstrings, make_task
from hessblocks_studies.engine import Check, Rows, Scale, Summary
from hessblocks_studies.masked import Finetuning, Pretraining, Score, finetune, pretrained

ACCURACY = "accuracy"
"""Share of correct answers on the test split; empty if training diverged."""
VALIDATION = "validation_accuracy"
"""Share of correct answers on the validation split, which chooses the learning rate."""
CHANCE = "chance"
"""Share of the most frequent class."""
FRESH = "pre-ln, not pretrained"
"""Control: the same fine-tuning from random weights."""
PUBLISHED_SCORES = {
    "pre-ln": (78.9, 0.7), "parallel": (78.5, 0.6), "v-skipinit": (78.0, 0.3), "sas": (78.4, 0.8),
    "sas-p": (78.3, 0.4),
}  # fmt: skip
"""Published GLUE score and its error, table 1; SAS-P without norm has none (NaNs)."""
AT_SIZE = "parameters_at_16x768"
"""Quantity: parameters at the published size."""
PUBLISHED_MILLIONS = {"pre-ln": 120, "sas": 101}
VOID = "void, since on no task pretraining surely helps"
"""Note added to a verdict whose controls do not hold."""
CLOSE = 2.0
"""Points up to which scores count as equal, and by which pretraining must improve a task for the
task to count."""
GLUE = "cola,sst2,mrpc,qqp,mnli,qnli,rte"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Fine-tuning at one scale."""

    tasks: str
    """Names of tasks in `hessblocks_studies.data.tasks.TASKS` or in GLUE, separated by commas."""
    epochs: int
    """Passes over the training examples."""
    tuning_batch_size: int
    """Examples per update."""
    tuning_rates: tuple[float, ...]
    """Peak learning rates; the validation split chooses one per block."""
    examples: int
    """Maximum number of training examples per task; 0 means all."""
    decay: str | None = None
    """Decay of the learning rate: linear or cosine; None for linear."""


TUNINGS: dict[Scale, Tuning] = {
    "smoke": Tuning(
        tasks=",".join(TASKS), epochs=1, tuning_batch_size=32, tuning_rates=(2e-3,), examples=192
    ),
    "laptop": Tuning(
        tasks=",".join(TASKS), epochs=3, tuning_batch_size=32, tuning_rates=(1e-3, 3e-3, 1e-2),
        examples=2400,
    ),
    "paper": Tuning(
        tasks=GLUE, epochs=5, tuning_batch_size=32, tuning_rates=(5e-5, 1.5e-4, 5e-4), examples=0
    ),
}  # fmt: skip
"""Fine-tuning by scale. The middle rate at laptop scale is the best of 3e-4 to 1e-2 in one run of
pre-ln. Batch and middle rate at paper scale are published; epochs and the other rates are ours."""
FRESH_RATES: dict[Scale, tuple[float, ...]] = {"laptop": (3e-2, 1e-1)}
"""Additional rates of the control, which needs larger rates than pretrained models."""


@dataclass(frozen=True, kw_only=True)
class TunedSettings(masked_lm.MaskedSettings):
    """Settings of a point: one block fine-tuned on all tasks, or all blocks timed in turns."""

    tuning: Tuning | None = None
    """Settings of the fine-tuning; None for the timing of all blocks."""


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """List the blocks and the control, and one point that times all blocks."""
    timing, blocks = masked_lm.sweeps(scale)
    tuning: dict[str, object] = {"tuning": TUNINGS[scale]}
    likeliest = replace(blocks, rates=blocks.rates.likeliest)
    tuning_of_scale = TUNINGS[scale]
    rates = (*tuning_of_scale.tuning_rates, *FRESH_RATES.get(scale, ()))
    control: dict[str, object] = {
        "tuning": replace(tuning_of_scale, tuning_rates=rates),
        "embedding_std": shared.best_start("pre-ln", blocks.size.width),
    }
    return [
        timing,
        replace(likeliest, variants=masked_lm.blocks(scale), settings=tuning),
        replace(likeliest, variants=[FRESH], settings=control),
    ]


def measure(settings: TunedSettings) -> list[Row]:
    """Measure one block's scores, or the costs of all blocks."""
    if settings.tuning is None:
        return masked_lm.timed(settings) + [
            _published_size(settings, name) for name in PUBLISHED_MILLIONS
        ]
    fresh = settings.variant == FRESH
    pretraining = masked_lm.pretraining(settings, "pre-ln" if fresh else None)
    corpus = shared.text_of(settings.size)
    model = None if fresh else pretrained(pretraining, corpus)
    rows: list[Row] = []
    for task in tasks(settings.tuning.tasks):
        for rate in settings.tuning.tuning_rates:
            score = Score(accuracy=None, validation=None, examples=0, chance=0.0)
            if model is None or not model.diverged:
                folder = model.folder if model else None
                tuning = Finetuning(
                    epochs=settings.tuning.epochs,
                    batch_size=settings.tuning.tuning_batch_size,
                    learning_rate=rate,
                    examples=settings.tuning.examples or None,
                    seed=settings.seed,
                    decay=settings.tuning.decay or "linear",
                )
                score = finetune(pretraining, folder, corpus, task, tuning)
            chance = score.chance if score.examples else None
            shares = {ACCURACY: score.accuracy, VALIDATION: score.validation, CHANCE: chance}
            task_and_rate: Row = {**settings.owner, "task": task.name, "learning_rate": rate}
            rows += [
                shared.measured(name, value, **task_and_rate) for name, value in shares.items()
            ]
    return rows


def tasks(names: str) -> list[Task]:
    """Load labelled tasks by name: substitutes or GLUE."""
    chosen = names.split(",")
    if not set(chosen) <= set(TASKS):
        from hessblocks_studies.data import load_glue

        return [load_glue(name) for name in chosen]
    records = load_docstrings()
    return [make_task(name, records) for name in chosen]


def _published_size(settings: TunedSettings, name: str) -> Row:
    """Count the parameters of a block at the published size, without allocating them."""
    with torch.device("meta"):
        model = Pretraining(preset=name, seed=0, **vars(masked_lm.SIZES["paper"])).model()
    count = sum(parameter.numel() for parameter in model.parameters())
    return shared.measured(AT_SIZE, count, "exact", **replace(settings, variant=name).owner)


Scores = dict[str, dict[Scalar, dict[str, float]]]
"""Block → {seed: {task: accuracy in percent, −∞ if training diverged}}."""


def best_rates(rows: Rows) -> dict[str, shared.Rate]:
    """Choose the rate of each block on the validation split.

    Returns:
        The rate with the fewest diverged runs; of these, the one with the best accuracy over seeds
        and tasks.
    """
    answers: dict[str, dict[float, list[float | None]]] = {}
    for row in shared.of_quantity(rows, VALIDATION):
        grid = answers.setdefault(row["variant"], {})
        grid.setdefault(row["learning_rate"], []).append(row["value"])
    rates: dict[str, shared.Rate] = {}
    for block, grid in answers.items():
        quality = {
            rate: (-shares.count(None), fmean([share or 0.0 for share in shares]))
            for rate, shares in grid.items()
        }
        best = max(quality, key=lambda rate: quality[rate])
        complete = len({len(shares) for shares in grid.values()}) == 1
        rates[block] = shared.Rate(best=best, settled=complete and min(grid) < best < max(grid))
    return rates


def scores(rows: Rows) -> Scores:
    """Collect the accuracies of each block at its best rate, in percent."""
    accuracies: Scores = {}
    rates = best_rates(rows)
    for row in shared.of_quantity(rows, ACCURACY):
        if row["variant"] not in rates or row["learning_rate"] != rates[row["variant"]].best:
            continue
        value = -math.inf if row["value"] is None else 100 * row["value"]
        accuracies.setdefault(row["variant"], {}).setdefault(row["seed"], {})[row["task"]] = value
    return accuracies


def means(
    accuracies: Scores, tasks: Collection[str] | None = None
) -> dict[str, dict[Scalar, float]]:
    """Average each seed over its tasks, or over a selection of them: block → {seed: mean}.

    Returns:
        The means; −∞ for a diverged seed.
    """
    return {
        block: {
            seed: fmean(chosen)
            for seed, by_task in runs.items()
            if (chosen := [by_task[task] for task in by_task if tasks is None or task in tasks])
        }
        for block, runs in accuracies.items()
    }


def finished(values: Iterable[float]) -> list[float]:
    """Select the values of runs that did not diverge."""
    return [value for value in values if math.isfinite(value)]


def summarise(rows: Rows) -> Summary:
    """Summarise in a table like the paper's, and check its facts."""
    accuracies = scores(rows)
    about = "Tasks of GLUE"
    if set(task_names(accuracies)) <= set(TASKS):
        about = "Stand-ins with labels true by construction (not GLUE), split by file"
    return shared.summary(
        "Downstream scores, training speed and parameters",
        f"{about}; in brackets the share of the commonest class. Accuracy at the learning rate "
        "that the validation split chooses for each block, mean over seeds; the mean is over all "
        "tasks, verdicts are over those with which pretraining helps. Bars are standard errors; "
        "beside the speeds, of the difference. The published scores are GLUE at 16 layers, width "
        "768: compare differences between blocks, not levels.",
        _panels(rows, accuracies),
        _checks(rows, accuracies),
        downstream=table(rows, accuracies),
    )


def task_names(accuracies: Scores) -> list[str]:
    """List the tasks without duplicates."""
    every = (task for runs in accuracies.values() for by_task in runs.values() for task in by_task)
    return list(dict.fromkeys(every))


def table(rows: Rows, accuracies: Scores) -> list[dict[str, object]]:
    """Make one row per block: scores, parameters, speed and memory."""
    average, rates = means(accuracies), best_rates(rows)
    counted = ("parameters", "step_memory", "answer_memory")
    costs = {quantity: shared.values(rows, quantity) for quantity in counted}
    for name, quantity in (
        ("training_speed", shared.STEP_TIME),
        ("inference_speed", "answer_time"),
    ):
        speeds = shared.speeds(rows, quantity)
        costs[name] = {block: (ratio.mean, ratio.error) for block, ratio in speeds.items()}
    lines: list[dict[str, object]] = []
    for block in dict.fromkeys((*accuracies, *costs["training_speed"])):
        runs = average.get(block, {})
        ended = finished(runs.values())
        score, error = mean_and_error(ended) if ended else (None, None)
        line: dict[str, object] = {
            "block": block,
            "score": score,
            "standard_error": error,
            "seeds": len(ended),
            "diverged": len(runs) - len(ended),
            "published_glue": PUBLISHED_SCORES.get(block, (None,))[0],
        }
        if block in rates:
            line |= {"best_rate": rates[block].best, "rate_settled": rates[block].settled}
        line |= {name: by_block.get(block, (None,))[0] for name, by_block in costs.items()}
        lines.append({**line, "published_speed": shared.PUBLISHED_SPEED.get(block)})
    return lines


def _panels(rows: Rows, accuracies: Scores) -> list[Panel]:
    if not accuracies:
        return []
    average, names = means(accuracies), task_names(accuracies)
    bars = []
    for block, runs in accuracies.items():
        by_task = [[run[task] for run in runs.values() if task in run] for task in names]
        places = map(finished, (*by_task, average[block].values()))
        points = [(float(x), *mean_and_error(v)) for x, v in enumerate(places) if v]
        bars.append(shared.curve(block, points))
    scored = Panel(
        title="accuracy", x_label="", y_label="accuracy (%)", kind="bars",
        ticks=(*(_with_chance(rows, task) for task in names), "mean"), series=tuple(bars),
    )  # fmt: skip
    return [scored, *_speed_panel(rows, average)]


def _with_chance(rows: Rows, task: str) -> str:
    """Name the task, with the accuracy of the most frequent class."""
    for row in shared.of_quantity(rows, CHANCE):
        if row["task"] == task and row["value"] is not None:
            return f"{task} ({100 * row['value']:.0f} %)"
    return task


def _speed_panel(rows: Rows, average: shared.Values) -> list[Panel]:
    """Plot the score relative to pre-ln's against training speed, ours and the published ones."""
    times = shared.speeds(rows)
    gaps = {name: shared.difference(average, name, "pre-ln") for name in times}
    ours = {name: gap for name, gap in gaps.items() if gap.seeds and not gap.diverged}
    if not ours:
        return []
    series = [
        shared.curve(name, [(times[name].mean, gap.mean, gap.error)], line=False)
        for name, gap in ours.items()
    ]
    for name in (name for name in ours if name in PUBLISHED_SCORES):
        score, error = PUBLISHED_SCORES[name]
        point = (shared.PUBLISHED_SPEED[name], score - PUBLISHED_SCORES["pre-ln"][0], error)
        series.append(shared.curve(name, [point], published=True))
    return [
        Panel(
            title="score against speed",
            x_label="training speed (times pre-ln)",
            y_label="mean score above pre-ln's (points)",
            series=tuple(series),
        )
    ]


def _checks(rows: Rows, accuracies: Scores) -> list[Check]:
    """Judge pretraining per task, then scores over tasks where it helps, sizes and speeds."""
    base, _ = PUBLISHED_SCORES["pre-ln"]
    rates = best_rates(rows)
    controls = {task: _control(accuracies, task, rates) for task in task_names(accuracies)}
    helped = [task for task, control in controls.items() if control.holds]
    average = means(accuracies, helped or None)
    checks = []
    for block in ("sas", "sas-p"):
        for rival in (rival for rival in shared.BASES if {block, rival} <= average.keys()):
            check = shared.difference(average, block, rival).matches(
                f"{block} scores like {rival}",
                f"within {CLOSE:g} points, above or below "
                f"({PUBLISHED_SCORES[block][0] - base:+.1f} on GLUE)",
                limit=CLOSE,
                unit=f"points ({', '.join(helped or controls)})",
                digits=1,
            )
            if not helped:
                check = check.void(VOID)
            checks.append(shared.at_best_rates(check, rates, block, rival))
    checks += controls.values()
    millions = {name: count / 1e6 for name, (count, _) in shared.values(rows, AT_SIZE).items()}
    checks += [
        Check(
            fact=f"parameters of {block} at 16 layers, width 768",
            expected=f"{published}M",
            ours=f"{millions[block]:.1f}M",
            holds=abs(millions[block] - published) < 1,
        )
        for block, published in PUBLISHED_MILLIONS.items()
        if block in millions
    ]
    return [*checks, *shared.speed_check(rows)]


def _control(accuracies: Scores, task: str, rates: Mapping[str, shared.Rate]) -> Check:
    """Judge whether pretraining improves a task by more than `CLOSE`."""
    check = shared.difference(means(accuracies, [task]), "pre-ln", FRESH).judged(
        f"pretraining helps with {task}: pre-ln scores above the same model from random weights",
        f"more than {CLOSE:g} points above (ours; a task where it does not says nothing about "
        "pretraining and is left out of the verdicts)",
        limit=CLOSE,
        unit="points",
        digits=1,
    )
    return shared.at_best_rates(check, rates, "pre-ln", FRESH).as_control()


STUDY = shared.trained_study(
    "downstream",
    title="scores after fine-tuning, parameters, speed and memory",
    source="Simplified blocks, Tables 1 and 2",
    published=(
        "On GLUE SAS-P scores 78.3 ± 0.4 against 78.9 ± 0.7 of pre-ln, with 16 % fewer parameters "
        "at 1.16 times the speed."
    ),
    kind=TunedSettings,
    sweeps=sweeps,
    measure=measure,
    summarise=summarise,
    columns=(*masked_lm.COLUMNS, "learning_rate"),
)
