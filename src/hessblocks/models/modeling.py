"""Trunk of Hugging Face models made of blocks: embeddings, layers, final norm."""

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import Cache
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from hessblocks.blocks import Block, Context, LearnedPosition
from hessblocks.errors import ArgumentError
from hessblocks.models import attention_functions
from hessblocks.models.configuration import HessblocksConfig
from hessblocks.models.pretrained import HessblocksPreTrainedModel, check_keywords, keep_values

_Given = tuple[Tensor, Tensor | None, Tensor | None, Cache | None]
"""Hidden states, mask, positions and cache of a forward pass."""


@dataclass
class _Window:  # types.SimpleNamespace cannot be compiled
    """All of a configuration that transformers reads for the mask of a sliding window."""

    _attn_implementation: str
    sliding_window: int


class Layer(GradientCheckpointingLayer, Block):
    """Block that can be recomputed in the backward pass (activation checkpointing)."""


class HessblocksModel(HessblocksPreTrainedModel):
    """Trunk: embeddings, layers and final norm, from token ids to final hidden states."""

    _input_embed_layer = "token_embedding"

    def __init__(self, config: HessblocksConfig) -> None:
        """Build the layers; weights are drawn from torch's global random state."""
        super().__init__(config)
        blocks = config.blocks
        block = blocks[0]
        windows = (layer_block.attention.window for layer_block in blocks)
        self.windows = {window for window in windows if window is not None}
        if self.windows and not config.causal:
            raise ArgumentError(
                "attention.window: expected None with causal=False, since a window counts the "
                "tokens before a token; leave it out"
            )
        self.position = block.position
        self.token_embedding: nn.Module = nn.Embedding(config.vocab_size, block.width)
        self.position_embedding = block.position.build(config.context, block.width)
        self.layers = nn.ModuleList(Layer(part, n, config.depth) for n, part in enumerate(blocks))
        first: Layer = self.layers[0]  # type: ignore[assignment]
        for layer in self.layers:
            layer.share(first)  # type: ignore[operator]
        self.final_norm = block.final_norm.build(block.width)
        counts = {layer_block.heads for layer_block in blocks if layer_block.attends}
        self._heads = counts.pop() if len(counts) == 1 else 1  # heads of a user's mask
        positions = [] if isinstance(block.position, LearnedPosition) else [self.position_embedding]
        for part in (self.layers, self.final_norm, *filter(None, positions)):
            keep_values(part)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Int[Tensor, "sequences tokens"] | None = None,
        attention_mask: Shaped[Tensor, "#sequences ..."] | None = None,
        position_ids: Int[Tensor, "#sequences tokens"] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Float[Tensor, "sequences tokens width"] | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPast:
        """Map token ids (sequences, tokens) to hidden states (sequences, tokens, width).

        As in transformers, `output_hidden_states` returns the embeddings and every layer's output
        too, the last one after the final norm; `return_dict=False` returns a tuple.

        Returns:
            Final hidden states, keys and values, and, if wanted, all hidden states.
        """
        check_keywords({"output_attentions": self.config.output_attentions} | others, type(self))
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if self.training and any(x.gradient_checkpointing for x in self.layers):
            use_cache, past_key_values = _uncached(use_cache, past_key_values)
        x = self._embed(input_ids, inputs_embeds)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        attention_functions.check_mask(
            attention_mask, (x.shape[0], x.shape[1]), self._heads, past_key_values
        )
        inputs = (x, attention_mask, position_ids, past_key_values)
        self._refuse_packing(inputs)
        places = self._places(inputs, past)
        if self.position_embedding is not None:
            embedded = _looked_up(
                self.position_embedding,
                places,
                "position_ids: there are positions outside the model's context of "
                f"{self.config.context}",
            )
            x = x + embedded.to(x.dtype)
        bias = self._bias(inputs, past, places)
        biased = partial(attention_functions.with_bias, bias=bias, causal=self.config.causal)
        windows = {window: self._mask_of(window, past, inputs) for window in self.windows}
        own_mask = attention_functions.has_own_mask(attention_mask, position_ids)
        context = Context(
            causal=self.config.causal,
            mask=biased(self._mask(inputs)),
            windows={window: biased(mask) for window, mask in windows.items()},
            allowed=attention_functions.real_tokens(attention_mask),
            aligned=not own_mask and bias is None,
            rotation=self.position.rotation(places, self.config.head_dim, x.dtype),
            bias=bias,
            kernel=attention_functions.attention_kernel(self.config._attn_implementation),
        )
        keep = None if past_key_values is None else past_key_values.update
        states, index, ends = [x], 0, cast(Layer, self.layers[0])
        x = ends.widen(x)
        for layer in self.layers:
            x = layer(x, context, keep and partial(keep, layer_idx=index))
            index += bool(layer.attends)  # the cache has entries only for attention layers
            if output_hidden_states:
                states.append(ends.split(x)["x"])
        last = self.final_norm(ends.split(x)["x"])
        return BaseModelOutputWithPast(
            last_hidden_state=last,
            past_key_values=past_key_values,
            hidden_states=(*states[:-1], last) if output_hidden_states else None,
        )

    def _refuse_packing(self, inputs: _Given) -> None:
        """Refuse packed sequences that flash, a 2-D mask, a cache or full attention would mix."""
        _, mask, positions, cache = inputs
        if (
            positions is not None
            and (not self.config.causal or mask is not None or cache is not None)
            and not torch.compiler.is_compiling()
            and attention_functions.starts_again(positions, mask)
        ):
            raise ArgumentError(
                "position_ids: sequences packed into one row are told apart by causal models "
                "alone, without attention_mask and cache; give a mask of your own, (sequences, 1, "
                "tokens, tokens)"
            )
        if (
            "flash" in str(self.config._attn_implementation)
            and cache is None
            and attention_functions.has_own_mask(mask, positions)
        ):
            raise ArgumentError(
                "position_ids: flash attention would mix sequences packed into one row; use "
                "attn_implementation='sdpa', or leave position_ids out"
            )

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ArgumentError("input_ids: give either input_ids or inputs_embeds")
        if inputs_embeds is not None:
            return inputs_embeds
        return _looked_up(
            self.token_embedding,
            input_ids,
            "input_ids: there are tokens outside the model's vocabulary of "
            f"{self.config.vocab_size}; use the tokenizer that the model was trained with",
        )

    def _places(self, inputs: _Given, past: int | Tensor) -> Tensor:
        """Make positions (sequences, tokens), by default counted over the unpadded tokens."""
        x, mask, positions, _ = inputs
        tokens = x.shape[1]
        real = attention_functions.real_tokens(mask)
        limited = isinstance(self.position_embedding, nn.Embedding)
        if limited and not torch.compiler.is_compiling() and past + tokens > self.config.context:
            first = isinstance(past, int) and past == 0
            packed = first and positions is not None and int(positions.max()) < self.config.context
            long = int(past) + tokens if real is None else int(real.sum(dim=-1).max())
            if long > self.config.context and not packed:
                raise ArgumentError(
                    f"input_ids: {long} tokens are longer than the model's context of "
                    f"{self.config.context}; shorten the input or build the model with a larger "
                    "context"
                )
        if positions is not None:
            return positions
        new = past + torch.arange(tokens, device=x.device)
        if real is None:
            return new[None]
        return (real.cumsum(dim=-1) - 1).clamp(min=0).index_select(1, new)

    def _distant(self, inputs: _Given, past: int | Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions of queries and keys; with a cache, counted over unpadded tokens."""
        x, mask, positions, cache = inputs
        if cache is None:
            return places, places
        tokens, keys = x.shape[1], cache.get_mask_sizes(x.shape[1], 0)[0]
        real = attention_functions.real_tokens(mask)
        key_places = torch.arange(keys, device=x.device)[None]
        if real is not None:
            real = nn.functional.pad(real, (0, keys - real.shape[1]))
            key_places = (real.cumsum(dim=-1) - 1).clamp(min=0)
        query_places = key_places.index_select(1, past + torch.arange(tokens, device=x.device))
        if positions is not None and not torch.compiler.is_compiling():
            differs = query_places - positions  # with a mask of four axes, padding may come first
            differs = differs != (differs[:, -1:] if mask is not None and real is None else 0)
            differs &= (positions > 0) if real is None else real[:, int(past) :][:, :tokens]
            if bool(differs.any()):
                raise ArgumentError(
                    f"position_ids: with a cache, {self.position.kind} counts the unpadded tokens "
                    "itself, and position_ids differ from that count; leave them out"
                )
        return query_places, key_places

    def _bias(self, inputs: _Given, past: int | Tensor, places: Tensor) -> Tensor | None:
        """Compute the position bias that is added to the scores, or None."""
        if not self.position.biased:
            return None
        attention_functions.check_support(
            self.config._attn_implementation, self.position.kind, attention_functions.WITH_EXTRAS
        )
        queries, keys = self._distant(inputs, past, places)
        return self.position.bias(queries, keys, self._heads, inputs[0].dtype)

    def _mask(self, inputs: _Given) -> Tensor | None:
        x, mask, positions, cache = inputs
        if self.config.causal:
            allowed = create_causal_mask(self.config, x, mask, cache, position_ids=positions)
        else:
            allowed = create_bidirectional_mask(self.config, x, mask)
        return cast(Tensor | None, allowed)

    def _mask_of(self, window: int, past: int | Tensor, inputs: _Given) -> Any:
        """Make the mask of layers with this window; restrict a user's mask to the window."""
        x, mask, positions, cache = inputs
        name = self.config._attn_implementation
        attention_functions.check_support(name, "attention.window", attention_functions.WITH_MASKS)
        if mask is None or mask.ndim == 2:
            config: Any = _Window(name, window)
            return create_sliding_window_causal_mask(config, x, mask, cache, position_ids=positions)
        queries = past + torch.arange(x.shape[1], device=x.device)
        keys = torch.arange(mask.shape[-1], device=x.device)
        near = keys > queries[:, None] - window
        if mask.dtype == torch.bool:
            return mask & near
        # −∞ is below any number that masks a key inside the window
        return mask.masked_fill(~near, -torch.inf)


def _uncached(use_cache: bool | None, cache: Cache | None) -> tuple[bool, None]:
    """Disable the cache for layers that are recomputed (checkpointing); refuse a given cache."""
    if cache is not None:
        raise ArgumentError(
            "past_key_values: layers under gradient checkpointing are computed twice and cannot "
            "use a cache; turn gradient checkpointing off or leave past_key_values out"
        )
    if use_cache:
        warnings.warn(
            "use_cache is ignored: layers under gradient checkpointing have no cache", stacklevel=3
        )
    return False, None


def _looked_up(embedding: nn.Module, indices: Tensor | None, outside: str) -> Tensor:
    """Look up rows of an embedding; on a CPU, name an index that is out of range."""
    try:
        rows: Tensor = embedding(indices)
    except IndexError as error:
        raise ArgumentError(outside) from error
    return rows
