"""Judge the study `temperature`: power laws and limits of its curves."""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hessblocks.storage import NORM, Scalar
from hessblocks_studies import growth, shared
from hessblocks_studies.engine import Check, Rows

ENTROPY, LIKENESS, LIKENESS_AFTER = "attention_entropy", "likeness", "likeness_after"
"""Entropy in nats; mean cosine between the tokens of a sum, before and after the layer."""
AXES = {"temperature": "apart", "apart": "temperature"}
"""Axis that varies → axis that is fixed at 1."""
UNIFORM = math.lgamma(growth.TOKENS + 1) / growth.TOKENS
"""Entropy of uniform causal attention: mean of ln i over tokens i."""
HOT = 10.0
"""Temperature from which attention counts as uniform and power laws are fitted."""
COOL = 0.01
"""Temperature at which attention is nearly one-hot."""
ALIKE = 0.1
"""ε up to which tokens count as nearly equal and power laws are fitted."""
TOLERANCE = 0.05
"""Largest distance from an exponent that counts as agreement."""
WARM, COLD = 100.0, 0.1
"""Temperatures between which queries and values are compared."""
APART = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Values of ε at every scale."""
VOID = "void, since attention or tokens are not what the limit asks for"


Curve = Mapping[Scalar, Mapping[float, float]]
"""Seed → {τ or ε: value}."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Curves of one kind of block along one axis."""

    block: str
    """Name of the block."""
    axis: str
    """Name in `AXES`."""
    rows: Rows
    """Rows of all blocks and both axes."""

    def of(self, quantity: str, group: str | None = None, part: str | None = None) -> Curve:
        """Return the curves of a quantity by seed."""
        found: dict[Scalar, dict[float, float]] = {}
        wanted = (self.block, 1, group, part)
        for row in shared.of_quantity(self.rows, quantity):
            here = (row["block"], row[AXES[self.axis]], row.get("group"), row.get("part"))
            if here == wanted:
                found.setdefault(row["seed"], {})[row[self.axis]] = row["value"]
        return found

    def norm(self, group: str, part: str = "full") -> Curve:
        """Return the curves of the Frobenius norm of a Hessian block."""
        return self.of(NORM, group, part)

    def decades(self, above: str, below: str, x: float) -> dict[Scalar, float]:
        """Compute log10 of the ratio of two groups' norms at one point, by seed."""
        return decades(at(self.norm(above), x), at(self.norm(below), x))


def at(curve: Curve, x: float) -> dict[Scalar, float]:
    """Return the value of each seed at one point."""
    return {seed: points[x] for seed, points in curve.items() if x in points}


def between(curve: Curve, low: float, high: float) -> Curve:
    """Restrict curves to the points from `low` to `high`, inclusive."""
    return {
        seed: {x: y for x, y in points.items() if low <= x * (1 + 1e-9) and x <= high * (1 + 1e-9)}
        for seed, points in curve.items()
    }


def decades(above: Mapping[Scalar, float], below: Mapping[Scalar, float]) -> dict[Scalar, float]:
    """Compute log10 of the ratio of each seed's two values, if both are above 0."""
    return {
        seed: math.log10(value / below[seed])
        for seed, value in above.items()
        if value > 0 and below.get(seed, 0.0) > 0
    }


def even_temperatures(heat: Curves) -> dict[Scalar, float]:
    """Find the highest temperature with equally large query and value blocks, seed by seed."""
    places = sorted({tau for points in heat.norm("query").values() for tau in points}, reverse=True)
    even: dict[Scalar, float] = {}
    for hot, cool in itertools.pairwise(places):
        above, below = (heat.decades("query", "value", tau) for tau in (hot, cool))
        for seed in above:
            if seed not in even and above[seed] < 0 <= below.get(seed, -math.inf):
                share = above[seed] / (above[seed] - below[seed])
                even[seed] = hot * (cool / hot) ** share
    return even


