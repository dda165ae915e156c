"""The Hugging Face configuration of a model made of blocks."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from hessblocks.blocks import BlockConfig


@strict
class HessblocksConfig(PreTrainedConfig):
    """Sizes of a model and the description of its block.

    The names that Hugging Face's cache and generation ask for (`hidden_size`, `head_dim`, ...) are
    read from the block, so that nothing is written down twice.
    """

    model_type = "hessblocks"
    attribute_map: ClassVar[dict[str, str]] = {
        "num_hidden_layers": "depth",
        "max_position_embeddings": "context",
    }

    vocab_size: int = 4096
    """Entries of the vocabulary."""
    depth: int = 4
    """Layers."""
    context: int = 128
    """Longest sequence, in tokens."""
    causal: bool = True
    """Whether a token attends to itself and what stands before it only."""
    preset: str | None = None
    """Name of the preset that the block was made from, for tables and figures."""
    block: dict[str, Any] = field(default_factory=lambda: BlockConfig().to_dict())
    """The block, as `BlockConfig.to_dict` gives it."""
    embedding_std: float = 0.02
    """Standard deviation of the entries of token and position embeddings at initialisation."""
    tie_word_embeddings: bool = True
    """Whether the head is the transposed token embedding."""
    use_cache: bool = True
    """Whether `generate` keeps keys and values."""
    pad_token_id: int | None = None
    """Token that fills batches up."""
    bos_token_id: int | None = None
    """Token that begins a sequence."""
    eos_token_id: int | list[int] | None = None
    """Token or tokens that end a sequence."""

    @property
    def block_config(self) -> BlockConfig:
        """The block as an object."""
        return BlockConfig.from_dict(self.block)

    @property
    def hidden_size(self) -> int:
        """Entries of a token's vector."""
        return int(self.block["width"])

    @property
    def num_attention_heads(self) -> int:
        """Attention heads."""
        return int(self.block["heads"])

    @property
    def num_key_value_heads(self) -> int:
        """Heads of keys and values."""
        return int(self.block["key_value_heads"] or self.block["heads"])

    @property
    def head_dim(self) -> int:
        """Entries of one head's query, key and value."""
        return self.hidden_size // self.num_attention_heads
