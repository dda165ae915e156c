"""Attention head with its tokens: attention moments, contracted with weights and directions.

Letters: B sequences, Q queries (the positions whose output enters the loss), L tokens of a
sequence, N = B·Q; D width of the input, K query-key width, V value width, O width of the output, C
directions, E and U widths of vectors of the keys; S entries of a query or key and of its norm's
parameters.

A derivative of attention by its scores is a weighting ρ of the keys. For a direction r in value
space, softmax has ρ_j = p_j (r·y_j − Σ_i p_i r·y_i), with p the attention row. Linear scores have
ρ_j = r·y_j over the permitted keys. All results here have the form Σ_j ρ_j (vector of key j).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hessblocks.linalg import chunks
from hessblocks.theory.head_vectors import Carried, HeadVectors


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadTokens(HeadVectors):
    """Attention head over a batch. What follows from the fields is computed once, on demand."""

    attention: Float[Tensor, "B Q L"]
    """Rows of A at those positions, (B, Q, L)."""
    permitted: Bool[Tensor, "#B Q L"]
    """True where a query may attend, (B | 1, Q, L)."""
    bias: Float[Tensor, "#B Q L"] | None
    """Numbers added to the scores at those positions, (B | 1, Q, L)."""
    w_value: Float[Tensor, "D V"]
    """W_V of the head, (D, V)."""
    w_projection: Float[Tensor, "V O"]
    """W_O of the head, (V, O)."""
    gradient: Float[Tensor, "N O"]
    """∂ℓ/∂F at the query positions, (N, O)."""
    alpha: float = 0.0
    """Gain of the identity; 0, 1, 0 is plain attention."""
    beta: float = 1.0
    """Gain of A."""
    gamma: float = 0.0
    """Gain of the uniform attention that is subtracted."""

    @cached_property
    def mean(self) -> Float[Tensor, "N D"]:
        """First moment m = Σ_j a_j x_j, (N, D)."""
        return (self.attention @ self.x).flatten(0, 1)

    @cached_property
    def uniform_mean(self) -> Float[Tensor, "N D"]:
        """Mean input c̄ over the permitted keys, weighted as A is at zero queries, (N, D)."""
        if self.bias is None:
            weights = self.permitted.to(self.x.dtype)
            uniform = weights / weights.sum(-1, keepdim=True)
        else:
            uniform = self.bias.masked_fill(~self.permitted, -torch.inf).softmax(-1)
        return (uniform.expand(self.x.shape[0], -1, -1) @ self.x).flatten(0, 1)

    @cached_property
    def features(self) -> Float[Tensor, "N D"]:
        """Features f = α x + β m − γ c̄, on which W_V acts, (N, D)."""
        if (self.alpha, self.beta, self.gamma) == (0.0, 1.0, 0.0):  # c̄ costs as much as m
            return self.mean
        return self.alpha * self.x_query + self.beta * self.mean - self.gamma * self.uniform_mean

    @cached_property
    def values(self) -> Float[Tensor, "N V"]:
        """Values z = W_Vᵀ f, on which W_O acts, (N, V)."""
        return self.features @ self.w_value

    @cached_property
    def value_gradient(self) -> Float[Tensor, "N V"]:
        """Loss gradient W_O g at this head's values, (N, V)."""
        return self.gradient @ self.w_projection.T

    def key_slope_by_query(self, group: str) -> Float[Tensor, "N K E"]:
        """Sum ρ_j times the derivative of key j's slope in the final query.

        The slope is that in W_K or in the norm's parameters, by `group`.

        Returns:
            One matrix per query.
        """
        sequences, tokens, _ = self.x.shape
        width = self.w_query.shape[1]
        slope = torch.eye(width, dtype=self.x.dtype, device=self.x.device)
        if self._key_slope is not None:
            slope = self._key_slope[..., self.place(group)]
        if self.rotation is not None:
            slope = self.rotation.matrices().mT @ slope
        slope = slope.expand(sequences, tokens, -1, -1)
        if group == "key":
            slope = (self.x[:, :, None, :, None] * slope[:, :, :, None]).flatten(3)
        slopes: Tensor = self.respond_along(self._carried(slope.flatten(2)))
        return slopes.view(len(slopes), width, -1)

    @cached_property
    def bent_query(self) -> Float[Tensor, "N S S"] | None:
        """Scores' curvature in queries and query norm parameters, along the loss; None: zero."""
        if self.query_norm is None:
            return None
        along = self.scale * self.beta * self.respond_along(self.carried_keys)
        if self._turned is not None:
            along = self._turned.turn_back(along)
        return self.query_norm.curvature(self.queries, along)

    @cached_property
    def bent_key(self) -> Float[Tensor, "N S S"] | None:
        """Scores' curvature in every key (B·L) and the key norm's parameters; None: zero."""
        if self.key_norm is None:
            return None
        along = self.scale * self.beta * (self.score_gradient.mT @ self.final_queries).flatten(0, 1)
        if self.rotation is not None:
            along = self.rotation.turn_back(along)
        return self.key_norm.curvature(self.keys, along)

    @cached_property
    def carried_values(self) -> Float[Tensor, "B L V"]:
        """Values y = W_Vᵀ x as the keys carry them, (B, L, V)."""
        return self.carried_x @ self.w_value

    @cached_property
    def slope(self) -> Float[Tensor, "B Q L"]:
        """Slope p: the attention row (softmax) or 1 at permitted keys (linear), (B, Q, L)."""
        if self.softmax:
            return self.attention
        return self.permitted.to(self.x.dtype).expand_as(self.attention)

    @cached_property
    def score_gradient(self) -> Float[Tensor, "B Q L"]:
        """Score gradient ρ along the loss gradient, (B, Q, L): ∂ℓ/∂T but for β."""
        gradient = self.value_gradient.view(self.x.shape[0], -1, 1, self.w_value.shape[1])
        return self._response(gradient, slice(None))[:, :, 0]

    @cached_property
    def second_moment(self) -> Float[Tensor, "N D D"]:
        """Second moment s β M_2 of the inputs, (N, D, D); for narrow inputs only."""
        return self.covariance(self.carried_x, self.scale * self.beta * self.carried_x)

    def respond(
        self, directions: Float[Tensor, "N C V"] | None, carried: Carried
    ) -> Float[Tensor, "N C E"]:
        """Compute Σ_j ρ_j (vector of key j), for each direction.

        Args:
            directions: (N, C, V), or None for the V unit directions.
            carried: (B, L, E), or by query.

        Returns:
            (N, C, E); with the unit directions and the inputs this is W_Vᵀ M_2.

        Cost: N C L (V + E) multiplications (N C L E for unit directions).
        """
        count = self.w_value.shape[1] if directions is None else directions.shape[1]
        if directions is not None:
            directions = directions.view(self.x.shape[0], -1, count, self.w_value.shape[1])

        def response(queries: slice) -> Tensor:
            return self._response(None if directions is None else directions[:, queries], queries)

        return self._gathered(count, response, carried)

    def respond_along(self, carried: Carried) -> Float[Tensor, "N E"]:
        """Compute Σ_j ρ_j (vector of key j) along the loss gradient."""
        if isinstance(carried, Tensor):
            return (self.score_gradient @ carried).flatten(0, 1)
        return self._gathered(1, lambda rows: self.score_gradient[:, rows, None], carried)[:, 0]

    def covariance(self, left: Float[Tensor, "B L E"], right: Carried) -> Float[Tensor, "N E U"]:
        """Compute the covariance of the keys' vectors, Σ_j p_j (left_j − mean)(right_j − mean)ᵀ.

        For linear scores it is Σ_j left_j right_jᵀ over the permitted keys.

        Returns:
            One matrix per token.
        """

        def weighted(queries: slice) -> Tensor:
            carried = left.mT[:, None]  # (B, 1, E, L)
            if self.softmax:
                carried = carried - (self.slope[:, queries] @ left)[..., None]
            return self.slope[:, queries, None, :] * carried

        return self._gathered(left.shape[2], weighted, right)

    def third_moment(self, left: Carried, right: Carried) -> Float[Tensor, "N E U"]:
        """Compute the third central moment along u = W_V W_O g, (N, E, U); softmax only.

            Σ_j ρ_j (left_j − mean)(right_j − mean)ᵀ
              = Σ_j (ρ_j (left_j − mean) − p_j Σ_i ρ_i left_i) right_jᵀ, zero for linear scores.

        Returns:
            One matrix per token.
        """
        assert self.softmax
        first = _of_queries(left, slice(1))
        return self._gathered(first.shape[3], lambda rows: self._third(left, rows), right)

    def third_total(self, left: Carried, right: Carried) -> Float[Tensor, "E U"]:
        """Sum `third_moment` over the tokens, (E, U), without one matrix per token."""
        assert self.softmax
        widths = [_of_queries(carried, slice(1)).shape[3] for carried in (left, right)]
        total = self.x.new_zeros(*widths)
        for queries in self._query_chunks(sum(widths)):
            weighted = self._third(left, queries)
            carried = _of_queries(right, queries).expand(-1, weighted.shape[1], -1, -1)
            total += weighted.transpose(2, 3).flatten(0, 2).T @ carried.flatten(0, 2)
        return total

    def _third(self, carried: Carried, queries: slice) -> Tensor:
        """Compute ρ_j (carried_j − mean) − p_j Σ_i ρ_i carried_i, (B, q, E, L)."""
        left = _of_queries(carried, queries)
        slope, weights = self.slope[:, queries], self.score_gradient[:, queries]
        centred = left.mT - _weighted(slope, left)[..., None]
        along = _weighted(weights, left)[..., None]
        return weights[:, :, None, :] * centred - slope[:, :, None, :] * along

    def _gathered(
        self, count: int, weighting: Callable[[slice], Tensor], carried: Carried
    ) -> Tensor:
        """Sum weighting_j carried_j over the keys, (N, count, E), in chunks (B, q, count, L)."""
        sequences, queries = self.attention.shape[:2]
        if not isinstance(carried, Tensor):
            width = carried(slice(1)).shape[3]
            parts = [weighting(rows) @ carried(rows) for rows in self._query_chunks(count + width)]
            return torch.cat(parts, dim=1).flatten(0, 1)
        chunks_of_queries = self._query_chunks(count)
        if len(chunks_of_queries) == 1:
            product = weighting(slice(None)).flatten(1, 2) @ carried
            return product.view(sequences * queries, count, -1)
        out = carried.new_empty(sequences, queries, count, carried.shape[2])
        for rows in chunks_of_queries:
            product = weighting(rows).flatten(1, 2) @ carried
            out[:, rows] = product.unflatten(1, (-1, count))
        return out.flatten(0, 1)

    def average(self, carried: Float[Tensor, "B L E"]) -> Float[Tensor, "N E"]:
        """Average the keys' vectors, weighted by attention, (N, E)."""
        return (self.slope @ carried).flatten(0, 1)

    def _response(self, directions: Tensor | None, queries: slice) -> Tensor:
        """Compute ρ for some queries, (B, q, C, L); directions (B, q, C, V), None for units."""
        values = self.carried_values.mT[:, None]  # (B, 1, V, L)
        along = values if directions is None else directions @ values
        slope = self.slope[:, queries, None, :]
        if not self.softmax:
            return slope * along
        return slope * (along - (slope * along).sum(-1, keepdim=True))

    def _query_chunks(self, count: int) -> list[slice]:
        """Slice the queries: (B, q, count, L) weightings stay within the memory limit."""
        size = self.x.shape[0] * count * self.x.shape[1] * self.x.element_size()
        return list(chunks(len(self.query_positions), max(1, self.memory_limit // (3 * size))))


def _of_queries(carried: Carried, queries: slice) -> Tensor:
    """Select the keys' vectors for some of the queries, (B, q | 1, L, E)."""
    return carried[:, None] if isinstance(carried, Tensor) else carried(queries)


def _weighted(weights: Tensor, carried: Tensor) -> Tensor:
    """Compute Σ_j weights_j carried_j, (B, q, E), from (B, q, L) and (B, q | 1, L, E)."""
    if carried.shape[1] == 1:
        return weights @ carried[:, 0]
    return (weights[:, :, None] @ carried)[:, :, 0]
