"""Functional part H_f = Σ_n ⟨∂ℓ/∂F_n, ∂²F_n⟩, block by block; zero between different heads.

With ρ the score gradient of `heads`, e = Σ_j ρ_j x_j, N_3 the third moment along the loss gradient,
s the scale and β the gain of A, entry (p r), (t w) of Σ_n is:

| block | softmax | linear scores |
| query, query | s²β x_p x_t (W_Kᵀ N_3 W_K)_rw | 0 |
| key, key | s²β (N_3)_pt q_r q_w | 0 |
| query, key | s²β x_p (W_Kᵀ N_3)_rt q_w + sβ x_p e_t δ_rw | second term |
| value, query | sβ g_r (M_2 W_K)_pw x_t | the same |
| value, key | sβ g_r (M_2)_pt q_w | the same |
| value, projection | f_p δ_rt g_w | the same |
| query, projection | x_p G_tr g_w | the same |
| key, projection | P_tp q_r g_w | the same |
| beta, query / key | s x_t (W_Kᵀ e)_w / s e_t q_w | the same |
| gain, value / projection | φ_t g_w / (W_Vᵀ φ)_t g_w, φ = x, m, −c̄ | the same |

g is the loss gradient at the head's values (value rows) or at the output (projection columns). For
wide inputs no (D, D) matrix a token is held: the sum over keys is taken outside the one over
tokens. Σ_n then gives one small matrix for each key, beside x_j x_jᵀ.

Letters: B sequences, L tokens, Q queries, N tokens that enter the loss, D width of the input, K
query-key width, V value width, E and U any widths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg import KroneckerTerm, TokenMatrices
from hessblocks.theory.between_scores import bent_terms, terms_between
from hessblocks.theory.heads import HeadTokens
from hessblocks.theory.outer import gain_feature
from hessblocks.theory.piecewise import GAINS

Terms = list[KroneckerTerm]
Swapped = Literal["neither", "row", "column", "both"]


def functional_terms(head: HeadTokens, row: str, column: str) -> Terms:
    """Collect the terms of H_f between two groups of one head; an empty list where it is zero.

    Args:
        head: the head.
        row: name of the row group.
        column: name of the column group.

    Returns:
        Terms whose sum is the block.
    """
    return [*softmax_terms(head, row, column), *score_terms(head, row, column)]


def softmax_terms(head: HeadTokens, row: str, column: str) -> Terms:
    """Collect the terms from first derivatives of the scores, H_o^T of Remark D.1.

    Args:
        head: the head.
        row: name of the row group.
        column: name of the column group.

    Returns:
        Terms.
    """
    row, column = _named(row), _named(column)
    if head.joined and (found := terms_between(head, row, column)) is not None:
        return found
    if (row, column) in _BLOCKS:
        return _BLOCKS[row, column](head)
    if (column, row) in _BLOCKS:
        return [term.adjoint() for term in _BLOCKS[column, row](head)]
    return []


def score_terms(head: HeadTokens, row: str, column: str) -> Terms:
    """Collect the terms from second derivatives of the scores, H_f^T of Remark D.1.

    Args:
        head: the head.
        row: name of the row group.
        column: name of the column group.

    Returns:
        Terms; with bilinear scores between query and key alone.
    """
    row, column = _named(row), _named(column)
    if head.joined:
        return bent_terms(head, row, column)
    if (row, column) == ("key", "query"):
        return [term.adjoint() for term in score_terms(head, column, row)]
    if (row, column) != ("query", "key"):
        return []
    width, head_width = head.w_query.shape
    identity = _identity(head_width, head)[None]
    return [_term(_identity(width, head), product_gradient(head), identity)]


def _named(group: str) -> str:
    return "query" if group == "query_key" else group


def _query_query(head: HeadTokens) -> Terms:
    if not head.softmax:
        return []
    factor = head.scale**2 * head.beta
    carried = (head.carried_keys, factor * head.carried_keys)
    if _few_keys(head):
        left, right = head.third_factors(*carried)
        third = TokenMatrices(left=left, right=right, symmetric=True)
    else:
        third = TokenMatrices(right=head.third_moment(*carried), symmetric=True)
    return [_term(head.x_query, head.x_query, third)]


def _key_key(head: HeadTokens) -> Terms:
    if not head.softmax:
        return []
    factor = head.scale**2 * head.beta
    if not _wide(head):
        third = head.third_moment(head.carried_x, factor * head.carried_x)
        matrices = TokenMatrices(right=third, symmetric=True)
        return [_term(head.queries, head.queries, matrices, swapped="both")]
    by_key = factor * _sum_by_key(head, head.score_gradient, head.queries, head.queries)
    mean = head.average(head.carried_x)
    first = factor * _score_response(head)
    # the moment is central: what the mean adds is of rank two a token
    centring = TokenMatrices(
        left=torch.stack([first, mean], dim=1), right=-torch.stack([mean, first], dim=1)
    )
    queries = _term(head.queries, head.queries, centring, swapped="both")
    return [_by_key(head, by_key), queries]


def product_gradient(head: HeadTokens) -> Float[Tensor, "D D"]:
    """Compute Σ_n x (sβ e)ᵀ, the gradient of the loss in W_Q W_Kᵀ, (D, D)."""
    return head.x_query.T @ (head.scale * head.beta * _score_response(head))


def _query_key(head: HeadTokens) -> Terms:
    if not head.softmax:
        return []
    third = head.third_moment(head.carried_keys, head.scale**2 * head.beta * head.carried_x)
    return [_term(head.x_query, head.queries, third, swapped="column")]


def _value_query(head: HeadTokens) -> Terms:
    if head.w_key is None:
        second = TokenMatrices(right=head.second_moment, symmetric=True)
    else:
        carried = head.scale * head.beta * head.carried_keys
        second = TokenMatrices(right=head.covariance(head.carried_x, carried))
    return [_term(head.value_gradient, head.x_query, second, swapped="row")]


def _value_key(head: HeadTokens) -> Terms:
    if not _wide(head):
        second = TokenMatrices(right=head.second_moment, symmetric=True)
        return [_term(head.value_gradient, head.queries, second, swapped="both")]
    factor = head.scale * head.beta
    by_key = factor * _sum_by_key(head, head.slope, head.value_gradient, head.queries)
    terms = [_by_key(head, by_key)]
    if head.softmax:
        mean = head.average(head.carried_x)
        rank_one = TokenMatrices(
            left=-factor * head.value_gradient[:, None], right=head.queries[:, None]
        )
        terms.append(_term(mean, mean, rank_one))
    return terms


def _value_projection(head: HeadTokens) -> Terms:
    identity = _identity(head.w_value.shape[1], head)
    return [_term(head.features, head.gradient, identity[None], swapped="column")]


def _query_projection(head: HeadTokens) -> Terms:
    response = head.respond(None, head.scale * head.beta * head.carried_keys)
    return [_term(head.x_query, head.gradient, response.mT, swapped="column")]


def _key_projection(head: HeadTokens) -> Terms:
    response = head.respond(None, head.scale * head.beta * head.carried_x)
    return [_term(head.queries, head.gradient, response.mT, swapped="both")]


def _beta_query(head: HeadTokens) -> Terms:
    return [_gain_row(head.x_query, head.scale * head.respond_along(head.carried_keys))]


def _beta_key(head: HeadTokens) -> Terms:
    return [_gain_row(head.queries, head.scale * _score_response(head), swapped="column")]


def _gain_value(gain: str) -> Callable[[HeadTokens], Terms]:
    return lambda head: [_gain_row(gain_feature(head, gain), head.value_gradient)]


def _gain_projection(gain: str) -> Callable[[HeadTokens], Terms]:
    return lambda head: [_gain_row(gain_feature(head, gain) @ head.w_value, head.gradient)]


_BLOCKS: dict[tuple[str, str], Callable[[HeadTokens], Terms]] = {
    ("query", "query"): _query_query,
    ("key", "key"): _key_key,
    ("query", "key"): _query_key,
    ("value", "query"): _value_query,
    ("value", "key"): _value_key,
    ("value", "projection"): _value_projection,
    ("query", "projection"): _query_projection,
    ("key", "projection"): _key_projection,
    ("beta", "query"): _beta_query,
    ("beta", "key"): _beta_key,
    **{(gain, "value"): _gain_value(gain) for gain in GAINS},
    **{(gain, "projection"): _gain_projection(gain) for gain in GAINS},
}


def _wide(head: HeadTokens) -> bool:
    """Tell whether a (D, D) matrix a token would outweigh the matrices a key."""
    return head.w_query.shape[0] > 2 * max(head.w_query.shape[1], head.w_value.shape[1])


def _few_keys(head: HeadTokens) -> bool:
    """Tell whether a token's (K, K) matrix is at least twice its two factors over the keys."""
    return 4 * head.x.shape[1] <= head.carried_keys.shape[2]


