"""Measure how the gap to pre-ln changes with size, at the paper's number of tokens per parameter.

The rule: PLAN.md beside this file, section `ladder`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from torch import nn

from hessblocks.figures import Panel, Series
from hessblocks.storage import Row, Scalar
from hessblocks_studies import shared
from hessblocks_studies.engine import Check, Rows, Study, Summary, capture_steps
from hessblocks_studies.our_questions import ladder_plan as plan

Grids = Mapping[str, Mapping[float, Mapping[Scalar, float]]]
"""Block at a width → rate → seed → final loss."""
AXES = {
    plan.WIDTHS: "parameters of pre-LN",
    plan.TOKENS: "tokens a parameter",
    plan.DEPTHS: "layers",
}
"""Phase → quantity that varies in it."""
SHOWN = {
    plan.WIDTHS: ("gap by size", "millions of parameters of pre-LN", 1e6),
    plan.TOKENS: ("gap by length of training", "tokens read for each parameter", 1.0),
    plan.DEPTHS: ("gap by depth", "layers", 1.0),
}
"""Phase → title of its panel, label and unit of the axis."""
APART = 0.08
"""Distance of blocks at one rung, in rungs."""
CURVATURE = (shared.SPREAD, shared.HETEROGENEITY)
"""Quantities of a curvature measurement that are kept."""
Controls = Sequence[tuple[Check, str]]
"""Checks that must hold for a rung to count, each with the note if it fails."""
UNLEARNT = shared.void_of(plan.BASE)
UNTUNED = "void, since a next rate is better"


def measure(settings: plan.LadderSettings) -> list[Row]:
    """Train one model; measure the loss on all held-out windows and the curvature at both ends."""
    size, text = settings.size, shared.text_of(settings.size)
    if size.data is not None:
        shared.check_read_once("ladder", size)

    def observe(model: nn.Module, step: int) -> list[Row]:
        rows: list[Row] = []
        if settings.whole and step == size.steps:
            loss = shared.whole_loss(model, text, size.context)
            rows.append(shared.measured(shared.LOSS, loss, "all windows"))
        if settings.probe and step in (0, size.steps):
            keys = () if step else ("key",)
            found = shared.curvature_rows(model, text, settings.probe, settings.seed, keys)
            rows += [row for row in found if row["quantity"] in CURVATURE]
        return rows

    place: Row = {"tokens_a_parameter": settings.tokens_a_parameter, "layers": size.depth}
    place |= {"parameters": settings.parameters}
    trained = shared.train_point(settings, observe, capture_steps)
    found = [{**row, **place} for row in settings.placed(trained)]
    losses = [row for row in found if row["quantity"] not in CURVATURE]
    also = [{**row, "phase": p, "variant": n} for p, n in settings.also for row in losses]
    return found + also


def places(rows: Rows, phase: str) -> dict[str, float]:
    """Map the phase's rungs to their values on the axis, from the smallest."""
    column = {plan.WIDTHS: "parameters", plan.TOKENS: "tokens_a_parameter", plan.DEPTHS: "layers"}
    found = {
        plan.rung_of(row["variant"]): float(row[column[phase]])
        for row in rows
        if row["phase"] == phase and not row["variant"].startswith(shared.BIGRAMS)
    }
    return dict(sorted(found.items(), key=lambda one: one[1]))


