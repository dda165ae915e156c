"""Self-attention layer with its input, and the moments of the inputs under its attention.

Every block of the Hessian follows from these numbers. One-hot attention and identical tokens (rank
collapse) make the second and third moment vanish, and with them every query and key block.

Letters: B sequences, L tokens, D width, H heads, G key-value heads, K query-key width, V value
width, O width of the output, Q positions whose output is asked for.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hessblocks.theory.head_tokens import HeadTokens
from hessblocks.theory.head_vectors import AttentionSetting, HeadVectors
from hessblocks.theory.piecewise import GAINS, NORMS, Piece


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionLayer(AttentionSetting):
    """Self-attention layer F(X) = Σ_h (α_h X + β_h A_h X − γ_h C X) W_V^h W_O^h, row by row.

    The projection may have a bias: (1, O) more parameters in that group. Biases of the other
    weights are rows of the weights themselves, met by a column of ones in `x`.
    """

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
    bias: Float[Tensor, "#B H L L"] | None = None
    """Numbers added to the scaled scores, as those of ALiBi; with it C is A at zero queries."""
    gains: Mapping[str, Float[Tensor, " H"]] = field(default_factory=dict)
    """alpha, beta and gamma of each head; empty for plain attention."""
    parameters: tuple[str, ...]
    """The groups to differentiate, names of `pieces.GROUPS`."""
    projection_bias: bool = False
    """Whether the output has a bias that belongs to the projection."""

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
        # after a norm or rotation the vector beside x_j depends on j: sums over keys do not factor
        if group == "key" and self.joined:
            shape = (shape[0] * shape[1], 1)
        pieces = [Piece(group=group, heads=member, shape=shape) for member in members]
        if group == "projection" and self.projection_bias:
            pieces.append(Piece(group=group, heads=(), shape=(1, shape[1])))
        return pieces

    def joined_projection(self) -> Piece:
        """Join all pieces of the projection in one, in the same order."""
        pieces = self.pieces("projection")
        rows = sum(piece.shape[0] for piece in pieces)
        heads = tuple(range(self.query.shape[0]))
        return Piece(group="projection", heads=heads, shape=(rows, pieces[0].shape[1]))

    def attention(self, head: int) -> Float[Tensor, "B L L"]:
        """Compute A of one head."""
        positions = torch.arange(self.x.shape[1], device=self.x.device)
        vectors = HeadVectors(query_positions=positions, **self._given_to(head))
        scores = self.scale * vectors.final_queries @ vectors.carried_keys.mT
        if not self.softmax:  # a score of 0 adds nothing; −∞ would be an entry of A
            return scores.masked_fill(~self.permitted, 0.0)
        if self.bias is not None:
            scores = scores + self.bias[:, head]
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
            gains: dict[str, Any] = {name: float(gain[index]) for name, gain in self.gains.items()}
            yield HeadTokens(
                **self._given_to(index),
                query_positions=positions,
                attention=self.attention(index)[:, positions],
                permitted=self.permitted[:, positions],
                bias=None if self.bias is None else self.bias[:, index, positions],
                w_value=self._shared(self.value, index),
                w_projection=self.projection[index],
                gradient=gradient[:, positions].flatten(0, 1),
                **gains,
            )

    def output(self, positions: Int[Tensor, " Q"] | None = None) -> Float[Tensor, "B Q O"]:
        """Compute F(X), without the projection's bias, at some positions (Q,) or at all."""
        no_gradient = self.x.new_zeros(*self.x.shape[:2], self.projection.shape[2])
        heads = self.heads(no_gradient, positions)
        total = torch.stack([head.values @ head.w_projection for head in heads]).sum(0)
        return total.view(self.x.shape[0], -1, self.projection.shape[2])

    def _given_to(self, head: int) -> dict[str, Any]:
        """Collect what a head's queries and keys are made of."""
        in_common = {field.name: getattr(self, field.name) for field in fields(AttentionSetting)}
        w_key = None if self.key is None else self._shared(self.key, head)
        return {**in_common, "w_query": self.query[head], "w_key": w_key}

    def _shared(self, weight: Tensor, head: int) -> Tensor:
        """Pick the weight of the key-value head that this head uses."""
        return weight[head * weight.shape[0] // self.query.shape[0]]


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionMoments:
    """Attention moments M_1, M_2 and M_3 for every sequence, head and token.

    With linear scores the second moment is Σ x_j x_jᵀ over the permitted keys and the third is
    zero.

    Source: Ormaniec et al. 2025, section 4 (their first, second and third attention moment
    matrices).
    """

    layer: AttentionLayer
    """The attention layer."""
    gradient: Float[Tensor, "B L O"]
    """∂ℓ/∂F, the direction along which the third moment is contracted."""

    @property
    def first(self) -> Float[Tensor, "B H L D"]:
        """Mean m = Σ_j a_j x_j; over one sequence the rows of M_1 = A X."""
        return self._stacked(lambda head: head.mean)

    @property
    def second(self) -> Float[Tensor, "B H L D D"]:
        """Covariance M_2 = Σ_j a_j (x_j − m)(x_j − m)ᵀ; D² numbers per token and head."""
        return self._stacked(_second)

    @property
    def third(self) -> Float[Tensor, "B H L D D"]:
        """Third central moment contracted with u = W_V W_O g; D² numbers per token and head."""
        return self._stacked(_third)

    @property
    def second_by_key(self) -> Float[Tensor, "B H L L"]:
        """Share a_ij ‖x_j − m_i‖² of key j (last axis) in tr M_2; ‖x_j‖² for linear scores."""
        return self._stacked(_second_by_key)

    def norms(self) -> dict[str, Float[Tensor, "B H L"]]:
        """Compute the Frobenius norm of each moment of every token: first, second, third."""
        return {
            "first": self._stacked(lambda head: head.mean.norm(dim=-1)),
            "second": self._stacked(lambda head: _second(head).flatten(1).norm(dim=-1)),
            "third": self._stacked(lambda head: _third(head).flatten(1).norm(dim=-1)),
        }

    def _stacked(self, of_head: Callable[[HeadTokens], Tensor]) -> Tensor:
        """Stack one quantity of every head, (B, H, L, ...)."""
        heads = self.layer.heads(self.gradient)
        per_head = [of_head(head).unflatten(0, self.layer.x.shape[:2]) for head in heads]
        return torch.stack(per_head, dim=1)


def _second(head: HeadTokens) -> Tensor:
    return head.covariance(head.carried_x, head.carried_x)


def _second_by_key(head: HeadTokens) -> Tensor:
    """Take distances by differences: ‖x_j‖² − 2 x_j·m_i + ‖m_i‖² would cancel."""
    carried = head.carried_x
    centres = head.slope @ carried if head.softmax else torch.zeros_like(carried)
    distances = torch.cdist(centres, carried, compute_mode="donot_use_mm_for_euclid_dist")
    return (head.slope * distances.square()).flatten(0, 1)


def _third(head: HeadTokens) -> Tensor:
    if not head.softmax:
        return head.x.new_zeros(head.x_query.shape[0], head.x.shape[2], head.x.shape[2])
    return head.third_moment(head.carried_x, head.carried_x)
