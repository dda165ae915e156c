"""Hugging Face models made of blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hessblocks.blocks import Block, Context, Resettable
from hessblocks.errors import ArgumentError
from hessblocks.models.configuration import HessblocksConfig


class HessblocksPreTrainedModel(PreTrainedModel):
    """What all models made of blocks share."""

    config_class = HessblocksConfig
    config: HessblocksConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding) or (
            isinstance(module, nn.Linear) and not hasattr(module, "_part")
        ):
            nn.init.normal_(module.weight, std=self.config.embedding_std)
        elif isinstance(module, Resettable):
            module.reset_parameters()


class HessblocksModel(HessblocksPreTrainedModel):
    """Embeddings, layers and final norm: token ids to the last layer's vectors."""

    def __init__(self, config: HessblocksConfig) -> None:
        """Build the layers; weights are drawn from torch's global random state."""
        super().__init__(config)
        block = config.block_config
        self.position = block.position
        self.token_embedding: nn.Module = nn.Embedding(config.vocab_size, block.width)
        self.position_embedding = block.position.build(config.context, block.width)
        self.layers = nn.ModuleList(
            Block(block, layer, config.depth) for layer in range(config.depth)
        )
        self.final_norm = block.final_norm.build(block.width)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.token_embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding."""
        self.token_embedding = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPast:
        """Map token ids (sequences, tokens) to vectors (sequences, tokens, width)."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ArgumentError("input_ids: give either input_ids or inputs_embeds")
        x = self.token_embedding(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        past = past_key_values.get_seq_length() if past_key_values is not None else 0
        position_ids = self._positions(x, past, attention_mask, position_ids)
        if self.position_embedding is not None:
            x = x + self.position_embedding(position_ids).to(x.dtype)
        context = self._context(x, attention_mask, position_ids, past_key_values)
        for index, layer in enumerate(self.layers):
            x = layer(x, context, _layer_cache(past_key_values, index))
        return BaseModelOutputWithPast(
            last_hidden_state=self.final_norm(x), past_key_values=past_key_values
        )

    def _positions(
        self, x: Tensor, past: int, attention_mask: Tensor | None, position_ids: Tensor | None
    ) -> Tensor:
        tokens = x.shape[1]
        if past + tokens > self.config.context and isinstance(
            self.position_embedding, nn.Embedding
        ):
            raise ArgumentError(
                f"input_ids: {past + tokens} tokens are longer than the model's context of {self.config.context}; "
                "shorten the input or build the model with a larger context"
            )
        if position_ids is not None:
            return position_ids
        if attention_mask is not None and attention_mask.ndim == 2:
            return (attention_mask.long().cumsum(dim=-1) - 1).clamp(min=0)[:, -tokens:]
        return torch.arange(past, past + tokens, device=x.device)[None]

    def _context(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor,
        past_key_values: Cache | None,
    ) -> Context:
        if self.config.causal:
            mask = create_causal_mask(self.config, x, attention_mask, past_key_values)
        else:
            mask = create_bidirectional_mask(self.config, x, attention_mask)
        allowed = (
            attention_mask.bool()
            if attention_mask is not None and attention_mask.ndim == 2
            else None
        )
        rotation = self.position.rotation(position_ids, self.config.head_dim, x.dtype)
        return Context(
            causal=self.config.causal,
            mask=cast(Tensor | None, mask),
            allowed=allowed,
            rotation=rotation,
            kernel=_kernel(self.config._attn_implementation),
        )


def _layer_cache(
    cache: Cache | None, layer: int
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    if cache is None:
        return None
    return lambda key, value: cache.update(key, value, layer)


def _kernel(implementation: str) -> Any:
    """Hugging Face's attention function of that name, as the blocks call it."""
    function = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, _eager)

    def kernel(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        scale: float,
        causal: bool,
    ) -> Tensor:
        attended: Tensor = function(
            module, query, key, value, mask, scaling=scale, is_causal=causal
        )[0]
        return attended.transpose(1, 2)

    return kernel


def _eager(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    groups = query.shape[1] // key.shape[1]
    scores = scaling * query @ key.repeat_interleave(groups, dim=1).transpose(-1, -2)
    if mask is not None:
        scores = scores + mask
    attention = scores.softmax(dim=-1)
    mixed = attention @ value.repeat_interleave(groups, dim=1)
    return mixed.transpose(1, 2), attention
