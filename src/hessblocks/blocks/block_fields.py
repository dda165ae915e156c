"""Fields of a block: the choices that describe it, before they are checked with each other."""

import math
from dataclasses import dataclass

from hessblocks.blocks.attention import Attention
from hessblocks.blocks.gains import Branch
from hessblocks.blocks.mlp import MLP
from hessblocks.blocks.norms import Norm, RMSNorm
from hessblocks.blocks.parts import BlockPart, above_zero, one_of
from hessblocks.blocks.positions import Position, RotaryPosition

OVER_SQRT, OVER_WIDTH = "over-sqrt-width", "over-width"
"""Standard deviations of embeddings: 1 / sqrt(width), and 1 / width."""


@dataclass(frozen=True, kw_only=True)
class BlockFields(BlockPart):
    """Fields of a block; `BlockConfig` adds the checks."""

    width: int = 256
    """Entries of a token's vector."""
    heads: int = 4
    """Attention heads; divides the width, where they have no `head_width` of their own."""
    key_value_heads: int | None = None
    """Heads of keys and values, for grouped queries; None means as many as `heads`."""
    head_width: int | None = None
    """Entries of one head's query, key and value; None means width / heads."""
    mlp_width: int | None = None
    """Hidden width of the MLP; None means 4 · width."""
    layout: str = one_of("sequential", "parallel")
    """sequential or parallel (one skip for both sub-blocks, and one norm without `mlp_norm`)."""
    sub_blocks: str = one_of("both", "attention", "mlp")
    """Sub-blocks that a layer has: both, attention or mlp."""
    norm_placement: str = one_of("pre", "post")
    """pre (before each sub-block) or post (after each sum)."""
    norm: Norm = RMSNorm()
    """Norm of the sub-blocks."""
    first_norm: Norm | None = None
    """Norm of the first layer's attention input, where it differs."""
    mlp_norm: Norm | None = None
    """Norm of the MLP, where it differs or the parallel layout has two."""
    final_norm: Norm = RMSNorm()
    """Norm before the head."""
    logit_softcap: float | None = above_zero(None)
    """c of the logits c tanh(logit / c) of a vocabulary (Gemma 2); None: as they are."""
    position: Position = RotaryPosition()
    """Position slot: how a token's place enters the model."""
    embedding_std: float | str = above_zero(OVER_SQRT, OVER_WIDTH)
    """Standard deviation of the entries of embeddings at the start: over-sqrt-width is
    1 / sqrt(width), over-width is 1 / width; of several blocks that of the first counts."""
    attention: Attention = Attention()
    """The attention sub-block."""
    embedding_skip: Branch | None = None
    """Sum of the layer's input (its gain) and the embedding x₀ (its skip): what it reads."""
    attention_branch: Branch = Branch()
    """Skip and gain of the attention sub-block; a parallel layout has this skip alone."""
    mlp: MLP = MLP()
    """The MLP sub-block."""
    mlp_branch: Branch = Branch()
    """Skip and gain of the MLP sub-block; in the parallel layout its skip is 0."""

    @property
    def resolved_embedding_std(self) -> float:
        """Standard deviation of the entries of embeddings at the start."""
        if isinstance(self.embedding_std, str):
            return 1 / (math.sqrt(self.width) if self.embedding_std == OVER_SQRT else self.width)
        return self.embedding_std

    @property
    def resolved_head_width(self) -> int:
        """Entries of one head's query, key and value."""
        return self.width // self.heads if self.head_width is None else self.head_width

    @property
    def carried(self) -> dict[str, int]:
        """Width of what a layer takes and returns, by its parts: x, and x₀ and v₁ where read."""
        values = self.resolved_key_value_heads * self.resolved_head_width
        return (
            {"x": self.width}
            | ({} if self.embedding_skip is None else {"embedding": self.width})
            | ({} if self.attention.value_residual is None else {"values": values})
        )

    @property
    def resolved_key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.key_value_heads is None else self.key_value_heads

    @property
    def resolved_mlp_width(self) -> int:
        """Hidden width of the MLP."""
        return 4 * self.width if self.mlp_width is None else self.mlp_width
