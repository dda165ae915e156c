"""Self-attention assembled from parts: softmax or linear scores, plain or shaped, any weights.

Letters: B sequences, T queries, S keys, D width, H heads, G key-value heads, K head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.blocks.gains import Branch, Shaping, Sink
from hessblocks.blocks.kernels import Context, Kernel, linear_kernel
from hessblocks.blocks.norms import NoNorm, Norm
from hessblocks.blocks.parts import BlockPart, above_zero, one_of
from hessblocks.blocks.positions import Rotation, rotate
from hessblocks.blocks.shaped import centre, mix_causally, shape_attention
from hessblocks.blocks.weights import TIED, Dense, Tied, Weight

Cache = Callable[
    [Float[Tensor, "B G T K"], Float[Tensor, "B G T K"]],
    tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S K"]],
]
"""Key-value cache: maps the keys and values of new tokens to those of all tokens so far."""


@dataclass(frozen=True, kw_only=True)
class Attention(BlockPart, kind="attention"):
    """Attention slot of a block: scores, weights, norms and gains of the sub-block."""

    scores: str = one_of("softmax", "linear", "none")
    """softmax: rows of A are softmax(scores); linear: A is the masked scores themselves; none: no
    token attends to another, and the output is the projection of its own normed state."""
    shaping: Shaping | None = None
    """Gains of shaped attention; None: plain attention A."""
    query_key: str = one_of("two-matrix", "one-matrix")
    """two-matrix: X W_Q W_Kᵀ Xᵀ / sqrt(K); one-matrix: X W_QK Xᵀ, one W_QK per head, no scale."""
    query_key_norm: Norm = NoNorm()
    """Norm of each head's queries and keys (QK-norm)."""
    query_norm: Norm | None = None
    """Norm of each head's queries; None: `query_key_norm`."""
    window: int | None = None
    """Sliding window: number of tokens that a token attends to, itself and those before it (Jiang
    et al., 2023, section 2); None: no window."""
    temperature: float = above_zero(1.0)
    """Divisor of the scores."""
    softcap: float | None = above_zero(None)
    """c, where c tanh(score / c) replaces each score (Gemma 2); None: no softcap."""
    sink: Sink | None = None
    """Additional key per head with a trained score and value zero (GPT-OSS); None: no sink."""
    query: Weight = Dense()
    """W_Q; W_QK if `query_key` is one-matrix."""
    key: Weight = Dense()
    """W_K; if `query_key` is one-matrix there is none, and the field must keep its default."""
    value: Weight = Dense()
    """W_V."""
    value_residual: Branch | None = None
    """Value residual (ResFormer): later layers use gain · V + skip · V₁, V₁ of the first layer."""
    first_value: Weight | None = None
    """W_V of the first layer; None: `value`."""
    projection: Weight = Dense()
    """Output projection."""
    gate: Weight | None = None
    """W_G: each head's output is multiplied by σ(X W_G) (Qiu et al., 2025, eq. 5, position G1)."""
    gate_per: str = one_of("entry", "head")
    """entry: one gate per entry of a head's output; head: one gate per head."""

    @property
    def resolved_query_norm(self) -> Norm:
        """Norm of each head's queries."""
        return self.query_key_norm if self.query_norm is None else self.query_norm

    def value_of(self, layer: int) -> Weight:
        """Return the part W_V of layer `layer`, counted from 0."""
        return self.first_value if layer == 0 and self.first_value is not None else self.value

    def build(
        self,
        width: int,
        heads: int,
        key_value_heads: int,
        layer: int,
        head_width: int | None = None,
    ) -> SelfAttention | TokenMap:
        """Build the module of layer `layer`, from 0; `head_width` None means width / heads."""
        if self.scores == "none":
            return TokenMap(self, width)
        return SelfAttention(self, width, heads, key_value_heads, layer, head_width)


class TokenMap(nn.Module):
    """Linear map of each token in place of attention (NBL, arXiv 2505.21077)."""

    heads = key_value_heads = head_width = 0

    def __init__(self, part: Attention, width: int) -> None:
        super().__init__()
        self.projection = part.projection.build(width, width)

    def forward(self, x: Float[Tensor, "B T D"], *_: object) -> Float[Tensor, "B T D"]:
        """Multiply each token by the projection."""
        projected: Tensor = self.projection(x)
        return projected


