"""Transformer block: attention and MLP, their norms, skips and gains."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.blocks.attention import Cache
from hessblocks.blocks.block_config import BlockConfig
from hessblocks.blocks.kernels import Context
from hessblocks.blocks.weights import SharedLinear

Vectors = Float[Tensor, "*tokens width"]
"""One vector per token."""
BlockState = Float[Tensor, "*tokens state"]
"""Input or output of a layer: the components of `BlockConfig.carried`, concatenated."""


class Block(nn.Module):
    """Transformer block of one layer; see `BlockConfig` for the formulas."""

    def __init__(self, config: BlockConfig, layer: int, depth: int) -> None:
        """Build the modules of the block's parts.

        Args:
            config: configuration of the block.
            layer: index of the layer, from 0.
            depth: number of layers of the model; scales branch gains.
        """
        super().__init__()
        width = config.width
        first = config.first_norm if layer == 0 and config.first_norm is not None else config.norm
        self.has_mlp = config.sub_blocks != "attention"
        self.post = config.norm_placement == "post"
        self.parallel = config.layout == "parallel"
        self.attends = config.attends
        self.attention: Any = None  # a SelfAttention or a TokenMap
        self.mlp_norm: nn.Module | None = None
        self.carried = config.carried
        skip, values = config.embedding_skip, config.attention.value_residual if layer else None
        self.embedding_skip = None if skip is None else skip.build(width, depth)
        self.value_residual: nn.Module | None = None
        if values is not None:
            self.value_residual = values.build(self.carried["values"], depth)
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
        """Connect each `SharedLinear` to the first layer's weight."""
        for name, module in self.named_modules():
            if isinstance(module, SharedLinear):
                named = dict(first.named_modules())
                module.share(None if first is self else named.get(name))

    def forward(
        self,
        x: Float[Tensor, "sequences tokens state"],
        context: Context,
        cache: Cache | None = None,
    ) -> Float[Tensor, "sequences tokens state"]:
        """Map (sequences, tokens, state) to the same shape.

        With an embedding skip or a value residual the state (x, x₀, v₁) is one wider vector per
        token. The layer thus depends only on its input.

        Returns:
            The output, in the shape of the input.
        """
        state = self.split(x)
        x = self.read(x)
        if self.attention is None:
            state["x"] = self._after_sum(x)
            return self._joined(state)
        inputs = x if self.post else self.attention_norm(x)
        values = None
        if "values" in state:
            values = self.attention.value(inputs)
            if self.value_residual is None:  # the first layer
                state["values"] = values
            else:
                values = self.value_residual(values, state["values"])
        attended = self.attention(inputs, context, cache, values)
        state["x"] = self.after_attention(attended, x, inputs)
        return self._joined(state)

    def _joined(self, state: dict[str, Tensor]) -> BlockState:
        return torch.cat(list(state.values()), dim=-1) if state.keys() > {"x"} else state["x"]

    def widen(self, x: Vectors) -> BlockState:
        """Build the first layer's state from embeddings x: x₀ = x, and zeros in place of v₁."""
        parts = {"x": x, "embedding": x, "values": x.new_zeros(())}
        wide = [parts[name].expand(*x.shape[:-1], n) for name, n in self.carried.items()]
        return torch.cat(wide, dim=-1) if wide[1:] else x

    def split(self, state: BlockState) -> dict[str, Float[Tensor, "*tokens _"]]:
        """Split a layer's state into x, the embedding and the first layer's values."""
        if len(self.carried) == 1:
            return {"x": state}
        return dict(zip(self.carried, state.split(list(self.carried.values()), -1), strict=True))

    def read(self, state: BlockState) -> Vectors:
        """Compute the sub-blocks' input: x, or gain · x + skip · x₀ with an embedding skip."""
        parts = self.split(state)
        if self.embedding_skip is None:
            return parts["x"]
        mixed: Tensor = self.embedding_skip(parts["x"], parts["embedding"])
        return mixed

    def after_attention(self, attended: Vectors, x: Vectors, inputs: Vectors) -> Vectors:
        """Run the block after attention; this part processes each token separately.

        Args:
            attended: output of the attention sub-block.
            x: result of `read` for the block's input.
            inputs: input of the attention sub-block, after the norm if the norm placement is pre.

        Returns:
            The output of the block.
        """
        summed: Tensor = self.attention_branch(attended, x)
        if self.parallel:
            mlp_inputs = inputs if self.mlp_norm is None else self.mlp_norm(x)
            both: Tensor = self.mlp_branch.onto(summed, self.mlp(mlp_inputs))
            return both
        middle: Tensor = self.attention_norm(summed) if self.post else summed
        return self._after_sum(middle) if self.has_mlp else middle

    def _after_sum(self, middle: Vectors) -> Vectors:
        norm: Any = self.mlp_norm
        branch = self.mlp(middle if self.post else norm(middle))
        after: Tensor = self.mlp_branch(branch, middle)
        return norm(after) if self.post else after
