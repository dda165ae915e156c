"""Ours: the simplified blocks on trial, against a pre-LN at its best.

The rule, written down before the first run:

1. Eight blocks: pre-ln and parallel, each with the usual and with zero initial queries; v-skipinit, sas, sas-p,
   sas-p-no-norm. The simplified blocks begin with zero queries, so the pre-LN of the verdicts does too, and the
   parallel block with zero queries, the eighth, is to sas-p what pre-ln with zero queries is to sas. Positions are
   those that `baseline` chose, rotary; matrices are drawn with a standard deviation of 0.02.
2. Each block's learning rate is tuned with one seed, in a grid by half decades (`RATES`) that is
   made longer by hand until the lowest final loss lies inside. transformers' GPT-2 is tuned like a block. Tuning
   takes three tenths of the steps of the runs (2,400 of 8,000, at the greater width 450 of 1,500): a rate that is
   best for a short run may be a little high for a long one, for every block alike.
   So is the start (`STARTS`): embeddings with a standard deviation of 0.02 or of 1/√width; pre-ln with zero queries has
   1/√width with GPT-2's smaller projections and MLP outputs, 0.02/√(2 layers), as a third. This came after the tuning
   with 0.02: at width 256 it let pre-ln end 0.5 nats above sas and above the bigram table, and 1/√width closed that gap
   in a first try. No one start is good for all: sas learnt next to nothing with 1/√width there.
3. The runs that count are at these rates (`BEST`), from these starts (`CHOSEN`), and have three seeds of their own,
   of which none was tuned on; equal seeds see equal data in equal order.
4. Verdicts are about sas and sas-p, each against pre-ln with zero queries, at both widths: (a) at equal steps,
   (b) at equal processor time. Each says "about match", as the paper does, within `CLOSE` nats above or below, so
   that it fails where the simplified block is worse and where it is better by more; differences are taken seed by
   seed, with 95 % intervals (Student's t).
5. A block's time is its steps times the median time of a step, from points in which all blocks take turns. At
   equal time the quicker block has more steps. Its gain is bounded from both sides by the runs that are there:
   the slower block cut short, whose rate has not yet decayed, makes the quicker one look too good, and the losses
   at equal steps, where the quicker one has time left, make it look too bad. A verdict (b) counts where both bounds
   say the same.
6. A verdict is void where the best rate of one of its two blocks is at an end of its grid, where the runs
   are not at that best rate or not from the best start, and where pre-ln does not end at least 0.3 nats below the
   bigram table. The grid of a start that is `FAR` above a block's best may stay short.
7. Positions: pre-ln with zero queries and sas-p with sinusoidal positions too, tuned and compared, by the rule
   of (a), at the steps of the tuning, all from 0.02. They say whether the verdict is one about rotary
   positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hessblocks.figures import Panel
from hessblocks.storage import Row, Scalar
from hessblocks.studies import shared
from hessblocks.studies.engine import Check, Rows, Study, Summary
from hessblocks.studies.our_questions.trial_plan import (
    BASE,
    BLOCKS,
    CLOCK,
    LONG,
    NARROW,
    OTHER_STARTS,
    PLACED,
    PLACES,
    POSITIONS,
    RUNS,
    SINUSOIDAL,
    SIZES,
    STARTS,
    TUNED,
    TUNING,
    WIDE,
    WIDE_BLOCKS,
    WIDTHS,
    TrialSettings,
    point_of,
    points,
    taken_apart,
)
from hessblocks.training import in_turns

EARLY = 0.2
"""Share of the steps that loss curves leave out, which would hide the differences at the end."""
APART = 0.06
"""How far from its place a block is drawn that would else hide another."""
JUDGED = ("sas", "sas-p")
LEARNED = "learned"
"""The positions of GPT-2."""


def measure(settings: TrialSettings) -> list[Row]:
    """One run's losses, or what a step of every block costs."""
    timed = settings.turns is not None
    rows = step_clocks(settings) if timed else shared.train_point(settings)
    return [{**row, "start": settings.start} for row in settings.placed(rows)]


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


