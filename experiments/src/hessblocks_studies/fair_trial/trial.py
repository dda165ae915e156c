"""Ours: the simplified blocks on trial, against a pre-LN at its best.

The rule, written down before the first run:

1. Eight blocks: pre-ln and parallel, each with the usual and with zero initial queries; v-skipinit, sas,
   sas-p, sas-p-no-norm. The simplified blocks begin with zero queries, so the pre-LN of the verdicts does
   too, and the parallel block with zero queries, the eighth, is to sas-p what pre-ln with zero queries is to
   sas. Positions are those that `baseline` chose, rotary; matrices are drawn with a standard deviation of
   0.02.
2. Each block's learning rate is tuned with one seed, in a grid by half decades (`RATES`) that is made longer
   by hand until the lowest final loss lies inside. transformers' GPT-2 is tuned like a block. Tuning takes
   three tenths of the steps of the runs (2,400 of 8,000, at the greater width 450 of 1,500): a rate that is
   best for a short run may be a little high for a long one, for every block alike. So is the start
   (`STARTS`): embeddings with a standard deviation of 0.02 or of 1/√width; pre-ln with zero queries has
   1/√width with GPT-2's smaller projections and MLP outputs, 0.02/√(2 layers), as a third. This came after
   the tuning with 0.02: at width 256 it let pre-ln end 0.5 nats above sas and above the bigram table, and
   1/√width closed that gap in a first try. No one start is good for all: sas learnt next to nothing with
   1/√width there.
3. The runs that count are at these rates (`BEST`), from these starts (`CHOSEN`), and have three seeds of
   their own, of which none was tuned on; equal seeds see equal data in equal order.
4. Verdicts are about sas and sas-p, each against pre-ln with zero queries, at both widths: (a) at equal
   steps, (b) at equal processor time. Each says "about match", as the paper does, within `CLOSE` nats above
   or below, so that it fails where the simplified block is worse and where it is better by more; differences
   are taken seed by seed, with 95 % intervals (Student's t).
5. A block's time is its steps times the median time of a step, from points in which all blocks take turns;
   ratios are taken point by point. At equal time the quicker block has more steps. Its gain is bounded from
   both sides by the runs that are there: the slower block cut short, whose rate has not yet decayed, makes
   the quicker one look too good, and the losses at equal steps, where the quicker one has time left, make it
   look too bad. A verdict (b) counts where both bounds say the same.
6. A verdict is void where the best rate of one of its two blocks is at an end of its grid, where the runs are
   not at that best rate or not from the best start, where pre-ln, or pre-ln with zero queries, does not end
   at least 0.3 nats below the bigram table, and where the latter is not as good a base as the former
   (`CLOSE`). The grid of a start that is `FAR` above a block's best may stay short.
7. Positions: pre-ln with zero queries and sas-p with sinusoidal positions too, tuned and compared, by the
   rule of (a), at the steps of the tuning, all from 0.02. They say whether the verdict is one about rotary
   positions.
8. One thing at a time is changed in the runs, (a) to (d) at the smaller width (`CHANGED`). This came after
   the first of them: sas and sas-p, which had ended 0.01 and 0.05 nats above pre-ln with zero queries after
   2,400 steps, ended about 0.1 above after 8,000, and the gap had grown all the way. (a) The next lower rate,
   with one seed, for these three: is a rate that is best for 2,400 steps too high for 8,000? The verdicts on
   a block are void where it, or pre-ln with zero queries, then ends more than `shared.SLACK` lower. (b) A
   wider MLP, so that sas and sas-p have as many parameters as pre-ln, three seeds, by the rule of 4 (a): is
   the gap that of the parameters that they lack? (c) The parts, after the first results of (a) and (b):
   pre-ln without values and projections, and sas with them, as I + β ΔW with trained gains, at the rate of
   pre-ln, three seeds, by the rule of 4 (a): does the gap come with the values, or with the skip? Pre-ln
   without them keeps its usual queries, so since its runs were done it is compared with pre-ln, one change
   away, where at first it was compared with pre-ln of zero queries, two changes away. The verdict, that it
   ends above, is the same. (d) The text, once the long runs of (4) at this width were done: the standard
   library has 4.0 million tokens to train on, so that 8,000 steps read each about twice; where the second
   reading begins, 0.06 to 0.07 of the 0.105 nats of sas are there already. So pre-ln with zero queries, sas
   and sas-p are trained on a text of which nothing is read twice (`ONCE`), at the same rates and from the
   same starts, three seeds, by the rule of 4 (a): does the gap come with what is read again? The text is
   another one too; a gap that stays is neither the text's nor the second reading's, of one that goes the two
   would have to be told apart. (e) The rates of the runs at the greater width, once their first seed was
   done: sas had ended 0.12 and sas-p 0.09 nats below the base, which is at 1e-3 where they are at 3e-3, each
   best after 450 steps, when the two were behind. So the next lower rate of all three and the next higher one
   of the base, with one seed, as in (a): the verdicts at this width are void by the same rule. (f) The same
   of parallel, of which there is no verdict: its first two seeds had ended at 2.68 at 3e-3, best after 450
   steps, where the base at that rate ended at 2.60 and at 1e-3 at 2.49. (g) At that lower rate parallel ended
   0.158 lower. So on 25 November 2026 its runs were moved there, with the next rate on both sides, and GPT-2 was
   given the next lower one. Runs count as at the best rate where neither side is better in runs as long,
   whatever the tuning of 450 steps says. This reaches no verdict of (4): the base's best rate is the same by both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hessblocks.errors import RunError
from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row
from hessblocks_studies import shared
from hessblocks_studies.engine import Rows, Study, Summary
from hessblocks_studies.fair_trial.trial_plan import (
    BASE,
    BLOCKS,
    CHANGED,
    CHANGES,
    EQUAL,
    FASTER,
    LONG,
    NARROW,
    ONCE,
    OTHER_STARTS,
    PARTED,
    PARTS,
    PLACED,
    PLACES,
    POSITIONS,
    RUNS,
    SINUSOIDAL,
    SIZES,
    SLOWER,
    STARTS,
    WIDE,
    WIDE_BLOCKS,
    WIDTHS,
    TrialSettings,
    point_of,
    points,
    taken_apart,
)
from hessblocks_studies.fair_trial.trial_verdicts import (
    JUDGED,
    Trial,
    base_of,
    place_verdicts,
    trial_of,
    verdicts,
)
from hessblocks_studies.shared import in_turns

APART = 0.06
"""How far from its place a block is drawn that would else hide another."""
UNCHANGED = "as tuned"
"""Where a block of the runs stands beside those with one thing changed."""
LEARNED = "learned"
"""The positions of GPT-2."""


def measure(settings: TrialSettings) -> list[Row]:
    """One run's losses, or what a step of every block costs."""
    if settings.phase == ONCE:
        _read_once(settings.size)
    timed = settings.turns is not None
    rows = step_clocks(settings) if timed else shared.train_point(settings)
    return [{**row, "start": settings.start} for row in settings.placed(rows)]


