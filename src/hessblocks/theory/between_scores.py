"""The functional part where norms or rotary positions stand between the weights and the scores.

A score is a product y_i · z_j of final queries and keys, y = R norm(W_Qᵀ x), z likewise. With ρ, s, β and
N_3 as in `functional`, y' and z' the derivatives in the weights (or in the parameters of a norm), each a
vector times a matrix for queries and one long vector a pair (i, j) for keys:

| block | softmax | linear scores |
| query, query | s²β y' N_3(z, z) y' + sβ Σ_j ρ_j z_j·y'' | second term |
| key, key | s²β N_3(y·z', y·z') + sβ Σ_j ρ_j y·z_j'' | second term |
| query, key | s²β y' N_3(z, y·z') + sβ y'·Σ_j ρ_j z_j' | second term |
| value, query / key | sβ g M_2(x, z) y' / sβ g M_2(x, y·z') | the same |
| query / key, projection | sβ (W_Vᵀ M_2(x, z) y') g / sβ (W_Vᵀ M_2(x, y·z')) g | the same |
| beta, query / key | s Σ_j ρ_j z_j·y' / s Σ_j ρ_j y·z_j' | the same |

Letters: N tokens that enter the loss, K query-key width, R and W rows and columns of their matrices, P entries of their vectors.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg import KroneckerTerm, TokenMatrices
from hessblocks.theory.head_tokens import HeadTokens

Terms = list[KroneckerTerm]
_KINDS = {"query_norm": "query", "key_norm": "key"}


def terms_between(head: HeadTokens, row: str, column: str) -> Terms | None:
    """The block of two groups of one head, of which the scores' weights are one.

    Args:
        head: with norms or rotary positions.
        row: name of the row group.
        column: name of the column group.

    Returns:
        Terms whose sum is the block; None where neither group enters the scores.
    """
    kinds = (_KINDS.get(row, row), _KINDS.get(column, column))
    if kinds in _BLOCKS:
        return _BLOCKS[kinds](head, row, column)
    if kinds[::-1] in _BLOCKS:
        return [term.adjoint() for term in _BLOCKS[kinds[::-1]](head, column, row)]
    return None if {"query", "key"}.isdisjoint(kinds) else []


def _query_query(head: HeadTokens, row: str, column: str) -> Terms:
    found = []
    if head.softmax:
        factor = head.scale**2 * head.beta
        half = head.third_moment(head.carried_keys, factor * head.carried_keys)
        found.append(_toward_rows(head, head.toward_query(half, column), row))
    if head.bent_query is not None:
        found.append(head.bent_query[:, head.place(row), head.place(column)])
    if not found:
        return []
    matrices = TokenMatrices(right=sum(found[1:], found[0]), symmetric=row == column)
    return [_term(head, row, column, matrices)]


def _key_key(head: HeadTokens, row: str, column: str) -> Terms:
    total = head.x.new_zeros(())
    if head.softmax:
        factor = head.scale**2 * head.beta
        total = factor * head.third_total(head.key_slopes(row), head.key_slopes(column))
    if head.bent_key is not None:
        bent = head.bent_key[:, head.place(row), head.place(column)]
        sides = (
            head.x.flatten(0, 1) if name == "key" else _ones(head.bent_key)
            for name in (row, column)
        )
        total = total + torch.einsum("ja,jrs,jb->arbs", next(sides), bent, next(sides)).flatten(
            2
        ).flatten(0, 1)
    if not total.ndim:
        return []
    one = total.new_ones(1, 1)
    return [
        KroneckerTerm(
            row=one,
            column=one,
            matrices=TokenMatrices(right=total[None], symmetric=row == column),
            row_swapped=True,
            column_swapped=True,
        )
    ]


def _query_key(head: HeadTokens, row: str, column: str) -> Terms:
    factor = head.scale * head.beta
    mixed = factor * head.key_slope_by_query(column)
    if head.softmax:
        third = head.third_moment(head.carried_keys, head.key_slopes(column))
        mixed = mixed + head.scale * factor * third
    return [_term(head, row, column, TokenMatrices(right=_toward_rows(head, mixed, row)))]


def _value_query(head: HeadTokens, row: str, column: str) -> Terms:
    second = head.covariance(head.carried_x, head.scale * head.beta * head.carried_keys)
    return [_term(head, row, column, TokenMatrices(right=head.toward_query(second, column)))]


def _value_key(head: HeadTokens, row: str, column: str) -> Terms:
    second = head.covariance(head.carried_x, head.key_slopes(column))
    return [_term(head, row, column, TokenMatrices(right=head.scale * head.beta * second))]


def _query_projection(head: HeadTokens, row: str, column: str) -> Terms:
    response = head.respond(None, head.scale * head.beta * head.carried_keys)
    return [_term(head, row, column, TokenMatrices(right=head.toward_query(response, row).mT))]


def _key_projection(head: HeadTokens, row: str, column: str) -> Terms:
    response = head.scale * head.beta * head.respond(None, head.key_slopes(row))
    return [_term(head, row, column, TokenMatrices(right=response.mT))]


def _beta_query(head: HeadTokens, row: str, column: str) -> Terms:
    along = head.toward_query(head.scale * head.respond_along(head.carried_keys), column)
    return [_term(head, row, column, TokenMatrices(right=along[:, None]))]


def _beta_key(head: HeadTokens, row: str, column: str) -> Terms:
    along = head.scale * head.respond_along(head.key_slopes(column))
    return [_term(head, row, column, TokenMatrices(right=along[:, None]))]


_BLOCKS: dict[tuple[str, str], Callable[[HeadTokens, str, str], Terms]] = {
    ("query", "query"): _query_query,
    ("key", "key"): _key_key,
    ("query", "key"): _query_key,
    ("value", "query"): _value_query,
    ("value", "key"): _value_key,
    ("query", "projection"): _query_projection,
    ("key", "projection"): _key_projection,
    ("beta", "query"): _beta_query,
    ("beta", "key"): _beta_key,
}


def _toward_rows(
    head: HeadTokens, matrices: Float[Tensor, "N K W"], group: str
) -> Float[Tensor, "N R W"]:
    """Rows in the final query, as rows in the query or in its norm's parameters."""
    return head.toward_query(matrices.mT, group).mT


def _term(head: HeadTokens, row: str, column: str, matrices: TokenMatrices) -> KroneckerTerm:
    (rows, row_swapped), (columns, column_swapped) = (_vector(head, name) for name in (row, column))
    return KroneckerTerm(
        row=rows,
        column=rows if row == column else columns,
        matrices=matrices,
        row_swapped=row_swapped,
        column_swapped=column_swapped,
    )


def _vector(head: HeadTokens, group: str) -> tuple[Float[Tensor, "N P"], bool]:
    """What stands beside the matrices of a group, and whether it comes after them."""
    if group == "query":
        return head.x_query, False
    if group == "value":
        return head.value_gradient, True
    if group == "projection":
        return head.gradient, True
    return _ones(head.x_query), group != "beta"


def _ones(like: Float[Tensor, "N ..."]) -> Float[Tensor, "N 1"]:
    return like.new_ones(len(like), 1)
