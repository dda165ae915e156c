"""Transformer block: attention and MLP, their norms, skips and gains."""

from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.blocks.attention import Cache
from hessblocks.blocks.block_config import BlockConfig
from hessblocks.blocks.kernels import Context

Vectors = Float[Tensor, "*tokens width"]
"""One vector per token."""


class Block(nn.Module):
    """Transformer block, number `layer` of `depth`; see `BlockConfig` for the formulas."""

    def __init__(self, config: BlockConfig, layer: int, depth: int) -> None:
        """Build the parts.

        Args:
            config: the choice of parts.
            layer: counted from 0.
            depth: layers of the model; scales branch gains.
        """
        super().__init__()
        width = config.width
        first = config.first_norm if layer == 0 and config.first_norm is not None else config.norm
        self.post = config.norm_placement == "post"
        self.attention_norm = first.build(width)
        self.mlp_norm = None if config.layout == "parallel" else config.norm.build(width)
        self.attention = config.attention.build(
            width, config.heads, config.resolved_key_value_heads, layer
        )
        self.mlp = config.mlp.build(width, config.resolved_mlp_width)
        self.attention_branch = config.attention_branch.build(depth)
        self.mlp_branch = config.mlp_branch.build(depth)

    def forward(
        self,
        x: Float[Tensor, "sequences tokens width"],
        context: Context,
        cache: Cache | None = None,
    ) -> Float[Tensor, "sequences tokens width"]:
        """Map (sequences, tokens, width) to the same shape."""
        inputs = x if self.post else self.attention_norm(x)
        attended = self.attention(inputs, context, cache)
        return self.after_attention(attended, x, inputs)

    def after_attention(self, attended: Vectors, x: Vectors, inputs: Vectors) -> Vectors:
        """Run the rest of the block, which acts on each token by itself.

        Args:
            attended: output of the attention sub-block.
            x: input of the block.
            inputs: input of the attention sub-block, normalised where the norm stands before it.

        Returns:
            The output of the block.
        """
        summed: Tensor = self.attention_branch(attended, x)
        if self.mlp_norm is None:
            beside: Tensor = self.mlp_branch(self.mlp(inputs))
            return summed + beside
        middle = self.attention_norm(summed) if self.post else summed
        branch = self.mlp(middle if self.post else self.mlp_norm(middle))
        after: Tensor = self.mlp_branch(branch, middle)
        return self.mlp_norm(after) if self.post else after