def _read_once(size: shared.TextSize) -> None:
    """Refuse a text that is shorter than what the runs read.

    Raises:
        RunError: it is.
    """
    read = size.steps * size.batch_size * size.context
    there = len(shared.text_of(size).splits["train"])
    if there < read:
        raise RunError(
            f"trial: {size.data} has {there:,} tokens to train on, {read:,} are read; another version of it may do."
        )


def step_clocks(settings: TrialSettings) -> list[Row]:
    """The median time of a step of every block, all of them taking turns.

    Args:
        settings: of the point.

    Returns:
        A row a block.

    Cost:
        The models of all blocks, with their optimisers, are in memory at once.
    """
    assert settings.turns is not None
    assert settings.rounds is not None
    turns = {
        label: point_of(label, settings.phase, settings.size, settings.seed)
        for label in settings.turns
    }
    steps = {name: model.step for name, model in shared.timed_models(turns).items()}
    return [
        shared.timed(shared.STEP_TIME, times, turns[name].owner)
        for name, times in in_turns(steps, settings.rounds).items()
    ]


def summarise(rows: Rows) -> Summary:
    """Tuning, loss curves, loss against time, positions; the verdicts of the rule."""
    trials = {"narrow": trial_of(rows, NARROW, LONG), "wide": trial_of(rows, WIDE, WIDE + LONG)}
    placed = trial_of(rows, NARROW, PLACES)
    checks = [check for name, trial in trials.items() for check in verdicts(name, trial)]
    sizes = SIZES["laptop"]
    narrow, wide = (sizes[width + LONG].width for width in WIDTHS)
    return shared.summary(
        "Simplified blocks on trial",
        f"Narrow is width {narrow}, wide {wide} (laptop scale). Tuning has one seed, each block drawn from its best start; runs are at the best rates, with "
        "seeds of their own. Time is steps times the median time of a step (of processor time on a CPU), "
        f"blocks timed in turns. The base of the gaps is {BASE}, of pre-ln without values it is pre-ln; thin lines are the bounds of a match. {shared.CURVES}",
        [panel for panel in _panels(trials["narrow"], trials["wide"], placed) if panel.shown],
        [*checks, *place_verdicts(placed)],
        losses=[
            {"runs": name, **line}
            for name, runs in _all_runs(trials, placed).items()
            for line in runs.table()
        ],
        tuning=[
            {"runs": name, **line}
            for name, trial in trials.items()
            for line in trial.tuning_table()
        ],
        times=[line for name, trial in trials.items() for line in _time_table(name, trial)],
    )