class SelfAttention(nn.Module):
    """Self-attention module of one layer; see `Attention`."""

    def __init__(
        self,
        part: Attention,
        width: int,
        heads: int,
        key_value_heads: int,
        layer: int,
        head_width: int | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.key_value_heads = key_value_heads
        # transformers' attention functions read this attribute
        self.num_key_value_groups: int = heads // key_value_heads
        self.head_width = head_width or width // heads
        self.linear = part.scores == "linear"
        self.window = part.window
        self.one_matrix = part.query_key == "one-matrix"
        inner = key_value_heads * self.head_width
        query_width = width if self.one_matrix else self.head_width
        self.scale = (1.0 if self.one_matrix else self.head_width**-0.5) / part.temperature
        self.query = part.query.build(width, heads * query_width)
        self.key = None if self.one_matrix else part.key.build(width, inner)
        self.value = part.value_of(layer).build(width, inner)
        self.projection = part.projection.build(heads * self.head_width, width)
        self.query_norm = part.resolved_query_norm.build(query_width)
        self.key_norm = part.query_key_norm.build(query_width)
        self.gains = part.shaping.build(heads) if part.shaping is not None else None
        self.softcap = part.softcap
        self.sink = part.sink.build(heads) if part.sink is not None else None
        gates = heads * (self.head_width if part.gate_per == "entry" else 1)
        self.gate = part.gate.build(width, gates) if part.gate is not None else None
        if isinstance(self.projection, Tied) and getattr(part.projection, "init", None) == TIED:
            self.projection.tie_to(self.value)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        context: Context,
        cache: Cache | None = None,
        values: Float[Tensor, "B T _"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Mix the tokens of `x`.

        Args:
            x: input of the sub-block, after the norm.
            context: masks, positions and the kernel.
            cache: maps new keys and values to those of all tokens so far; None: no cache.
            values: values of all heads; None: computed from `x`.

        Returns:
            Output of the sub-block, before skip and gain.
        """
        query, key, new_value = self._project(x, context.rotation, values)
        key, value = (key, new_value) if cache is None else cache(key, new_value)
        mixed = self._mix(query, key, value, new_value, context)
        if self.gate is not None:
            mixed = mixed * self._split(self.gate(x).sigmoid(), self.heads)
        projected: Tensor = self.projection(mixed.transpose(1, 2).flatten(2))
        return projected

    def matrix(self, x: Float[Tensor, "B T D"], context: Context) -> Float[Tensor, "B H T T"]:
        """Compute the matrix that multiplies each head's values: A, or αI + βA − γC.

        This is for inspection: the identity replaces the values; a gate is not applied. Memory:
        tokens × tokens per head, which `forward` with a fused kernel never needs.

        Returns:
            The matrix of each head.
        """
        query, key, value = self._project(x, context.rotation)
        identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        identity = identity.expand(*value.shape[:2], -1, -1)
        return self._mix(query, key, identity, identity, context)

    def _project(
        self, x: Tensor, rotation: Rotation | None, values: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        query = self.query_norm(self._split(self.query(x), self.heads))
        if self.key is None:
            key = self._split(self.key_norm(x), self.key_value_heads)  # x itself is the key
        else:
            key = self.key_norm(self._split(self.key(x), self.key_value_heads))
        value = self._split(self.value(x) if values is None else values, self.key_value_heads)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        return query, key, value

    def _mix(
        self, query: Tensor, key: Tensor, value: Tensor, new_value: Tensor, context: Context
    ) -> Tensor:
        """Compute A V or (αI + βA − γC) V; `new_value` are the values of the query tokens only."""
        attended = self._attend(query, key, value, context)
        if self.gains is None:
            return attended
        gains, repeated = self.gains.per_head(), self._repeat(new_value)
        plain = context.aligned and self.window is None and self.sink is None
        if not self.gains.centred:
            return shape_attention(attended, repeated, None, gains)
        if plain and context.causal and value.shape[2] == query.shape[2]:
            cached = repeated if value is new_value else self._repeat(value)
            return mix_causally(attended, repeated, cached, gains, context.counting(repeated))
        if plain and (not context.causal or (query.shape[2] == 1 and context.mask is None)):
            # all queries attend to the same keys, or there is one query, which attends to all
            allowed = None if context.causal else context.allowed
            middle = self._repeat(centre(value, causal=False, allowed=allowed))
        else:  # C depends on the mask, window, bias or sink: compute it as A at zero scores
            middle = self._attend(torch.zeros_like(query), key, value, context)
        return shape_attention(attended, repeated, middle, gains)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        if self.one_matrix:  # the key is x, split into heads for the cache: join the heads
            key = key.transpose(1, 2).flatten(2)[:, None].expand(-1, self.heads, -1, -1)
        kernel: Kernel = linear_kernel if self.linear else context.kernel
        # with a cache, a single new token attends to all keys: no causal mask
        causal = context.causal and query.shape[2] > 1
        mask = context.mask_of(self.window)
        options: dict[str, Any] = {} if self.softcap is None else {"softcap": self.softcap}
        if self.sink is not None:
            options["sinks"] = self.sink.scores
        return kernel(self, query, key, value, mask, scale=self.scale, causal=causal, **options)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)

    def _repeat(self, x: Tensor) -> Tensor:
        """Repeat the values of each key-value head for its query heads."""
        groups: int = self.num_key_value_groups
        return x if groups == 1 else x.repeat_interleave(groups, dim=1)
