"""Judge the study `trial` at one width."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hessblocks.storage import Scalar
from hessblocks_studies import shared
from hessblocks_studies.engine import Check, Rows
from hessblocks_studies.fair_trial import trial_plan as plan

JUDGED = ("sas", "sas-p")
WORDS = {plan.EQUAL: "of as many parameters", plan.ONCE: "on a text read once"}
"""Phase that changes the judged blocks → its description in facts."""
POOR = f"void, since {plan.BASE} is not as good a base as pre-ln"
SAME = f"the gap changes by at most {shared.CLOSE:g}, up or down"
OTHER_RATE = "void, since another rate is better in runs as long"


@dataclass(frozen=True, kw_only=True)
class Trial(shared.Tuned):
    """Measurements of `trial` at one width."""

    times: Mapping[str, Mapping[Scalar, float]]
    """Timed block → {repetition: seconds per step}."""
    starts: Mapping[str, str | None] | None
    """Block → its value of `STARTS` in the runs; None for a block means 0.02, None for the field
    means that initial stds were not tuned."""
    planned: Sequence[str]
    """Blocks to tune."""
    changed: Mapping[str, shared.Runs]
    """Phase of `CHANGED`, or of `NEIGHBOURS` at the larger width → runs with one change."""

    def kinds(self, label: str) -> list[str]:
        """List the labels of a block with each of its initial stds, measured or not."""
        return [label + start for start in plan.STARTS if label + start in self.planned]

    def label_of(self, kind: str) -> str:
        """Return the block of a label in the tuning."""
        return plan.taken_apart(kind)[0]

    def best_rate(self, label: str) -> float:
        """Return the rate of the runs if its neighbours are no better in equally long runs.

        Returns:
            That rate; otherwise the best rate of the tuning.
        """
        sides = [check.holds for block, check in self.long_rate_checks() if block == label]
        return self.rates[label] if len(sides) > 1 and all(sides) else super().best_rate(label)

    @property
    def elsewhere(self) -> dict[str, str]:
        """Map blocks whose runs do not use the best initial std to that std."""
        best = {label: plan.taken_apart(self.tuned_as(label))[1] for label in self.starts or {}}
        return {
            label: plan.STARTS[best[label]]
            for label, start in (self.starts or {}).items()
            if start != (plan.STARTS[best[label]] if best[label] else None)
        }

    def hindrances(self, *labels: str) -> list[str]:
        """List reasons why the runs of some labels do not count."""
        reasons = [
            f"the runs of {label} are not from its best start, {best}"
            for label, best in self.elsewhere.items()
            if label in labels
        ]
        return [*super().hindrances(*labels), *reasons]

    def long_rate_checks(self) -> list[tuple[str, Check]]:
        """Check for each block that the next lower or higher rate is no better in the runs."""
        checks = []
        for phase, blocks in (
            pair for phases in plan.NEIGHBOURS.values() for pair in phases.items()
        ):
            side = "higher" if phase.endswith(plan.FASTER) else "lower"
            for block in blocks if phase in self.changed else ():
                other, own = (
                    each.losses.get(block, {}) for each in (self.changed[phase], self.runs)
                )
                gaps = [loss - own[seed] for seed, loss in other.items() if seed in own]
                check = Check(
                    fact=f"{block} does not end lower in the runs at the next {side} rate",
                    expected=f"lower by at most {shared.SLACK:g} nats (control, one seed)",
                    ours=", ".join(f"{gap:+.3f} nats" for gap in gaps) or "not finished",
                    holds=min(gaps) >= -shared.SLACK if gaps else None,
                )
                checks.append((block, check))
        return checks

    def residual_of(self, phase: str) -> shared.Residual | None:
        """Return the std of one run in a phase of `CHANGED`; another text has a separate one."""
        return (self.changed[phase] if phase == plan.ONCE else self.runs).residual

    def changed_check(self, phase: str, block: str, words: str, base: str = plan.BASE) -> Check:
        """Judge whether a block of a phase of `CHANGED` matches a base, of it or of the runs."""
        own = self.changed[phase]
        losses = {
            block: own.losses.get(block, {}),
            base: (own if base in plan.CHANGED[phase] else self.runs).losses.get(base, {}),
        }
        check = shared.difference(losses, block, base, self.residual_of(phase)).matches(
            f"{words} about matches {base} at equal steps",
            f"final losses within {shared.CLOSE:g} of each other, above or below (ours)",
            limit=shared.CLOSE,
        )
        learnt = (own if shared.BIGRAMS in plan.CHANGED[phase] else self.runs).below_the_table
        return shared.judged_by(learnt(base, shared.BIGRAMS), check, shared.void_of(base))

    def gap_check(self, phase: str, block: str, fact: str) -> Check:
        """Judge whether a phase of `CHANGED` preserves a block's gap to the base."""
        own = self.changed[phase]
        if plan.BASE in plan.CHANGED[phase]:
            gaps = [
                shared.difference(runs.losses, block, plan.BASE, residual)
                for runs, residual in (
                    (own, self.residual_of(phase)),
                    (self.runs, self.runs.residual),
                )
            ]
            found = shared.apart(*gaps)
        else:  # the base is the same and cancels
            losses = {
                each: runs.losses.get(block, {})
                for each, runs in (("new", own), ("old", self.runs))
            }
            found = shared.difference(losses, "new", "old", self.runs.residual)
        return found.matches(fact, SAME, limit=shared.CLOSE)

    def start_check(self) -> Check:
        """Check that every block's runs use its best initial std."""
        off = [f"{label} (best {best})" for label, best in self.elsewhere.items()]
        fact, enough = "the runs of each block are from its best start", bool(self.starts)
        return shared.rule_check(fact, off, len(self.starts or ()), enough and self.enough)


