"""Measure whether the lag of long training shrinks with size, with every block tuned alike.

The rule: PLAN.md beside this file, section `ladder`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from torch import nn

from hessblocks import training
from hessblocks.figures import Panel
from hessblocks.storage import Row
from hessblocks_studies import shared
from hessblocks_studies.engine import Check, Rows, Study, Summary, capture_steps
from hessblocks_studies.our_questions import ladder_plan as plan

UNTUNED = "void, since its tuning breaks the rule"
UNLEARNT = shared.void_of(plan.BASE)
Controls = Sequence[tuple[Check, str]]
"""Checks that must hold for a rung to count, each with the note if it fails."""


def measure(settings: plan.LadderSettings) -> list[Row]:
    """Train one model, and measure its last loss on more held-out windows."""
    size, text = settings.size, shared.text_of(settings.size)
    if size.data is not None:
        shared.check_read_once("ladder", size)

    def observe(model: nn.Module, step: int) -> list[Row]:
        if settings.scale == "smoke" or step != size.steps:
            return []
        many = replace(settings, size=replace(size, evaluation_sequences=plan.LAST))
        loss = shared.whole_loss(model, training.held_out(text, shared.run_settings(many)))
        return [shared.measured(shared.LOSS, loss, f"{plan.LAST} windows")]

    columns: Row = {
        "block": settings.variant,
        "gain": settings.gain,
        "quarter": settings.quarter,
        "width": size.width,
        "tokens_a_parameter": settings.tokens_a_parameter,
        "parameters": plan.parameters(size),
    }
    trained = shared.train_point(settings, observe, capture_steps)
    return [{**row, **columns} for row in settings.placed(trained)]


class Ladder:
    """What is measured so far."""

    def __init__(self, rows: Rows) -> None:
        """Collect runs, rungs and the losses of the tuning from rows."""
        self.grids = plan.grids_of(rows)
        models = [r for r in rows if r["phase"] == plan.RUNS and r["block"] != plan.TABLE]
        self.parameters = {r["width"]: float(r["parameters"]) for r in models}
        """Width → parameters of pre-ln."""
        self.rungs = sorted({(r["width"], r["tokens_a_parameter"]) for r in models})
        self.tokens = sorted({tokens for _, tokens in self.rungs})
        tables = [r for r in rows if r["block"] == plan.TABLE]
        self.runs = shared.Runs([*tables, *({**r, "start": self._start(r)} for r in models)])
        self.controls: dict[plan.Rung, Controls] = {
            rung: self._controls(rung, models) for rung in self.rungs
        }

    def _start(self, row: Mapping[str, object]) -> str:
        """Describe the starts and rates that a run's block was tuned over."""
        rung = (row["width"], row["tokens_a_parameter"])
        return plan.tried(self.grids, str(row["block"]), rung)  # type: ignore[arg-type]

    def _controls(self, rung: plan.Rung, models: Rows) -> Controls:
        """List what must hold for a rung: every block is tuned alike, and the base has learnt."""
        runs_at: dict[str, set[tuple[float, int]]] = {}
        for row in models:
            if (row["width"], row["tokens_a_parameter"]) == rung:
                runs_at.setdefault(row["block"], set()).add((row["gain"], row["quarter"]))
        off = plan.off_the_rule(self.grids, rung, runs_at) if self.grids else []
        alike = shared.rule_check(
            f"every block is tuned alike, to a best rate between two others: {_words(rung)}",
            off,
            len(plan.BLOCKS),
            all((block, *rung) in self.grids for block in plan.BLOCKS),
        )
        return [
            (alike, UNTUNED),
            (self.runs.below_the_table(plan.at(plan.BASE, rung), plan.TABLE), UNLEARNT),
        ]

    def gap(self, block: str, rung: plan.Rung) -> shared.Difference:
        """Compute the last loss of a block above that of the base, at a rung."""
        return self.runs.apart(plan.at(block, rung), plan.at(plan.BASE, rung))

    def lag(self, block: str, width: int) -> shared.Difference:
        """Compute the gap after most tokens per parameter minus the gap after fewest."""
        short, long = ((width, tokens) for tokens in (self.tokens[0], self.tokens[-1]))
        lag = shared.combined([(1.0, self.gap(block, long)), (-1.0, self.gap(block, short))])
        unlike = self.runs.unlike(plan.at(plan.BASE, short), plan.at(plan.BASE, long))
        return replace(lag, unlike=lag.unlike or unlike)

    def counts(self, width: int) -> bool:
        """Tell whether all controls of a width hold."""
        rungs = [(width, tokens) for tokens in (self.tokens[0], self.tokens[-1])]
        return all(check.holds for rung in rungs for check, _ in self.controls.get(rung, ()))

    def judged(self, check: Check, *rungs: plan.Rung) -> Check:
        """Leave a check undecided if a control of its rungs fails."""
        for rung in rungs:
            for control, note in self.controls.get(rung, ()):
                check = shared.judged_by(control, check, note)
        return check

    def checks(self, block: str) -> list[Check]:
        """Judge the lag and, once the largest width is measured, the ends for one block."""
        if not self.rungs:
            return []
        widths, (short, long) = [*self.parameters], (self.tokens[0], self.tokens[-1])
        small, large = min(widths), max(widths)
        ended = any(large == extent.rungs[-1][0] for extent in plan.EXTENTS.values())
        checks = []
        if short < long:
            if ended:
                lags = [(self.parameters[w], self.lag(block, w)) for w in widths if self.counts(w)]
                checks.append(
                    shared.line(lags).judged(
                        f"the lag of {block} in long training shrinks with size",
                        f"open question: a slope below 0, over the {len(lags)} widths that count "
                        "(at least 3)",
                        above=False,
                        unit="nats over a factor of ten of parameters",
                    )
                )
            checks.append(
                self.judged(
                    self.lag(block, small).judged(
                        f"{block} falls behind in long training at width {small}",
                        f"open question: its gap after {long:g} tokens a parameter above that "
                        f"after {short:g}",
                    ),
                    (small, short),
                    (small, long),
                )
            )
        for tokens in self.tokens if ended else ():
            rung = (large, tokens)
            fact = f"{block} matches {plan.BASE} at {_words(rung)}"
            check = self.runs.alike(plan.at(block, rung), plan.at(plan.BASE, rung), fact)
            checks.append(self.judged(check, rung))
        return checks

    def lines(self) -> list[dict[str, object]]:
        """List gaps and lags, each with its interval and the range of one new seed."""
        gaps = [
            ("gap", rung[0], f"{rung[1]:g}", block, self.gap(block, rung))
            for rung in self.rungs
            for block in plan.BLOCKS
            if block != plan.BASE
        ]
        ends = f"{self.tokens[-1]:g} against {self.tokens[0]:g}" if len(self.tokens) > 1 else ""
        lags = [
            ("lag", width, ends, block, self.lag(block, width))
            for width in self.parameters
            for block in plan.JUDGED
            if ends
        ]
        return [
            {
                "measure": name,
                "width": width,
                "tokens": tokens,
                "block": block,
                "value": None if math.isinf(change.mean) else change.mean,
                "reach": change.reach() if change.known else None,
                "reach_of_one_new_seed": change.of_one_seed() if change.known else None,
                "seeds": change.seeds,
            }
            for name, width, tokens, block, change in [*gaps, *lags]
            if change.seeds
        ]


