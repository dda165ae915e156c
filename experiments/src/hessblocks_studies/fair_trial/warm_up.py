"""Measure the sharpness of each group during a learning-rate warm-up and without one.

The sharpness is the largest |eigenvalue| of a group's block of H. What is compared: PLAN.md beside this file.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from hessblocks.curvature import AttentionBackendWarning, Hessian, Problem
from hessblocks.data import Example
from hessblocks.figures import Panel
from hessblocks.linalg import extreme_eigenvalues
from hessblocks.storage import Row, Scalar
from hessblocks_studies import shared
from hessblocks_studies.engine import Check, Rows, Scale, Summary

SHARPNESS = "sharpness"
"""Largest |eigenvalue| of a group's block of H."""
WARM, COLD, AGAIN = "warm-up", "no warm-up", "no warm-up, other order"
KINDS: dict[str, dict[str, float | int]] = {
    WARM: {"warmup": 0.1},
    COLD: {"warmup": 0.0},
    AGAIN: {"warmup": 0.0, "order": 1000},
}
"""Kind of run → its settings."""
RATES: dict[Scale, tuple[float, ...]] = {
    "smoke": (3e-3,),
    "laptop": (3e-3, 1e-2),
    "paper": (1e-3, 3e-3),
}
"""Peak learning rates: at laptop scale the best of pre-ln, and the next lower one; at paper scale that of the paper, and a larger one."""
MOMENTS = (0.0, 0.05, 0.1, 0.3, 1.0)
"""Shares of the steps at which sharpness is measured."""
END = 0.1
"""The share at which the warm-up ends."""
SIZES: dict[Scale, shared.TextSize] = {
    "smoke": replace(
        shared.SMOKE,
        depth=1,
        width=16,
        mlp_width=32,
        steps=20,
        evaluations=20,
        evaluation_sequences=8,
    ),
    "laptop": replace(shared.SIZES["laptop"], depth=2, evaluations=20, evaluation_sequences=64),
    "paper": replace(shared.PAPER, evaluations=40),
}
_BATCHES: dict[Scale, tuple[int, int]] = {"smoke": (2, 8), "laptop": (8, 32), "paper": (8, 128)}
"""Sequences and tokens of the batch on which sharpness is measured."""
RESIDUAL, PRODUCTS = 0.03, 300
"""Of each eigenvalue: largest residual, as a share of it, and most products."""
VOID = "void, since the order of the data alone does as much"


@dataclass(frozen=True, kw_only=True)
class WarmUpSettings(shared.TrainedSettings):
    """A point of this study: one run."""

    kind: str
    """Name in `KINDS`."""
    sequences: int
    """Of the batch on which sharpness is measured."""
    tokens: int
    """Of each sequence."""


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """Every kind of run at every rate."""
    sequences, tokens = _BATCHES[scale]
    batch = {"sequences": sequences, "tokens": tokens}
    return [
        shared.Sweep(
            variants=["pre-ln"],
            size=replace(SIZES[scale], learning_rate=rate),
            settings={"kind": kind, **KINDS[kind], **batch},
        )
        for rate in RATES[scale]
        for kind in KINDS
    ]


def measure(settings: WarmUpSettings) -> list[Row]:
    """Train one model, named by its kind and rate; the sharpness of every group along the way."""
    batch = shared.text_of(settings.size).curvature_batch(settings.sequences, settings.tokens)
    steps = {round(share * settings.size.steps) for share in MOMENTS}

    def observe(model: nn.Module, step: int) -> list[Row]:
        if step not in steps:
            return []
        return sharpness(model, batch)

    name = f"{settings.kind}, rate {settings.size.learning_rate:g}"
    return [{**row, "variant": name} for row in shared.train_point(settings, observe)]


def sharpness(model: nn.Module, batch: Example) -> list[Row]:
    """The largest |eigenvalue| of H for every role, its blocks of all layers together; the error is its residual.

    Args:
        model: a causal language model, put into evaluation mode.
        batch: inputs and labels.

    Returns:
        A row a role.
    """
    problem = Problem(model.eval(), batch, loss="causal-lm")
    rows = []
    for role, group in shared.by_role(model).items():
        operator = Hessian(problem, group)
        with warnings.catch_warnings(action="ignore", category=AttentionBackendWarning):
            found = extreme_eigenvalues(
                operator, 1, "both", tolerance=RESIDUAL, max_products=PRODUCTS
            )
        place = int(found.values.abs().argmax())
        value, residual = abs(float(found.values[place])), float(found.residuals[place])
        rows.append(
            shared.measured(SHARPNESS, value, "estimate", group=role, standard_error=residual)
        )
    return rows


Sharpness = dict[str, dict[Scalar, dict[float, dict[str, float]]]]
"""Name of the run → {seed: {step: {group: log10 of its sharpness}}}."""


def logarithms(rows: Rows) -> Sharpness:
    """log10 of the sharpness of every group; a moment at which one is not above 0 is left out whole."""
    own = shared.of_quantity(rows, SHARPNESS)
    values = shared.nested(own, "variant", "seed", "step", "group")
    return {
        name: {
            seed: {
                step: {group: math.log10(value) for group, value in groups.items()}
                for step, groups in steps.items()
                if min(groups.values()) > 0
            }
            for seed, steps in seeds.items()
        }
        for name, seeds in values.items()
    }


def mean(groups: Mapping[str, float]) -> float:
    """Mean log10 sharpness over the groups."""
    return sum(groups.values()) / len(groups)


def spread(groups: Mapping[str, float]) -> float:
    """log10 of the largest over the smallest sharpness of the groups."""
    return max(groups.values()) - min(groups.values())


INDICES = {"mean sharpness": mean, "largest over smallest sharpness": spread}
"""What is compared, in decades: name → its value from the groups."""


