"""Fields of a block configuration, without the checks of their combinations."""

import math
from dataclasses import dataclass

from hessblocks.blocks.attention import Attention
from hessblocks.blocks.gains import Branch
from hessblocks.blocks.mlp import MLP
from hessblocks.blocks.norms import Norm, RMSNorm
from hessblocks.blocks.parts import BlockPart, above_zero, one_of
from hessblocks.blocks.positions import Position, RotaryPosition

OVER_SQRT, OVER_WIDTH = "over-sqrt-width", "over-width"
"""Names of the embeddings' standard deviations 1 / sqrt(width) and 1 / width."""


@dataclass(frozen=True, kw_only=True)
class BlockFields(BlockPart):
    """Fields of a block; `BlockConfig` adds the checks."""

    width: int = 256
    """Width of the model: entries of a token's vector."""
    heads: int = 4
    """Number of attention heads; must divide the width unless `head_width` is set."""
    key_value_heads: int | None = None
    """Number of key-value heads for grouped-query attention; None means `heads`."""
    head_width: int | None = None
    """Width of a head's queries, keys and values; None means width / heads."""
    mlp_width: int | None = None
    """Hidden width of the MLP; None means 4 · width."""
    layout: str = one_of("sequential", "parallel")
    """sequential, or parallel: one skip for both sub-blocks, and one norm unless `mlp_norm`."""
    sub_blocks: str = one_of("both", "attention", "mlp")
    """Sub-blocks of a layer: both, attention or mlp."""
    norm_placement: str = one_of("pre", "post")
    """pre (norm before each sub-block) or post (norm after each sum)."""
    norm: Norm = RMSNorm()
    """Norm of the sub-blocks."""
    first_norm: Norm | None = None
    """Norm before the first layer's attention; None means `norm`."""
    mlp_norm: Norm | None = None
    """Norm of the MLP; None means `norm`, in the parallel layout the norm before attention."""
    final_norm: Norm = RMSNorm()
    """Norm before the output head."""
    logit_softcap: float | None = above_zero(None)
    """c, where c tanh(logit / c) replaces each vocabulary logit (Gemma 2); None: no softcap."""
    position: Position = RotaryPosition()
    """Position encoding."""
    embedding_std: float | str = above_zero(OVER_SQRT, OVER_WIDTH)
    """Initial standard deviation of embedding entries: a number, over-sqrt-width (1 / sqrt(width))
    or over-width (1 / width); with several blocks the first block's value applies."""
    attention: Attention = Attention()
    """The attention sub-block."""
    embedding_skip: Branch | None = None
    """Each layer reads gain · x + skip · x₀, where x₀ is the embedding; None: it reads x."""
    attention_branch: Branch = Branch()
    """Skip and gain of the attention sub-block; the only skip in the parallel layout."""
    mlp: MLP = MLP()
    """The MLP sub-block."""
    mlp_branch: Branch = Branch()
    """Skip and gain of the MLP sub-block; in the parallel layout its skip must be 0."""

    @property
    def resolved_embedding_std(self) -> float:
        """Initial standard deviation of embedding entries, as a number."""
        if isinstance(self.embedding_std, str):
            return 1 / (math.sqrt(self.width) if self.embedding_std == OVER_SQRT else self.width)
        return self.embedding_std

    @property
    def attends(self) -> bool:
        """Whether a token attends to others."""
        return self.sub_blocks != "mlp" and self.attention.scores != "none"

    @property
    def resolved_head_width(self) -> int:
        """Width of a head's queries, keys and values."""
        return self.width // self.heads if self.head_width is None else self.head_width

    @property
    def carried(self) -> dict[str, int]:
        """Widths of a layer's state by component: x, the embedding x₀ and values v₁ if used."""
        values = self.resolved_key_value_heads * self.resolved_head_width
        return (
            {"x": self.width}
            | ({} if self.embedding_skip is None else {"embedding": self.width})
            | ({} if self.attention.value_residual is None else {"values": values})
        )

    @property
    def resolved_key_value_heads(self) -> int:
        """Number of key-value heads."""
        return self.heads if self.key_value_heads is None else self.key_value_heads

    @property
    def resolved_mlp_width(self) -> int:
        """Hidden width of the MLP."""
        return 4 * self.width if self.mlp_width is None else self.mlp_width
