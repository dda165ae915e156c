"""The optimisers of the study `optimisers` that the Trainer does not have: Muon beside AdamW, and AdamW with a rate for each role."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace
from statistics import fmean
from typing import cast

from torch import nn
from torch.optim import Muon, Optimizer
from transformers import PreTrainedModel

from hessblocks.curvature import (
    AttentionBackendWarning,
    PreconditionedHessian,
    Problem,
    blockwise_learning_rates,
    parameter_groups,
)
from hessblocks.linalg import Estimate, frobenius_norm
from hessblocks.storage import Row
from hessblocks.studies import shared
from hessblocks.studies.our_questions.optimiser_plan import OptimiserSettings
from hessblocks.training import RunTrainer

PILOT_RATE = 1e-3


def with_muon(trainer: RunTrainer) -> None:
    """Let Muon step the matrices of the layers at AdamW's rate, and AdamW all else.

    Muon steps whenever AdamW has stepped, so that Trainer and schedule know one optimiser.

    Args:
        trainer: before it trains.
    """
    model = cast(PreTrainedModel, trainer.model)
    named = dict(model.named_parameters())
    roles = shared.SETS[shared.ALL_MATRICES]
    inner = {
        name
        for group in parameter_groups(model).values()
        if group.role in roles
        for name in group.parameters
        if named[name].ndim == 2
    }
    adamw = trainer.create_optimizer()
    hidden = {named[name] for name in inner}
    for group in adamw.param_groups:
        group["params"] = [p for p in group["params"] if p not in hidden]
    muon = Muon(
        [p for p in named.values() if p in hidden],
        lr=trainer.args.learning_rate,
        weight_decay=trainer.args.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )

    def step(optimiser: Optimizer, *_: object) -> None:
        muon.param_groups[0]["lr"] = optimiser.param_groups[0]["lr"]
        muon.step()

    adamw.register_step_post_hook(step)


def with_rates_of_roles(settings: OptimiserSettings, trainer: RunTrainer) -> None:
    """Give AdamW a rate for the matrices of each role, by the curvature that a pilot meets.

    Args:
        settings: of the point.
        trainer: before it trains; its model stays as it is.
    """
    model, arguments = cast(PreTrainedModel, trainer.model), trainer.args
    rate, decay = arguments.learning_rate, arguments.weight_decay
    rates = blockwise_learning_rates(
        model, shared.by_role(model), base=rate, norms=pilot_norms(settings, model)
    )
    sizes = [sum(p.numel() for p in one["params"] if p.ndim >= 2) for one in rates]
    logarithms = [math.log(one["lr"]) for one in rates]
    factor = rate / math.exp(fmean(logarithms, weights=sizes))
    groups = []
    for one in rates:
        matrices = [p for p in one["params"] if p.ndim >= 2]
        vectors = [p for p in one["params"] if p.ndim < 2]
        own = factor * one["lr"]
        groups += [
            {"params": matrices, "lr": own, "weight_decay": decay * rate / own},
            {"params": vectors, "lr": rate, "weight_decay": 0.0},
        ]
    kind, given = trainer.get_optimizer_cls_and_kwargs(arguments, model)
    trainer.optimizer = kind([group for group in groups if group["params"]], **given)


def pilot_norms(settings: OptimiserSettings, model: PreTrainedModel) -> dict[str, Estimate]:
    """Norms of each role's block of the Hessian as AdamW's step meets it, after a pilot on a copy.

    Args:
        settings: of the point.
        model: freshly initialised.

    Returns:
        Role → estimate.

    Cost:
        The pilot's steps, and a product with the Hessian for each role and probe.
    """
    assert settings.pilot is not None
    assert settings.probe is not None
    corpus, probe, run = (
        shared.text_of(settings.size),
        settings.probe,
        shared.run_settings(settings),
    )
    short = replace(
        run.training, steps=settings.pilot, evaluate_every=settings.pilot, learning_rate=PILOT_RATE
    )
    norms: dict[str, Estimate] = {}
    trainers: list[RunTrainer] = []

    def observe(model: nn.Module, step: int) -> list[Row]:
        if step:
            optimiser = cast(Optimizer, trainers[0].optimizer)
            batch = shared.training_batch(corpus, probe.sequences, probe.tokens, settings.seed)
            problem = Problem(model.eval(), batch, loss="causal-lm")
            for role, group in shared.by_role(model).items():
                operator = PreconditionedHessian(problem, optimiser, group)
                norms[role] = frobenius_norm(operator, probes=probe.probes)
        return []

    with warnings.catch_warnings(action="ignore", category=AttentionBackendWarning):
        shared.train(
            copy.deepcopy(model), replace(run, training=short), corpus, observe, trainers.append
        )
    return norms
