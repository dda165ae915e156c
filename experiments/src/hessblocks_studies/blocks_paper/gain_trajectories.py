"""Measure the trained gains α and β of values and projections (Figures 4 and 16 to 22)."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace

from scipy import stats
from torch import nn

from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks.training import gain_values
from hessblocks_studies import shared
from hessblocks_studies.engine import Check, Rows, Scale, Summary

GROUPS = {"V": "value", "P": "projection"}
"""Letter of a gain → name of its matrices."""
RATIO = "gain_ratio"
"""|β / α| of one matrix."""
SCALARS = {"alpha": "α", "beta": "β", "gamma": "γ", "beta_FF": "β_FF"}
"""Quantity → letter of the other gains: of shaped attention per head, and of the MLP branch."""
VARIANTS = {
    shared.GAINED: "skipless, Figure 4",
    shared.GAINED_PARALLEL: "no skip, parallel, Figure 16",
    shared.GAINED_ORTHOGONAL: "skipless, orthogonal, Figure 21",
    shared.GAINED_WITH_SKIP: "with an attention skip, Figure 22",
}
"""Block → (description, figure of the paper)."""
SKIPLESS = (shared.GAINED, shared.GAINED_PARALLEL, shared.GAINED_ORTHOGONAL)
FROM_IDENTITY = (shared.GAINED, shared.GAINED_PARALLEL)
"""Blocks for which the paper excepts the first layer's values."""
NONE = 0.05
"""Value below which a ratio or a gain counts as 0, as in the paper's figures."""
MOST = 0.8
"""Share of the matrices that counts as "the vast majority"."""
FIRST_VALUES = ("value", 0)
"""Matrix that the paper excepts: (group, layer)."""
Ratios = dict[tuple[str, int], dict[Scalar, dict[int, float]]]
"""(group, layer) → {seed: {step: ratio}}."""


def measure(settings: shared.TrainedSettings) -> list[Row]:
    """Train with trainable gains; record the gains at every evaluation."""
    return shared.train_point(settings, gain_rows)


def gain_rows(model: nn.Module, step: int) -> list[Row]:
    """List |β / α| of every value and projection matrix, and the gains of attention and MLPs."""
    rows: list[Row] = []
    skips: dict[tuple[str, int], float] = {}
    for gain in gain_values(model):
        layer, (kind, _, branch) = gain["layer"], gain["quantity"].partition("_")
        if gain["quantity"] in SCALARS:
            for head, value in enumerate(gain.get("heads", [gain["value"]])):
                columns = {"layer": layer, "part": f"head {head + 1}" if "heads" in gain else None}
                rows.append(shared.measured(gain["quantity"], value, **columns))
        elif branch in GROUPS and kind == "alpha":
            skips[branch, layer] = gain["value"]
        elif branch in GROUPS:
            ratio = abs(gain["value"] / skips[branch, layer])
            rows.append(shared.measured(RATIO, ratio, layer=layer, group=GROUPS[branch]))
    return rows


def ratios(rows: Rows, variant: str) -> Ratios:
    """Collect the ratios of every matrix of a block over training."""
    ratios_of_block = (row for row in shared.of_quantity(rows, RATIO) if row["variant"] == variant)
    return shared.nested(ratios_of_block, ("group", "layer"), "seed", "step")


def _ends(steps: Mapping[int, float]) -> tuple[float, float]:
    """Return the first and the last value."""
    return steps[min(steps)], steps[max(steps)]


def _others(matrices: Ratios) -> dict[Scalar, list[tuple[float, float]]]:
    """List the first and last ratio of each matrix except the first layer's values, by seed."""
    by_seed: dict[Scalar, list[tuple[float, float]]] = {}
    for matrix, seeds in matrices.items():
        for seed, steps in seeds.items() if matrix != FIRST_VALUES else ():
            by_seed.setdefault(seed, []).append(_ends(steps))
    return by_seed


def counts(matrices: Ratios, *, rise: bool) -> tuple[int, int]:
    """Count the ratios of `_others` that rise by more than `NONE`, or reach 0; mean over seeds.

    A matrix counts once for all seeds, which are not independent: seven matrices with three seeds
    are not 21 matrices.

    Returns:
        (number of such matrices, number of matrices).
    """
    means = [
        [statistics.mean(ends) for ends in zip(*matrix, strict=True)]
        for matrix in zip(*_others(matrices).values(), strict=True)
    ]
    return sum(last > first + NONE if rise else last < NONE for first, last in means), len(means)


