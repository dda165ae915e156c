"""The description of a block: frozen, checked when made, the same for every layer of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hessblocks.blocks.block_fields import BlockFields
from hessblocks.blocks.parts import BlockPart, check_parts
from hessblocks.blocks.rules import first_refusal
from hessblocks.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class BlockConfig(BlockFields, kind="block"):
    """A transformer block as a choice of parts.

    sequential, pre:  x̂ = attention_branch(attention(norm(x)), x); out = mlp_branch(mlp(norm(x̂)), x̂)
    sequential, post: x̂ = norm(attention_branch(attention(x), x)); out = norm(mlp_branch(mlp(x̂), x̂))
    parallel:         out = attention_branch(attention(n), x) + mlp_branch(mlp(n)), n = norm(x)

    Source: He & Hofmann (2024), equations 1 and 3, section 4.
    """

    def __post_init__(self) -> None:
        """Check sizes, parts and combinations."""
        check_parts(self)
        super().__post_init__()
        for name in ("width", "heads", "resolved_key_value_heads", "resolved_mlp_width"):
            check_positive(name.removeprefix("resolved_"), getattr(self, name))
        if (reason := first_refusal(self)) is not None:
            raise ArgumentError(reason)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> BlockConfig:
        """The configuration that `to_dict` described."""
        config = BlockPart.from_dict(values)
        if not isinstance(config, BlockConfig):
            raise ArgumentError(
                f"block: expected a description of kind 'block', got {values.get('kind')!r}"
            )
        return config


def check_positive(name: str, value: Any) -> None:
    """Refuse what is not a whole number of at least 1.

    Raises:
        ArgumentError: names the argument and what came.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"{name}: expected a whole number of at least 1, got {value!r}")
