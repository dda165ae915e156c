"""Train with Muon or SGD beside AdamW, or with AdamW and a rate for each role, in the Trainer."""

import copy
import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any, cast

from torch import nn
from torch.optim import SGD, Muon, Optimizer
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState

from hessblocks import curvature
from hessblocks.errors import RunError
from hessblocks.linalg import Estimate, frobenius_norm
from hessblocks.storage import Row
from hessblocks.training import RunTrainer
from hessblocks_studies import shared
from hessblocks_studies.our_questions.optimiser_plan import MUON, PUBLISHED, OptimiserSettings

RATE_OF_ROLE, NORM_OF_ROLE = "rate_of_role", "norm_of_role"
VECTORS = "vectors"
"""Group of norms and gains, used in place of a role; it has the tuned rate."""


class PilotDivergedError(RunError):
    """The pilot had a loss, a gradient or a Hessian-vector product that is not finite."""


def with_another_in_layers(settings: OptimiserSettings, trainer: RunTrainer) -> None:
    """Update the layers' matrices with Muon or SGD at the tuned rate, the rest with AdamW.

    Beside Muon, AdamW has the same rate; beside SGD, a separate rate. The second optimiser steps
    after each step of AdamW, with AdamW's schedule, so that the Trainer needs only one optimiser.

    Args:
        settings: settings of the point.
        trainer: trainer before training.
    """
    model, rate = cast(PreTrainedModel, trainer.model), settings.size.learning_rate
    trainer.args.learning_rate = settings.adamw_rate or rate
    named = dict(model.named_parameters())
    roles = shared.SETS[shared.ALL_MATRICES]
    inner = {
        name
        for group in curvature.parameter_groups(model).values()
        if group.role in roles
        for name in group.parameters
        if named[name].ndim == 2
    }
    adamw = trainer.create_optimizer()
    hidden = {named[name] for name in inner}
    for group in adamw.param_groups:
        group["params"] = [p for p in group["params"] if p not in hidden]
    own = [p for p in named.values() if p in hidden]
    other: Optimizer = SGD(own, lr=rate, momentum=0.9)
    if settings.method == MUON:
        decay = trainer.args.weight_decay
        other = Muon(own, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    ratio = rate / trainer.args.learning_rate

    def step(optimiser: Optimizer, *_: object) -> None:
        other.param_groups[0]["lr"] = ratio * optimiser.param_groups[0]["lr"]
        other.step()

    adamw.register_step_post_hook(step)


def matrices_by_role(model: nn.Module) -> dict[str, curvature.ParameterGroup]:
    """Merge the matrices of each role over all layers; norms and gains together as `VECTORS`."""
    sizes = {name: parameter.ndim for name, parameter in model.named_parameters()}
    views: dict[str, list[curvature.ParameterView]] = {}
    for role, group in shared.by_role(model).items():
        for view in group.views:
            own = role if sizes[view.parameter] >= 2 else VECTORS
            views.setdefault(own, []).append(view)
    return {
        role: curvature.ParameterGroup(name=role, role=role, layer=None, views=tuple(own))
        for role, own in views.items()
    }


def with_rates_of_roles(settings: OptimiserSettings, trainer: RunTrainer) -> list[Row]:
    """Set AdamW's rate per role, from published multipliers or from the curvature after a pilot.

    Args:
        settings: settings of the point.
        trainer: trainer before training; its model is not changed.

    Returns:
        Rows with each role's rate relative to the tuned rate, and with the norms of the roles.

    Raises:
        PilotDivergedError: the pilot diverged.
    """
    model, arguments = cast(PreTrainedModel, trainer.model), trainer.args
    rate, decay = arguments.learning_rate, arguments.weight_decay
    rows: list[Row] = []
    if settings.method == PUBLISHED:
        roles, factor = shared.by_role(model), 1.0
        rates = shared.blockwise_learning_rates(model, roles, base=rate, rule="published")
    else:
        norms = pilot_norms(settings, model)
        rates = shared.blockwise_learning_rates(
            model, matrices_by_role(model), base=rate, norms=norms
        )
        sizes = [sum(p.numel() for p in one["params"] if p.ndim >= 2) for one in rates]
        logarithms = [math.log(one["lr"]) for one in rates]
        factor = rate / math.exp(fmean(logarithms, weights=sizes))
        for role, norm in norms.items():
            place: Row = {"group": role, "standard_error": norm.standard_error}
            rows.append(shared.measured(NORM_OF_ROLE, norm.value, "estimate", **place))
    groups = []
    for one in rates:
        matrices = [p for p in one["params"] if p.ndim >= 2]
        vectors = [p for p in one["params"] if p.ndim < 2]
        own = factor * one["lr"]
        groups += [
            {"params": matrices, "lr": own, "weight_decay": decay * rate / own},
            {"params": vectors, "lr": rate, "weight_decay": 0.0},
        ]
        if matrices:
            rows.append(shared.measured(RATE_OF_ROLE, own / rate, "exact", group=one["name"]))
    kind, given = trainer.get_optimizer_cls_and_kwargs(arguments, model)
    trainer.optimizer = kind([group for group in groups if group["params"]], **given)
    return rows


class Pilot(TrainerCallback):
    """Stop training after some steps and measure norms of the preconditioned Hessian there."""

    norms: dict[str, Estimate] | None = None
    """Role → norm of its block; None before the measurement."""

    def __init__(self, settings: OptimiserSettings) -> None:
        """Store the settings of the point."""
        self.settings = settings

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Measure and stop after the pilot's last step."""
        settings = self.settings
        assert settings.probe is not None
        if state.global_step != settings.pilot:
            return
        control.should_training_stop = True
        model, probe = given["model"].eval(), settings.probe
        corpus = shared.text_of(settings.size)
        batch = shared.training_batch(corpus, probe.sequences, probe.tokens, settings.seed)
        problem = curvature.Problem(model, batch, loss="causal-lm")
        self.norms = _norms(problem, given["optimizer"], matrices_by_role(model), settings)


def pilot_norms(settings: OptimiserSettings, model: PreTrainedModel) -> dict[str, Estimate]:
    """Estimate the norm of each role's preconditioned Hessian after a pilot at AdamW's rate.

    Args:
        settings: settings of the point.
        model: freshly initialised model; a copy of it is trained.

    Returns:
        Role → estimate.

    Raises:
        PilotDivergedError: a loss, gradient or product is not finite.

    Cost:
        The pilot's steps, and one Hessian-vector product per role and probe.
    """
    assert settings.adamw_rate is not None
    size = replace(settings.size, learning_rate=settings.adamw_rate)
    pilot, run = Pilot(settings), shared.run_settings(replace(settings, size=size))
    try:
        shared.train(
            copy.deepcopy(model),
            run,
            shared.text_of(settings.size),
            change=lambda trainer: trainer.add_callback(pilot),
        )
    except RunError as error:
        raise PilotDivergedError(f"the pilot of {settings.label}: {error}") from error
    if pilot.norms is None:
        raise PilotDivergedError(f"the pilot of {settings.label} diverged before it was measured")
    return pilot.norms


def preconditioned_rows(
    model: PreTrainedModel, optimiser: Optimizer, settings: OptimiserSettings
) -> list[Row]:
    """Measure the unevenness of D^(-1/2) H D^(-1/2), as AdamW's step sees it, on the batch of H.

    Args:
        model: model; it is set to evaluation mode.
        optimiser: AdamW of this model, after its first step.
        settings: settings of the point.

    Returns:
        Rows in the format of `shared.unevenness_rows`.
    """
    assert settings.probe is not None
    probe, groups = settings.probe, curvature.parameter_groups(model)
    corpus = shared.text_of(settings.size)
    batch = corpus.curvature_batch(probe.sequences, probe.tokens, settings.seed)
    problem = curvature.Problem(model.eval(), batch, loss="causal-lm")
    return shared.unevenness_rows(groups, _norms(problem, optimiser, groups, settings))


def _norms(
    problem: curvature.Problem,
    optimiser: Optimizer,
    groups: Mapping[str, curvature.ParameterGroup],
    settings: OptimiserSettings,
) -> dict[str, Estimate]:
    """Estimate the Frobenius norm of each group's block of D^(-1/2) H D^(-1/2)."""
    assert settings.probe is not None
    with warnings.catch_warnings(action="ignore", category=curvature.AttentionBackendWarning):
        return {
            name: frobenius_norm(
                curvature.PreconditionedHessian(problem, optimiser, group),
                probes=settings.probe.probes,
                seed=settings.seed,
            )
            for name, group in groups.items()
        }