def temperature_checks(heat: Curves) -> list[Check]:
    """Judge slopes and limits along the temperature."""
    entropy = heat.of(ENTROPY)
    places = {tau for points in entropy.values() for tau in points} or {1.0}
    coldest, hottest = min(places), max(places)
    uniform = _limit(
        [abs(value / UNIFORM - 1) for value in at(entropy, hottest).values()],
        f"{heat.block}: at τ = {hottest:g} attention has no preference",
        "its entropy within 0.01 of the largest there is, as a share (control)",
        0.01,
    )
    one_hot = _limit(
        [value / UNIFORM for value in at(entropy, COOL).values()],
        f"{heat.block}: at τ = {COOL:g} attention is nearly one-hot",
        "its entropy below 0.1 of the largest there is (control)",
        0.1,
    )
    slopes = [
        _slope(
            between(heat.norm(group), HOT, hottest),
            f"{heat.block}: {group} block, τ ≥ {HOT:g}",
            "τ",
            power,
        )
        for group, power in (("query", -2), ("key", -2), ("value", 0))
    ]
    warm, cold = (heat.decades("value", "query", tau) for tau in (WARM, COLD))
    moved = shared.gaps(cold, warm)
    query = heat.norm("query")
    nearer = _smaller(
        decades(at(query, COOL), at(query, 1.0)),
        f"{heat.block}: query block at τ = {COOL:g} beside that at τ = 1",
        "smaller (argued: one-hot attention has no second and third moment)",
    )
    return [
        uniform,
        *(shared.judged_by(uniform, slope, VOID) for slope in slopes),
        _smaller(
            moved,
            f"{heat.block}: value over query block, at τ = {COLD:g} beside τ = {WARM:g}",
            "smaller (argued: temperature moves curvature between them)",
        ),
        one_hot,
        shared.judged_by(one_hot, nearer, VOID),
        _gone(heat, coldest, f"in the limit, τ = {coldest:g}", 1e-6),
    ]


def _smaller(values: Mapping[Scalar, float], fact: str, expected: str) -> Check:
    return shared.over_seeds(values).judged(fact, expected, above=False, unit="decades")


def likeness_checks(alike: Curves) -> list[Check]:
    """Judge slopes and limits along the likeness of tokens."""
    equal = _limit(
        [abs(1 - value) for value in at(alike.of(LIKENESS), 0.0).values()],
        f"{alike.block}: at ε = 0 all tokens are equal",
        "1 − cosine below 1e-9 (control)",
        1e-9,
    )
    slopes = [
        _slope(
            between(alike.norm(group, part), min(APART[1:]), ALIKE),
            f"{alike.block}: {part} {group} block, ε ≤ {ALIKE:g}",
            "ε",
            power,
        )
        for group, part, power in (
            ("query", "outer", 4),
            ("query", "functional", 3),
            ("value", "outer", 0),
        )
    ]
    gone = _gone(alike, 0.0, "where all tokens are equal", 1e-12)
    return [equal, *(shared.judged_by(equal, check, VOID) for check in (*slopes, gone))]


def _limit(values: Iterable[float], fact: str, expected: str, limit: float) -> Check:
    """Judge that no seed's value reaches a limit."""
    largest = max(values, default=None)
    return Check(
        fact=fact,
        expected=expected,
        ours="not measured" if largest is None else f"at most {largest:.2g}",
        holds=None if largest is None else largest < limit,
    )


def _slope(curve: Curve, fact: str, variable: str, power: float) -> Check:
    return shared.over_seeds(shared.slopes(curve)).matches(
        fact,
        f"{power:g} ± {TOLERANCE:g} (theory)",
        limit=TOLERANCE,
        around=power,
        unit=f"powers of {variable}",
    )


def _gone(curves: Curves, x: float, when: str, limit: float) -> Check:
    """Judge that the query and key blocks are 0 compared with the value block."""
    value = at(curves.norm("value"), x)
    shares = [
        norm / value[seed]
        for group in ("query", "key")
        for seed, norm in at(curves.norm(group), x).items()
        if value.get(seed)
    ]
    return _limit(
        shares,
        f"{curves.block}: query and key blocks are 0 {when}",
        f"below {limit:g} of the value block",
        limit,
    )