def _all_runs(trials: Mapping[str, Trial], placed: Trial) -> dict[str, shared.Runs]:
    """Name in the table of losses → runs."""
    changed = trials["narrow"].changed
    return {
        **{name: trial.runs for name, trial in trials.items()},
        "positions": placed.runs,
        "narrow, next lower rate": changed[SLOWER],
        "wide, next lower rate": trials["wide"].changed[WIDE + SLOWER],
        "wide, next higher rate": trials["wide"].changed[WIDE + FASTER],
        "narrow, as many parameters as pre-ln": changed[EQUAL],
        "narrow, other parts": changed[PARTS],
        "narrow, text read once": changed[ONCE],
    }


def _time_table(name: str, trial: Trial) -> list[dict[str, object]]:
    """What a step of each block takes."""
    lines: list[dict[str, object]] = []
    for label, times in trial.times.items():
        seconds, error = mean_and_error(list(times.values()))
        ratio = shared.time_ratio(trial.times, label, BASE)
        lines.append(
            {
                "runs": name,
                "variant": label,
                "step_time": seconds,
                "standard_error": _known(error),
                "against_the_base": _known(ratio.mean),
                "error_of_the_ratio": _known(ratio.error),
            }
        )
    return lines


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _panels(narrow: Trial, wide: Trial, placed: Trial) -> list[Panel]:
    """Ten; those of which nothing is measured have no series. Of the tuning each block is drawn from its best start."""
    sinusoidal = {name: name + SINUSOIDAL for name in PLACED} | {shared.GPT2: shared.GPT2}
    timed = wide.runs.panel(WIDE_BLOCKS, "wide: runs")
    panels = [
        narrow.tuning.tuning_panel(_better(narrow, LONG), "narrow: tuning"),
        narrow.tuning.tuning_panel(sinusoidal, "narrow: tuning, sinusoidal positions"),
        wide.tuning.tuning_panel(_better(wide, WIDE + LONG), "wide: tuning"),
        *(_starts_panel(trial, width) for trial, width in ((narrow, NARROW), (wide, WIDE))),
        narrow.runs.panel(BLOCKS, "narrow: runs"),
        shared.gap_panel(narrow.runs, ("pre-ln", *JUDGED), BASE, "narrow: runs"),
        _changed_panel(narrow),
    ]
    if wide.times:
        clock = {label: mean_and_error(list(times.values())) for label, times in wide.times.items()}
        panels.append(shared.against_time(timed, clock, "wide: runs against time"))
    return [*panels, _place_panel(placed)]


