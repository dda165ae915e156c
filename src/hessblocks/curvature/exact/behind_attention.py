"""Differentiate what follows the last attention, which acts on each token by itself.

Letters: N tokens with a label, D width, C classes, F rows of a factor of Λ_o, a the attention
sub-block's output at one token, h(a) that token's final hidden state, f = W h + b its logits, ℓ its
share of the loss.

Gauss-Newton split with the logits as network output:
    g = Jᵀ r, Λ_o = Jᵀ H_ℓ J, Λ_f = Σ_c r_c ∇²f_c, with J = ∂f/∂a, r = ∂ℓ/∂f, H_ℓ = ∂²ℓ/∂f².
The logits are linear in h, so that Λ_f = Σ_d (Wᵀ r)_d ∇²h_d: no second derivative passes the
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import grad, jacrev, vjp, vmap

from hessblocks.curvature.exact.piecewise_linear import piecewise_linear
from hessblocks.curvature.exact.unembedding import Unembedding
from hessblocks.curvature.last_layer import HiddenNetwork
from hessblocks.linalg import MEMORY_LIMIT, chunks
from hessblocks.theory import TokenCurvature

_AT_ONCE = 1 << 21
"""Numbers of Jacobians made together; more are slower, since their hidden layers leave the cache
(GPT-2 small: 5 %)."""


@dataclass(frozen=True, kw_only=True)
class TokenDerivatives:
    """Derivatives of the loss by the attention output of each token."""

    gradient: Float[Tensor, "N D"]
    """g, the gradient of the loss."""
    outer: TokenCurvature
    """Λ_o: a factor of C rows where there are fewer classes than coordinates, else whole."""
    functional: TokenCurvature | None
    """Λ_f, the curvature of the network behind the attention along the loss gradient; None where it
    is zero everywhere, as behind ReLU without norms."""
    hidden: Float[Tensor, "N D"]
    """The network's own result, computed anew, by which a caller sees whether it is the model's."""


def token_derivatives(
    network: HiddenNetwork,
    unembedding: Unembedding,
    attended: Float[Tensor, "N D"],
    sides: tuple[Float[Tensor, "N ..."], ...],
    hidden: Float[Tensor, "N D"],
    labels: Int[Tensor, " N"],
    weights: Float[Tensor, " N"],
    *,
    memory_limit: int = MEMORY_LIMIT,
) -> TokenDerivatives:
    """Differentiate Σ_n weights_n · cross-entropy(logits(network(attended_n, sides_n)), labels_n).

    Args:
        network: acts on one token.
        unembedding: from its result to the logits.
        attended: outputs of the attention sub-block.
        sides: what else the network reads at that token (the skip, the normalised input).
        hidden: what the network gives there.
        labels: the right class of each token.
        weights: share of each token in the loss; 1/N for a mean.
        memory_limit: bytes of what is made together, about; what is returned is not counted.

    Returns:
        g, Λ_o and Λ_f of each token.

    Cost: min(C, D) passes of the network a token for J, and about D gradient passes for Λ_f unless
        it is zero; N C D² multiplications for the curvature seen from h where there are more
        classes than coordinates. Memory: N D² numbers for each of Λ_o and Λ_f.
    """
    with torch.no_grad():
        behind = _few_classes if unembedding.classes < attended.shape[-1] else _many_classes
        gradient, outer, found, pulled = behind(
            network, unembedding, attended, sides, hidden, labels, weights, memory_limit
        )
        functional = _functional(network, attended, sides, pulled, memory_limit)
    return TokenDerivatives(gradient=gradient, outer=outer, functional=functional, hidden=found)


def _few_classes(
    network: HiddenNetwork,
    unembedding: Unembedding,
    attended: Tensor,
    sides: tuple[Tensor, ...],
    hidden: Tensor,
    labels: Tensor,
    weights: Tensor,
    memory_limit: int,
) -> tuple[Tensor, TokenCurvature, Tensor, Tensor]:
    """A factor of Λ_o from the Jacobian of the logits, row by row.

    The unit rows are the same for all tokens, so that layers before the first nonlinearity, seen
    from the logits, are passed once and not once a token.

    Returns:
        g, √(ω p) (J − pᵀ J) as a factor, the network's result and Wᵀ r of each token.
    """
    basis = torch.eye(unembedding.classes, dtype=attended.dtype, device=attended.device)

    def jacobian_of(a: Tensor, *side: Tensor) -> tuple[Tensor, Tensor]:
        def logits(point: Tensor) -> tuple[Tensor, Tensor]:
            found = network(point, *side)
            return unembedding.logits(found), found

        answer: Any = vjp(logits, a, has_aux=True)
        _, pull, found = answer
        return vmap(pull)(basis)[0], found

    residual = unembedding.residual(hidden, labels, weights)
    p = unembedding.logits(hidden).softmax(-1)
    gradient, found = torch.empty_like(attended), torch.empty_like(hidden)
    factor = attended.new_empty(*p.shape, attended.shape[-1])
    for some in chunks(len(attended), _together(attended, memory_limit)):
        jacobian, found[some] = vmap(jacobian_of)(attended[some], *(side[some] for side in sides))
        gradient[some] = (residual[some, None] @ jacobian)[:, 0]
        torch.sub(jacobian, p[some, None] @ jacobian, out=factor[some])
    factor *= (weights[:, None] * p).sqrt()[..., None]
    return gradient, TokenCurvature(factor=factor), found, residual @ unembedding.weight


def _many_classes(
    network: HiddenNetwork,
    unembedding: Unembedding,
    attended: Tensor,
    sides: tuple[Tensor, ...],
    hidden: Tensor,
    labels: Tensor,
    weights: Tensor,
    memory_limit: int,
) -> tuple[Tensor, TokenCurvature, Tensor, Tensor]:
    """Λ_o = J_hᵀ Λ_h J_h from the curvature seen from the hidden state, in its place.

    Returns:
        g, Λ_o, the network's result and Wᵀ r of each token.
    """
    rows = max(1, memory_limit // (2 * unembedding.classes * hidden.element_size()))
    if rows >= len(hidden):
        matrix = unembedding.curvature(hidden, weights)
    else:
        width = hidden.shape[-1]
        matrix = hidden.new_empty(len(hidden), width, width)
        for some in chunks(len(hidden), rows):
            matrix[some] = unembedding.curvature(hidden[some], weights[some])

    def twice(point: Tensor, *side: Tensor) -> tuple[Tensor, Tensor]:
        found = network(point, *side)
        return found, found

    pulled = unembedding.gradient(hidden, labels, weights, memory_limit)
    gradient, found = torch.empty_like(attended), torch.empty_like(hidden)
    for some in chunks(len(hidden), _together(attended, memory_limit)):
        points = (attended[some], *(side[some] for side in sides))
        jacobian, found[some] = vmap(jacrev(twice, has_aux=True))(*points)
        gradient[some] = (pulled[some, None] @ jacobian)[:, 0]
        matrix[some] = jacobian.mT @ matrix[some] @ jacobian
    outer = TokenCurvature(matrix=matrix, positive_semidefinite=True)
    return gradient, outer, found, pulled


def _functional(
    network: HiddenNetwork,
    attended: Tensor,
    sides: tuple[Tensor, ...],
    pulled: Tensor,
    memory_limit: int,
) -> TokenCurvature | None:
    """Λ_f of every token; None where its operations or a random direction show that it is zero."""
    gradient = grad(lambda a, u, *side: (u * network(a, *side)).sum())

    def times(direction: Tensor, a: Tensor, u: Tensor, *side: Tensor) -> Any:
        return vjp(lambda point: gradient(point, u, *side), a)[1](direction)[0]

    if piecewise_linear(lambda a: network(a, *(side[0] for side in sides)), attended[0]):
        return None
    step = _together(attended, memory_limit)
    generic = torch.arange(1, attended.shape[-1] + 1).to(attended).sqrt().sin().expand_as(attended)
    if not vmap(times, chunk_size=step)(generic, attended, pulled, *sides).any():
        return None
    matrix = attended.new_empty(*attended.shape, attended.shape[-1])
    for some in chunks(len(attended), step):  # forward mode is wrong for torch's layer norm
        matrix[some] = vmap(jacrev(gradient))(
            attended[some], pulled[some], *(side[some] for side in sides)
        )
    return TokenCurvature(matrix=matrix)


def _together(attended: Tensor, memory_limit: int) -> int:
    """Count tokens whose Jacobians fit together; hidden layers hold most, twice for Λ_f."""
    square = attended.shape[-1] ** 2
    return max(1, min(memory_limit // (32 * square * attended.element_size()), _AT_ONCE // square))
