"""Packing of heads and roles along one axis of a fused weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hessblocks.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Sizes of a model's attention."""

    count: int
    """Query heads."""
    groups: int
    """Key-value heads; `count` without grouped queries."""

    def of(self, role: str) -> int:
        """Cut an axis into heads of one role."""
        return self.groups if role in ("key", "value") else self.count


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Indices of one role along the packed axis: `blocks` runs of `length`, `step` apart."""

    role: str
    """Role of the entries."""
    offset: int
    """First index."""
    blocks: int
    """Number of runs."""
    length: int
    """Indices in a run."""
    step: int
    """From the start of a run to the start of the next."""

    def divides(self, heads: int) -> bool:
        """Tell whether each run holds whole heads of equal width."""
        return (
            self.length > 0 and self.blocks * self.length % heads == 0 and heads % self.blocks == 0
        )

    def by_head(self, heads: int) -> list[Piece]:
        """Cut the same indices into one piece per head, in the order of the heads."""
        width = self.blocks * self.length // heads
        return [
            Piece(role=self.role, offset=offset + start, blocks=1, length=width, step=width)
            for offset in (self.offset + block * self.step for block in range(self.blocks))
            for start in range(0, self.length, width)
        ]


Packing = Callable[[int, Heads], list[Piece]]
"""From the length of the packed axis and the heads to the pieces along it."""


def one_role(role: str) -> Packing:
    """Give the whole axis to one role."""
    return lambda length, heads: [Piece(role=role, offset=0, blocks=1, length=length, step=length)]


def stacked(length: int, heads: Heads) -> list[Piece]:
    """Cut [all queries | all keys | all values]; thirds without grouped queries."""
    return _repeated(length, heads, blocks=1)


def thirds(length: int, heads: Heads) -> list[Piece]:
    """Cut [all queries | all keys | all values] of equal length, as in `nn.MultiheadAttention`."""
    return _repeated(length, Heads(count=1, groups=1), blocks=1)


def interleaved(length: int, heads: Heads) -> list[Piece]:
    """Cut [group][its queries, its key, its value]; one head per group without grouped queries."""
    return _repeated(length, heads, blocks=heads.groups)


def _repeated(length: int, heads: Heads, *, blocks: int) -> list[Piece]:
    """Cut [block][queries | keys | values]."""
    width = length // (heads.count + 2 * heads.groups)
    query, key = heads.count // blocks * width, heads.groups // blocks * width
    starts = {"query": (0, query), "key": (query, key), "value": (query + key, key)}
    return [
        Piece(role=role, offset=offset, blocks=blocks, length=size, step=query + 2 * key)
        for role, (offset, size) in starts.items()
    ]


def heads_of(config: Any, layer: int = 0) -> Heads:
    """Read the heads of a layer from a Hugging Face configuration.

    Returns:
        Counts of heads and of key-value heads.

    Raises:
        ArgumentError: it does not say how many there are.
    """
    if getattr(config, "model_type", "") == "hessblocks":  # whose layers may differ
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
        # two switches say it there; its first form has one key-value head for all queries
        first = 1 if config.multi_query else None
        groups = config.num_kv_heads if config.new_decoder_architecture else first
    return Heads(count=int(count), groups=int(groups or count))
