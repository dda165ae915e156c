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
wide inputs no (D, D) matrix per token is held: the sum over keys is taken outside the one over
tokens. Σ_n then gives one small matrix for each key, beside x_j x_jᵀ.

Where norms or rotary positions stand between the weights and the scores, a score is y_i · z_j of
final queries and keys, y = R norm(W_Qᵀ x), z likewise. Their derivatives y' and z' stand in the
place of x and W, and blocks of both norms' parameters are like those of queries and keys:

| query, query | s²β y' N_3(z, z) y' + sβ Σ_j ρ_j z_j·y'' | second term |
| key, key | s²β N_3(y·z', y·z') + sβ Σ_j ρ_j y·z_j'' | second term |
| query, key | s²β y' N_3(z, y·z') + sβ y'·Σ_j ρ_j z_j' | second term |

For queries y' is a vector times its own matrix. For keys y·z' is one long vector per pair (i, j).

Letters: B sequences, L tokens, Q queries, N tokens that enter the loss, D width of the input, K
query-key width, V value width, R and W rows and columns of matrices, E and U any widths; S entries
of a query or key and of its norm's parameters.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg import KroneckerTerm, TokenMatrices
from hessblocks.theory.head_tokens import HeadTokens
from hessblocks.theory.outer import gain_feature
from hessblocks.theory.piecewise import GAINS, Terms

OneSide = tuple[Float[Tensor, "N _"], bool]
"""Vectors beside the matrices, and whether their index comes after that of the matrices."""
_KINDS = {"query_key": "query", "query_norm": "query", "key_norm": "key"}


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
    kinds = (_KINDS.get(row, row), _KINDS.get(column, column))
    if kinds in _BLOCKS:
        return _BLOCKS[kinds](head, row, column)
    if kinds[::-1] in _BLOCKS:
        return [term.adjoint() for term in _BLOCKS[kinds[::-1]](head, column, row)]
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
    kinds = (_KINDS.get(row, row), _KINDS.get(column, column))
    if kinds == ("key", "query"):
        return [term.adjoint() for term in score_terms(head, column, row)]
    if kinds == ("query", "query") and head.bent_query is not None:
        bent = head.bent_query[:, head.place(row), head.place(column)]
        return [_between(head, row, column, bent, symmetric=row == column)]
    if kinds == ("key", "key") and head.bent_key is not None:
        return [_one_matrix(_bent_keys(head, head.bent_key, row, column), row == column)]
    if kinds != ("query", "key"):
        return []
    if head.joined:
        mixed = head.scale * head.beta * head.key_slope_by_query(column)
        return [_between(head, row, column, _toward_rows(head, mixed, row))]
    width, head_width = head.w_query.shape
    matrices = TokenMatrices(right=_identity(head_width, head)[None])
    unit = (_identity(width, head), False)
    return [_term(unit, (_product_gradient(head), False), matrices)]


def _product_gradient(head: HeadTokens) -> Float[Tensor, "D D"]:
    """Compute Σ_n x (sβ e)ᵀ, the gradient of the loss in W_Q W_Kᵀ, (D, D)."""
    return head.x_query.T @ (head.scale * head.beta * head.respond_along(head.carried_x))


def _query_query(head: HeadTokens, row: str, column: str) -> Terms:
    if not head.softmax:
        return []
    keys = head.carried_keys
    third = head.third_moment(keys, head.scale**2 * head.beta * keys)
    half = head.toward_query(third, column)
    return [_between(head, row, column, _toward_rows(head, half, row), symmetric=row == column)]


def _key_key(head: HeadTokens, row: str, column: str) -> Terms:
    if not head.softmax:
        return []
    factor = head.scale**2 * head.beta
    if head.joined:
        total = head.third_total(head.key_slopes(row), head.key_slopes(column))
        return [_one_matrix(factor * total, row == column)]
    if not _wide(head):
        third = head.third_moment(head.carried_x, factor * head.carried_x)
        return [_between(head, row, column, third, symmetric=True)]
    by_key = factor * _sum_by_key(head.score_gradient, head.queries, head.queries)
    mean = head.average(head.carried_x)
    first = factor * head.respond_along(head.carried_x)
    # the moment is central: what the mean adds is of rank two per token
    centring = TokenMatrices(
        left=torch.stack([first, mean], dim=1), right=-torch.stack([mean, first], dim=1)
    )
    queries = _beside(head, "key")
    return [_by_key(head, by_key), _term(queries, queries, centring)]


def _query_key(head: HeadTokens, row: str, column: str) -> Terms:
    if not head.softmax:
        return []
    keys = head.scale**2 * head.beta * head.carried_keys
    third = head.third_moment(keys, head.key_slopes(column))
    return [_between(head, row, column, _toward_rows(head, third, row))]


def _value_query(head: HeadTokens, row: str, column: str) -> Terms:
    if head.w_key is None:
        return [_between(head, row, column, head.second_moment, symmetric=True)]
    second = head.covariance(head.carried_x, head.scale * head.beta * head.carried_keys)
    return [_between(head, row, column, head.toward_query(second, column))]


def _value_key(head: HeadTokens, row: str, column: str) -> Terms:
    factor = head.scale * head.beta
    if head.joined:
        second = head.covariance(factor * head.carried_x, head.key_slopes(column))
        return [_between(head, row, column, second)]
    if not _wide(head):
        return [_between(head, row, column, head.second_moment, symmetric=True)]
    by_key = factor * _sum_by_key(head.slope, head.value_gradient, head.queries)
    terms = [_by_key(head, by_key)]
    if head.softmax:
        mean = (head.average(head.carried_x), False)
        rank_one = TokenMatrices(
            left=-factor * head.value_gradient[:, None], right=head.queries[:, None]
        )
        terms.append(_term(mean, mean, rank_one))
    return terms


