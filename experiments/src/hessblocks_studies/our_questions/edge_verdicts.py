"""Judge the study `edge-of-stability`: verdicts and controls."""

import math
from collections.abc import Mapping

from hessblocks.storage import Scalar
from hessblocks_studies import shared
from hessblocks_studies.engine import Check
from hessblocks_studies.our_questions import edge_plan as plan
from hessblocks_studies.our_questions.edges import Edges, Forecast

ALIKE = 0.25
"""Largest difference of equal blocks, in decades of rates, needs and forecasts: a ladder's step."""
CALIBRATED = 0.25
"""Decades up to which a forecast of a tolerated rate counts as right."""
GUESS = 1.8e-2
"""Middle of the planned ladder: forecast of a rate without curvature."""
MOVED = 0.1
"""Largest shift of an early sharpness, in decades, if eps is multiplied by ten."""
LESS = f"{plan.SIMPLE} needs less warm-up than {plan.BASE}, by"
"""Beginning of the expected results for the need for warm-up."""


def verdicts(edges: Edges) -> list[Check]:
    """List the controls, and the verdicts of the plan."""
    tuned, tolerances = edges.tuned, edges.tolerances()
    known = {
        label: {seed: rate for seed, rate in seeds.items() if rate is not None}
        for label, seeds in tolerances.items()
    }
    inside = _inside_check(tolerances, tuned.runs.losses.get(shared.BIGRAMS, {}))
    rates, needs = edges.forecasts()
    sharp_for_rates = _residual_check("rates", rates)
    sharp_for_needs = _residual_check("the need for warm-up", needs)
    of_eps = _eps_check(edges)
    ladder = "void, since a tolerated rate lies outside the ladder"
    unknown = "void, since a sharpness that it rests on is not known well enough"
    need = shared.judged_by(
        of_eps,
        forecast_check("which block needs more warm-up", needs.values, _lost(known)),
        "void, since it moves with AdamW's eps",
    )
    rested = [(sharp_for_needs, need)]
    rested += [(sharp_for_rates, check) for check in _rate_forecasts(rates.values, known)]
    found = [
        *(shared.judged_by(inside, check, ladder) for check in _tolerance_checks(known)),
        _loss_check(edges),
        *(
            shared.judged_by(sharp, shared.judged_by(inside, check, ladder), unknown)
            for sharp, check in rested
        ),
    ]
    best = {block: plan.label_of(block, plan.WARM) for block in plan.BLOCKS}
    judged = [tuned.judged(check, *best.values()) for check in found]
    for block, label in best.items():
        judged = [tuned.runs.where_learnt(check, label, block) for check in judged]
    learnt = [tuned.runs.below_the_table(label, shared.BIGRAMS) for label in best.values()]
    controls = (inside, sharp_for_rates, sharp_for_needs, of_eps)
    return [tuned.rate_checks()[0], *learnt, *controls, *judged]


def _inside_check(
    tolerances: Mapping[str, Mapping[Scalar, float | None]], begun: Mapping[Scalar, float]
) -> Check:
    """Check the control that each tolerated rate is known for every started seed."""
    outside = [
        f"{label}, seed {seed}"
        for label, seeds in tolerances.items()
        for seed, rate in seeds.items()
        if rate is None
    ]
    whole = len(tolerances) == len(plan.LABELS) and all(
        seeds.keys() == begun.keys() for seeds in tolerances.values()
    )
    return Check(
        fact="each tolerated rate lies inside the ladder",
        expected="none outside it (rule of this study)",
        ours=f"outside: {'; '.join(outside)}"
        if outside
        else f"so for {'all of ' if whole else ''}{len(tolerances)} kinds",
        holds=not outside if whole else None,
    )


def _residual_check(of: str, forecast: Forecast) -> Check:
    """Check the control that each sharpness of the forecasts has converged."""
    residuals = forecast.residuals
    largest = max(residuals.values(), default=math.nan)
    gone = [place for place, share in residuals.items() if math.isinf(share)]
    found = f"lost or not above 0: {'; '.join(gone)}" if gone else f"at most {largest:.2g}"
    return Check(
        fact=f"the sharpness that forecasts of {of} rest on is known",
        expected="residuals of a tenth at most (control)",
        ours=found if residuals else "not finished",
        holds=largest <= 0.1 if residuals else None,
    )


def _eps_check(edges: Edges) -> Check:
    """Check the control that the early sharpness depends on the block and not on AdamW's eps."""
    most = max(edges.moved.values(), default=math.nan)
    runs = sum(
        map(len, map(edges.lowest, (plan.label_of(block, plan.COLD) for block in plan.BLOCKS)))
    )
    return Check(
        fact="the early sharpness without warm-up is not that of AdamW's eps",
        expected=f"ten times eps moves it by {MOVED:g} decades at most (control)",
        ours=f"by {most:.2g} at most" if edges.moved else "not finished",
        holds=most <= MOVED if len(edges.moved) == runs > 0 else None,
    )


