"""Parameter groups of an attention layer, and the pieces, mostly heads, they consist of."""

from __future__ import annotations

from dataclasses import dataclass

GAINS = ("alpha", "beta", "gamma")
NORMS = ("query_norm", "key_norm")
GROUPS = ("query", "query_key", "key", "value", "projection", *NORMS, *GAINS)
"""Every group that a layer can have, in the order of the whole matrix."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Piece of a parameter group: the part of one head, or of heads that share it."""

    group: str
    """One of `GROUPS`, or a group behind the attention."""
    heads: tuple[int, ...]
    """Heads that use it: none for the projection's bias and behind the attention, several where
    heads share it or are joined."""
    shape: tuple[int, int]
    """(in, out) of the weight; (1, 1) for a gain."""

    @property
    def length(self) -> int:
        """Number of parameters."""
        return self.shape[0] * self.shape[1]
