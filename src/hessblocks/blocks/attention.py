"""Self-attention assembled from parts: softmax or linear scores, plain or shaped, any weight slots.

Letters: B sequences, T queries, S keys, D width, H heads, G key-value heads, K head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hessblocks.blocks.gains import Shaping
from hessblocks.blocks.norms import NoNorm, Norm
from hessblocks.blocks.parts import Part, check_choice, check_finite
from hessblocks.blocks.positions import Rotation, rotate
from hessblocks.blocks.shaped import shape_attention
from hessblocks.blocks.weights import Dense, Weight

Cache = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Kernel(Protocol):
    """A V for softmax attention, however it is computed."""

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        scale: float,
        causal: bool,
    ) -> Tensor:
        """Map (B, H, T, K), (B, G, S, K), (B, G, S, V) to (B, H, T, V)."""


def fused_kernel(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scale: float,
    causal: bool,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`; the default kernel."""
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=causal and mask is None and query.shape[2] > 1,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


@dataclass(frozen=True, kw_only=True)
class Context:
    """What one forward pass tells every layer."""

    causal: bool = True
    """Whether a token attends to itself and what stands before it only."""
    mask: Tensor | None = None
    """Mask in the form that the kernel understands; None means `causal` says all."""
    allowed: Bool[Tensor, "B S"] | None = None
    """False marks padding keys; None means no padding."""
    rotation: Rotation | None = None
    """Cosines and sines of rotary positions."""
    kernel: Kernel = fused_kernel
    """Computes A V of softmax attention."""


@dataclass(frozen=True, kw_only=True)
class Attention(Part, kind="attention"):
    """How tokens are mixed."""

    scores: str = "softmax"
    """softmax: rows of A are softmax(scores); linear: A is the masked scores themselves."""
    shaping: Shaping | None = None
    """Gains of shaped attention, or None for A alone."""
    query_key: str = "two-matrix"
    """two-matrix: X W_Q W_Kᵀ Xᵀ / sqrt(K); one-matrix: X W_QK Xᵀ, one W_QK a head, no scale."""
    query_key_norm: Norm = NoNorm()
    """Norm over each head's queries and keys."""
    temperature: float = 1.0
    """Divides the scores."""
    query: Weight = Dense()
    """W_Q, or W_QK where there is one matrix."""
    key: Weight = Dense()
    """W_K; unused where there is one matrix."""
    value: Weight = Dense()
    """W_V."""
    first_value: Weight | None = None
    """W_V of the first layer, where it differs."""
    projection: Weight = Dense()
    """The output projection."""

    def __post_init__(self) -> None:
        """Check the fields."""
        check_choice(self, "scores", ("softmax", "linear"))
        check_choice(self, "query_key", ("two-matrix", "one-matrix"))
        check_finite(self, "temperature")

    def build(self, width: int, heads: int, key_value_heads: int, layer: int) -> SelfAttention:
        """The module of layer number `layer`, counted from 0."""
        return SelfAttention(self, width, heads, key_value_heads, layer)


class SelfAttention(nn.Module):
    """Self-attention of one layer; see `Attention`."""

    def __init__(
        self, part: Attention, width: int, heads: int, key_value_heads: int, layer: int
    ) -> None:
        super().__init__()
        self.heads = heads
        self.key_value_heads = key_value_heads
        self.num_key_value_groups: int = heads // key_value_heads
        self.head_width = width // heads
        self.linear = part.scores == "linear"
        self.one_matrix = part.query_key == "one-matrix"
        inner = key_value_heads * self.head_width
        query_width = width if self.one_matrix else self.head_width
        self.scale = (1.0 if self.one_matrix else self.head_width**-0.5) / part.temperature
        self.query = part.query.build(width, heads * query_width)
        self.key = None if self.one_matrix else part.key.build(width, inner)
        value = part.first_value if layer == 0 and part.first_value is not None else part.value
        self.value = value.build(width, inner)
        self.projection = part.projection.build(heads * self.head_width, width)
        self.query_norm = part.query_key_norm.build(query_width)
        self.key_norm = part.query_key_norm.build(query_width)
        self.gains = part.shaping.build(heads) if part.shaping is not None else None

    def forward(
        self, x: Float[Tensor, "B T D"], context: Context, cache: Cache | None = None
    ) -> Float[Tensor, "B T D"]:
        """Mix the tokens of `x`.

        Args:
            x: the sub-block's input, after its norm.
            context: masks, positions and the kernel.
            cache: takes the new keys and values, returns those of all tokens so far.
        """
        query, key, value = self._project(x, context.rotation)
        if cache is not None:
            key, value = cache(key, value)
        mixed = self._attend(query, key, value, context)
        if self.gains is not None:
            mixed = shape_attention(
                mixed,
                self._repeat(value),
                self.gains.per_head(),
                causal=context.causal,
                allowed=context.allowed,
            )
        projected: Tensor = self.projection(mixed.transpose(1, 2).flatten(2))
        return projected

    def _project(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        query = self.query_norm(self._split(self.query(x), self.heads))
        shared = x[:, None] if self.key is None else self._split(self.key(x), self.key_value_heads)
        key = self.key_norm(shared)
        value = self._split(self.value(x), self.key_value_heads)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        return query, key, value

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        if self.one_matrix:
            key = key.expand(-1, self.key_value_heads, -1, -1)
        if self.linear:
            return linear_attention(
                query, self._repeat(key), self._repeat(value), context, scale=self.scale
            )
        return context.kernel(
            self, query, key, value, context.mask, scale=self.scale, causal=context.causal
        )

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)

    def _repeat(self, x: Tensor) -> Tensor:
        """Keys or values of each query head, from those of its group."""
        groups: int = self.num_key_value_groups
        return x if groups == 1 else x.repeat_interleave(groups, dim=1)


def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, context: Context, *, scale: float
) -> Tensor:
    """A V with A the scores themselves, zero where attention is not permitted."""
    scores = scale * query @ key.transpose(-1, -2)
    permitted = permitted_keys(scores.shape[-2], scores.shape[-1], context, scores.device)
    return scores.masked_fill(~permitted, 0.0) @ value


def permitted_keys(
    queries: int, keys: int, context: Context, device: torch.device
) -> Bool[Tensor, "#B 1 T S"]:
    """True where a query may attend to a key; the queries are the last of the keys."""
    permitted = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
    if context.causal:
        permitted = permitted.tril(keys - queries)
    if context.allowed is not None:
        permitted = permitted & context.allowed[:, None, None, :]
    return permitted