def _tolerance_checks(known: shared.Values) -> list[Check]:
    """Judge which block tolerates larger rates, and which loses fewer decades without warm-up."""
    stands = [
        apart_check(
            {block: known.get(plan.label_of(block, kind), {}) for block in plan.BLOCKS},
            f"{plan.SIMPLE} stands larger rates than {plan.BASE}, with {kind}",
            expected=f"open question: a tolerated rate larger by more than {ALIKE:g} decades",
            above=True,
        )
        for kind in plan.KINDS
    ]
    needs = apart_check(
        _lost(known),
        f"{LESS} the tolerated rate",
        expected=(
            f"open question: it falls without by a number of decades smaller by more than {ALIKE:g}"
        ),
        above=False,
    )
    return [*stands, needs]


def _loss_check(edges: Edges) -> Check:
    """Judge which block's loss increases less without warm-up at one rate; needs no ladder."""
    return apart_check(
        edges.extra_losses(),
        f"{LESS} the loss at one rate",
        expected=f"open question: less is lost without, by more than {shared.CLOSE:g} nats",
        above=False,
        limit=shared.CLOSE,
        unit="nats",
    )


def _rate_forecasts(rates: shared.Values, known: shared.Values) -> list[Check]:
    """Judge the forecast of tolerated rates from the sharpness at the end of the warm-up.

    Returns:
        Checks: which block has the larger rate, how large it is, better than a guess.
    """
    warm = {block: known.get(plan.label_of(block, plan.WARM), {}) for block in plan.BLOCKS}
    order = forecast_check("which block stands the larger rates", rates, warm)
    right = [
        shared.over_seeds(shared.gaps(rates.get(block, {}), warm[block])).matches(
            f"curvature says beforehand which rate {block} stands",
            f"the forecast is right to {CALIBRATED:g} decades (above 0: it is too large)",
            limit=CALIBRATED,
            unit="decades",
        )
        for block in plan.BLOCKS
    ]
    better = [
        shared.difference(_misses(rates.get(block, {}), warm[block]), "forecast", "guess").judged(
            f"curvature says better than a guess which rate {block} stands",
            f"nearer than {GUESS:g}, the middle of the ladder, by any amount",
            above=False,
            unit="decades",
        )
        for block in plan.BLOCKS
    ]
    return [order, *right, *better]


def _misses(
    forecast: Mapping[Scalar, float], outcome: Mapping[Scalar, float]
) -> dict[str, dict[Scalar, float]]:
    """Compute the errors of forecast and guess for each seed's tolerated rate, in decades."""
    guess = math.log10(GUESS)
    seeds = forecast.keys() & outcome.keys()
    return {
        "forecast": {seed: abs(forecast[seed] - outcome[seed]) for seed in seeds},
        "guess": {seed: abs(guess - outcome[seed]) for seed in seeds},
    }


def _lost(known: shared.Values) -> dict[str, dict[Scalar, float]]:
    """Compute block → {seed: decades by which the tolerated rate falls without warm-up}."""
    found = {}
    for block in plan.BLOCKS:
        warm, cold = (known.get(plan.label_of(block, kind), {}) for kind in (plan.WARM, plan.COLD))
        found[block] = shared.gaps(warm, cold)
    return found


def apart_check(
    values: shared.Values,
    fact: str,
    *,
    expected: str,
    above: bool,
    limit: float = ALIKE,
    unit: str = "decades",
) -> Check:
    """Judge a fact that holds if the blocks differ in one direction, and fails in the other.

    Args:
        values: block → {seed: value}.
        fact: the fact, as a sentence.
        expected: the expected direction.
        above: whether the fact claims that sas-p has the larger value.
        limit: largest difference of equal blocks.
        unit: unit of the values.

    Returns:
        The check; undecided if the seeds are, or if the blocks are equal, which is then noted.
    """
    found = shared.difference(values, plan.SIMPLE, plan.BASE)
    where = side(found, limit)
    alike = f"; alike, within {limit:g} {unit}" if where == 0 else ""
    return Check(
        fact=fact,
        expected=expected,
        ours=f"{found.text(unit)}{alike}",
        holds=(where > 0) == above if where else None,
        p_value=found.p_value(-limit, limit),
    )


def forecast_check(what: str, forecast: shared.Values, outcome: shared.Values) -> Check:
    """Judge whether forecast and outcome differ between the blocks in the same direction.

    Args:
        what: quantity that is forecast.
        forecast: block → {seed: decades}.
        outcome: block → {seed: decades}.

    Returns:
        The check; undecided if forecast or outcome is.
    """
    found = [shared.difference(values, plan.SIMPLE, plan.BASE) for values in (forecast, outcome)]
    sides = [side(one) for one in found]
    said, came = (one.text("decades") for one in found)
    p_values = [one.p_value(-ALIKE, ALIKE) for one in found]
    return Check(
        fact=f"curvature says beforehand {what}",
        expected=(
            f"{plan.SIMPLE} differs from {plan.BASE} to the same side, or both by {ALIKE:g} "
            "decades at most"
        ),
        ours=f"forecast {said}, outcome {came}",
        holds=None if None in sides else sides[0] == sides[1],
        p_value=None if None in p_values else max(p for p in p_values if p is not None),
    )


def side(found: shared.Difference, limit: float = ALIKE) -> int | None:
    """Return 1 above and −1 below the limits, 0 between them; None if undecided."""
    if found.within(limit):
        return 0
    if found.above(limit):
        return 1
    return -1 if found.above(-limit) is False else None
