"""Compare pretrained models after removals by a plan and by other methods.

The rule: PLAN.md beside this file, section `simplify-pretrained`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import exp, hypot
from statistics import median
from typing import Any

import torch
from torch import Tensor

from hessblocks.blocks import Identity, Shared, Weight
from hessblocks.figures import Panel
from hessblocks.simplify import Candidate, Place, Refit, counts_of, outputs_of
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row
from hessblocks_studies import shared
from hessblocks_studies.data import SMOLLM2
from hessblocks_studies.engine import Check, Rows, Scale, Study, Summary
from hessblocks_studies.pretrained.pretrained_ground import (
    REVISION,
    TINY,
    Ground,
    ground,
)
from hessblocks_studies.pretrained.simplify_methods import BESIDE, METHODS, PLAN

LAYERS = {TINY: (1, 2), SMOLLM2: (2, 4, 6, 10)}
"""Model → sizes: numbers of layers whose parameters equal the removed ones."""
HEALED: Mapping[Scale, int] = {"smoke": 2, "laptop": 30, "paper": 200}
"""Scale → training updates of the healing."""
SEEDS = 3
"""Number of seeds of `random`; the other methods are deterministic."""
KL, LOSS = "KL", "loss"
SPEED, RATIO = "tokens a second", "times the original's tokens a second"
"""Quantities of timings, which differ from run to run."""
SAVED = ("layer_parameters", "operations", "cache")
"""Counted shares that a model saves."""
SIZES, NEEDED = 4, 3
"""Number of judged sizes, and of sizes at which the plan must be best."""
ALONE = "removals alone"
"""Point that measures each removal alone, and identities without their refit."""
PLAIN = "KL without a refit"
PROJECTION = "attention.projection"
REFITTED: Mapping[str, tuple[str, Weight]] = {
    "query = identity": ("query", Identity()),
    "query of the first layer": ("query", Shared()),
    "value of the first layer": ("value", Shared()),
}
"""Replacement of a weight, with a refitted projection → the weight and what replaces it."""
MOST = 0.9
"""Share of the layers on which a refit must reduce the cost."""


@dataclass(frozen=True, kw_only=True)
class SimplifiedSettings:
    """Settings of a point: one method at one size, or all removals alone."""

    method: str
    """Name in `METHODS`, or `ALONE`."""
    model: str
    """Package of the model, or `TINY`."""
    layers: int = 0
    """Number of layers whose parameters equal the removed ones; 0 for `ALONE`."""
    healed: int = 0
    """Updates of the healing after the removal; 0 for none."""
    seed: int = 0
    """Seed of random choices."""


def settings(scale: Scale, seeds: int | None) -> list[SimplifiedSettings]:
    """List every method without healing (`random` with several seeds), then with (one seed)."""
    model = TINY if scale == "smoke" else SMOLLM2
    alone = SimplifiedSettings(method=ALONE, model=model)
    return [
        alone,
        *(
            replace(alone, method=method, layers=layers, healed=healed, seed=seed)
            for healed, drawn in ((0, seeds or SEEDS), (HEALED[scale], 1))
            for layers in LAYERS[model]
            for method in METHODS
            for seed in range(drawn if method == "random" else 1)
        ),
    ]


def measure(settings: SimplifiedSettings) -> list[Row]:
    """Measure a model's cost on the docstrings, with or without healing, and its savings."""
    place = ground(settings.model)
    if settings.method == ALONE:
        return _alone(place)
    sizes = [n for n in LAYERS[settings.model] if n <= settings.layers]
    sizes = sizes if settings.method == PLAN else sizes[-1:]  # each size continues the one before
    *_, model = METHODS[settings.method](place, sizes, settings.seed)
    own: Row = {
        "study": "simplify-pretrained",
        "rule": settings.method,
        "seed": settings.seed,
        "layers": settings.layers,
        "healing": settings.healed,
        "share": 1 - model.num_parameters() / place.original.num_parameters(),
    }
    if settings.healed:
        return _costs(place, place.healed(model, settings.healed), own)
    before, after = place.tokens_a_second(model)
    window = place.text.tokens.shape[1]
    counts = [counts_of(one, window) for one in (place.original, model)]
    saved = {name: 1 - counts[1][name] / counts[0][name] for name in SAVED}
    return [
        *_costs(place, model, own),
        shared.measured(SPEED, after, **own),
        shared.measured(RATIO, after / before, **own),
        *(shared.measured(f"{name} saved", one, "counted", **own) for name, one in saved.items()),
    ]