def _value_projection(head: HeadTokens, row: str, column: str) -> Terms:
    matrices = TokenMatrices(right=_identity(head.w_value.shape[1], head)[None])
    return [_term((head.features, False), _beside(head, column), matrices)]


def _query_projection(head: HeadTokens, row: str, column: str) -> Terms:
    response = head.respond(None, head.scale * head.beta * head.carried_keys)
    return [_between(head, row, column, head.toward_query(response, row).mT)]


def _key_projection(head: HeadTokens, row: str, column: str) -> Terms:
    response = head.scale * head.beta * head.respond(None, head.key_slopes(row))
    return [_between(head, row, column, response.mT)]


def _beta_query(head: HeadTokens, row: str, column: str) -> Terms:
    along = head.toward_query(head.scale * head.respond_along(head.carried_keys), column)
    return [_between(head, row, column, along[:, None])]


def _beta_key(head: HeadTokens, row: str, column: str) -> Terms:
    along = head.scale * head.respond_along(head.key_slopes(column))
    return [_between(head, row, column, along[:, None])]


def _gain_value(head: HeadTokens, row: str, column: str) -> Terms:
    matrices = TokenMatrices(right=head.value_gradient[:, None])
    return [_term(_beside(head, row), (gain_feature(head, row), False), matrices)]


def _gain_projection(head: HeadTokens, row: str, column: str) -> Terms:
    matrices = TokenMatrices(right=head.gradient[:, None])
    return [_term(_beside(head, row), (gain_feature(head, row) @ head.w_value, False), matrices)]


_BLOCKS: dict[tuple[str, str], Callable[[HeadTokens, str, str], Terms]] = {
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
    **{(gain, "value"): _gain_value for gain in GAINS},
    **{(gain, "projection"): _gain_projection for gain in GAINS},
}


def _wide(head: HeadTokens) -> bool:
    """Tell whether a (D, D) matrix per token would outweigh the matrices per key."""
    return head.w_query.shape[0] > 2 * max(head.w_query.shape[1], head.w_value.shape[1])


def _identity(size: int, head: HeadTokens) -> Tensor:
    return torch.eye(size, dtype=head.x.dtype, device=head.x.device)


def _ones(like: Float[Tensor, "N ..."]) -> Float[Tensor, "N 1"]:
    return like.new_ones(len(like), 1)


def _toward_rows(
    head: HeadTokens, matrices: Float[Tensor, "N K W"], group: str
) -> Float[Tensor, "N R W"]:
    """Pull rows in the final query back to the query or to its norm's parameters."""
    return head.toward_query(matrices.mT, group).mT


def _bent_keys(head: HeadTokens, bent: Float[Tensor, "keys S S"], row: str, column: str) -> Tensor:
    """Sum x_j ⊗ (second derivative at key j) ⊗ x_j; no x_j for the norm's own parameters."""
    left, right = (head.x.flatten(0, 1) if name == "key" else _ones(bent) for name in (row, column))
    entries = bent[:, head.place(row), head.place(column)]
    total: Tensor = torch.einsum("ja,jrs,jb->arbs", left, entries, right)
    return total.flatten(2).flatten(0, 1)


def _sum_by_key(weights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Sum weight left rightᵀ over queries: (B, Q, L), (N, E), (N, U) give (B·L, E, U)."""
    pairs = (left[:, :, None] * right[:, None, :]).flatten(1)
    summed = (weights.mT @ pairs.view(*weights.shape[:2], -1)).flatten(0, 1)
    return summed.view(-1, left.shape[1], right.shape[1])


def _by_key(head: HeadTokens, matrices: Tensor) -> KroneckerTerm:
    """Build the term Σ_j x_j x_jᵀ ⊗ (a matrix for each key)."""
    carried = (head.carried_x.flatten(0, 1), False)
    return _term(carried, carried, TokenMatrices(right=matrices))


def _one_matrix(total: Float[Tensor, "R W"], symmetric: bool) -> KroneckerTerm:
    """Wrap a matrix between two long vectors as one term."""
    ones = (total.new_ones(1, 1), True)
    return _term(ones, ones, TokenMatrices(right=total[None], symmetric=symmetric))


def _between(
    head: HeadTokens, row: str, column: str, matrices: Tensor, *, symmetric: bool = False
) -> KroneckerTerm:
    """Put the vectors of two groups beside matrices of each token."""
    right = TokenMatrices(right=matrices, symmetric=symmetric)
    return _term(_beside(head, row), _beside(head, column), right)


def _beside(head: HeadTokens, group: str) -> OneSide:
    """Choose the vector beside the matrices of a group."""
    if group in ("query", "query_key"):
        return head.x_query, False
    if group == "key" and not head.joined:
        return head.queries, True
    if group == "value":
        return head.value_gradient, True
    if group == "projection":
        return head.gradient, True
    return _ones(head.x_query), group not in GAINS


def _term(row: OneSide, column: OneSide, matrices: TokenMatrices) -> KroneckerTerm:
    return KroneckerTerm(
        row=row[0],
        column=column[0],
        matrices=matrices,
        row_swapped=row[1],
        column_swapped=column[1],
    )
