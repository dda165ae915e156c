"""Forecast tolerated learning rates and the need for warm-up from the preconditioned sharpness.

The sharpness is the largest eigenvalue of D⁻¹H with D AdamW's preconditioner; the edge of stability
is 38 / η (Cohen et al. 2022, arXiv 2207.14484). The rule: PLAN.md beside this file, section
`edge-of-stability`.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any, cast

from torch import nn
from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hessblocks import curvature
from hessblocks.data import Example
from hessblocks.errors import RunError
from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row
from hessblocks.training import RunTrainer
from hessblocks_studies import shared
from hessblocks_studies.engine import Rows, Study, Summary
from hessblocks_studies.our_questions import edge_plan as plan
from hessblocks_studies.our_questions import edges as read
from hessblocks_studies.our_questions.edge_verdicts import verdicts

PRODUCTS, FIRST_PRODUCTS = 5, 40
"""Hessian-vector products for the sharpness of a role: in later measurements, which start from the
last eigenvector, and in the first one of a run."""
WHOLE_PRODUCTS = 15
"""Hessian-vector products for the sharpness of all parameters, which forecasts use."""
FOLLOWED = 0.2
"""Share of the steps after which the sharpness of runs at the safe rate is not measured."""
DRAWN = ("query", "key", "value", "mlp_in", "mlp_out", "embedding")
"""Roles in the figure; the table has all roles."""


class FirstLooks(TrainerCallback):
    """Call `look` after each step of `FIRST_LOOKS` that has no evaluation."""

    def __init__(self, look: Callable[[nn.Module, int], object], every: int) -> None:
        """Store the function that measures after a step, and the steps between evaluations."""
        self.look, self.every = look, every

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Call the function if this step is due."""
        step = state.global_step
        if step in plan.FIRST_LOOKS and step % self.every:
            self.look(given["model"], step)