def _words(rung: plan.Rung) -> str:
    return f"width {rung[0]}, {rung[1]:g} tokens a parameter"


def summarise(rows: Rows) -> Summary:
    """Plot gaps against size, starts and rates; judge the lag of long training."""
    ladder = Ladder(rows)
    controls = [check for rung in ladder.controls.values() for check, _ in rung]
    facts = [check for block in plan.JUDGED for check in ladder.checks(block)]
    panels = (_sizes(ladder), *_tuning(ladder.grids))
    return shared.summary(
        "The lag of the simplified blocks in long training, against size",
        "Loss of each block above that of pre-LN with zero queries on 8,192 held-out windows, a "
        "text read once; bars are 95 % intervals of the mean over seeds. Every block starts at the "
        "best of the same gains, and its rate lies a quarter of a decade from two worse ones.",
        [panel for panel in panels if panel.series] or panels[:1],
        [*facts, *controls],
        gaps=ladder.lines(),
        tuning=[
            {
                "block": block,
                "width": width,
                "tokens": tokens,
                "gain": gain,
                "learning_rate": plan.rate_of(quarter, width),
                "loss": loss if math.isfinite(loss) else None,
            }
            for (block, width, tokens), grid in ladder.grids.items()
            for gain, losses in grid.items()
            for quarter, loss in sorted(losses.items())
        ],
        losses=[
            {**line, "training_loss": _training_loss(rows, str(line["variant"]))}
            for line in ladder.runs.table()
        ],
        error=[shared.error_line(ladder.runs.residual)],
    )


