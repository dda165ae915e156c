"""Dense H, H_o and H_f of a case by forward-over-reverse autodiff in float64, the slow way.

Second derivatives are jacfwd(grad), not torch.func.hessian: jacfwd(jacrev) is wrong for torch's
layer norm (between a norm's weight and its input the matrix comes out asymmetric; torch 2.13).
BLOOM's activation is spelled out, since torch.func cannot pass its autograd.Function.

Nothing here is shared with the product code: the logits of all valid rows are one function of one
flat parameter vector, H is the Hessian of the mean loss, H_o is JᵀH_ℓJ with J assembled, and H_f
the sum over rows and classes of the residual times the Hessian of that one logit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.func import functional_call, grad, jacfwd
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.models.bloom.modeling_bloom import BloomGelu, bloom_gelu_forward

from hessblocks.curvature.groups.views import ParameterGroup, check_disjoint
from hessblocks.errors import ArgumentError
from tests.curvature.cases import Case

_PLAIN_BLOOM = patch.object(BloomGelu, "forward", lambda self, x: bloom_gelu_forward(x))


@dataclass(frozen=True, kw_only=True)
class Dense:
    """The assembled matrices and where each parameter's entries stand."""

    full: Tensor
    outer: Tensor
    functional: Tensor
    starts: dict[str, int]

    def places(self, group: ParameterGroup) -> Tensor:
        """Rows of the group's entries."""
        return torch.cat([self.starts[v.parameter] + v.positions() for v in group.views])

    def block(self, part: str, rows: ParameterGroup, columns: ParameterGroup) -> Tensor:
        matrix: Tensor = getattr(self, part)
        return matrix[self.places(rows)][:, self.places(columns)]


def check_partition(groups: Iterable[ParameterGroup], parameters: Mapping[str, Tensor]) -> None:
    """Every entry of every parameter belongs to exactly one group."""
    for name, owned in check_disjoint(groups, parameters).items():
        if not owned.all():
            raise ArgumentError(f"groups: entries of {name!r} belong to no group")


def dense(case: Case) -> Dense:
    parameters = {n: p.detach() for n, p in case.model.named_parameters() if p.requires_grad}
    starts, total = {}, 0
    for name, parameter in parameters.items():
        starts[name] = total
        total += parameter.numel()
    point = torch.cat([p.flatten() for p in parameters.values()])
    logits = partial(_valid_logits, case, parameters)
    loss = partial(_mean_loss, case)
    with sdpa_kernel(SDPBackend.MATH), _PLAIN_BLOOM:
        at = logits(point)
        jacobian = jacfwd(logits)(point).flatten(0, 1)
        residual = grad(loss)(at).flatten()
        curvature = jacfwd(grad(loss))(at).reshape(at.numel(), at.numel())
        full = jacfwd(grad(lambda theta: loss(logits(theta))))(point)
        second = jacfwd(lambda theta: _contracted_gradient(logits, residual, theta))(point)
    return Dense(
        full=full,
        outer=jacobian.T @ curvature @ jacobian,
        functional=second,
        starts=starts,
    )


def _contracted_gradient(logits: Any, residual: Tensor, theta: Tensor) -> Tensor:
    return grad(lambda inner: (residual * logits(inner).flatten()).sum())(theta)


def _valid_logits(case: Case, parameters: dict[str, Tensor], flat: Tensor) -> Tensor:
    """(rows, classes) of all batches, valid rows only."""
    pieces = flat.split([p.numel() for p in parameters.values()])
    values = {n: piece.view_as(parameters[n]) for n, piece in zip(parameters, pieces, strict=True)}
    rows = []
    for batch in case.batches:
        if isinstance(batch, tuple):
            output = functional_call(case.model, values, (batch[0],))
            rows.append(output[batch[1] != -100] if case.loss == "classification" else output)
        else:
            inputs = {k: v for k, v in batch.items() if k != "labels"}
            output = functional_call(case.model, values, (), inputs | _text_positions(batch)).logits
            if case.loss == "classification":
                rows.append(output)
                continue
            rows.append(output.flatten(0, 1)[_valid_tokens(batch, case.loss).flatten()])
    return torch.cat(rows)


def _text_positions(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Positions of each row's text alone, where padding stands before one."""
    mask = batch.get("attention_mask")
    if mask is None or mask[:, 0].all():
        return {}
    return {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}


def _valid_tokens(batch: dict[str, Tensor], loss: str) -> Tensor:
    """True where the logits of a position are judged."""
    if loss == "masked-lm":
        return batch["labels"] != -100
    valid = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
    valid[:, :-1] = (mask[:, 1:] == 1) & (mask[:, :-1] == 1)
    return valid


def _targets(case: Case) -> Tensor:
    found = []
    for batch in case.batches:
        if case.loss == "classification" and isinstance(batch, dict):
            found.append(batch["labels"])
        elif case.loss == "classification":
            found.append(batch[1][batch[1] != -100])
        elif case.loss == "masked-lm":
            found.append(batch["labels"][batch["labels"] != -100])
        elif case.loss == "causal-lm":
            following = batch["input_ids"].roll(-1, dims=1)
            found.append(following[_valid_tokens(batch, case.loss)])
        else:
            found.append(batch[1])
    return torch.cat(found)


def _mean_loss(case: Case, logits: Tensor) -> Tensor:
    targets = _targets(case)
    if case.loss == "regression":
        return (logits - targets).square().mean()
    if callable(case.loss):
        return (logits - targets).pow(4).sum() / len(targets)
    picked = logits.gather(1, targets[:, None])[:, 0]
    return (logits.logsumexp(dim=1) - picked).mean()
