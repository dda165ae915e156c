"""Compare the simplified blocks with the best pre-LN, at equal steps and in equal time.

The rule and its amendments: PLAN.md beside this file, section `trial`.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row
from hessblocks_studies import shared
from hessblocks_studies.engine import Rows, Study, Summary
from hessblocks_studies.fair_trial import trial_plan as plan
from hessblocks_studies.fair_trial import trial_verdicts as judge
from hessblocks_studies.shared import in_turns

APART = 0.06
"""Horizontal shift of a point that would hide another block's."""
UNCHANGED = "as tuned"
"""Label of unchanged blocks, beside blocks with one change."""
LEARNED = "learned"
"""Label of GPT-2's learned positions."""


def measure(settings: plan.TrialSettings) -> list[Row]:
    """Train one model, or time the steps of all blocks."""
    if settings.phase == plan.ONCE:
        shared.check_read_once("trial", settings.size)
    timed = settings.turns is not None
    rows = step_clocks(settings) if timed else shared.train_point(settings)
    return [{**row, "start": settings.start} for row in settings.placed(rows)]


def step_clocks(settings: plan.TrialSettings) -> list[Row]:
    """Measure the median time per step of every block; the blocks take turns.

    Args:
        settings: settings of the point.

    Returns:
        One row per block.

    Cost:
        The models of all blocks, with their optimisers, are in memory at the same time.
    """
    assert settings.turns is not None
    assert settings.rounds is not None
    turns = {
        label: plan.point_of(label, settings.phase, settings.size, settings.seed)
        for label in settings.turns
    }
    steps = {name: model.step for name, model in shared.timed_models(turns).items()}
    return [
        shared.timed(shared.STEP_TIME, times, turns[name].owner)
        for name, times in in_turns(steps, settings.rounds).items()
    ]


def summarise(rows: Rows) -> Summary:
    """Plot tuning, loss curves, loss against time, and positions; judge by the plan."""
    trials = {
        "narrow": judge.trial_of(rows, plan.NARROW, plan.LONG),
        "wide": judge.trial_of(rows, plan.WIDE, plan.WIDE + plan.LONG),
    }
    placed = judge.trial_of(rows, plan.NARROW, plan.PLACES)
    checks = [check for name, trial in trials.items() for check in judge.verdicts(name, trial)]
    sizes = plan.SIZES["laptop"]
    narrow, wide = (sizes[width + plan.LONG].width for width in plan.WIDTHS)
    return shared.summary(
        "Simplified blocks on trial",
        f"Narrow is width {narrow}, wide {wide} (laptop scale). Tuning has one seed, each block "
        "drawn from its best start; runs are at the best rates, with seeds of their own. Time is "
        "steps times the median time of a step (of processor time on a CPU), blocks timed in "
        f"turns. The base of the gaps is {plan.BASE}, of pre-ln without values it is pre-ln; thin "
        f"lines are the bounds of a match. {shared.CURVES}",
        [panel for panel in _panels(trials["narrow"], trials["wide"], placed) if panel.shown],
        [*checks, *judge.place_verdicts(placed)],
        losses=_named({name: r.table() for name, r in _all_runs(trials, placed).items()}),
        tuning=_named({name: trial.tuning_table() for name, trial in trials.items()}),
        error=_named(
            {
                name: [shared.error_line(runs.residual)]
                for name, runs in _all_runs(trials, placed).items()
                if name in (*trials, "positions", "narrow, text read once")
            }
        ),
        times=_named({name: _time_table(trial) for name, trial in trials.items()}),
    )


def _named(tables: Mapping[str, list[dict[str, object]]]) -> list[dict[str, object]]:
    """Concatenate tables; add each table's name to its rows."""
    return [{"runs": name, **line} for name, table in tables.items() for line in table]


def _all_runs(trials: Mapping[str, judge.Trial], placed: judge.Trial) -> dict[str, shared.Runs]:
    """Map names in the table of losses to runs."""
    changed = trials["narrow"].changed
    return {
        **{name: trial.runs for name, trial in trials.items()},
        "positions": placed.runs,
        "narrow, next lower rate": changed[plan.SLOWER],
        "wide, next lower rate": trials["wide"].changed[plan.WIDE + plan.SLOWER],
        "wide, next higher rate": trials["wide"].changed[plan.WIDE + plan.FASTER],
        "narrow, as many parameters as pre-ln": changed[plan.EQUAL],
        "narrow, other parts": changed[plan.PARTS],
        "narrow, text read once": changed[plan.ONCE],
    }


def _time_table(trial: judge.Trial) -> list[dict[str, object]]:
    """Tabulate the time per step of each block."""
    lines: list[dict[str, object]] = []
    for label, times in trial.times.items():
        seconds, error = mean_and_error(list(times.values()))
        ratio = shared.time_ratio(trial.times, label, plan.BASE)
        lines.append(
            {
                "variant": label,
                "step_time": seconds,
                "standard_error": error,
                "against_the_base": ratio.mean,
                "error_of_the_ratio": ratio.whole,
            }
        )
    return lines