def measure(settings: plan.EdgeSettings) -> list[Row]:
    """Train one model without clipping; measure the sharpness of all parameters and of roles."""
    trainers: list[RunTrainer] = []
    found: dict[str, curvature.Sharpness] = {}
    early: list[Row] = []
    size = settings.size

    def observe(model: nn.Module, step: int) -> list[Row]:
        if not step or not settings.sequences or not settings.tokens:
            return []
        if not settings.roles and step > max(read.EARLY, FOLLOWED * size.steps):
            return []
        corpus = shared.text_of(size)
        batch = shared.training_batch(corpus, settings.sequences, settings.tokens, settings.seed)
        optimiser = cast(Optimizer, trainers[0].optimizer)
        rows = sharpness(model, optimiser, batch, found, roles=bool(settings.roles))
        if step == read.EARLY and not settings.warmup and not settings.roles:
            rows += at_ten_eps(model, optimiser, batch, found)
        return rows

    def note(model: nn.Module, step: int) -> None:
        place: Row = {"step": step, "tokens": step * size.batch_size * size.context}
        early.extend({**settings.owner, **place, **row} for row in observe(model, step))

    def prepare(trainer: RunTrainer) -> None:
        trainers.append(trainer)
        trainer.args.max_grad_norm = 0.0  # no clipping
        trainer.add_callback(FirstLooks(note, max(1, size.steps // size.evaluations)))

    return settings.placed([*shared.train_point(settings, observe, prepare), *early])


def sharpness(
    model: nn.Module,
    optimiser: Optimizer,
    batch: Example,
    found: dict[str, curvature.Sharpness],
    *,
    roles: bool = True,
) -> list[Row]:
    """Compute the largest eigenvalue of D⁻¹H for all parameters and roles; compare with the edge.

    Args:
        model: model; it is set to evaluation mode.
        optimiser: AdamW of this model, after its first step.
        batch: batch of the training text.
        found: last results by role, as starting points; updated in place.
        roles: whether roles are measured, too.

    Returns:
        A row per role, with the residual as its error; none if a product is not finite. Rows of the
        edge are left out if the rate is 0.
    """
    problem = curvature.Problem(model.eval(), batch, loss="causal-lm")
    rows = []
    parts = shared.by_role(model) if roles else {}
    for name, group in {read.WHOLE: None, **parts}.items():
        start, usual = found.get(name), PRODUCTS if group else WHOLE_PRODUCTS
        products = usual if start else FIRST_PRODUCTS
        one = _largest(problem, optimiser, group, start=start, products=products)
        if one is None:
            continue
        found[name] = one
        place: Row = {"group": name, "standard_error": one.residual}
        rows.append(shared.measured(read.SHARPNESS, one.value, "estimate", **place))
        if name == read.WHOLE and math.isfinite(one.threshold):
            share = one.value / one.threshold
            place = {"group": name, "standard_error": one.residual / one.threshold}
            rows.append(shared.measured(read.SHARE, share, "estimate", **place))
    return rows


def _largest(problem: curvature.Problem, *given: Any, **asked: Any) -> curvature.Sharpness | None:
    """Compute a preconditioned sharpness; None if a product is not finite, as before divergence."""
    with warnings.catch_warnings(action="ignore", category=curvature.AttentionBackendWarning):
        try:
            return curvature.preconditioned_sharpness(problem, *given, **asked)
        except RunError:
            return None


def at_ten_eps(
    model: nn.Module, optimiser: Optimizer, batch: Example, found: dict[str, curvature.Sharpness]
) -> list[Row]:
    """Compute the sharpness with ten times eps in D, to test whether eps determines it.

    Args:
        model: model in evaluation mode.
        optimiser: AdamW of this model; its eps is restored.
        batch: batch of the training text.
        found: results of `sharpness` at this step; not changed.

    Returns:
        One row; none if a product is not finite.
    """
    usual = [group["eps"] for group in optimiser.param_groups]
    problem, start = curvature.Problem(model, batch, loss="causal-lm"), found.get(read.WHOLE)
    try:
        for group in optimiser.param_groups:
            group["eps"] *= 10
        one = _largest(problem, optimiser, start=start, products=FIRST_PRODUCTS)
    finally:
        for group, eps in zip(optimiser.param_groups, usual, strict=True):
            group["eps"] = eps
    if one is None:
        return []
    place: Row = {"group": read.WHOLE, "standard_error": one.residual}
    return [shared.measured(read.AT_TEN_EPS, one.value, "estimate", **place)]


def summarise(rows: Rows) -> Summary:
    """Plot losses, the edge and sharpness; judge tolerated rates and forecasts."""
    edges = read.edges_of(rows)
    tuned = edges.tuned
    return shared.summary(
        "At the edge of stability with and without warm-up",
        "Sharpness is the largest eigenvalue of D⁻¹H with AdamW's preconditioner, on training "
        "text; the edge is 38 over the current rate. Gradients are not clipped. Each block at its "
        f"best rate where the step is the abscissa. {shared.HOW}",
        [panel for panel in _panels(rows, edges) if panel.shown],
        verdicts(edges),
        losses=tuned.runs.table(),
        tuning=tuned.tuning_table(),
        edges=_edge_table(edges),
        forecasts=_forecast_table(edges),
        sharpness=_sharpness_table(rows, edges),
    )


def _edge_table(edges: read.Edges) -> list[dict[str, object]]:
    """Tabulate tolerated rates of all runs and the forecasts of their blocks."""
    rates, needs = (forecast.values for forecast in edges.forecasts())
    extra = edges.extra_losses()
    return [
        {
            "block": block,
            "kind": kind,
            "seed": seed,
            "log10_tolerated_rate": rate,
            "log10_forecast_rate": rates.get(block, {}).get(seed),
            "log10_early_over_later_sharpness": needs.get(block, {}).get(seed),
            "loss_without_above_with_warm_up": extra[block].get(seed),
        }
        for label, seeds in edges.tolerances().items()
        for block, kind in [plan.LABELS[label]]
        for seed, rate in seeds.items()
    ]


def _forecast_table(edges: read.Edges) -> list[dict[str, object]]:
    """Tabulate the forecast rate over the steps of the safe runs with warm-up."""
    return [
        {
            "block": block,
            "step": step,
            "log10_forecast_rate": mean,
            "standard_error": error,
            "seeds": len(seeds),
        }
        for block in plan.BLOCKS
        for sharp in [edges.lowest(plan.label_of(block, plan.WARM))]
        for step in edges.followed
        if (seeds := [each[step][0] for each in sharp.values() if step in each])
        for mean, error in [mean_and_error([math.log10(read.EDGE / value) for value in seeds])]
    ]


def _at_best(rows: Rows, edges: read.Edges, quantity: str) -> dict[str, Rows]:
    """Select rows above 0 by label, at the best rate of the label's block."""
    found: dict[str, Rows] = {}
    for label, (block, _) in plan.LABELS.items():
        rate = edges.best(block)
        name = f"{label}{shared.AT_RATE}{rate:g}" if rate else ""
        found[label] = [
            row
            for row in shared.of_quantity(rows, quantity)
            if row["variant"] == name and row["value"] > 0
        ]
    return found


def _curves(rows: Rows, column: str = "value") -> dict[str, dict[float, list[float]]]:
    """Collect role → {step: values of the seeds}."""
    found: dict[str, dict[float, list[float]]] = {}
    for row in sorted(rows, key=lambda row: float(row["step"])):
        found.setdefault(row["group"], {}).setdefault(float(row["step"]), []).append(row[column])
    return found


def _sharpness_table(rows: Rows, edges: read.Edges) -> list[dict[str, object]]:
    """Tabulate the sharpness of every role at the best rate and every step, averaged over seeds."""
    table: list[dict[str, object]] = []
    for label, own in _at_best(rows, edges, read.SHARPNESS).items():
        residuals = _curves(own, "standard_error")
        for group, steps in _curves(own).items():
            for step, values in steps.items():
                mean, error = mean_and_error(values)
                line = {"run": label, "group": group, "step": step, "sharpness": mean}
                line |= {"residual": fmean(residuals[group][step]), "standard_error": error}
                table.append(line | {"seeds": len(values)})
    return table


def _panels(rows: Rows, edges: read.Edges) -> list[Panel]:
    """Plot losses, the edge over training, and the sharpness of roles, with and without warm-up."""
    panels = [
        edges.tuned.runs.tuning_panel(
            {block: plan.label_of(block, kind) for block in plan.BLOCKS}
            | {shared.GPT2: shared.GPT2},
            kind,
        )
        for kind in plan.KINDS
    ]
    named = _at_best(rows, edges, read.SHARE)
    for kind in plan.KINDS:
        shares = {
            block: _curves(named[plan.label_of(block, kind)]).get(read.WHOLE, {})
            for block in plan.BLOCKS
        }
        panels.append(_along(f"{kind}: how near the edge", "sharpness over the edge", shares))
    for label, own in _at_best(rows, edges, read.SHARPNESS).items():
        roles = {name: each for name, each in _curves(own).items() if name in DRAWN}
        panels.append(_along(label, "largest eigenvalue of D⁻¹H", roles))
    return panels


def _along(title: str, y_label: str, curves: Mapping[str, Mapping[float, list[float]]]) -> Panel:
    """Plot curves over training on a logarithmic y axis."""
    means = {name: shared.mean_places(each) for name, each in curves.items()}
    return shared.panel(title, "training step", y_label, means, log="y")


STUDY = Study(
    name="edge-of-stability",
    title=(
        "sharpness as AdamW's step meets it, tolerated rates and the need for warm-up, pre-ln "
        "against sas-p"
    ),
    source="ours, from the edge of stability of adaptive optimisers",
    published=(
        "Training hovers where the preconditioned sharpness is 38 over the rate (Cohen et al. "
        "2022); nothing is published of simplified blocks."
    ),
    settings=plan.points,
    measure=measure,
    summarise=summarise,
    columns=shared.TUNED_COLUMNS,
    gpus=1,
)
