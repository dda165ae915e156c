"""Queries and keys of one attention head, after query-key norms and rotary positions, if any.

Letters: B sequences, Q queries (the positions whose output enters the loss), L tokens of a
sequence, N = B·Q; D width of the input, K query-key width, E width of what the keys carry; S
entries of a query or key and of its norm's parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from hessblocks.linalg import MEMORY_LIMIT
from hessblocks.theory.heads.between_scores import HeadNorm, HeadRotation

Carried = Float[Tensor, "B L _"] | Callable[[slice], Float[Tensor, "B _ L _"]]
"""Vectors of keys: (B, L, E) if all queries share them, or a function from q queries to
(B, q, L, E)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionSetting:
    """Input and score settings that all heads of a self-attention layer share."""

    x: Float[Tensor, "B L D"]
    """Input of the layer, (B, L, D); a last column of ones makes the biases rows of the weights."""
    scale: float
    """s, the scale of the scores."""
    softmax: bool = True
    """Whether A is a softmax of the scores, or the scores themselves, 0 where not permitted."""
    rotation: HeadRotation | None = None
    """Rotary positions of all tokens; None if there are none."""
    query_norm: HeadNorm | None = None
    """Norm between W_Q and rotary positions."""
    key_norm: HeadNorm | None = None
    """Norm between W_K and rotary positions."""
    memory_limit: int = MEMORY_LIMIT
    """Bytes that intermediate results of one operation may take."""

    @property
    def joined(self) -> bool:
        """Whether norms or rotary positions act between the weights and the scores.

        If so, sums over keys treat W_K as one long vector.
        """
        between = (self.rotation, self.query_norm, self.key_norm)
        return any(step is not None for step in between)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadVectors(AttentionSetting):
    """Inputs, queries and keys of one head. What follows from the fields is computed once."""

    query_positions: Int[Tensor, " Q"]
    """Positions whose output enters the loss, (Q,)."""
    w_query: Float[Tensor, "D K"]
    """W_Q of the head, (D, K)."""
    w_key: Float[Tensor, "D K"] | None
    """W_K of the head, (D, K); None if the keys are the inputs (one matrix; K = D)."""

    @cached_property
    def x_query(self) -> Float[Tensor, "N D"]:
        """Inputs of the queries, (N, D)."""
        return self.x[:, self.query_positions].flatten(0, 1)

    @cached_property
    def queries(self) -> Float[Tensor, "N K"]:
        """Queries q = W_Qᵀ x, (N, K)."""
        return self.x_query @ self.w_query

    @cached_property
    def carried_x(self) -> Float[Tensor, "B L D"]:
        """Inputs of the keys for sums over keys, (B, L, D).

        Softmax depends only on differences of keys. So the sequence's mean is subtracted, which
        avoids cancellation.
        """
        return self._carried(self.x)

    @cached_property
    def keys(self) -> Float[Tensor, "N K"]:
        """Keys k = W_Kᵀ x of every token, (B·L, K)."""
        assert self.w_key is not None
        return (self.x @ self.w_key).flatten(0, 1)

    @cached_property
    def carried_keys(self) -> Float[Tensor, "B L K"]:
        """Keys for sums over keys, after norms and rotary positions, (B, L, K)."""
        if self.w_key is None:
            return self.carried_x
        if not self.joined:
            return self.carried_x @ self.w_key
        keys = self.keys if self.key_norm is None else self.key_norm.output(self.keys)
        keys = keys.view(*self.x.shape[:2], -1)
        return self._carried(keys if self.rotation is None else self.rotation.turn(keys))

    @cached_property
    def final_queries(self) -> Float[Tensor, "B Q K"]:
        """Queries in the scores, after norms and rotary positions, (B, Q, K)."""
        queries = self.queries if self.query_norm is None else self.query_norm.output(self.queries)
        queries = queries.view(self.x.shape[0], -1, queries.shape[-1])
        return queries if self._turned is None else self._turned.turn(queries)

    def toward_query(
        self, rows: Float[Tensor, "N *rows K"], group: str = "query"
    ) -> Float[Tensor, "N *rows S"]:
        """Pull derivatives by the final query back to W_Qᵀ x, or to the norm's parameters."""
        if self._turned is not None:
            rows = self._turned.turn_back(rows)
        if self._query_slope is None:
            return rows
        slope = self._query_slope[..., self.place(group)]
        return (rows[:, None] @ slope)[:, 0] if rows.ndim == 2 else rows @ slope

    def place(self, group: str) -> slice:
        """Return the slice of a norm's derivatives for a group: input first, then parameters."""
        width = self.w_query.shape[1]
        return slice(width, None) if group.endswith("_norm") else slice(width)

    @cached_property
    def _turned(self) -> HeadRotation | None:
        return None if self.rotation is None else self.rotation.at(self.query_positions)

    @cached_property
    def _query_slope(self) -> Tensor | None:
        if self.query_norm is None:
            return None
        slope: Tensor = self.query_norm.slope(self.queries)
        return slope

    @cached_property
    def _key_slope(self) -> Tensor | None:
        """Derivative of the key norm at every token, (B, L, K, S)."""
        if self.key_norm is None:
            return None
        slope: Tensor = self.key_norm.slope(self.keys).unflatten(0, self.x.shape[:2])
        return slope

    def key_slopes(self, group: str) -> Carried:
        """Differentiate the products query · key by W_K, or by the key norm's parameters.

        Args:
            group: key or key_norm.

        Returns:
            Function from queries to a vector for each of their keys. For bilinear scores, whose
            derivative is q ⊗ x_j, the vectors x_j of the keys, without q.
        """
        if not self.joined:
            return self.carried_x

        def of_queries(queries: slice) -> Tensor:
            along = self.final_queries[:, queries, None]
            if self.rotation is not None:
                cosines, sines = self.rotation.cosines[:, None], self.rotation.sines[:, None]
                along = along * cosines + (along * sines) @ self.rotation.quarter.T
            if self._key_slope is not None:
                slope = self._key_slope[..., self.place(group)]
                along = along.expand(-1, -1, self.x.shape[1], -1).transpose(1, 2)
                along = (along @ slope).transpose(1, 2)
            if group == "key":
                along = (self.x[:, None, :, :, None] * along[..., None, :]).flatten(3)
            return along - along.mean(2, keepdim=True) if self.softmax else along

        return of_queries

    def _carried(self, vectors: Tensor) -> Tensor:
        return vectors - vectors.mean(1, keepdim=True) if self.softmax else vectors
