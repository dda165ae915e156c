"""Judge the study `optimisers`: which optimisers each block needs, and how unevenness relates."""

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

from hessblocks.storage import Scalar
from hessblocks_studies import shared
from hessblocks_studies.engine import Check, Rows
from hessblocks_studies.our_questions import optimiser_plan as plan
from hessblocks_studies.our_questions.optimiser_steps import RATE_OF_ROLE

UNEVEN = (shared.ALL_MATRICES, shared.COMMON_MATRICES)
"""Sets of matrices whose unevenness is used."""
BEFORE, AFTER = "before training", "after training with AdamW"
FIRST = (shared.COMMON_MATRICES, AFTER)
"""Matrices and moment of the first question."""


def spreads(rows: Rows, quantity: str = shared.SPREAD) -> dict[tuple[str, str], shared.Values]:
    """Collect spreads of the norms of H, or of the preconditioned Hessian.

    Returns:
        (set of matrices, before or after training) → block → {seed: spread}.
    """
    found = [
        {**row, "moment": AFTER if row["step"] else BEFORE, "block": plan.BLOCK_OF[row["variant"]]}
        for row in shared.of_quantity(rows, quantity)
    ]
    return shared.nested(found, ("group", "moment"), "block", "seed")


def gaps(losses: shared.Values, learnt: Mapping[str, Check]) -> dict[str, dict[Scalar, float]]:
    """Subtract AdamW's loss from SGD's: block → {seed: gap}, for blocks that learnt with AdamW.

    Returns:
        Gaps, including blocks that may not have learnt. A block's gaps are infinite if SGD diverged
        for any seed; seeds for which AdamW diverged are left out.
    """
    found: dict[str, dict[Scalar, float]] = {}
    for block in plan.FAMILY_OF:
        if learnt[block].holds is False:
            continue
        sgd, adamw = (losses.get(plan.label_of(block, one), {}) for one in (plan.SGD, plan.ADAMW))
        lost = math.inf in sgd.values()
        own = {
            seed: math.inf if lost else sgd[seed] - adamw[seed]
            for seed in sgd
            if math.isfinite(adamw.get(seed, math.inf))
        }
        if own:
            found[block] = own
    return found


def learnt_by_block(runs: shared.Runs) -> dict[str, Check]:
    """Check for each block whether it has learnt more than bigrams with AdamW."""
    return {
        block: runs.below_the_table(plan.label_of(block, plan.ADAMW), shared.BIGRAMS)
        for block in plan.FAMILY_OF
    }


def rates_apart(rows: Rows) -> dict[str, float]:
    """Divide the largest rate of a role by the smallest, mean over the seeds of the runs."""
    runs = [row for row in shared.of_quantity(rows, RATE_OF_ROLE) if row["phase"] == shared.COUNTED]
    found: dict[str, list[float]] = {}
    for (label, _), rates in shared.gathered(runs, "variant", "seed").items():
        found.setdefault(str(label), []).append(max(rates) / min(rates))
    return {label: fmean(each) for label, each in found.items()}


def need_checks(tuned: shared.Tuned, apart: Mapping[str, float]) -> list[Check]:
    """Judge whether each optimiser does about as well as AdamW, block by block."""
    checks = []
    for block in plan.BLOCKS:
        base = plan.label_of(block, plan.ADAMW)
        for method in (one for one in plan.methods_of(block) if one != plan.ADAMW):
            label = plan.label_of(block, method)
            check = tuned.runs.alike(
                label, base, f"{block} trains as well with {plan.SHOWN[method]} as with AdamW"
            )
            if label in apart:
                ours = f"{check.ours}; rates of roles {apart[label]:.1f} times apart"
                check = replace(check, ours=ours)
            judged = tuned.judged(check, label, base)
            checks.append(tuned.runs.where_learnt(judged, base, block))
    return checks


