"""Order of heads and roles along one axis of a fused weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from hessblocks.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Sizes of a model's attention."""

    count: int
    """Query heads."""
    groups: int
    """Key-value heads; equal to `count` without grouped queries."""

    def of(self, role: str) -> int:
        """Return the number of heads of one role."""
        return self.groups if role in ("key", "value") else self.count


@dataclass(frozen=True, kw_only=True)
class Span:
    """Indices of one role along the fused axis: `blocks` runs of `length` indices, `step` apart."""

    role: str
    """Role of the entries."""
    offset: int
    """First index."""
    blocks: int
    """Number of runs."""
    length: int
    """Indices in a run."""
    step: int
    """Distance between the starts of successive runs."""

    @property
    def indices(self) -> Int[Tensor, " entries"]:
        """Indices of the entries along the fused axis."""
        starts = self.offset + self.step * torch.arange(self.blocks)
        return (starts[:, None] + torch.arange(self.length)).flatten()

    def divides(self, heads: int) -> bool:
        """Tell whether each run divides into whole heads of equal width."""
        return (
            self.length > 0 and self.blocks * self.length % heads == 0 and heads % self.blocks == 0
        )

    def by_head(self, heads: int) -> list[Span]:
        """Split the indices into one piece per head, in the order of the heads."""
        width = self.blocks * self.length // heads
        return [
            Span(role=self.role, offset=offset + start, blocks=1, length=width, step=width)
            for offset in (self.offset + block * self.step for block in range(self.blocks))
            for start in range(0, self.length, width)
        ]


Packing = Callable[[int, Heads], list[Span]]
"""Maps the length of the fused axis and the heads to the pieces along this axis."""


def one_role(role: str) -> Packing:
    """Return the packing in which the whole axis has one role."""
    return lambda length, heads: [Span(role=role, offset=0, blocks=1, length=length, step=length)]


def stacked(length: int, heads: Heads) -> list[Span]:
    """Split [all queries | all keys | all values]; without grouped queries these are thirds."""
    return _repeated(length, heads, blocks=1)


def thirds(length: int, heads: Heads) -> list[Span]:
    """Split [all queries | all keys | all values] into thirds, as in `nn.MultiheadAttention`."""
    return _repeated(length, Heads(count=1, groups=1), blocks=1)


def interleaved(length: int, heads: Heads) -> list[Span]:
    """Split [group][its queries, key, value]; without grouped queries a group is one head."""
    return _repeated(length, heads, blocks=heads.groups)


def _repeated(length: int, heads: Heads, *, blocks: int) -> list[Span]:
    """Split [block][queries | keys | values]."""
    width = length // (heads.count + 2 * heads.groups)
    query, key = heads.count // blocks * width, heads.groups // blocks * width
    starts = {"query": (0, query), "key": (query, key), "value": (query + key, key)}
    return [
        Span(role=role, offset=offset, blocks=blocks, length=size, step=query + 2 * key)
        for role, (offset, size) in starts.items()
    ]


def heads_of(config: Any, layer: int = 0) -> Heads:
    """Read the heads of a layer from a Hugging Face configuration.

    Returns:
        Numbers of heads and of key-value heads.

    Raises:
        ArgumentError: the configuration has no number of heads.
    """
    if getattr(config, "model_type", "") == "hessblocks":  # its layers may differ
        block = config.pattern[layer % len(config.pattern)]
        return Heads(count=block["heads"], groups=block["key_value_heads"] or block["heads"])
    count = getattr(config, "num_attention_heads", None)
    if not count:
        owner = "its configuration" if config is None else type(config).__name__
        raise ArgumentError(
            f"model: {owner} has no num_attention_heads, so heads cannot be told apart; use "
            "level='role'"
        )
    groups = getattr(config, "num_key_value_heads", None)
    if getattr(config, "model_type", "") == "falcon":
        # Falcon has two switches; its first version shares one key-value head among all queries
        first = 1 if config.multi_query else None
        groups = config.num_kv_heads if config.new_decoder_architecture else first
    return Heads(count=int(count), groups=int(groups or count))
