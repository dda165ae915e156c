"""Compare every block of the last layer's Hessian with dense autodiff, for every kind of model.

Nothing is shared with the closed form or with the products: the logits of the labelled rows are one
function of one vector of parameters, differentiated forward over reverse in double precision.

Letters: P parameters, C classes, R labelled rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations_with_replacement
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call, grad, jacfwd
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessblocks.conventions import IGNORED, PARTS, Part
from hessblocks.curvature.exact import UNEMBEDDING, exact_last_block
from hessblocks.curvature.verification.places import places
from hessblocks.curvature.verification.tiny_models import (
    FAMILY_MODELS,
    batch_of,
    stirred,
    without_casts,
)
from hessblocks.theory import Check

BOUND = 1e-12
"""Largest accepted relative error of a block."""
SMALL = 1e-9
"""Share of the norm of the whole matrix below which autodiff's own rounding shows: then the error
is over it."""


def verify_last_blocks(
    models: Mapping[str, Callable[[], nn.Module]] = FAMILY_MODELS,
    *,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[Check]:
    """Compare `exact_last_block` with dense autodiff on tiny random models, in float64.

    Args:
        models: what is particular about each, and how it is made; weights are drawn anew.
        seed: of weights and inputs.
        progress: called with the name of each model before it runs.

    Returns:
        One row for each model, block on or above the diagonal, and part.

    Cost: a few seconds a model.
    """
    rows: list[Check] = []
    for name, make in models.items():
        if progress is not None:
            progress(name)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = stirred(make())
            batch, loss = batch_of(model)
        with without_casts(model):
            rows += compare(name, model, batch, loss)
    return rows


def compare(name: str, model: nn.Module, batch: Mapping[str, Any], loss: str) -> list[Check]:
    """Compare all blocks of one model.

    Args:
        name: of the case.
        model: in double precision, with a closed form.
        batch: with labels.
        loss: causal-lm, masked-lm or classification.

    Returns:
        One row for each block on or above the diagonal, and part; without the unembedding where it
        is tied.
    """
    found = exact_last_block(model, batch, loss)
    groups = [group for group in found.groups if not (group == UNEMBEDDING and found.tied)]
    starts, total = {}, 0
    for parameter in model.parameters():
        starts[id(parameter)] = total
        total += parameter.numel()
    numbers = {
        id(p): starts[id(p)] + torch.arange(p.numel()).view_as(p) for p in model.parameters()
    }
    where = {group: places(model, group, numbers) for group in groups}
    used = torch.zeros(total, dtype=torch.bool)
    used[torch.cat(list(where.values()))] = True
    dense = dense_hessian(model, batch, loss, used)
    at = used.cumsum(0) - 1
    where = {group: at[rows] for group, rows in where.items()}
    whole = float(dense["full"].norm())
    checks = []
    for row, column in combinations_with_replacement(groups, 2):
        for part in PARTS:
            expected = dense[part][where[row]][:, where[column]]
            scale = max(float(expected.norm()), SMALL * whole)
            error = float((found.block(row, column, part).dense() - expected).norm()) / scale
            checks.append(
                Check(case=name, block=f"{row}, {column}", part=part, error=error, bound=BOUND)
            )
    return checks


def dense_hessian(
    model: nn.Module, batch: Mapping[str, Any], loss: str, used: Bool[Tensor, " entries"]
) -> dict[Part, Float[Tensor, "P P"]]:
    """Compute dense H, H_o and H_f of the mean cross-entropy in some of the model's entries.

    Args:
        model: gives logits.
        batch: inputs and labels.
        loss: causal-lm (labels are of the token itself, predicted one before), masked-lm or
            classification.
        used: for every entry of all parameters in their order, whether it is differentiated.

    Returns:
        By part.
    """
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    everything = torch.cat([p.flatten() for p in parameters.values()])
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    if loss != "classification":
        inputs["use_cache"] = False  # as in training; a cache lets packed rows see each other
    targets, valid = _targets(batch["labels"], loss)
    index = used.nonzero()[:, 0]

    def logits(theta: Tensor) -> Tensor:
        flat = everything.index_put((index,), theta)
        pieces = flat.split([p.numel() for p in parameters.values()])
        values = {
            name: piece.view_as(p)
            for (name, p), piece in zip(parameters.items(), pieces, strict=True)
        }
        output: Any = functional_call(model, values, (), inputs)
        found: Tensor = output.logits[valid]
        return found

    def mean_loss(rows: Tensor) -> Tensor:
        return nn.functional.cross_entropy(rows, targets)

    def along(theta: Tensor) -> Tensor:
        product: Tensor = residual * logits(theta)
        return product.sum()

    def whole(theta: Tensor) -> Tensor:
        return mean_loss(logits(theta))

    with sdpa_kernel(SDPBackend.MATH):
        point = everything[index]
        at = logits(point)
        residual = grad(mean_loss)(at)
        jacobian = jacfwd(logits)(point).flatten(0, 1)
        curvature = jacfwd(grad(mean_loss))(at).reshape(at.numel(), at.numel())
        return {
            "outer": jacobian.T @ curvature @ jacobian,
            "functional": jacfwd(grad(along))(point),
            "full": jacfwd(grad(whole))(point),
        }


def _targets(labels: Int[Tensor, "..."], loss: str) -> tuple[Tensor, Any]:
    """Labels (R,), and where the logits stand that they judge."""
    if loss == "classification":
        return labels, slice(None)
    if loss == "causal-lm":
        labels = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    valid = labels != IGNORED
    return labels[valid], valid