def summarise(rows: Rows) -> Summary:
    """Plot ratios and other gains over training, and count those that reach 0."""
    runs = shared.Runs(rows)
    finished = {
        (variant, seed)
        for variant, seeds in runs.losses.items()
        for seed, loss in seeds.items()
        if math.isfinite(loss)
    }
    rows = [row for row in rows if (row["variant"], row["seed"]) in finished]
    by_variant = {variant: ratios(rows, variant) for variant in VARIANTS}
    by_variant = {variant: matrices for variant, matrices in by_variant.items() if matrices}
    table = []
    for variant, matrices in by_variant.items():
        for (group, layer), seeds in matrices.items():
            ends = zip(*map(_ends, seeds.values()), strict=True)
            first, last = (mean_and_error(values)[0] for values in ends)
            columns = {"variant": variant, "group": group, "layer": layer}
            table.append({**columns, "first": first, "last": last})
    panels = [
        _ratio_panel(variant, group, found)
        for variant, found in by_variant.items()
        for group in GROUPS.values()
    ]
    scalars = [row for row in rows if row["variant"] == shared.GAINED]
    return runs.summary(
        title="Trained gains along training",
        caption=(
            "W = W_init + β ΔW with trained gains, α = 1 and β = 0.2 at first; mean over seeds, "
            "bars are its standard errors. Below, the other gains of the block of Figure 4; bars "
            "are standard deviations over heads and seeds."
        ),
        panels=[*panels, *(_scalar_panel(scalars, quantity) for quantity in SCALARS if scalars)],
        checks=[
            _counted(runs, *check)
            for check in (*_ratio_checks(by_variant), *_scalar_checks(scalars))
        ],
        ratios=table,
    )


def _ratio_panel(variant: str, group: str, matrices: Ratios) -> Panel:
    curves = {}
    for (matrix_group, layer), seeds in matrices.items():
        at: dict[float, list[float]] = {}
        for steps in seeds.values():
            for step in steps:
                at.setdefault(float(step), []).append(steps[step])
        if matrix_group == group:
            curves[f"layer {layer + 1}"] = shared.mean_places(at)
    return shared.panel(f"{group}s: {VARIANTS[variant]}", "training step", "|β / α|", curves)


def _scalar_panel(rows: Rows, quantity: str) -> Panel:
    """Plot one gain over training, one curve per layer."""
    curves: dict[str, list[tuple[float, float, float]]] = {}
    values = shared.gathered(shared.of_quantity(rows, quantity), "layer", "step")
    for (layer, step), gains in sorted(values.items()):
        point = (float(step), statistics.mean(gains), statistics.pstdev(gains))
        curves.setdefault(f"layer {layer + 1}", []).append(point)
    title = f"{SCALARS[quantity]}, Figure {17 + list(SCALARS).index(quantity)}"
    return shared.panel(title, "training step", f"gain {SCALARS[quantity]}", curves)


def _counted(runs: shared.Runs, variant: str, check: Check) -> Check:
    """Leave a check undecided if its block or pre-ln has learnt no more than bigrams."""
    return runs.if_it_counts(runs.where_learnt(check, variant), variant)


def _ratio_checks(by_variant: Mapping[str, Ratios]) -> list[tuple[str, Check]]:
    """List (block, check of what the paper claims of its ratios)."""
    checks = []
    for variant in SKIPLESS:
        if by_variant.get(variant):
            checks.append((variant, _gone_check(variant, *counts(by_variant[variant], rise=False))))
    for variant in FROM_IDENTITY:
        matrices = by_variant.get(variant, {})
        if not (seeds := matrices.get(FIRST_VALUES)):
            continue
        last_ratios = {seed: _ends(steps)[1] for seed, steps in seeds.items()}
        stays = shared.over_seeds(last_ratios).judged(
            f"the ratio of the first layer's values does not go to 0 ({VARIANTS[variant]})",
            f"above {NONE:g}",
            limit=NONE,
            unit="|β / α|",
            signed=False,
        )
        others = {
            seed: statistics.mean(last for _, last in ends)
            for seed, ends in _others(matrices).items()
        }
        larger = shared.over_seeds(shared.gaps(last_ratios, others)).judged(
            "the ratio of the first layer's values is larger than that of the others "
            f"({VARIANTS[variant]})",
            "above the mean of all other matrices",
            unit="|β / α|",
        )
        checks += [(variant, stays), (variant, larger)]
    if {shared.GAINED, shared.GAINED_WITH_SKIP} <= set(by_variant):
        pair = [
            counts(by_variant[variant], rise=True)
            for variant in (shared.GAINED_WITH_SKIP, shared.GAINED)
        ]
        checks.append((shared.GAINED_WITH_SKIP, _rise_check(*pair)))
    return checks


