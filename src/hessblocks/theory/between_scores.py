"""Functional part H_f where norms or rotary positions stand between the weights and the scores.

A score is a product y_i · z_j of final queries and keys, y = R norm(W_Qᵀ x), z likewise. ρ, s, β
and N_3 are as in `functional`. y' and z' are derivatives in the weights, or in the parameters of a
norm: for queries a vector times a matrix each, for keys one long vector a pair (i, j).

| block | softmax | linear scores |
| query, query | s²β y' N_3(z, z) y' + sβ Σ_j ρ_j z_j·y'' | second term |
| key, key | s²β N_3(y·z', y·z') + sβ Σ_j ρ_j y·z_j'' | second term |
| query, key | s²β y' N_3(z, y·z') + sβ y'·Σ_j ρ_j z_j' | second term |
| value, query / key | sβ g M_2(x, z) y' / sβ g M_2(x, y·z') | the same |
| query / key, projection | sβ (W_Vᵀ M_2(x, z) y') g / sβ (W_Vᵀ M_2(x, y·z')) g | the same |
| beta, query / key | s Σ_j ρ_j z_j·y' / s Σ_j ρ_j y·z_j' | the same |

Letters: N tokens that enter the loss, K query-key width, R and W rows and columns of their
matrices, P entries of their vectors; S entries of a query or key and of its norm's parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg import KroneckerTerm, TokenMatrices
from hessblocks.theory.heads import HeadTokens

Terms = list[KroneckerTerm]
_KINDS = {"query_norm": "query", "key_norm": "key"}


def terms_between(head: HeadTokens, row: str, column: str) -> Terms | None:
    """Collect the terms that first derivatives of the scores give to a block of one head.

    Args:
        head: with norms or rotary positions.
        row: name of the row group.
        column: name of the column group.

    Returns:
        Terms; None where neither group enters the scores.
    """
    kinds = (_KINDS.get(row, row), _KINDS.get(column, column))
    if kinds in _BLOCKS:
        return _BLOCKS[kinds](head, row, column)
    if kinds[::-1] in _BLOCKS:
        return [term.adjoint() for term in _BLOCKS[kinds[::-1]](head, column, row)]
    return None if {"query", "key"}.isdisjoint(kinds) else []


def bent_terms(head: HeadTokens, row: str, column: str) -> Terms:
    """Collect the terms of second derivatives of the scores: norms, and query times key.

    Args:
        head: with norms or rotary positions.
        row: name of the row group.
        column: name of the column group.

    Returns:
        Terms.
    """
    kinds = (_KINDS.get(row, row), _KINDS.get(column, column))
    if kinds == ("key", "query"):
        return [term.adjoint() for term in bent_terms(head, column, row)]
    if kinds == ("query", "query") and head.bent_query is not None:
        bent = head.bent_query[:, head.place(row), head.place(column)]
        return [_term(head, row, column, TokenMatrices(right=bent, symmetric=row == column))]
    if kinds == ("key", "key") and head.bent_key is not None:
        return [_summed(_bent_keys(head, head.bent_key, row, column), symmetric=row == column)]
    if kinds == ("query", "key"):
        mixed = head.scale * head.beta * head.key_slope_by_query(column)
        return [_term(head, row, column, TokenMatrices(right=_toward_rows(head, mixed, row)))]
    return []


def _query_query(head: HeadTokens, row: str, column: str) -> Terms:
    if not head.softmax:
        return []
    factor = head.scale**2 * head.beta
    half = head.third_moment(head.carried_keys, factor * head.carried_keys)
    third = _toward_rows(head, head.toward_query(half, column), row)
    return [_term(head, row, column, TokenMatrices(right=third, symmetric=row == column))]


def _key_key(head: HeadTokens, row: str, column: str) -> Terms:
    if not head.softmax:
        return []
    factor = head.scale**2 * head.beta
    total = factor * head.third_total(head.key_slopes(row), head.key_slopes(column))
    return [_summed(total, symmetric=row == column)]


def _bent_keys(head: HeadTokens, bent: Float[Tensor, "keys S S"], row: str, column: str) -> Tensor:
    """Sum x_j ⊗ (second derivative at key j) ⊗ x_j; no x_j for the norm's own parameters."""
    left, right = (head.x.flatten(0, 1) if name == "key" else _ones(bent) for name in (row, column))
    entries = bent[:, head.place(row), head.place(column)]
    total: Tensor = torch.einsum("ja,jrs,jb->arbs", left, entries, right)
    return total.flatten(2).flatten(0, 1)


def _summed(total: Tensor, *, symmetric: bool) -> KroneckerTerm:
    """Wrap a matrix between two long vectors as one term."""
    one = total.new_ones(1, 1)
    return KroneckerTerm(
        row=one,
        column=one,
        matrices=TokenMatrices(right=total[None], symmetric=symmetric),
        row_swapped=True,
        column_swapped=True,
    )


def _query_key(head: HeadTokens, row: str, column: str) -> Terms:
    if not head.softmax:
        return []
    factor = head.scale**2 * head.beta
    third = factor * head.third_moment(head.carried_keys, head.key_slopes(column))
    return [_term(head, row, column, TokenMatrices(right=_toward_rows(head, third, row)))]


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
    """Pull rows in the final query back to the query or to its norm's parameters."""
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
    """Choose the vector beside the matrices of a group; tell whether it comes after them."""
    if group == "query":
        return head.x_query, False
    if group == "value":
        return head.value_gradient, True
    if group == "projection":
        return head.gradient, True
    return _ones(head.x_query), group != "beta"


def _ones(like: Float[Tensor, "N ..."]) -> Float[Tensor, "N 1"]:
    return like.new_ones(len(like), 1)
