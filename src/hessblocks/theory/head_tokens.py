"""What one attention head knows about each token: its moments, seen through weights and directions.

Letters: B sequences, Q queries (the positions whose output enters the loss), L tokens of a sequence,
N = B·Q; D width of the input, K query-key width, V value width, O width of the output, C directions,
E and U widths of whatever the keys carry.

A derivative of attention with respect to its scores is a weighting of the keys. Along a direction r in
value space it is ρ_j = p_j (r·y_j − Σ_j p_j r·y_j), with p the attention row (softmax), or ρ_j = r·y_j
over the permitted keys (linear scores). Everything else is Σ_j ρ_j (something carried by key j).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hessblocks.linalg import chunks
from hessblocks.theory.rotation import Rotation


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyFeature:
    """One summand of the scores as a function of W_K: Σ_f (what key j carries) · W_K · (a vector of the query).

    Without rotary positions there is one, x_j and q_i; with them two for each frequency.
    """

    carried: Float[Tensor, "B L D"]
    """What key j carries, up to the mean where scores are a softmax."""
    vectors: Float[Tensor, "N K"]
    """The query's vector."""
    of_query: Float[Tensor, "#N K K"]
    """From the query's row vector to it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadTokens:
    """One head over a batch. Frozen; what is derived from the fields is computed once, when asked for."""

    x: Float[Tensor, "B L D"]
    """Input of the layer, (B, L, D); a last column of ones makes the biases rows of the weights."""
    query_positions: Int[Tensor, " Q"]
    """Positions whose output enters the loss, (Q,)."""
    attention: Float[Tensor, "B Q L"]
    """Rows of A at those positions, (B, Q, L)."""
    permitted: Bool[Tensor, "#B Q L"]
    """True where a query may attend, (B | 1, Q, L)."""
    softmax: bool
    """Whether A is a softmax of the scores (else the scores themselves)."""
    scale: float
    """s, the factor of the scores."""
    w_query: Float[Tensor, "D K"]
    """(D, K)."""
    w_key: Float[Tensor, "D K"] | None
    """(D, K), or None where the keys are the inputs themselves (one matrix; K = D)."""
    w_value: Float[Tensor, "D V"]
    """(D, V)."""
    w_projection: Float[Tensor, "V O"]
    """(V, O)."""
    gradient: Float[Tensor, "N O"]
    """∂ℓ/∂F at the query positions, (N, O)."""
    alpha: float = 0.0
    """Gain of the identity; 0, 1, 0 is plain attention."""
    beta: float = 1.0
    """Gain of A."""
    gamma: float = 0.0
    """Gain of the uniform attention that is subtracted."""
    rotation: Rotation | None = None
    """Rotary positions of all tokens."""
    memory_limit: int
    """Bytes that intermediate results may take."""

    @cached_property
    def x_query(self) -> Float[Tensor, "N D"]:
        """Inputs of the queries, (N, D)."""
        return self.x[:, self.query_positions].flatten(0, 1)

    @cached_property
    def queries(self) -> Float[Tensor, "N K"]:
        """Q = W_Qᵀ x, (N, K)."""
        return self.x_query @ self.w_query

    @cached_property
    def mean(self) -> Float[Tensor, "N D"]:
        """First moment m = Σ_j a_j x_j, (N, D)."""
        return (self.attention @ self.x).flatten(0, 1)

    @cached_property
    def uniform_mean(self) -> Float[Tensor, "N D"]:
        """c̄, the mean input over the permitted keys, (N, D)."""
        weights = self.permitted.to(self.x.dtype)
        uniform = (weights / weights.sum(-1, keepdim=True)).expand(self.x.shape[0], -1, -1)
        return (uniform @ self.x).flatten(0, 1)

    @cached_property
    def features(self) -> Float[Tensor, "N D"]:
        """F = α x + β m − γ c̄, what W_V acts on, (N, D)."""
        if (self.alpha, self.beta, self.gamma) == (0.0, 1.0, 0.0):
            return self.mean
        return self.alpha * self.x_query + self.beta * self.mean - self.gamma * self.uniform_mean

    @cached_property
    def values(self) -> Float[Tensor, "N V"]:
        """Z = W_Vᵀ f, what W_O acts on, (N, V)."""
        return self.features @ self.w_value

    @cached_property
    def value_gradient(self) -> Float[Tensor, "N V"]:
        """W_O g, the loss gradient at this head's values, (N, V)."""
        return self.gradient @ self.w_projection.T

    @cached_property
    def carried_x(self) -> Float[Tensor, "B L D"]:
        """Inputs as the keys carry them, (B, L, D).

        Softmax sees differences of keys only, so the mean of the sequence is taken off: it would
        cancel, and cost digits.
        """
        return self._carried(self.x)

    @cached_property
    def carried_keys(self) -> Float[Tensor, "B L K"]:
        """W_Kᵀ x as the keys carry it, turned where positions are rotary, (B, L, K)."""
        if self.w_key is None:
            return self.carried_x
        if self.rotation is None:
            return self.carried_x @ self.w_key
        return self._carried(self.rotation.turn(self.x @ self.w_key))

    @cached_property
    def key_features(self) -> list[KeyFeature]:
        """What the keys' weights meet on the side of the keys and on that of the queries."""
        if self.rotation is None:
            same = torch.eye(self.queries.shape[1], dtype=self.x.dtype, device=self.x.device)
            return [KeyFeature(carried=self.carried_x, vectors=self.queries, of_query=same[None])]
        turns = self.rotation.at(self.query_positions).matrices()
        turns = turns.expand(self.x.shape[0], -1, -1, -1).flatten(0, 1)
        found = []
        for one in self.rotation.frequencies:
            turned = turns * one.places
            for weights, to_key in (
                (one.cosines, turned),
                (one.sines, turned @ self.rotation.quarter.T),
            ):
                if weights.any():
                    carried = self._carried(weights[..., None] * self.x)
                    vectors = (self.queries[:, None] @ to_key)[:, 0]
                    found.append(KeyFeature(carried=carried, vectors=vectors, of_query=to_key))
        return found

    def toward_query(self, rows: Float[Tensor, "N *rows K"]) -> Float[Tensor, "N *rows K"]:
        """From derivatives in the turned query to those in the query itself."""
        if self.rotation is None:
            return rows
        return self.rotation.at(self.query_positions).turn_back(rows)

    @cached_property
    def carried_values(self) -> Float[Tensor, "B L V"]:
        """Y = W_Vᵀ x as the keys carry it, (B, L, V)."""
        return self.carried_x @ self.w_value

    @cached_property
    def slope(self) -> Float[Tensor, "B Q L"]:
        """p: the attention row (softmax) or 1 at the permitted keys (linear), (B, Q, L)."""
        if self.softmax:
            return self.attention
        return self.permitted.to(self.x.dtype).expand_as(self.attention)

    @cached_property
    def score_gradient(self) -> Float[Tensor, "B Q L"]:
        """ρ along the loss gradient, (B, Q, L): ∂ℓ/∂T but for β."""
        gradient = self.value_gradient.view(self.x.shape[0], -1, 1, self.w_value.shape[1])
        return self._response(gradient, slice(None))[:, :, 0]

    @cached_property
    def second_moment(self) -> Float[Tensor, "N D D"]:
        """S β M_2 of the inputs, (N, D, D); for narrow inputs only."""
        return self.covariance(self.carried_x, self.scale * self.beta * self.carried_x)

    def respond(
        self, directions: Float[Tensor, "N C V"] | None, carried: Float[Tensor, "B L E"]
    ) -> Float[Tensor, "N C E"]:
        """Σ_j ρ_j (what key j carries), for each direction.

        Args:
            directions: (N, C, V), or None for the V unit directions.
            carried: (B, L, E).

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

    def covariance(
        self, left: Float[Tensor, "B L E"], right: Float[Tensor, "B L U"]
    ) -> Float[Tensor, "N E U"]:
        """Second moment of what the keys carry, Σ_j p_j (left_j − mean)(right_j − mean)ᵀ, (N, E, U).

        For linear scores Σ_j left_j right_jᵀ over the permitted keys.

        Returns:
            One matrix a token.
        """

        def weighted(queries: slice) -> Tensor:
            carried = left.mT[:, None]  # (B, 1, E, L)
            if self.softmax:
                carried = carried - (self.slope[:, queries] @ left)[..., None]
            return self.slope[:, queries, None, :] * carried

        return self._gathered(left.shape[2], weighted, right)

    def third_moment(
        self, left: Float[Tensor, "B L E"], right: Float[Tensor, "B L U"]
    ) -> Float[Tensor, "N E U"]:
        """Third central moment along u = W_V W_O g, (N, E, U); softmax only (zero for linear scores).

        Σ_j ρ_j (left_j − mean)(right_j − mean)ᵀ = Σ_j (ρ_j (left_j − mean) − p_j Σ_i ρ_i left_i) right_jᵀ

        Returns:
            One matrix a token.
        """
        assert self.softmax

        def weighted(queries: slice) -> Tensor:
            slope, weights = self.slope[:, queries], self.score_gradient[:, queries]
            centred = left.mT[:, None] - (slope @ left)[..., None]  # (B, q, E, L)
            along = (weights @ left)[..., None]
            return weights[:, :, None, :] * centred - slope[:, :, None, :] * along

        return self._gathered(left.shape[2], weighted, right)

    def third_factors(
        self, left: Float[Tensor, "B L E"], right: Float[Tensor, "B L U"]
    ) -> tuple[Float[Tensor, "N L E"], Float[Tensor, "N L U"]]:
        """`third_moment` as a thin product over the keys, (N, L, E) and (N, L, U)."""
        assert self.softmax
        slope, weights = self.slope[..., None], self.score_gradient[..., None]
        mean, along = ((w @ left)[:, :, None] for w in (self.slope, self.score_gradient))
        weighted = weights * (left[:, None] - mean) - slope * along
        carried = right[:, None].expand(-1, weighted.shape[1], -1, -1)
        return weighted.flatten(0, 1), carried.flatten(0, 1)

    def _gathered(
        self, count: int, weighting: Callable[[slice], Tensor], carried: Tensor
    ) -> Tensor:
        """Σ_j weighting_j carried_j, (N, count, E), the (B, q, count, L) weightings made chunk by chunk."""
        sequences, queries = self.attention.shape[:2]
        chunks_of_queries = self._query_chunks(count)
        if len(chunks_of_queries) == 1:
            return (weighting(slice(None)).flatten(1, 2) @ carried).view(
                sequences * queries, count, -1
            )
        out = carried.new_empty(sequences, queries, count, carried.shape[2])
        for some in chunks_of_queries:
            found = weighting(some).flatten(1, 2) @ carried
            out[:, some] = found.unflatten(1, (-1, count))
        return out.flatten(0, 1)

    def average(self, carried: Float[Tensor, "B L E"]) -> Float[Tensor, "N E"]:
        """Attention-weighted mean of what the keys carry, (N, E)."""
        return (self.slope @ carried).flatten(0, 1)

    def _carried(self, vectors: Tensor) -> Tensor:
        return vectors - vectors.mean(1, keepdim=True) if self.softmax else vectors

    def _response(self, directions: Tensor | None, queries: slice) -> Tensor:
        """ρ for some queries, (B, q, C, L); directions (B, q, C, V) or None for unit directions."""
        values = self.carried_values.mT[:, None]  # (B, 1, V, L)
        along = values if directions is None else directions @ values
        slope = self.slope[:, queries, None, :]
        if not self.softmax:
            return slope * along
        return slope * (along - (slope * along).sum(-1, keepdim=True))

    def _query_chunks(self, count: int) -> list[slice]:
        """Slices of queries whose (B, q, count, L) weightings stay within the memory limit."""
        one = self.x.shape[0] * count * self.x.shape[1] * self.x.element_size()
        return list(chunks(len(self.query_positions), max(1, self.memory_limit // (3 * one))))