def _alone(place: Ground) -> list[Row]:
    """Measure the cost of each removal alone, and of identities without a refitted projection."""
    rows: list[Row] = []
    common: Row = {"study": "simplify-pretrained", "rule": ALONE, "seed": 0}
    with place.table() as table:
        for row in table.rows:
            own = {**common, "kind": row["kind"], "layer": row["layer"], "share": row["share"]}
            rows.append(shared.measured(KL, row["kl"], **own, standard_error=row["kl_error"]))
    size = place.original.num_parameters()
    for kind, (name, weight) in REFITTED.items():
        for layer in range(isinstance(weight, Shared), place.original.config.depth):
            at = Place(model=place.original, index=layer, text=place.text)
            refitted, plain = _replaced(at, kind, name, weight)
            own = {**common, "kind": kind, "layer": layer, "share": refitted.parameters / size}
            rest = place.original.model.layers[layer + 1 :]
            for quantity, modules in ((KL, refitted.modules), (PLAIN, [plain])):
                cost = place.choosing.cost([*modules, *rest], layer).kl
                rows.append(
                    shared.measured(quantity, cost.value, **own, standard_error=cost.standard_error)
                )
    return rows


def _replaced(at: Place, kind: str, name: str, weight: Weight) -> tuple[Candidate, Any]:
    """Replace a weight of the attention, with the projection refitted and without."""
    block = at.block.replace(attention=at.block.attention.replace(**{name: weight}))
    plain = at.built(block, at.state)
    (mixed, _), (_, wanted) = _projected(at, plain), _projected(at, at.layer)
    solution, _ = at.refitted(PROJECTION, Refit(at.with_ones(PROJECTION, mixed), wanted))
    return at.candidate(kind, block, at.named(PROJECTION, solution)), plain


@torch.no_grad()
def _projected(at: Place, layer: Any) -> tuple[Tensor, Tensor]:
    """Return inputs and outputs of the projection, one row per token."""
    inputs = layer.attention_norm(at.original)
    seen, _ = outputs_of(layer.attention, ["projection"], inputs, at.text.context)
    given, output = seen["projection"]
    return given.flatten(0, 1), output.flatten(0, 1)


def _costs(place: Ground, model: Any, own: Row) -> list[Row]:
    cost = place.judging.cost(list(model.model.layers), 0)
    found = {KL: cost.kl, LOSS: cost.loss}
    rows = [
        shared.measured(name, one.value, **own, standard_error=one.standard_error)
        for name, one in found.items()
    ]
    perplexity = exp(place.judging.before.value + cost.loss.value)
    return [*rows, shared.measured("perplexity", perplexity, **own)]


def summarise(rows: Rows) -> Summary:
    """Plot KL against savings, and judge each size."""
    alone = [row for row in rows if row["rule"] == ALONE]
    kl = [row for row in shared.of_quantity(rows, KL) if row["rule"] != ALONE]
    checks = _refit_checks(alone)
    panels: list[Panel] = []
    for healing in sorted({row["healing"] for row in kl}):
        costs = _by_method([row for row in kl if row["healing"] == healing])
        words = f"after {healing} updates of healing" if healing else "without healing"
        checks += _checks(costs, words)
        panels.append(
            shared.panel(
                words.capitalize(),
                "parameters saved (%)",
                "KL divergence from the original (nats per token)",
                {
                    method: [(100 * share, value, error) for share, value, error in each.values()]
                    for method, each in costs.items()
                },
                log="y",
            )
        )
    return shared.summary(
        "What is left of a pretrained model when parts go",
        "KL divergence of simplified models from SmolLM2-135M on docstrings of Python's standard "
        "library, which nothing was chosen by. Bars are standard errors over windows, of `random` "
        "over seeds.",
        panels,
        checks,
        kinds=_kinds(alone),
        alone=_told(alone),
        together=_told(row for row in rows if row["rule"] != ALONE),
    )