def _changed_panel(narrow: Trial) -> Panel:
    """How far blocks end above the base, as they are and with one thing changed; where the base has the change too, above that."""
    own = narrow.runs.losses
    ends = [(block, UNCHANGED, own.get(block), own.get(BASE)) for block in (*JUDGED, "pre-ln")]
    for phase, labels in CHANGED.items():
        runs = narrow.changed[phase].losses
        for label in labels:
            if label not in (BASE, shared.BIGRAMS):
                block, words = PARTED.get(label) or (label, CHANGES[phase])
                base = base_of(label)
                ends.append(
                    (block, words, runs.get(label), (runs if base in labels else own).get(base))
                )
    values: dict[str, dict[str, tuple[float, float]]] = {}
    for block, words, above, below in ends:
        seeds = (above or {}).keys() & (below or {}).keys()
        gaps = [above[seed] - below[seed] for seed in seeds] if above and below else []
        if gaps and math.isfinite(sum(gaps)):
            values.setdefault(block, {})[words] = mean_and_error(gaps)
    panel = shared.places_panel(values, "loss above the base (nats per token)", bars=True)
    return replace(panel, title="narrow: runs, one thing changed")


def _better(trial: Trial, phase: str) -> dict[str, str]:
    """What is run in a phase → its name in the tuning, with the better embeddings."""
    return {label: trial.tuned_as(label) for label in RUNS[phase]}


def _starts_panel(trial: Trial, width: str) -> Panel:
    """Final losses of the tuning from every start, each at its best rate."""
    means = shared.finite(trial.tuning.losses)
    values = {
        block: {
            name: means[block + start] for start, name in STARTS.items() if block + start in means
        }
        for block in dict.fromkeys(taken_apart(label)[0] for label in OTHER_STARTS[width])
    }
    if shared.GPT2 in means:
        values[shared.GPT2] = {STARTS[""]: means[shared.GPT2]}
    if shared.BIGRAMS in means:
        values[shared.BIGRAMS] = dict.fromkeys(STARTS.values(), means[shared.BIGRAMS])
    panel = shared.places_panel(values, "final loss (nats per token)", bars=False)
    title = f"{'wide' if width else 'narrow'}: tuning, initial embeddings"
    return replace(panel, title=title)


def _place_panel(placed: Trial) -> Panel:
    """Final losses with either kind of positions; GPT-2 of the tuning has learned ones."""
    means = shared.finite(placed.runs.losses)
    values = {
        name: {
            where: means[name + kind] for kind, where in POSITIONS.items() if name + kind in means
        }
        for name in PLACED
    }
    level = means.get(shared.BIGRAMS)
    gpt2 = shared.finite(placed.tuning.losses).get(shared.GPT2)
    values[shared.GPT2] = {LEARNED: gpt2} if gpt2 else {}
    values[shared.BIGRAMS] = dict.fromkeys((*POSITIONS.values(), LEARNED), level) if level else {}
    panel = shared.places_panel(values, "final loss (nats per token)", bars=False)
    apart = {BASE: -APART, "sas-p": APART}
    series = tuple(
        replace(one, x=tuple(at + apart.get(one.name, 0.0) for at in one.x)) for one in panel.series
    )
    return replace(panel, title="narrow: positions, as long as the tuning", series=series)


STUDY = Study(
    name="trial",
    title="simplified blocks on trial: each at its best rate, at equal steps and in equal time",
    source="ours, testing the claims of the simplified-blocks paper",
    published=(
        "SAS and SAS-P match pre-ln in loss per update and take less time an update (18 layers, width 768, one rate)."
    ),
    settings=points,
    measure=measure,
    summarise=summarise,
    columns=(*shared.TUNED_COLUMNS, "start"),
    revision=1,  # its own: not raised with that of the other studies that train
    gpus=1,
)