def _identity(size: int, head: HeadTokens) -> Tensor:
    return torch.eye(size, dtype=head.x.dtype, device=head.x.device)


def _score_response(head: HeadTokens) -> Tensor:
    """Compute E = Σ_j ρ_j x_j = M_2 u, (N, D)."""
    return head.respond_along(head.carried_x)


def _sum_by_key(head: HeadTokens, weights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Sum weight left rightᵀ over queries for each key, (B·L, E, U).

    Returns:
        The sums, from weights (B, Q, L), left (N, E) and right (N, U).
    """
    pairs = (left[:, :, None] * right[:, None, :]).flatten(1)
    summed = (weights.mT @ pairs.view(*weights.shape[:2], -1)).flatten(0, 1)
    return summed.view(-1, left.shape[1], right.shape[1])


def _by_key(head: HeadTokens, matrices: Tensor) -> KroneckerTerm:
    """Build the term Σ_j x_j x_jᵀ ⊗ (a matrix for each key)."""
    carried = head.carried_x.flatten(0, 1)
    return _term(carried, carried, matrices)


def _gain_row(vector: Tensor, other: Tensor, *, swapped: Swapped = "neither") -> KroneckerTerm:
    """Build a row of the block of one gain: Σ_n vector_n ⊗ other_n."""
    return _term(vector.new_ones(len(vector), 1), vector, other[:, None], swapped=swapped)


def _term(
    row: Tensor, column: Tensor, matrices: TokenMatrices | Tensor, *, swapped: Swapped = "neither"
) -> KroneckerTerm:
    """Build a term; `swapped` says whose matrix index comes first: row, column or both."""
    return KroneckerTerm(
        row=row,
        column=column,
        matrices=TokenMatrices(right=matrices) if isinstance(matrices, Tensor) else matrices,
        row_swapped=swapped in ("row", "both"),
        column_swapped=swapped in ("column", "both"),
    )