def trial_of(rows: Rows, width: str, phase: str) -> Trial:
    """Collect the measurements at one width.

    Args:
        rows: rows of the whole study.
        width: `NARROW` or `WIDE`.
        phase: phase of the runs.

    Returns:
        The measurements so far.
    """
    timed = [row for row in rows if row["phase"] == width + plan.CLOCK]
    starts = {
        row["variant"]: row.get("start")
        for row in rows
        if row["phase"] == phase and row["variant"] in plan.BLOCKS
    }
    changed = {
        kind: shared.Runs([row for row in rows if row["phase"] == kind])
        for kind in {
            plan.LONG: plan.CHANGED,
            plan.WIDE + plan.LONG: plan.NEIGHBOURS[plan.WIDE],
        }.get(phase, ())
    }
    own = {
        "times": shared.repeated(timed),
        "starts": starts if phase.endswith(plan.LONG) else None,
        "changed": changed,
    }
    planned = plan.TUNED[width]
    if not phase.endswith(plan.LONG):  # all use 0.02
        planned = plan.RUNS[phase]
        rows = [row for row in rows if row["phase"] != width + plan.TUNING or not row.get("start")]
    trial = Trial.of(rows, width + plan.TUNING, phase, planned=planned, **own)
    same_text = {"": trial.runs, **{p: runs for p, runs in changed.items() if p != plan.ONCE}}
    trial.runs.residual = shared.pooled_error(
        {
            f"{p}{label}": each
            for p, runs in same_text.items()
            for label, each in runs.losses.items()
            if label not in shared.REFERENCES
        }
    )
    return trial


def base_of(label: str) -> str:
    """Return the block that a block's long runs are compared with."""
    block, _ = plan.PARTED.get(label, ("", ""))
    return "pre-ln" if block == "pre-ln" else plan.BASE


def verdicts(name: str, trial: Trial) -> list[Check]:
    """List checks of rates and controls, and the verdicts at one width."""
    own, runs = [*trial.rate_checks(), trial.start_check()], trial.runs
    learnt = runs.below_the_table(plan.BASE, shared.BIGRAMS)
    learnt = replace(learnt, fact=f"{plan.BASE} has learnt more than pairs of tokens")
    good = runs.close(plan.BASE, "pre-ln", f"{plan.BASE} is as good a base as pre-ln").as_control()
    own += [*runs.controls.values(), learnt, trial.judged(good, plan.BASE, "pre-ln")]
    long_rates = trial.long_rate_checks()
    own += [check for _, check in long_rates]
    for block in JUDGED:
        about = [
            runs.match(block, plan.BASE, f"{block} about matches {plan.BASE} at equal steps"),
            shared.at_equal_time(runs, trial.times, block, plan.BASE),
        ]
        if plan.EQUAL in trial.changed:
            for phase, words in WORDS.items():
                about += [
                    trial.changed_check(phase, block, f"{block} {words}"),
                    trial.gap_check(
                        phase, block, f"{block} {words} ends as far above {plan.BASE} as {block}"
                    ),
                ]
        for check in about:
            verdict = shared.judged_by(learnt, check, shared.void_of(plan.BASE))
            verdict = trial.judged(shared.judged_by(good, verdict, POOR), block, plan.BASE)
            own.append(_at_its_rate(long_rates, verdict, block, plan.BASE))
    for label, (block, words) in plan.PARTED.items() if plan.PARTS in trial.changed else ():
        against, words = base_of(label), f"{block} {words} and projections"
        verdict = trial.judged(trial.changed_check(plan.PARTS, label, words, against), against)
        own.append(_at_its_rate(long_rates, verdict, against))
    return [replace(check, fact=f"{name}: {check.fact}") for check in own]


def _at_its_rate(long_rates: list[tuple[str, Check]], verdict: Check, *blocks: str) -> Check:
    """Void a verdict if another rate is better in the runs of one of its blocks."""
    for block, control in long_rates:
        if block in blocks:
            verdict = shared.judged_by(control, verdict, OTHER_RATE)
    return verdict


def place_verdicts(placed: Trial) -> list[Check]:
    """Judge the blocks at equal steps with both position encodings, and whether the gaps agree."""
    runs, block = placed.runs, "sas-p"
    checks = [replace(c, fact=f"positions: {c.fact}") for c in placed.rate_checks()[1:]]
    gaps: dict[str, dict[Scalar, float]] = {}
    for kind, name in plan.POSITIONS.items():
        one, base = block + kind, plan.BASE + kind
        control = runs.below_the_table(base, shared.BIGRAMS)
        match = runs.alike(
            one, base, f"{block} about matches {plan.BASE}, both from 0.02, at equal steps"
        )
        match = placed.judged(
            shared.judged_by(control, match, shared.void_of(plan.BASE)), one, base
        )
        own = (replace(control, fact=f"{plan.BASE} has learnt more than pairs of tokens"), match)
        checks += [replace(check, fact=f"{name} positions: {check.fact}") for check in own]
        above, below = (runs.losses.get(label, {}) for label in (one, base))
        gaps[name] = shared.gaps(above, below)
    error = runs.residual and runs.residual.of_gaps()
    same = shared.difference(gaps, "sinusoidal", "rotary", error).matches(
        f"{block} is as far from {plan.BASE} with sinusoidal positions as with rotary ones",
        SAME,
        limit=shared.CLOSE,
    )
    return [*checks, placed.judged(same, *plan.RUNS[plan.PLACES])]
