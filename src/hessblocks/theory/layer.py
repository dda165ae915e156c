"""Self-attention layer with its input: the numbers from which every block follows.

Letters: B sequences, L tokens, D width, H heads, G key-value heads, K query-key width, V value
width, O width of the output, Q positions whose output is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hessblocks.linalg import MEMORY_LIMIT
from hessblocks.theory.heads import HeadNorm, HeadTokens, Rotation
from hessblocks.theory.piecewise import GAINS, NORMS, Piece


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionLayer:
    """Self-attention layer F(X) = Σ_h (α_h X + β_h A_h X − γ_h C X) W_V^h W_O^h, row by row.

    The projection may have a bias: (1, O) more parameters in that group. Biases of the other
    weights are rows of the weights themselves, met by a column of ones in `x`.
    """

    x: Float[Tensor, "B L D"]
    """Input of the layer."""
    query: Float[Tensor, "H D K"]
    """W_Q of each head; W_QK (K = D) where there is one matrix."""
    key: Float[Tensor, "G D K"] | None
    """W_K of each key-value head, used by H / G heads in a row; None with one matrix."""
    value: Float[Tensor, "G D V"]
    """W_V of each key-value head; columns of the identity where values are the inputs."""
    projection: Float[Tensor, "H V O"]
    """W_O of each head; rows of the identity where heads stand side by side."""
    permitted: Bool[Tensor, "#B L L"]
    """True where a query (row) may attend to a key (column)."""
    scale: float
    """s, the factor of the scores."""
    softmax: bool = True
    """Whether A is a softmax of the scores, or the scores themselves, 0 where not permitted."""
    gains: Mapping[str, Float[Tensor, " H"]] = field(default_factory=dict)
    """alpha, beta and gamma of each head; empty for plain attention."""
    parameters: tuple[str, ...]
    """The groups to differentiate, names of `pieces.GROUPS`."""
    rotation: Rotation | None = None
    """Rotary positions, where queries and keys are turned."""
    query_norm: HeadNorm | None = None
    """Norm between W_Q and rotary positions."""
    key_norm: HeadNorm | None = None
    """Norm between W_K and rotary positions."""
    projection_bias: bool = False
    """Whether the output has a bias that belongs to the projection."""
    memory_limit: int = MEMORY_LIMIT
    """Bytes that intermediate results of one operation may take."""

    def pieces(self, group: str) -> list[Piece]:
        """List the pieces of a group, in the order in which its parameters are flattened."""
        heads = range(self.query.shape[0])
        if group in GAINS:
            return [Piece(group=group, heads=(h,), shape=(1, 1)) for h in heads]
        if group in NORMS:
            norm = self.query_norm if group == "query_norm" else self.key_norm
            assert norm is not None
            return [Piece(group=group, heads=tuple(heads), shape=(len(norm.parameters), 1))]
        if group in ("key", "value"):
            weight = self.key if group == "key" else self.value
            assert weight is not None
            share = len(heads) // weight.shape[0]
            members = [tuple(heads[g * share : (g + 1) * share]) for g in range(weight.shape[0])]
        else:
            weight = self.projection if group == "projection" else self.query
            members = [(h,) for h in heads]
        shape = (weight.shape[1], weight.shape[2])
        # behind a norm or rotation the vector beside x_j depends on j: sums over keys do not factor
        if group == "key" and self.joined:
            shape = (shape[0] * shape[1], 1)
        pieces = [Piece(group=group, heads=member, shape=shape) for member in members]
        if group == "projection" and self.projection_bias:
            pieces.append(Piece(group=group, heads=(), shape=(1, shape[1])))
        return pieces

    @property
    def joined(self) -> bool:
        """True where a norm or rotation stands between keys and scores.

        W_K is one long vector in the sums then.
        """
        between = (self.rotation, self.query_norm, self.key_norm)
        return any(each is not None for each in between)

    def joined_projection(self) -> Piece:
        """Join all pieces of the projection in one, in the same order."""
        pieces = self.pieces("projection")
        rows = sum(piece.shape[0] for piece in pieces)
        heads = tuple(range(self.query.shape[0]))
        return Piece(group="projection", heads=heads, shape=(rows, pieces[0].shape[1]))

    def attention(self, head: int) -> Float[Tensor, "B L L"]:
        """Compute A of one head."""
        queries = self.x @ self.query[head]
        keys = self.x if self.key is None else self.x @ self._shared(self.key, head)
        if self.query_norm is not None:
            queries = self.query_norm.output(queries)
        if self.key_norm is not None:
            keys = self.key_norm.output(keys)
        if self.rotation is not None:
            queries, keys = self.rotation.turn(queries), self.rotation.turn(keys)
        scores = self.scale * queries @ keys.mT
        if not self.softmax:  # a score of 0 adds nothing; −∞ would be an entry of A
            return scores.masked_fill(~self.permitted, 0.0)
        return scores.masked_fill(~self.permitted, -torch.inf).softmax(-1)

    def heads(
        self, gradient: Float[Tensor, "B L O"], positions: Int[Tensor, " Q"] | None = None
    ) -> Iterator[HeadTokens]:
        """Yield each head with the tokens whose output enters the loss.

        Args:
            gradient: ∂ℓ/∂F of every token.
            positions: (Q,) indices into the tokens, or None for all.

        Yields:
            One head after the other.
        """
        if positions is None:
            positions = torch.arange(self.x.shape[1], device=self.x.device)
        for index in range(self.query.shape[0]):
            yield HeadTokens(
                x=self.x,
                query_positions=positions,
                attention=self.attention(index)[:, positions],
                permitted=self.permitted[:, positions],
                softmax=self.softmax,
                scale=self.scale,
                w_query=self.query[index],
                w_key=None if self.key is None else self._shared(self.key, index),
                w_value=self._shared(self.value, index),
                w_projection=self.projection[index],
                gradient=gradient[:, positions].flatten(0, 1),
                rotation=self.rotation,
                query_norm=self.query_norm,
                key_norm=self.key_norm,
                memory_limit=self.memory_limit,
                **{name: float(gain[index]) for name, gain in self.gains.items()},
            )

    def output(self, positions: Int[Tensor, " Q"] | None = None) -> Float[Tensor, "B Q O"]:
        """Compute F(X), without the projection's bias, at some positions (Q,) or at all."""
        no_gradient = self.x.new_zeros(*self.x.shape[:2], self.projection.shape[2])
        heads = self.heads(no_gradient, positions)
        total = torch.stack([head.values @ head.w_projection for head in heads]).sum(0)
        return total.view(self.x.shape[0], -1, self.projection.shape[2])

    def _shared(self, weight: Tensor, head: int) -> Tensor:
        """Pick the weight of the key-value head that this head uses."""
        return weight[head * weight.shape[0] // self.query.shape[0]]
