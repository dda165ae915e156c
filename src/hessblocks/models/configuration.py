"""Hugging Face configuration of a model made of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from hessblocks.blocks import ALiBiPosition, BlockConfig
from hessblocks.errors import ArgumentError


class _OfBlock:
    """Descriptor: a size of the block under its Hugging Face name; setting another value fails."""

    def __init__(self, read: Callable[[dict[str, Any]], int]) -> None:
        self._read = read

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, config: HessblocksConfig, owner: type) -> int:
        return self._read(config.pattern[0])

    def __set__(self, config: HessblocksConfig, value: object) -> None:
        if value != (expected := self.__get__(config, type(config))):
            raise ArgumentError(
                f"{self._name}: expected {expected}, as the block has, got {value!r}; build "
                "another with hessblocks.build (width, heads, key_value_heads, mlp_width)"
            )


@strict
class HessblocksConfig(PreTrainedConfig):
    """Sizes of a model and the description of its block.

    The names that Hugging Face's tools read (`hidden_size`, `num_hidden_layers`, ...) are
    attributes too, and config.json has both names. If both names of a size are given, their values
    must agree.

    Raises:
        ArgumentError: a size is given twice with different values.
    """

    model_type = "hessblocks"
    attribute_map: ClassVar[dict[str, str]] = {
        "num_hidden_layers": "depth",
        "max_position_embeddings": "context",
    }

    def __new__(cls, **fields: Any) -> Any:
        """Refuse two names of one size with different values."""
        for name, ours in cls.attribute_map.items():
            if {name, ours} <= set(fields) and fields[name] != fields[ours]:
                raise ArgumentError(
                    f"{name}: expected {fields[ours]!r}, the same as {ours}, got {fields[name]!r}; "
                    "give one of them"
                )
        return super().__new__(cls)

    vocab_size: int = 4096
    """Number of tokens in the vocabulary."""
    depth: int = 4
    """Number of layers."""
    context: int = 128
    """Longest sequence, in tokens."""
    causal: bool = True
    """Whether a token attends only to itself and earlier tokens."""
    preset: str | None = None
    """Name of the preset that the block was made from, for tables and figures."""
    block: dict[str, Any] | list[dict[str, Any]] = field(default_factory=BlockConfig().to_dict)
    """The block, as returned by `BlockConfig.to_dict`, or a list of blocks that alternate."""
    embedding_std: float = 0.02
    """Standard deviation of the entries of token and position embeddings at initialisation."""
    family: dict[str, Any] | None = None
    """Configuration of the pretrained model that this one was converted from; None if there is
    none."""
    tie_word_embeddings: bool = True
    """Whether the head is the transposed token embedding."""
    use_cache: bool = True
    """Whether `generate` caches keys and values."""
    pad_token_id: int | None = None
    """Padding token."""
    bos_token_id: int | None = None
    """Token that begins a sequence."""
    eos_token_id: int | list[int] | None = None
    """Token or tokens that end a sequence."""

    @property
    def pattern(self) -> list[dict[str, Any]]:
        """List the blocks that alternate over the layers; one block if all layers are equal."""
        if not self.block:
            raise ArgumentError("block: expected a block, or a list of at least one")
        return self.block if isinstance(self.block, list) else [self.block]

    @property
    def blocks(self) -> list[BlockConfig]:
        """Make the `BlockConfig` of each layer; raise an error if they do not fit together."""
        pattern = [BlockConfig.from_dict(fields) for fields in self.pattern]
        check_pattern(pattern, self.depth)
        return pattern * (self.depth // len(pattern))

    @property
    def block_config(self) -> BlockConfig:
        """Return the `BlockConfig` of all layers.

        Raises:
            ArgumentError: layers have different blocks.
        """
        if len(self.pattern) > 1:
            raise ArgumentError("block_config: the layers have several blocks; read blocks instead")
        return self.blocks[0]

    hidden_size = _OfBlock(lambda block: block["width"])
    num_attention_heads = _OfBlock(lambda block: block["heads"])
    num_key_value_heads = _OfBlock(lambda block: block["key_value_heads"] or block["heads"])
    head_dim = _OfBlock(lambda block: block.get("head_width") or block["width"] // block["heads"])
    intermediate_size = _OfBlock(lambda block: block["mlp_width"] or 4 * block["width"])

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the content of config.json.

        Returns:
            Our values, and the sizes with Hugging Face's names.
        """
        changed: dict[str, Any] = super().to_diff_dict()
        return changed | {name: getattr(self, name) for name in (*self.attribute_map, *SIZES)}


def check_pattern(pattern: Sequence[BlockConfig], depth: int) -> None:
    """Check that blocks can alternate in one model.

    Args:
        pattern: blocks that alternate over the layers.
        depth: number of layers.

    Raises:
        ArgumentError: `depth` is no multiple of their number, or they differ in a shared field.
    """
    if not pattern or depth % len(pattern):
        raise ArgumentError(
            f"depth: {depth} layers are not a multiple of {len(pattern)} blocks, which alternate; "
            "change depth, or give one block per layer"
        )
    if not any(block.attends for block in pattern):
        raise ArgumentError("sub_blocks: no layer has attention; leave it in one of them")
    alibi = isinstance(pattern[0].position, ALiBiPosition)  # it has one slope per head
    for index, block in enumerate(pattern):
        for name in (*SHARED, "heads") if alibi else SHARED:
            first, value = getattr(pattern[0], name), getattr(block, name)
            if value != first:
                name = name.removeprefix("resolved_")
                raise ArgumentError(
                    f"{name}: all blocks of a model share it, but blocks 0 and {index} have "
                    f"{first!r} and {value!r}; give {name} once for all blocks"
                )


def described(blocks: Sequence[BlockConfig]) -> dict[str, Any] | list[dict[str, Any]]:
    """Make the field `block` of a configuration; one description if all layers are equal."""
    alike = all(block == blocks[0] for block in blocks)
    return blocks[0].to_dict() if alike else [block.to_dict() for block in blocks]


SHARED = (
    *("width", "resolved_head_width", "position", "final_norm"),
    *("logit_softcap", "carried"),
)
"""Fields that all blocks of a model share."""
SIZES = tuple(name for name, size in vars(HessblocksConfig).items() if isinstance(size, _OfBlock))
"""Hugging Face's names of the block's sizes."""
