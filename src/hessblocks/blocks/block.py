"""Transformer block: attention and MLP, their norms, skips and gains."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.blocks.attention import Cache, SelfAttention
from hessblocks.blocks.block_config import BlockConfig
from hessblocks.blocks.kernels import Context
from hessblocks.blocks.weights import SharedLinear

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
        self.has_mlp = config.sub_blocks != "attention"
        self.post = config.norm_placement == "post"
        self.parallel = config.layout == "parallel"
        self.attention: SelfAttention | None = None
        self.mlp_norm: nn.Module | None = None
        if config.sub_blocks != "mlp":
            self.attention_norm = first.build(width)
            groups, head_width = config.resolved_key_value_heads, config.resolved_head_width
            self.attention = config.attention.build(width, config.heads, groups, layer, head_width)
            self.attention_branch = config.attention_branch.build(width, depth)
        if self.has_mlp:
            if config.mlp_norm is not None or not self.parallel:
                self.mlp_norm = (config.mlp_norm or config.norm).build(width)
            self.mlp = config.mlp.build(width, config.resolved_mlp_width)
            self.mlp_branch = config.mlp_branch.build(width, depth)

    def share(self, first: Block) -> None:
        """Take the weights that are shared from the first layer."""
        for name, module in self.named_modules():
            if isinstance(module, SharedLinear):
                named = dict(first.named_modules())
                module.share(None if first is self else named.get(name))

    def forward(
        self,
        x: Float[Tensor, "sequences tokens width"],
        context: Context,
        cache: Cache | None = None,
    ) -> Float[Tensor, "sequences tokens width"]:
        """Map (sequences, tokens, width) to the same shape."""
        if self.attention is None:
            return self._after_sum(x)
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
        if self.parallel:
            own = inputs if self.mlp_norm is None else self.mlp_norm(x)
            beside: Tensor = self.mlp_branch(self.mlp(own))
            return summed + beside
        middle: Tensor = self.attention_norm(summed) if self.post else summed
        return self._after_sum(middle) if self.has_mlp else middle

    def _after_sum(self, middle: Vectors) -> Vectors:
        norm: Any = self.mlp_norm
        branch = self.mlp(middle if self.post else norm(middle))
        after: Tensor = self.mlp_branch(branch, middle)
        return norm(after) if self.post else after