def _training_loss(rows: Rows, variant: str) -> float | None:
    """Average the last training losses of a variant over seeds."""
    rows_here = [row for row in rows if row["variant"] == variant]
    last = shared.nested(shared.of_quantity(rows_here, shared.TRAINING_LOSS), "seed")
    return fmean(last.values()) if last else None


def _sizes(ladder: Ladder) -> Panel:
    """Plot gaps against parameters of pre-LN, a curve a block and number of tokens."""
    curves: dict[str, list[shared.Place]] = {}
    for block in plan.JUDGED:
        for width, tokens in ladder.rungs:
            gap = ladder.gap(block, (width, tokens))
            if gap.seeds and not gap.diverged:
                reach = gap.reach() if gap.known else math.nan
                point = (ladder.parameters[width], gap.mean, reach)
                curves.setdefault(f"{block}, {tokens:g} tokens", []).append(point)
    title, label = "gap by size", "above pre-LN (nats per token)"
    return shared.panel(title, "parameters of pre-LN", label, curves, log="x")


def _tuning(grids: Mapping[tuple[str, int, float], plan.Grid]) -> list[Panel]:
    """Plot the best loss at each gain, and the losses at the best gain, at the first rung."""
    first: plan.Rung = min((key[1:] for key in grids), default=(0, 0))
    starts: dict[str, list[shared.Place]] = {}
    rates: dict[str, list[shared.Place]] = {}
    for (block, width, tokens), grid in grids.items():
        if (width, tokens) != first:
            continue
        best, _ = plan.best_of(grid)
        lowest = {gain: min(losses.values()) for gain, losses in grid.items()}
        tuned = {plan.rate_of(q, first[0]): loss for q, loss in grid[best].items()}
        for curves, losses in ((starts, lowest), (rates, tuned)):
            finite = [(x, y, math.nan) for x, y in sorted(losses.items()) if math.isfinite(y)]
            curves[block] = finite
    label = "loss (nats per token)"
    return [
        shared.panel("starts", "gain: initial std times √inputs", label, starts),
        shared.panel("tuning", "peak learning rate", label, rates, log="x"),
    ]


STUDY = Study(
    name="ladder",
    title="the lag of the simplified blocks in long training, against size",
    source="ours, testing the claims of the simplified-blocks paper",
    published="SAS and SAS-P match pre-ln in loss per update after 4 tokens a parameter (Figure "
    "26), and SAS keeps up after 12 (Figure 8).",
    settings=plan.points,
    measure=measure,
    summarise=summarise,
    columns=(
        *shared.TUNED_COLUMNS, "block", "gain", "quarter", "width", "tokens_a_parameter",
        "parameters",
    ),
    gpus=1,
    more=plan.more,
    costs={
        "laptop": "about 45 hours of one core",
        "paper": "about 16 hours of one H200, by steps of 0.09 to 0.10 s measured in bfloat16: "
        "tuning 3, runs 13",
    },
)  # fmt: skip