def summarise(rows: Rows) -> Summary:
    """Plot the gap to pre-ln against size, tokens and depth; judge every rung and the slope."""
    by_phase = {phase: each for (phase,), each in shared.grouped(rows, "phase").items()}
    runs = {phase: shared.Runs(by_phase.get(phase, ())) for phase in AXES}
    grids = shared.Runs(by_phase.get(plan.TUNING, ())).grids
    tuned = over_widths(grids)
    checks: list[Check] = [_tuning_check(tuned)]
    tables: list[dict[str, object]] = []
    panels: list[Panel] = []
    nexts = shared.Runs(by_phase.get(plan.NEIGHBOURS, ()))
    for phase, label in AXES.items():
        rungs = places(rows, phase)
        found = {
            block: {
                rung: runs[phase].apart(plan.at(block, rung), plan.at(plan.BASE, rung))
                for rung in rungs
            }
            for block in plan.JUDGED
        }
        tables += [
            _line(phase, rung, rungs[rung], block, gap)
            for block, gaps in found.items()
            for rung, gap in gaps.items()
            if gap.seeds
        ]
        rates: dict[str, Check] = {}
        if phase == plan.WIDTHS and len(rungs) == plan.WIDTH_COUNT:
            last = list(rungs)[-1]
            rates = {
                plan.at(block, last): _next_rates_check(runs[phase], nexts, plan.at(block, last))
                for block in plan.BLOCKS
            }
        checks += rates.values()
        for block in plan.VERDICTS:
            controls = {rung: _controls(runs[phase], rates, block, rung) for rung in rungs}
            checks += [
                _rung_check(runs[phase], phase, block, rung, controls[rung]) for rung in rungs
            ]
            counting = [(rungs[r], found[block][r]) for r in rungs if _hold(controls[r])]
            checks.append(_slope_check(block, label, counting))
        panels.append(_panel(phase, _learnt(runs[phase], rungs), found))
    every = (*panels, _tuning_panel(tuned))
    drawn = [panel for panel in every if len(panel.ticks) != 1 and panel.shown]
    return shared.summary(
        "The gap to pre-LN along a ladder of sizes",
        "Loss of each block above that of pre-LN with zero queries on all held-out windows, a text "
        "read once; bars are 95 % intervals of the mean over seeds. Sizes are at "
        f"{plan.PAPER_TOKENS} tokens a parameter, lengths and depths at one width. Void "
        "rungs, at which pre-LN does not end well below the bigram table, are not drawn.",
        drawn or [_tuning_panel(over_widths(grids, 1))],
        checks,
        gaps=tables,
        curvature=curvature_table(rows),
        tuning=[
            {"block": block, "learning_rate": rate, "mean_loss": _finite(loss)}
            for block, losses in tuned.items()
            for rate, loss in losses.items()
        ],
        error=[{"phase": p, **shared.error_line(one.residual)} for p, one in runs.items()],
    )


def curvature_table(rows: Rows) -> list[dict[str, object]]:
    """List how unevenly curvature is spread over weight matrices, before and after training."""
    return [
        {
            "block": row["variant"],
            "quantity": row["quantity"],
            "when": "after training" if row["step"] else "before training",
            "value": row["value"],
        }
        for quantity in CURVATURE
        for row in shared.of_quantity(rows, quantity)
        if row["group"] == shared.ALL_MATRICES
    ]


def over_widths(grids: Grids, widths: int = plan.TUNED_WIDTHS) -> dict[str, dict[float, float]]:
    """Average the losses of the tuning over its widths; a rate that lacks one is left out.

    Args:
        grids: block at a width → rate → seed → final loss.
        widths: number of widths of the tuning.

    Returns:
        Block → rate at width `TUNED` → mean loss.
    """
    losses: dict[str, dict[float, list[float]]] = {}
    for label, grid in grids.items():
        block, _, width = label.removesuffix(")").rpartition(" (width ")
        for rate, seeds in grid.items():
            usual = float(f"{rate * int(width) / plan.TUNED:.3g}")  # rounded: floats differ
            losses.setdefault(block, {}).setdefault(usual, []).extend(seeds.values())
    return {
        block: {rate: fmean(each) for rate, each in sorted(own.items()) if len(each) == widths}
        for block, own in losses.items()
    }


def _tuning_check(tuned: Mapping[str, Mapping[float, float]]) -> Check:
    """Check that each block's best rate lies inside its grid and is that of its runs."""
    off = []
    for block, losses in tuned.items():
        if not losses:
            continue
        best = min(losses, key=lambda rate: losses[rate])
        if best in (min(losses), max(losses)) or best != plan.BEST[block]:
            off.append(f"{block} ({best:g}; runs at {plan.BEST[block]:g})")
    enough = tuned.keys() == plan.BEST.keys() and min(map(len, tuned.values())) >= 3
    fact = "each best rate of the tuning lies inside its grid, and is that of the runs"
    return shared.rule_check(fact, off, len(tuned), enough)


def _next_rates_check(runs: shared.Runs, nexts: shared.Runs, label: str) -> Check:
    """Check that half decades on both sides are at most `SLACK` better, with one seed."""
    losses = runs.losses.get(label, {})
    gains = [
        losses[seed] - loss  # −∞ if a next rate diverged
        for each in nexts.grids.get(label, {}).values()
        for seed, loss in each.items()
        if math.isfinite(losses.get(seed, math.nan))
    ]
    better = any(gain > shared.SLACK for gain in gains)
    both = len(gains) == 2  # a rate on each side
    said = ", ".join(f"{-gain:+.3f}" for gain in gains) if gains else "nothing measured"
    return Check(
        fact=f"the next rates are no better for {label}",
        expected=f"at most {shared.SLACK:g} nats lower on both sides (rule of this study)",
        ours=f"{said}{' nats' if gains else ''}{'' if both else ' (of two)'}",
        holds=False if better else True if both else None,
    ).as_control()