def _told(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    silent = ("study", "method")
    return [{name: own for name, own in row.items() if name not in silent} for row in rows]


def _kinds(alone: Rows) -> list[dict[str, object]]:
    """Tabulate median and range over layers of each kind's cost alone."""
    return [
        {
            "kind": kind,
            "layers": len(own),
            "median": median(own),
            "least": min(own),
            "most": max(own),
        }
        for (kind,), own in shared.gathered(shared.of_quantity(alone, KL), "kind").items()
    ]


def _refit_checks(alone: Rows) -> list[Check]:
    """Count the layers on which an identity costs less with a refit than without."""
    costs = shared.nested(alone, "kind", "layer", "quantity")
    checks: list[Check] = []
    for kind, layers in costs.items():
        pairs = [one for one in layers.values() if PLAIN in one]
        if pairs:
            less = sum(one[KL] < one[PLAIN] for one in pairs)
            checks.append(
                Check(
                    fact=f"{kind} costs less with the refit than without",
                    expected=f"on {MOST:.0%} of the layers or more",
                    ours=f"on {less} of {len(pairs)}",
                    holds=less >= MOST * len(pairs),
                )
            )
    return checks


Costs = Mapping[str, Mapping[int, tuple[float, float, float]]]
"""Method → {layers: (share of parameters saved, KL, standard error of KL)}."""


def _by_method(kl: Rows) -> Costs:
    found: dict[str, dict[int, tuple[float, float, float]]] = {}
    for (method, layers), each in shared.grouped(kl, "rule", "layers").items():
        value, error = mean_and_error([row["value"] for row in each])
        if len(each) == 1:
            error = each[0]["standard_error"]
        share = sum(row["share"] for row in each) / len(each)
        found.setdefault(method, {})[layers] = (share, value, error)
    return found


def _checks(costs: Costs, words: str) -> list[Check]:
    plan = costs.get(PLAN, {})
    baselines = {name: own for name, own in costs.items() if name not in (PLAN, BESIDE)}
    found: list[Check] = []
    for layers, (share, value, error) in plan.items():
        others = {name: own[layers] for name, own in baselines.items() if layers in own}
        if not others:
            continue
        best = min(others, key=lambda name: others[name][1])
        _, other, its_error = others[best]
        apart = value - other
        decided = abs(apart) > 2 * hypot(error, its_error)
        found.append(
            Check(
                fact=f"{share:.1%} saved, {words}: the plan costs no more than the best baseline",
                expected="KL at most that of the best of " + ", ".join(baselines),
                ours=f"{value:.3g} ± {error:.1g}, {best} {other:.3g} ± {its_error:.1g} nats",
                holds=(apart <= 0) if decided else None,
            )
        )
    if len(found) == SIZES:
        holds = sum(check.holds is True for check in found)
        fails = sum(check.holds is False for check in found)
        decided = holds >= NEEDED or fails > SIZES - NEEDED
        found.append(
            Check(
                fact=f"{words}, it does so at {NEEDED} of {SIZES} sizes",
                expected=f"at least {NEEDED}",
                ours=f"it does at {holds}, it does not at {fails}, the others are undecided",
                holds=holds >= NEEDED if decided else None,
            )
        )
    return found


STUDY = Study(
    name="simplify-pretrained",
    title="parts of a pretrained model taken by a measured plan, and as others do",
    source="ours, the first paper's question on a pretrained model",
    published=(
        "Depth pruning removes whole layers by a heuristic (last layers first, similarity of "
        "states); which parts of a pretrained block can go was not measured part by part."
    ),
    settings=settings,
    measure=measure,
    summarise=summarise,
    columns=(
        *("study", "rule", "seed", "layers", "kind", "layer", "share", "healing"),
        *("quantity", "value", "standard_error", "method"),
    ),
    revision=REVISION,
)