def curvature_checks(
    tuned: shared.Tuned,
    gap: shared.Values,
    uneven: dict[tuple[str, str], shared.Values],
    learnt: Mapping[str, Check],
) -> list[Check]:
    """Judge whether the gap increases with unevenness; a clear correlation of any sign decides."""
    losses, labels = (
        tuned.runs.losses,
        [one for one in plan.BLOCK_OF if one.endswith((plan.SGD, plan.ADAMW))],
    )
    seeds = {seed for label in labels for seed in losses.get(label, {})}
    missing = [label for label in labels if not seeds or losses.get(label, {}).keys() != seeds]
    told = {
        "nothing is decided before all their seeds are measured": missing,
        f"not {shared.MARGIN:g} nats below the bigram table with AdamW, so left out": [
            block
            for block, control in learnt.items()
            if control.holds is False
            and any(map(math.isfinite, losses[plan.label_of(block, plan.ADAMW)].values()))
        ],
        f"perhaps not {shared.MARGIN:g} nats below the bigram table with AdamW": (
            unsure := [block for block in gap if learnt[block].holds is None]
        ),
        "diverged with SGD, so ranked last": [b for b in gap if math.inf in gap[b].values()],
        "diverged with AdamW, so left out": [
            f"{block}, seed {seed}"
            for block in plan.FAMILY_OF
            for seed, loss in losses.get(plan.label_of(block, plan.ADAMW), {}).items()
            if math.isinf(loss)
        ],
    }
    checks = []
    for moment in (BEFORE, AFTER):
        for matrices in UNEVEN:
            first = "the first question, open: " if (matrices, moment) == FIRST else ""
            check = shared.correlation_check(
                uneven.get((matrices, moment), {}),
                gap,
                f"the gap between SGD and AdamW grows with the unevenness of {matrices} {moment}",
                expected=(
                    f"{first}positive rank correlation over the blocks (argued in the Hessian "
                    "paper, not tested)"
                ),
                told=told,
                families=plan.FAMILY_OF,
            )
            if missing or unsure:
                check = replace(check, holds=None, p_value=None)
            checks.append(tuned.judged(check, *(label for label in labels if label in losses)))
    return checks


def even_checks(
    tuned: shared.Tuned,
    uneven: dict[tuple[str, str], shared.Values],
    met: dict[tuple[str, str], shared.Values],
) -> list[Check]:
    """Judge whether the preconditioned Hessian is more even than H, beyond an effect of units."""
    checks = []
    for block in plan.BLOCKS:
        spread = uneven.get(FIRST, {}).get(block, {})
        half = {seed: value / 2 for seed, value in spread.items()}
        check = shared.over_seeds(shared.gaps(met.get(FIRST, {}).get(block, {}), half)).judged(
            f"{block}: the curvature that AdamW's step meets is less than half as uneven as H, "
            f"{FIRST[0]}",
            "open question: a spread of the norms below half of that of H, which units give",
            above=False,
            unit="decades",
        )
        base = plan.label_of(block, plan.ADAMW)
        checks.append(tuned.runs.where_learnt(tuned.judged(check, base), base, block))
    return checks


def correlation_table(
    runs: shared.Runs, gap: shared.Values, uneven: dict[tuple[str, str], shared.Values]
) -> list[dict[str, object]]:
    """Tabulate rank correlations of unevenness with the gap and with each of its two losses."""
    ends = {
        method: {block: runs.losses.get(plan.label_of(block, method), {}) for block in gap}
        for method in (plan.ADAMW, plan.SGD)
    }
    table: list[dict[str, object]] = []
    for (matrices, moment), spread in uneven.items():
        if matrices not in UNEVEN:
            continue
        for name, values in {"gap": gap, **{f"loss with {m}": ends[m] for m in ends}}.items():
            finite = {
                block: {seed: one for seed, one in seeds.items() if seed in gap[block]}
                for block, seeds in values.items()
            }
            found = shared.correlation(spread, finite, plan.FAMILY_OF)
            if found is None:
                continue
            line: dict[str, object] = {"groups": matrices, "moment": moment, "with": name}
            line |= {"rho": found.value, "low": found.low, "high": found.high}
            table.append(line | {"blocks": found.blocks})
    return table
