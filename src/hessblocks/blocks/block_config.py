"""The description of a block: frozen, checked when made, the same for every layer of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hessblocks.blocks.attention import Attention
from hessblocks.blocks.gains import Branch
from hessblocks.blocks.mlp import MLP
from hessblocks.blocks.norms import Norm, RMSNorm
from hessblocks.blocks.parts import Part, check_choice, check_parts
from hessblocks.blocks.positions import LearnedPosition, Position
from hessblocks.blocks.rules import first_refusal
from hessblocks.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class BlockConfig(Part, kind="block"):
    """A transformer block as a choice of parts.

    sequential, pre:  x̂ = attention_branch(attention(norm(x)), x); out = mlp_branch(mlp(norm(x̂)), x̂)
    sequential, post: x̂ = norm(attention_branch(attention(x), x)); out = norm(mlp_branch(mlp(x̂), x̂))
    parallel:         out = attention_branch(attention(n), x) + mlp_branch(mlp(n)), n = norm(x)

    Source: He & Hofmann (2024), equations 1 and 3, section 4.
    """

    width: int = 256
    """Entries of a token's vector."""
    heads: int = 4
    """Attention heads; divides the width."""
    key_value_heads: int | None = None
    """Heads of keys and values, for grouped queries; None means as many as `heads`."""
    mlp_width: int | None = None
    """Hidden width of the MLP; None means 4 · width."""
    layout: str = "sequential"
    """sequential or parallel (one norm and one skip for both sub-blocks)."""
    norm_placement: str = "pre"
    """pre (before each sub-block) or post (after each sum)."""
    norm: Norm = RMSNorm()
    """Norm of the sub-blocks."""
    first_norm: Norm | None = None
    """Norm of the first layer's attention input, where it differs."""
    final_norm: Norm = RMSNorm()
    """Norm before the head."""
    position: Position = LearnedPosition()
    """How a token's place enters."""
    attention: Attention = Attention()
    """The attention sub-block."""
    attention_branch: Branch = Branch()
    """Skip and gain of the attention sub-block; in the parallel layout its skip is the shared one."""
    mlp: MLP = MLP()
    """The MLP sub-block."""
    mlp_branch: Branch = Branch()
    """Skip and gain of the MLP sub-block; in the parallel layout its skip is 0."""

    def __post_init__(self) -> None:
        """Check sizes, parts and combinations."""
        check_parts(self)
        check_choice(self, "layout", ("sequential", "parallel"))
        check_choice(self, "norm_placement", ("pre", "post"))
        for name in ("width", "heads", "resolved_key_value_heads", "resolved_mlp_width"):
            check_positive(name.removeprefix("resolved_"), getattr(self, name))
        if (reason := first_refusal(self)) is not None:
            raise ArgumentError(reason)

    @property
    def head_width(self) -> int:
        """Entries of one head's query, key and value."""
        return self.width // self.heads

    @property
    def resolved_key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.key_value_heads is None else self.key_value_heads

    @property
    def resolved_mlp_width(self) -> int:
        """Hidden width of the MLP."""
        return 4 * self.width if self.mlp_width is None else self.mlp_width

    @staticmethod
    def from_dict(values: dict[str, Any]) -> BlockConfig:
        """The configuration that `to_dict` described."""
        config = Part.from_dict(values)
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