def _line(
    phase: str, rung: str, place: float, block: str, gap: shared.Difference
) -> dict[str, object]:
    """Make a table row of a gap, with its interval and the prediction interval of a new seed."""
    known = gap.known
    return {
        "phase": phase,
        "rung": rung,
        "place": place,
        "block": block,
        "gap": _finite(gap.mean),
        "reach": gap.reach() if known else None,
        "reach_of_one_new_seed": gap.of_one_seed() if known else None,
        "seeds": gap.seeds,
    }


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _controls(
    runs: shared.Runs, rates: Mapping[str, Check], block: str, rung: str
) -> list[tuple[Check, str]]:
    """List what must hold for a rung: the base has learnt, and no next rate is better."""
    base = plan.at(plan.BASE, rung)
    tried = [rates[label] for label in (base, plan.at(block, rung)) if label in rates]
    learnt = runs.below_the_table(base, plan.TABLE)
    return [(learnt, UNLEARNT), *((check, UNTUNED) for check in tried)]


def _hold(controls: Controls) -> bool:
    return all(control.holds for control, _ in controls)


def _rung_check(runs: shared.Runs, phase: str, block: str, rung: str, controls: Controls) -> Check:
    """Judge whether a block matches the base at one rung; void if a control fails."""
    base = plan.at(plan.BASE, rung)
    check = runs.alike(plan.at(block, rung), base, f"{block} matches {plan.BASE}, {phase}: {rung}")
    for control, void in controls:
        check = shared.judged_by(control, check, void)
    return check


def _slope_check(block: str, label: str, gaps: Sequence[tuple[float, shared.Difference]]) -> Check:
    found = shared.line(gaps)
    used = sum(gap.known and not gap.diverged for _, gap in gaps)
    return found.judged(
        f"the gap of {block} to {plan.BASE} grows with {label}",
        f"open question: a slope above 0, over the {used} rungs that count (at least 3)",
        unit="nats over a factor of ten",
    )


def _learnt(runs: shared.Runs, rungs: Mapping[str, float]) -> Mapping[str, float]:
    """Leave out rungs at which the base has learnt nothing; all stay if it has at none."""
    learnt = {
        rung: place
        for rung, place in rungs.items()
        if runs.below_the_table(plan.at(plan.BASE, rung), plan.TABLE).holds is not False
    }
    return learnt or rungs


def _panel(
    phase: str,
    rungs: Mapping[str, float],
    found: Mapping[str, Mapping[str, shared.Difference]],
) -> Panel:
    """Plot the gaps at each rung, blocks side by side; bars are 95 % intervals."""
    title, x_label, unit = SHOWN[phase]
    curves: dict[str, Sequence[shared.Place]] = {
        block: [
            (place + APART * (number - 1), gap.mean, gap.reach() if gap.known else float("nan"))
            for place, rung in enumerate(rungs)
            for gap in (gaps[rung],)
            if gap.seeds and not gap.diverged
        ]
        for number, (block, gaps) in enumerate(found.items())
    }
    drawn = shared.panel(title, x_label, "above pre-LN (nats per token)", curves)
    if not drawn.shown:
        return drawn
    ends = (-0.3, len(rungs) - 0.7)
    bounds = [
        Series(name=name, x=ends, y=(bound, bound), guide=True)
        for name, bound in (
            ("level", 0.0),
            *((f"{b:+g}", b) for b in (shared.CLOSE, -shared.CLOSE)),
        )
    ]
    ticks = tuple(f"{float(f'{at / unit:.2g}'):g}" for at in rungs.values())
    return replace(drawn, series=(*drawn.shown, *bounds), ticks=ticks)


def _tuning_panel(tuned: Mapping[str, Mapping[float, float]]) -> Panel:
    """Plot the loss at each rate of the tuning, averaged over the widths with all rates."""
    curves: dict[str, Sequence[shared.Place]] = {
        block: [(rate, loss, float("nan")) for rate, loss in losses.items() if math.isfinite(loss)]
        for block, losses in tuned.items()
    }
    x_label = f"peak learning rate at width {plan.TUNED}"
    return shared.panel("tuning", x_label, "mean loss (nats per token)", curves, log="x")


STUDY = Study(
    name="ladder",
    title="the gap of the simplified blocks against size, tokens a parameter and depth",
    source="ours, testing the claims of the simplified-blocks paper",
    published="At 4 tokens a parameter SAS and SAS-P match pre-ln in loss per update (Figure 26).",
    settings=plan.points,
    measure=measure,
    summarise=summarise,
    columns=(*shared.TUNED_COLUMNS, "parameters", "layers", "tokens_a_parameter"),
    gpus=1,
)