def _panels(narrow: judge.Trial, wide: judge.Trial, placed: judge.Trial) -> list[Panel]:
    """Plot ten panels; panels without measurements have no series.

    Returns:
        The panels; the tuning panels show each block with its best initial std.
    """
    sinusoidal = {name: name + plan.SINUSOIDAL for name in plan.PLACED} | {shared.GPT2: shared.GPT2}
    timed = wide.runs.panel(plan.WIDE_BLOCKS, "wide: runs")
    panels = [
        narrow.tuning.tuning_panel(_better(narrow, plan.LONG), "narrow: tuning"),
        narrow.tuning.tuning_panel(sinusoidal, "narrow: tuning, sinusoidal positions"),
        wide.tuning.tuning_panel(_better(wide, plan.WIDE + plan.LONG), "wide: tuning"),
        *(
            _starts_panel(trial, width)
            for trial, width in ((narrow, plan.NARROW), (wide, plan.WIDE))
        ),
        narrow.runs.panel(plan.BLOCKS, "narrow: runs"),
        shared.gap_panel(narrow.runs, ("pre-ln", *judge.JUDGED), plan.BASE, "narrow: runs"),
        _changed_panel(narrow),
    ]
    if wide.times:
        clock = {label: fmean(times.values()) for label, times in wide.times.items()}
        panels.append(shared.against_time(timed, clock, "wide: runs against time"))
    return [*panels, _place_panel(placed)]


def _changed_panel(narrow: judge.Trial) -> Panel:
    """Plot final losses above the base, of unchanged blocks and of blocks with one change.

    Returns:
        The panel; if the base is changed, too, losses are relative to the changed base.
    """
    own = narrow.runs.losses
    ends = [
        (block, UNCHANGED, own.get(block), own.get(plan.BASE))
        for block in (*judge.JUDGED, "pre-ln")
    ]
    for phase, labels in plan.CHANGED.items():
        runs = narrow.changed[phase].losses
        for label in labels:
            if label not in (plan.BASE, shared.BIGRAMS):
                block, words = plan.PARTED.get(label) or (label, plan.CHANGES[phase])
                base = judge.base_of(label)
                ends.append(
                    (block, words, runs.get(label), (runs if base in labels else own).get(base))
                )
    values: dict[str, dict[str, tuple[float, float]]] = {}
    for block, words, above, below in ends:
        gaps = list(shared.gaps(above or {}, below or {}).values())
        if gaps and math.isfinite(sum(gaps)):
            values.setdefault(block, {})[words] = mean_and_error(gaps)
    panel = shared.places_panel(values, "loss above the base (nats per token)", bars=True)
    return replace(panel, title="narrow: runs, one thing changed")


def _better(trial: judge.Trial, phase: str) -> dict[str, str]:
    """Map blocks of a phase to their labels in the tuning, with the better embedding std."""
    return {label: trial.tuned_as(label) for label in plan.RUNS[phase]}


def _starts_panel(trial: judge.Trial, width: str) -> Panel:
    """Plot final losses of the tuning for every initial std, each at its best rate."""
    means = shared.finite(trial.tuning.losses)
    values = {
        block: {
            name: means[block + start]
            for start, name in plan.STARTS.items()
            if block + start in means
        }
        for block in dict.fromkeys(plan.taken_apart(label)[0] for label in plan.OTHER_STARTS[width])
    }
    if shared.GPT2 in means:
        values[shared.GPT2] = {plan.STARTS[""]: means[shared.GPT2]}
    if shared.BIGRAMS in means:
        values[shared.BIGRAMS] = dict.fromkeys(plan.STARTS.values(), means[shared.BIGRAMS])
    panel = shared.places_panel(values, "final loss (nats per token)", bars=False)
    title = f"{'wide' if width else 'narrow'}: tuning, initial embeddings"
    return replace(panel, title=title)


def _place_panel(placed: judge.Trial) -> Panel:
    """Plot final losses with both kinds of positions; GPT-2 of the tuning has learned positions."""
    means = shared.finite(placed.runs.losses)
    values = {
        name: {
            where: means[name + kind]
            for kind, where in plan.POSITIONS.items()
            if name + kind in means
        }
        for name in plan.PLACED
    }
    level = means.get(shared.BIGRAMS)
    gpt2 = shared.finite(placed.tuning.losses).get(shared.GPT2)
    values[shared.GPT2] = {LEARNED: gpt2} if gpt2 else {}
    values[shared.BIGRAMS] = (
        dict.fromkeys((*plan.POSITIONS.values(), LEARNED), level) if level else {}
    )
    panel = shared.places_panel(values, "final loss (nats per token)", bars=False)
    apart = {plan.BASE: -APART, "sas-p": APART}
    series = tuple(
        replace(one, x=tuple(at + apart.get(one.name, 0.0) for at in one.x)) for one in panel.series
    )
    return replace(panel, title="narrow: positions, as long as the tuning", series=series)


STUDY = Study(
    name="trial",
    title="simplified blocks on trial: each at its best rate, at equal steps and in equal time",
    source="ours, testing the claims of the simplified-blocks paper",
    published=(
        "SAS and SAS-P match pre-ln in loss per update and take less time an update (18 layers, "
        "width 768, rates tuned for each)."
    ),
    settings=plan.points,
    measure=measure,
    summarise=summarise,
    columns=(*shared.TUNED_COLUMNS, "start"),
    revision=1,  # separate from the revision of the other training studies
    gpus=1,
)