@dataclass(frozen=True, kw_only=True)
class Trial(shared.Tuned):
    """What is measured at one width."""

    clock: Mapping[str, tuple[float, float]]
    """What was timed → (seconds of a step, standard error)."""
    starts: Mapping[str, str | None] | None
    """Block → its start in the runs, of `STARTS`, None for 0.02; None altogether where starts were not tuned."""
    planned: Sequence[str]
    """What is tuned."""

    def kinds(self, label: str) -> list[str]:
        """A block from each of its starts, measured or not."""
        return [label + start for start in STARTS if label + start in self.planned]

    def label_of(self, kind: str) -> str:
        """The block of a start."""
        return taken_apart(kind)[0]

    @property
    def elsewhere(self) -> dict[str, str]:
        """Block whose runs are not from its best start → that start."""
        best = {label: taken_apart(self.tuned_as(label))[1] for label in self.starts or {}}
        return {
            label: STARTS[best[label]]
            for label, start in (self.starts or {}).items()
            if start != (STARTS[best[label]] if best[label] else None)
        }

    def hindrances(self, *labels: str) -> list[str]:
        """Why the runs of some labels do not count; nothing where they do."""
        reasons = [
            f"the runs of {label} are not from its best start, {best}"
            for label, best in self.elsewhere.items()
            if label in labels
        ]
        return [*super().hindrances(*labels), *reasons]

    def start_check(self) -> Check:
        """Whether every block's runs are from its best start."""
        off = [f"{label} (best {best})" for label, best in self.elsewhere.items()]
        said = f"elsewhere: {'; '.join(off)}" if off else f"so for all {len(self.starts or ())}"
        enough = bool(self.starts) and self.enough
        return Check(
            fact="the runs of each block are from its best start",
            expected="all (rule of this study)",
            ours=said if enough else "too little measured",
            holds=not off if enough else None,
        )


def trial_of(rows: Rows, width: str, phase: str) -> Trial:
    """What is measured at one width.

    Args:
        rows: of the whole study.
        width: `NARROW` or `WIDE`.
        phase: of the runs.

    Returns:
        The trial, as far as it is measured.
    """
    timed = [row for row in rows if row["phase"] == width + CLOCK]
    starts = {
        row["variant"]: row.get("start")
        for row in rows
        if row["phase"] == phase and row["variant"] in BLOCKS
    }
    own = {"clock": shared.mean_clocks(timed), "starts": starts if phase.endswith(LONG) else None}
    planned = TUNED[width]
    if not phase.endswith(LONG):  # all from 0.02
        planned = RUNS[phase]
        rows = [row for row in rows if row["phase"] != width + TUNING or not row.get("start")]
    return Trial.of(rows, width + TUNING, phase, planned=planned, **own)


def summarise(rows: Rows) -> Summary:
    """Tuning, loss curves, loss against time, positions; the verdicts of the rule."""
    trials = {"narrow": trial_of(rows, NARROW, LONG), "wide": trial_of(rows, WIDE, WIDE + LONG)}
    placed = trial_of(rows, NARROW, PLACES)
    checks = [check for name, trial in trials.items() for check in _checks(name, trial)]
    sizes = SIZES["laptop"]
    narrow, wide = (sizes[width + LONG].width for width in WIDTHS)
    return shared.summary(
        "Simplified blocks on trial",
        f"Narrow is width {narrow}, wide {wide} (laptop scale). Tuning has one seed, each block drawn from its best start; runs are at the best rates, with "
        "seeds of their own. Time is steps times the median time of a step (of processor time on a CPU), "
        f"blocks timed in turns. {shared.HOW}",
        [panel for panel in _panels(trials["narrow"], trials["wide"], placed) if panel.shown],
        [*checks, *_place_checks(placed)],
        losses=[
            {"runs": name, **line}
            for name, trial in (trials | {"positions": placed}).items()
            for line in trial.runs.table()
        ],
        tuning=[
            {"runs": name, **line}
            for name, trial in trials.items()
            for line in trial.tuning_table()
        ],
        times=[line for name, trial in trials.items() for line in _time_table(name, trial)],
    )


