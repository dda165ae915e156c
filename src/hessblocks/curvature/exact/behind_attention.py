"""Derivatives of what follows the last attention, which acts on each token by itself.

Letters: N tokens with a label, D width, C classes, F rows of a factor of Λ_o, a the attention sub-block's output at one token,
f(a) that token's logits, ℓ its share of the loss.

Gauss-Newton split with the logits as network output:
    g = Jᵀ r, Λ_o = Jᵀ H_ℓ J, Λ_f = Σ_c r_c ∇²f_c, with J = ∂f/∂a, r = ∂ℓ/∂f, H_ℓ = ∂²ℓ/∂f².
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, vjp, vmap

from hessblocks.curvature.exact.piecewise_linear import piecewise_linear
from hessblocks.linalg import MEMORY_LIMIT

TokenNetwork = Callable[..., Float[Tensor, "... C"]]
"""From one token's attention output (D,) and its side inputs to its logits (C,)."""


@dataclass(frozen=True, kw_only=True)
class TokenDerivatives:
    """How the loss depends on the attention output of each token."""

    gradient: Float[Tensor, "N D"]
    """g, the gradient of the loss."""
    factor: Float[Tensor, "N F D"]
    """R with RᵀR = Λ_o, F the smaller of C and D rows."""
    functional: Float[Tensor, "N D D"] | None
    """Λ_f, the curvature of the network behind the attention along the loss gradient; None where it
    is zero everywhere, as behind ReLU without norms."""


def token_derivatives(
    network: TokenNetwork,
    attended: Float[Tensor, "N D"],
    sides: tuple[Float[Tensor, "N ..."], ...],
    labels: Int[Tensor, " N"],
    weights: Float[Tensor, " N"],
    *,
    memory_limit: int = MEMORY_LIMIT,
) -> TokenDerivatives:
    """Derivatives of Σ_n weights_n · cross-entropy(network(attended_n, sides_n), labels_n).

    Args:
        network: acts on one token.
        attended: outputs of the attention sub-block.
        sides: what else the network reads at that token (the skip, the normalised input).
        labels: the right class of each token.
        weights: share of each token in the loss; 1/N for a mean.
        memory_limit: four times the bytes of the Jacobians that are made together; the rest is for the
            hidden layers behind them.

    Returns:
        g, a factor of Λ_o, and Λ_f of each token.

    Cost: min(C, D) passes of the network a token for J, and about D gradient passes for Λ_f unless it
        is zero; tokens are taken together as long as their Jacobians stay within the limit.
    """

    def one(
        a: Tensor, label: Tensor, weight: Tensor, *side: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        def logits_of(point: Tensor) -> Tensor:
            return network(point, *side)

        logits, jacobian = _value_and_jacobian(logits_of, a, basis)
        p = logits.softmax(-1)
        r = weight * (p - (torch.arange(len(p), device=p.device) == label).to(p.dtype))
        centred = jacobian - p @ jacobian
        root = (weight * p).sqrt()[:, None] * centred
        if root.shape[0] > root.shape[1]:  # fewer rows with the same RᵀR
            root = torch.linalg.qr(root, mode="r").R
        return r, r @ jacobian, root

    classes = network(attended[0], *(side[0] for side in sides)).shape[-1]
    width = attended.shape[-1]
    basis = attended.new_empty(0, 0)
    if classes < width:
        basis = torch.eye(classes, dtype=attended.dtype, device=attended.device)
    chunk = max(1, memory_limit // (4 * max(classes, width) * width * attended.element_size()))
    with torch.no_grad():
        r, gradient, factor = vmap(one, chunk_size=chunk)(attended, labels, weights, *sides)
        functional = _functional(network, attended, sides, r, chunk)
    return TokenDerivatives(gradient=gradient, factor=factor, functional=functional)


def _value_and_jacobian(
    function: Callable[[Tensor], Tensor], a: Tensor, basis: Tensor
) -> tuple[Tensor, Tensor]:
    """f(a) and ∂f/∂a, (C, D), by rows where there are fewer of them than columns.

    `basis`, (C, C), is empty where rows are not taken; it is one for all tokens, so that layers before the first nonlinearity, seen from the logits, are
    passed once and not once a token.

    Returns:
        The logits (C,) and the Jacobian.
    """
    if not len(basis):
        return function(a), jacfwd(function)(a)
    found: Any = vjp(function, a)
    return found[0], vmap(found[1])(basis)[0]


def _functional(
    network: TokenNetwork, attended: Tensor, sides: tuple[Tensor, ...], r: Tensor, chunk: int
) -> Tensor | None:
    """Λ_f of every token, or None where its operations or a product with a generic direction say it is zero."""
    gradient = grad(lambda a, r, *side: (r * network(a, *side)).sum())
    whole = jacrev(gradient)  # forward mode is wrong for torch's layer norm

    def times(direction: Tensor, a: Tensor, r: Tensor, *side: Tensor) -> Any:
        return vjp(lambda point: gradient(point, r, *side), a)[1](direction)[0]

    if piecewise_linear(lambda a: network(a, *(side[0] for side in sides)), attended[0]):
        return None
    generic = torch.arange(1, attended.shape[-1] + 1).to(attended).sqrt().sin().expand_as(attended)
    if not vmap(times, chunk_size=chunk)(generic, attended, r, *sides).any():
        return None
    found: Tensor = vmap(whole, chunk_size=chunk)(attended, r, *sides)
    return found