def _gone_check(variant: str, gone: int, matrices: int) -> Check:
    """Judge a share of the matrices by the exact binomial test; report Wilson's interval."""
    test = stats.binomtest(gone, matrices, MOST)
    low, high = test.proportion_ci(method="wilson")
    tails = (stats.binomtest(gone, matrices, MOST, side).pvalue for side in ("less", "greater"))
    p_value = shared.rounded(min(1.0, 2 * min(tails)))
    return Check(
        fact="the ratio goes to 0 in nearly all matrices but the first layer's values "
        f"({VARIANTS[variant]})",
        expected=f"below {NONE:g} in at least {MOST:.0%} of them",
        ours=f"{gone} of {matrices} matrices, {gone / matrices:.0%} [{low:.0%}, {high:.0%}]",
        holds=None if p_value > shared.LEVEL else gone / matrices >= MOST,
        p_value=p_value,
    )


def _rise_check(beside: tuple[int, int], without: tuple[int, int]) -> Check:
    """Judge two counts of matrices by Fisher's exact test."""
    table = [[rising, count - rising] for rising, count in (beside, without)]
    p_value = shared.rounded(float(stats.fisher_exact(table).pvalue))
    (rising, all_of), (fewer, count) = beside, without
    return Check(
        fact="beside an attention skip more of the ratios rise (Figure 22)",
        expected=f"a larger share of the matrices rises by more than {NONE:g} than without a skip",
        ours=f"{rising} of {all_of} matrices, without a skip {fewer} of {count}",
        holds=None if p_value > shared.LEVEL else rising / all_of > fewer / count,
        p_value=p_value,
    )


def _scalar_checks(rows: Rows) -> list[tuple[str, Check]]:
    """Check that no other gain reaches 0 in any layer."""
    checks = []
    for quantity, letter in SCALARS.items():
        gains = shared.of_quantity(rows, quantity)
        last = max((row["step"] for row in gains), default=None)
        means: dict[Scalar, list[float]] = {}
        final = [row for row in gains if row["step"] == last]
        for (seed, _), heads in shared.gathered(final, "seed", "layer").items():
            means.setdefault(seed, []).append(abs(statistics.mean(heads)))
        if means:
            least = shared.over_seeds({seed: min(layers) for seed, layers in means.items()})
            figure = 17 + list(SCALARS).index(quantity)
            stays = least.judged(
                f"{letter} does not go to 0 in any layer (Figure {figure})",
                f"the smallest size of a mean over heads above {NONE:g}",
                limit=NONE,
                unit=letter,
                signed=False,
            )
            checks.append((shared.GAINED, stays))
    return checks


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """Train all variants at the size and the likeliest rate of the other studies.

    Returns:
        One sweep; at laptop scale it is twice as long, since gains change slowly.
    """
    size = shared.SIZES[scale]
    steps = 2 * size.steps if scale == "laptop" else size.steps
    variants = (*VARIANTS, "pre-ln", *shared.REFERENCES)
    rates = shared.RATES[scale].likeliest
    return [shared.Sweep(variants=variants, size=replace(size, steps=steps), rates=rates)]


STUDY = shared.trained_study(
    "gains",
    title="trainable gains along training",
    source="Simplified blocks, Figures 4 and 16 to 22",
    published=(
        "From α = 1, β = 0.2 the ratio β/α goes to 0 in nearly all layers, but not in the first "
        "layer's values; beside an attention skip many ratios rise. The gains of shaped attention "
        "and of the MLP do not go to 0."
    ),
    sweeps=sweeps,
    measure=measure,
    summarise=summarise,
)