def _checks(name: str, trial: Trial) -> list[Check]:
    """Of the rates, of the controls, and the verdicts at one width."""
    own, runs = [*trial.rate_checks(), trial.start_check()], trial.runs
    own += runs.controls.values()
    base = runs.close(BASE, "pre-ln", shared.CLOSE, f"{BASE} is as good a base as pre-ln")
    own.append(trial.judged(base, BASE, "pre-ln"))
    for block in JUDGED:
        steps = runs.match(block, BASE, f"{block} about matches {BASE} at equal steps")
        time = shared.at_equal_time(runs, trial.clock, block, BASE)
        own += [trial.judged(check, block, BASE) for check in (steps, time)]
    return [replace(check, fact=f"{name}: {check.fact}") for check in own]


def _place_checks(placed: Trial) -> list[Check]:
    """The verdict at equal steps with either kind of positions, and whether it is the same gap."""
    runs, block = placed.runs, "sas-p"
    checks = placed.rate_checks()[1:]
    gaps: dict[str, dict[Scalar, float]] = {}
    for kind, name in POSITIONS.items():
        one, base = block + kind, BASE + kind
        control = runs.below_the_table(base, shared.BIGRAMS)
        match = runs.match(
            one, base, f"{block} about matches {BASE}, both from 0.02, at equal steps"
        )
        match = placed.judged(shared.judged_by(control, match, shared.VOID), one, base)
        own = (replace(control, fact=f"{BASE} has learnt more than pairs of tokens"), match)
        checks += [replace(check, fact=f"{name} positions: {check.fact}") for check in own]
        above, below = (runs.losses.get(label, {}) for label in (one, base))
        gaps[name] = {seed: above[seed] - below[seed] for seed in above.keys() & below.keys()}
    same = shared.match_check(
        gaps,
        *("sinusoidal", "rotary"),
        fact=f"{block} is as far from {BASE} with sinusoidal positions as with rotary ones",
        expected=f"the gap changes by at most {shared.CLOSE:g}, up or down",
        limit=shared.CLOSE,
    )
    return [*checks, placed.judged(same, *RUNS[PLACES])]


def _time_table(name: str, trial: Trial) -> list[dict[str, object]]:
    """What a step of each block takes."""
    base = trial.clock.get(BASE)
    return [
        {
            "runs": name,
            "variant": label,
            "step_time": seconds,
            "standard_error": error,
            "against_the_base": base and seconds / base[0],
        }
        for label, (seconds, error) in trial.clock.items()
    ]


def _panels(narrow: Trial, wide: Trial, placed: Trial) -> list[Panel]:
    """Eight; those of which nothing is measured have no series. Of the tuning each block is drawn from its best start."""
    sinusoidal = {name: name + SINUSOIDAL for name in PLACED} | {shared.GPT2: shared.GPT2}
    timed = shared.late(wide.runs.panel(WIDE_BLOCKS, "wide: runs"), EARLY)
    panels = [
        narrow.tuning.tuning_panel(_better(narrow, LONG), "narrow: tuning"),
        narrow.tuning.tuning_panel(sinusoidal, "narrow: tuning, sinusoidal positions"),
        wide.tuning.tuning_panel(_better(wide, WIDE + LONG), "wide: tuning"),
        *(_starts_panel(trial, width) for trial, width in ((narrow, NARROW), (wide, WIDE))),
        shared.late(narrow.runs.panel(BLOCKS, "narrow: runs"), EARLY),
    ]
    if wide.clock:
        panels.append(shared.against_time(timed, wide.clock, "wide: runs against time"))
    return [*panels, _place_panel(placed)]


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
    title = f"{'wide' if width else 'narrow'}: tuning, standard deviation of embeddings"
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
