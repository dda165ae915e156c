"""Derivatives by gain and shift of the norm before the last attention.

Such a parameter φ enters entrywise: n_j = … + c_j ⊙ φ, where c is the normalised vector for a gain
and ones for a shift. n is the input of W_Q, W_K and W_V. Append c to the inputs n, and rows of
zeros to these weights W. Then a change dφ is equivalent to the change diag(dφ) W of the new rows.
So a block of φ is a block of these rows, contracted with W. If the other group is W, the gradient
of the new rows is added.

Letters: B sequences, L tokens, N tokens that enter the loss, D width, K width of a head,
O width of the output, W columns of a token's matrix.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.linalg import KroneckerTerm, TokenMatrices
from hessblocks.theory import AttentionHessian, AttentionLayer, HeadTokens, Piece, functional_terms

READ = ("query", "key", "value")


class InputNorm:
    """Gain and shift of the norm, as additional rows of the weights of a wider layer."""

    def __init__(self, wide: AttentionHessian, places: Mapping[str, slice]) -> None:
        """Store the wider layer's Hessian.

        Args:
            wide: Hessian of the layer that `widened` returns, with the same loss.
            places: rows of the wider weights for each parameter.
        """
        self._wide = wide
        self._own = slice(min(rows.start for rows in places.values()))
        self.places = places
        """Rows of the wider weights, by name of the parameter."""

    def jacobian(self, name: str) -> Float[Tensor, "N O D"]:
        """Compute ∂(attention output)/∂φ for every token."""
        total = self._wide.layer.x.new_zeros(())
        for group, head, jacobian in self._reads():
            matrix, to_output = jacobian.matrix, jacobian.output_map
            if matrix is None:  # values: the identity
                matrix = torch.eye(len(to_output)).to(to_output)[None]
            term = KroneckerTerm(
                row=jacobian.vector,
                column=torch.ones_like(jacobian.vector[:, :1]),
                matrices=TokenMatrices(right=matrix.mT),
                row_swapped=jacobian.swapped,
            )
            moved = self._contracted(term, group, head, name).matrices.whole()
            total = total + moved @ to_output
        return total.mT

    def _reads(self) -> Iterator[tuple[str, int, Any]]:
        """Yield the Jacobians of the attention's output by each head's wider weights."""
        for group in READ:
            for piece in self._wide.layer.pieces(group):
                jacobians = self._wide.jacobians(piece)
                for head, jacobian in zip(piece.heads, jacobians, strict=True):
                    yield group, head, jacobian

    def functional(self, name: str, piece: Piece) -> list[KroneckerTerm]:
        """List the terms of Σ ⟨g, ∂²(attention)/∂φ ∂W⟩ for a piece W of the attention's weights."""
        group = "query" if piece.group == "query_key" else piece.group
        terms = []
        for number in piece.heads:
            head = self._wide.heads[number]
            for read in READ:
                for term in functional_terms(head, read, group):
                    rows = self._contracted(term, read, number, name)
                    terms.append(self._restricted(rows, group, head) if group in READ else rows)
            if group in READ:
                terms.append(self._gradient(name, group, number))
        return terms

    def functional_own(self, row: str, column: str) -> list[KroneckerTerm]:
        """List the terms of Σ ⟨g, ∂²(attention)/∂φ ∂φ'⟩ for two parameters of the norm."""
        terms = []
        for number, head in enumerate(self._wide.heads):
            for left, right in product(READ, repeat=2):
                for term in functional_terms(head, left, right):
                    rows = self._contracted(term, left, number, row)
                    columns = self._contracted(rows.adjoint(), right, number, column)
                    terms.append(columns.adjoint())
        return terms

    def _weight(self, group: str, head: int) -> Float[Tensor, "rows K"]:
        """Return W of one head for all inputs; for keys of a joined weight, the identity."""
        weight: Tensor = getattr(self._wide.heads[head], f"w_{group}")
        return weight

    def _contracted(self, term: KroneckerTerm, group: str, head: int, name: str) -> KroneckerTerm:
        """Contract the new rows of a wider weight with W, to rows of φ."""
        at = self.places[name]
        weight = self._weight(group, head)[: at.stop - at.start]
        matrix = term.matrices.whole()
        if group == "key" and self._wide.layer.joined:
            picked = matrix.unflatten(1, (-1, weight.shape[1]))[:, at]
            matrices = (weight[None, :, :, None] * picked).sum(2)
        elif term.row_swapped:
            matrices = matrix[:, at] * (term.row @ weight.T)[:, :, None]
        else:
            matrices = term.row[:, at, None] * (weight @ matrix)
        ones = matrices.new_ones(term.tokens, 1)
        return replace(term, row=ones, matrices=TokenMatrices(right=matrices), row_swapped=False)

    def _restricted(self, term: KroneckerTerm, group: str, head: HeadTokens) -> KroneckerTerm:
        """Select the columns of a wider weight that belong to the original weight."""
        right = term.matrices.whole()
        if group == "key" and self._wide.layer.joined:
            width = head.w_query.shape[1]
            right = right.unflatten(2, (-1, width))[:, :, self._own].flatten(2)
        elif term.column_swapped:
            right = right[:, :, self._own]
        else:
            return replace(term, column=term.column[:, self._own])
        return replace(term, matrices=TokenMatrices(right=right))

    def _gradient(self, name: str, group: str, head: int) -> KroneckerTerm:
        """Return the term of the new rows' gradient, from the product dφ_d dW_dr."""
        gradient = self._gradients[group, head][self.places[name]]
        rows = len(gradient)
        unit = torch.eye(rows, dtype=gradient.dtype, device=gradient.device)
        padded = gradient.new_zeros(rows, self._own.stop)
        padded[:, :rows] = unit
        if group == "key" and self._wide.layer.joined:
            right = (padded[:, :, None] * gradient[:, None]).flatten(1)
            column, swapped = unit.new_ones(rows, 1), True
        else:
            right, column, swapped = gradient, padded, False
        return KroneckerTerm(
            row=unit.new_ones(rows, 1),
            column=column,
            matrices=TokenMatrices(left=unit[:, None], right=right[:, None]),
            column_swapped=swapped,
        )

    @cached_property
    def _gradients(self) -> dict[tuple[str, int], Float[Tensor, "rows K"]]:
        """∂ℓ/∂W of the wider weights, by group and head."""
        gradients = {}
        for group, head, jacobian in self._reads():
            along = self._wide.heads[head].gradient @ jacobian.output_map.T
            if jacobian.matrix is not None:
                along = (along[:, None] @ jacobian.matrix)[:, 0]
            summed = along.T @ jacobian.vector if jacobian.swapped else jacobian.vector.T @ along
            gradients[group, head] = summed.reshape(self._weight(group, head).shape)
        return gradients


def widened(
    layer: AttentionLayer, slopes: Mapping[str, Float[Tensor, "B L D"]]
) -> tuple[AttentionLayer, dict[str, slice]]:
    """Append the factors c to a layer's inputs, and rows of zeros to its weights.

    Args:
        layer: the layer; a last column of ones for biases stays before the new columns.
        slopes: factors c of each parameter.

    Returns:
        The wider layer, and the rows of each parameter.
    """
    width, rows = layer.x.shape[-1], next(iter(slopes.values())).shape[-1]
    added = rows * len(slopes)
    starts = range(width, width + added, rows)

    def padded(weight: Tensor) -> Tensor:
        return nn.functional.pad(weight, (0, 0, 0, added))

    key = layer.key
    if key is None:
        key = torch.eye(width, dtype=layer.x.dtype, device=layer.x.device)
        key = key.expand(len(layer.value), -1, -1)
    wide = replace(
        layer,
        x=torch.cat([layer.x, *slopes.values()], dim=-1),
        query=padded(layer.query),
        key=padded(key),
        value=padded(layer.value),
        parameters=(*READ, "projection"),
    )
    return wide, {
        name: slice(start, start + rows) for name, start in zip(slopes, starts, strict=True)
    }
