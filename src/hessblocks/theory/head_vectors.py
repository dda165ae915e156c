"""Queries and keys of one attention head, after query-key norms and rotary positions, if any.

A norm is over the entries of each head's queries or keys. Rotary positions (RoPE) then rotate pairs
of entries by angles that depend on the token's position: the score of tokens i and j is
s (R_i q_i)·(R_j k_j) (Su et al., 2021).

Letters: B sequences, Q queries (the positions whose output enters the loss), L tokens of a
sequence, N = B·Q, or any number of vectors; D width of the input, K query-key width, P parameters
of a norm, S = K + P; E width of what the keys carry; I selected tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import grad, jacrev, vmap

from hessblocks.errors import ArgumentError
from hessblocks.linalg import MEMORY_LIMIT


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadNorm:
    """Query-key norm: any differentiable function of a vector and parameters, shared by all heads.

    Source: Henry et al. (2020), query-key normalisation.
    """

    function: Callable[[Float[Tensor, " K"], Float[Tensor, " P"]], Float[Tensor, " K"]]
    """Function of a vector (K,) and the parameters (P,)."""
    parameters: Float[Tensor, "..."]
    """Trained parameters, flattened to (P,); none at all is allowed."""

    @classmethod
    def rms(cls, gain: Float[Tensor, " K"], eps: float = 1e-6) -> HeadNorm:
        """Build the RMS norm: v becomes gain · v / sqrt(mean(v²) + eps).

        Args:
            gain: the trained parameters.
            eps: above 0.

        Returns:
            The norm.

        Raises:
            ArgumentError: an eps that is not above 0.
        """
        if not isinstance(eps, int | float) or not eps > 0:
            raise ArgumentError(f"eps: expected a number above 0, got {eps}")
        return cls(
            function=lambda v, gain: gain * v * (v.square().mean() + eps).rsqrt(), parameters=gain
        )

    def check(self, width: int) -> None:
        """Test the function on vectors of `width` entries.

        Args:
            width: K.

        Raises:
            ArgumentError: the parameters are not one vector; or the function changes the length or
                dtype of a vector, or cannot be differentiated or vmapped.
        """
        if self.parameters.ndim != 1:
            raise ArgumentError(
                f"its parameters: expected one vector, got {tuple(self.parameters.shape)}; "
                "flatten them"
            )
        # not at the zero vector, where a norm has no derivative
        vectors = torch.linspace(-1, 2, 2 * width).to(self.parameters).view(2, width)
        try:
            output, slope = self.output(vectors), self.slope(vectors)
        except Exception as error:  # a user's function may raise any error
            raise ArgumentError(
                f"it does not work on vectors of {width} entries with {len(self.parameters)} "
                f"parameters ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
            ) from error
        if output.dtype != vectors.dtype or slope.dtype != vectors.dtype:
            raise ArgumentError(f"it gives {output.dtype}, expected {vectors.dtype}")

    def output(self, vectors: Float[Tensor, "*N K"]) -> Float[Tensor, "*N K"]:
        """Apply the norm to each vector."""
        flat = vectors.flatten(0, -2)
        return vmap(self.function, in_dims=(0, None))(flat, self.parameters).view_as(vectors)

    def slope(self, vectors: Float[Tensor, "N K"]) -> Float[Tensor, "N K S"]:
        """Compute the Jacobian by the vector and the parameters, concatenated along S."""
        jacobians = vmap(jacrev(self.function, argnums=(0, 1)), in_dims=(0, None))
        return torch.cat(jacobians(vectors, self.parameters), dim=-1)

    def curvature(
        self, vectors: Float[Tensor, "N K"], along: Float[Tensor, "N K"]
    ) -> Float[Tensor, "N S S"]:
        """Compute the Hessian of along · output by vector and parameters together."""

        def bent(both: Tensor, direction: Tensor) -> Tensor:
            def value(both: Tensor) -> Tensor:
                vector, parameters = both.split([vectors.shape[-1], len(self.parameters)])
                return (direction * self.function(vector, parameters)).sum()

            hessian: Tensor = jacrev(grad(value))(both)
            return hessian

        parameters = self.parameters.expand(len(vectors), -1)
        return vmap(bent)(torch.cat([vectors, parameters], dim=-1), along)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadRotation:
    """Rotation R_j v = cos_j ⊙ v + sin_j ⊙ (v Q) of row vectors v of token j."""

    cosines: Float[Tensor, "#B L K"]
    """1 where nothing turns."""
    sines: Float[Tensor, "#B L K"]
    """0 where nothing turns."""
    quarter: Float[Tensor, "K K"]
    """Q, which rotates a row vector by 90° in each pair."""

    @classmethod
    def of_halves(
        cls, cosines: Float[Tensor, "#B L turned"], sines: Float[Tensor, "#B L turned"], width: int
    ) -> HeadRotation:
        """Pair entries (i, i + half) of the first `turned` ones, as GPT-NeoX and Llama do.

        Args:
            cosines: cosines of the angles, equal for both entries of a pair.
            sines: sines of the angles, likewise.
            width: K, at least `turned`.

        Returns:
            The rotation of vectors of that width.
        """
        turned = cosines.shape[-1]
        quarter = cosines.new_zeros(width, width)
        half = torch.arange(turned // 2, device=cosines.device)
        quarter[half, half + turned // 2] = 1.0
        quarter[half + turned // 2, half] = -1.0
        rest = (0, width - turned)
        return cls(
            cosines=torch.nn.functional.pad(cosines, rest, value=1.0),
            sines=torch.nn.functional.pad(sines, rest),
            quarter=quarter,
        )

    def at(self, positions: Int[Tensor, " I"]) -> HeadRotation:
        """Restrict the rotation to some of the tokens."""
        cosines, sines = self.cosines[:, positions], self.sines[:, positions]
        return HeadRotation(cosines=cosines, sines=sines, quarter=self.quarter)

    def turn(self, vectors: Float[Tensor, "B L K"]) -> Float[Tensor, "B L K"]:
        """Turn the vectors, R_j v_j."""
        return vectors * self.cosines + (vectors @ self.quarter) * self.sines

    def turn_back(self, vectors: Float[Tensor, "I *rows K"]) -> Float[Tensor, "I *rows K"]:
        """Turn back, R_jᵀ v_j, any number of vectors per token (sequence by sequence)."""
        shape = (-1, *(1,) * (vectors.ndim - 2), vectors.shape[-1])
        sequences = vectors.shape[0] // self.cosines.shape[1]
        cosines, sines = (
            table.expand(sequences, -1, -1).reshape(shape) for table in (self.cosines, self.sines)
        )
        return vectors * cosines + (vectors * sines) @ self.quarter.T

    def matrices(self) -> Float[Tensor, "#B L K K"]:
        """Build the matrices R_j that row vectors are multiplied by."""
        return self.cosines.diag_embed() + self.quarter * self.sines[..., None, :]


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
        self, rows: Float[Tensor, "N *rows K"], group: str
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
