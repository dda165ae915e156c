"""Differentiate the network after the last attention, which acts on each token separately.

Letters: N tokens with a label, D width, C classes, F rows of a factor of Λ_o, a the attention's
output at one token, h(a) the token's final hidden state, f = W h + b its logits, ℓ its term of the
loss.

Gauss-Newton split with the logits as network output:
    g = Jᵀ r, Λ_o = Jᵀ H_ℓ J, Λ_f = Σ_c r_c ∇²f_c, with J = ∂f/∂a, r = ∂ℓ/∂f, H_ℓ = ∂²ℓ/∂f².
The logits are linear in h, so that Λ_f = Σ_d (Wᵀ r)_d ∇²h_d needs no second derivatives of logits.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, jacrev, vjp, vmap

from hessblocks.curvature.exact.unembedding import SeenLoss
from hessblocks.curvature.last_layer import HiddenNetwork
from hessblocks.linalg import chunks
from hessblocks.theory import TokenCurvature

_AT_ONCE = 1 << 21
"""Entries of Jacobians per batch; larger batches leave the cache and are slower (GPT-2 small:
5 %)."""


@dataclass(frozen=True, kw_only=True)
class TokenDerivatives:
    """Derivatives of the loss by the attention output of each token."""

    gradient: Float[Tensor, "N D"]
    """g, the gradient of the loss."""
    outer: TokenCurvature
    """Λ_o: a factor of C rows if C < D, else (D, D) matrices."""
    functional: TokenCurvature | None
    """Λ_f, the Hessian of the network after the attention, weighted by the loss gradient; None if
    it is zero, as for ReLU without norms."""
    hidden: Float[Tensor, "N D"]
    """Output of our network, which the caller compares with the model's."""


def token_derivatives(
    network: HiddenNetwork,
    attended: Float[Tensor, "N D"],
    x: Float[Tensor, "N state"],
    loss: SeenLoss,
) -> TokenDerivatives:
    """Differentiate Σ_n ω_n · cross-entropy(logits(network(attended_n, x_n)), labels_n).

    Args:
        network: network of one token.
        attended: outputs of the attention.
        x: inputs of the layer.
        loss: loss as a function of the network's outputs; its memory limit bounds intermediate
            results, without the returned tensors.

    Returns:
        g, Λ_o and Λ_f of each token.

    Cost: min(C, D) passes of the network per token for J, and about D gradient passes for Λ_f
        unless it is zero; N C D² multiplications for the curvature by h if C ≥ D. Memory: N D²
        numbers for each of Λ_o and Λ_f.
    """
    with torch.no_grad():
        gradient, outer, hidden = _first(network, attended, x, loss)
        functional = _functional(network, attended, x, loss)
    return TokenDerivatives(gradient=gradient, outer=outer, functional=functional, hidden=hidden)


def _first(
    network: HiddenNetwork, attended: Tensor, x: Tensor, loss: SeenLoss
) -> tuple[Tensor, TokenCurvature, Tensor]:
    """Compute Λ_o from the Jacobian of the logits (C rows) or of h (D rows), whichever is smaller.

    Returns:
        g, Λ_o (as a factor if C < D) and h of each token.
    """
    few, width = loss.few_classes, attended.shape[-1]
    # W or the identity for all tokens: vmap runs linear layers at the end once, not per token
    rows = loss.weight if few else torch.eye(width).to(attended)
    slopes = loss.residual if few else loss.gradient
    outer = attended.new_empty(len(attended), len(rows), width) if few else loss.curvature()

    def jacobian_of(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        out, pull, *_ = vjp(lambda point: network(point, x), a)
        return vmap(pull)(rows)[0], out

    gradient, hidden = torch.empty_like(attended), torch.empty_like(attended)
    for chunk in chunks(len(attended), _together(attended, loss.memory_limit)):
        J, hidden[chunk] = vmap(jacobian_of)(attended[chunk], x[chunk])
        gradient[chunk] = (slopes[chunk, None] @ J)[:, 0]
        outer[chunk] = loss.root(J, chunk) if few else J.mT @ outer[chunk] @ J
    if few:
        return gradient, TokenCurvature(factor=outer), hidden
    return gradient, TokenCurvature(matrix=outer, positive_semidefinite=True), hidden


def _functional(
    network: HiddenNetwork, attended: Tensor, x: Tensor, loss: SeenLoss
) -> TokenCurvature | None:
    """Compute Λ_f of every token; None if its product with a generic vector is 0 everywhere."""
    gradient = grad(lambda a, u, x: (u * network(a, x)).sum())

    def times(direction: Tensor, a: Tensor, u: Tensor, x: Tensor) -> Any:
        return vjp(lambda point: gradient(point, u, x), a)[1](direction)[0]

    pulled, step = loss.gradient, _together(attended, loss.memory_limit)
    generic = torch.arange(1, attended.shape[-1] + 1).to(attended).sqrt().sin().expand_as(attended)
    if not vmap(times, chunk_size=step)(generic, attended, pulled, x).any():
        return None
    matrix = attended.new_empty(*attended.shape, attended.shape[-1])
    for chunk in chunks(len(attended), step):  # jacrev: forward mode is wrong for torch layer norm
        matrix[chunk] = vmap(jacrev(gradient))(attended[chunk], pulled[chunk], x[chunk])
    return TokenCurvature(matrix=matrix)


def _together(attended: Tensor, memory_limit: int) -> int:
    """Count the tokens per batch; hidden layers take most of the memory, twice as much for Λ_f."""
    square = attended.shape[-1] ** 2
    return max(1, min(memory_limit // (32 * square * attended.element_size()), _AT_ONCE // square))