def summarise(rows: Rows) -> Summary:
    """Sharpness along training of every kind of run, and what tells them apart."""
    runs, found = shared.Runs(rows), logarithms(rows)
    steps = sorted({step for seeds in found.values() for each in seeds.values() for step in each})
    after = round(END * steps[-1]) if steps else 0
    rates = list(dict.fromkeys(name.partition(", rate ")[2] for name in runs.losses))
    return shared.summary(
        "Sharpness of the groups with and without warm-up",
        "Largest |eigenvalue| of each group's block of H, all layers together, on a fixed held-out batch; the "
        "warm-up ends after a tenth of the steps. Python source; mean over seeds, bars are its standard errors.",
        [_panel(f"{kind}, rate {rate}", found) for rate in rates for kind in (WARM, COLD)],
        [check for rate in rates for check in _checks(rate, runs.losses, found, after)],
        losses=runs.table(),
        sharpness=_table(found, rates, after),
    )


def _panel(name: str, found: Sharpness) -> Panel:
    places: dict[str, dict[float, list[float]]] = {}
    moments = [moment for seed in found.get(name, {}).values() for moment in seed.items()]
    for step, groups in sorted(moments, key=lambda moment: moment[0]):
        for group, value in groups.items():
            places.setdefault(group, {}).setdefault(step, []).append(value)
    means = {group: shared.mean_places(each) for group, each in places.items()}
    return shared.panel(name, "training step", "log10 of the largest |eigenvalue|", means)


def at(found: Sharpness, name: str, step: float) -> dict[Scalar, dict[str, float]]:
    """Seed → groups of a run at one step."""
    return {seed: steps[step] for seed, steps in found.get(name, {}).items() if step in steps}


def _table(found: Sharpness, rates: Sequence[str], after: float) -> list[dict[str, object]]:
    """How much sharper each group is without warm-up when the warm-up ends, in decades."""
    table = []
    for rate in rates:
        warm, cold, again = (at(found, f"{kind}, rate {rate}", after) for kind in KINDS)
        for group in dict.fromkeys(group for groups in warm.values() for group in groups):
            line: dict[str, object] = {"rate": rate, "group": group}
            for name, other in (("warm_up", warm), ("other_order", again)):
                gap = shared.difference(_of(group, {COLD: cold, name: other}), COLD, name)
                line |= {f"without_above_{name}": gap.mean, f"error_{name}": gap.error}
            table.append({**line, "seeds": gap.seeds})
    return table


def _of(
    group: str, runs: Mapping[str, Mapping[Scalar, Mapping[str, float]]]
) -> dict[str, dict[Scalar, float]]:
    """One group of several runs."""
    return {
        name: {seed: groups[group] for seed, groups in seeds.items() if group in groups}
        for name, seeds in runs.items()
    }


def without(values: shared.Values) -> dict[Scalar, float]:
    """The mean of both runs without warm-up, of the seeds that have both."""
    cold, again = values[COLD], values[AGAIN]
    return {seed: (cold[seed] + again[seed]) / 2 for seed in cold if seed in again}


def beside(
    values: shared.Values, fact: str, expected: str, unit: str, *, above: bool
) -> list[Check]:
    """Whether a quantity is higher or lower without warm-up than with it, and the control.

    Args:
        values: kind of run → {seed: quantity}.
        fact: what is compared.
        expected: of the run without warm-up.
        unit: of the quantity.
        above: whether it is expected to be higher.

    Returns:
        The control, and the fact, which is void where the order of the data does as much.
    """
    both = {WARM: values[WARM], COLD: without(values)}
    effect = shared.difference(both, COLD, WARM)
    order = shared.difference(values, AGAIN, COLD)
    alike = abs(order.mean) < abs(effect.mean) / 2
    control = Check(
        fact=f"{fact}, without warm-up in another order",
        expected="less than half of what warm-up does (control)",
        ours=order.text(unit),
        holds=alike if min(order.seeds, effect.seeds) > 1 else None,
    )
    claim = effect.judged(
        f"{fact}, without warm-up beside with it", expected, above=above, unit=unit
    )
    return [control, shared.judged_by(control, claim, VOID)]


def _checks(rate: str, losses: shared.Values, found: Sharpness, after: float) -> list[Check]:
    """What warm-up does at one rate."""
    names = {kind: f"{kind}, rate {rate}" for kind in KINDS}
    final = {kind: losses.get(name, {}) for kind, name in names.items()}
    checks = beside(
        final, f"rate {rate}: final loss", "higher (why one warms up)", "nats", above=True
    )
    for index, of in INDICES.items():
        values = {
            kind: {seed: of(groups) for seed, groups in at(found, name, after).items()}
            for kind, name in names.items()
        }
        start = {seed: of(groups) for seed, groups in at(found, names[WARM], 0).items()}
        falls = shared.over_seeds(shared.gaps(values[WARM], start)).judged(
            f"rate {rate}: {index} after the warm-up beside that at the start",
            "smaller (argued: largest at the start)",
            above=False,
            unit="decades",
        )
        fact = f"rate {rate}: {index} at step {after:g}"
        checks += [falls, *beside(values, fact, "higher (argued)", "decades", above=True)]
    return checks


STUDY = shared.trained_study(
    "warm-up",
    title="sharpness of every group while the learning rate warms up, and without warm-up",
    source="ours, testing a claim of the Hessian paper",
    published=(
        "Argued, not tested: heterogeneous curvature is why transformers need a warm-up of the learning rate."
    ),
    kind=WarmUpSettings,
    sweeps=sweeps,
    seeds={"smoke": 2, "laptop": 3, "paper": 3},
    measure=measure,
    summarise=summarise,
)
