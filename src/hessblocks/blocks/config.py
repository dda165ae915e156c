"""The description of a block: frozen, checked when made, the same for every layer of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hessblocks.blocks.attention import Attention
from hessblocks.blocks.gains import Branch
from hessblocks.blocks.mlp import MLP
from hessblocks.blocks.norms import NoNorm, Norm, RMSNorm
from hessblocks.blocks.parts import Part, check_choice
from hessblocks.blocks.positions import LearnedPosition, Position, RotaryPosition
from hessblocks.blocks.weights import Dense, Identity
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
        """Check sizes and combinations."""
        check_choice(self, "layout", ("sequential", "parallel"))
        check_choice(self, "norm_placement", ("pre", "post"))
        for name in ("width", "heads", "resolved_key_value_heads", "resolved_mlp_width"):
            check_positive(name.removeprefix("resolved_"), getattr(self, name))
        self._check_heads()
        self._check_positions()
        self._check_layout()

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

    def _check_heads(self) -> None:
        if self.width % self.heads:
            near = [h for h in range(1, self.width + 1) if self.width % h == 0]
            best = sorted(near, key=lambda h: abs(h - self.heads))[:2]
            raise ArgumentError(
                f"heads: {self.heads} heads do not divide the width {self.width}; "
                f"use {' or '.join(map(str, sorted(best)))} heads"
            )
        if self.heads % self.resolved_key_value_heads:
            raise ArgumentError(
                f"key_value_heads: {self.key_value_heads} does not divide the {self.heads} heads"
            )
        grouped = self.resolved_key_value_heads != self.heads
        if grouped and isinstance(self.attention.value, Identity):
            raise ArgumentError(
                f"key_value_heads: identity values need as many key-value heads as heads ({self.heads}), "
                f"got {self.key_value_heads}"
            )
        if grouped and self.attention.query_key == "one-matrix":
            raise ArgumentError(
                "key_value_heads: grouped queries and query_key='one-matrix' exclude each other"
            )

    def _check_positions(self) -> None:
        rotary = isinstance(self.position, RotaryPosition)
        if rotary and self.attention.query_key == "one-matrix":
            raise ArgumentError(
                "position: rotary positions and query_key='one-matrix' exclude each other"
            )
        if rotary and self.head_width % 2:
            raise ArgumentError(
                f"position: rotary positions need an even head width, got {self.head_width}"
            )

    def _check_layout(self) -> None:
        zero_query = (
            isinstance(self.attention.query, Dense) and self.attention.query.init == "zeros"
        )
        if zero_query and not isinstance(self.attention.query_key_norm, NoNorm):
            raise ArgumentError(
                "attention: zero queries and a query-key norm exclude each other (the norm of a zero query has a "
                "gradient of size 1/eps); use query=Dense() with query_key_norm"
            )
        if self.layout == "parallel" and self.mlp_branch.skip != 0:
            raise ArgumentError(
                "mlp_branch: the parallel layout has one skip, in attention_branch; set mlp_branch's skip to 0"
            )
        if self.layout == "parallel" and self.norm_placement == "post":
            raise ArgumentError(
                "norm_placement: the parallel layout has its norm before the sub-blocks; use pre"
            )
        if self.norm_placement == "post" and isinstance(self.norm, NoNorm):
            raise ArgumentError("norm_placement: post and norm no-norm exclude each other; use pre")


def check_positive(name: str, value: Any) -> None:
    """Refuse what is not a whole number of at least 1.

    Raises:
        ArgumentError: names the argument and what came.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"{name}: expected a whole number of at least 1, got {value!r}")
