"""Attention masks: the keys that each query may attend to, and a split of these into tiles.

Letters: B sequences, G key heads, R query heads per key head, N = B G, T queries, S keys, D head
width, I queries and J keys of a tile.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Size:
    """Limits on the size of tiles."""

    rows: int
    """Largest number of queries, over all R heads; at least one per head."""
    scores: int
    """Largest number of scores of one pair; small pairs are batched up to an eighth of that."""


CPU = Size(rows=128, scores=1 << 20)
"""Tiles of CPUs: products of 128 rows reach full speed, and their scores fit the caches
(measured)."""
OTHERS = Size(rows=1 << 20, scores=1 << 25)
"""Tiles of accelerators: few, large products."""


@dataclass(frozen=True)
class Tile:
    """Tile: queries of some pairs of sequence and key head, and all keys that they attend to."""

    pairs: slice
    """Slice of N."""
    queries: slice
    """Slice of T, for all R heads."""
    keys: slice
    """Slice of S."""


@dataclass(frozen=True, eq=False)
class Visibility:
    """Scale, masks and softcap: all that determines the scores besides queries and keys."""

    scale: float
    """Scale of the products of queries and keys."""
    causal: bool = False
    """Whether query i attends only to keys up to i."""
    window: int | None = None
    """Number of keys that a query attends to, up to its own; needs `causal`."""
    softcap: float | None = None
    """c of c tanh(score / c)."""
    mask: Shaped[Tensor, "#B #G #R T S"] | None = None
    """Booleans (True: may attend) or numbers added to the scores; without gradient."""
    noticed: Callable[[], None] | None = None
    """Called when the first derivative is taken with a graph."""
    _tiles: dict[tuple[int, ...], list[Tile]] = field(default_factory=dict)
    """Cached tiles, by (N, R, T, S)."""

    @property
    def added(self) -> bool:
        """Whether the mask consists of numbers that are added to the scores."""
        return self.mask is not None and self.mask.dtype != torch.bool

    @property
    def plain(self) -> bool:
        """Whether there is no mask, window or softcap; `causal` is allowed."""
        return self.mask is None and self.window is None and self.softcap is None

    def tiles(self, query: Float[Tensor, "N R T D"], keys: int) -> list[Tile]:
        """Split these queries and S keys into tiles; leave out tiles without permitted keys."""
        counts = (*query.shape[:3], keys)
        if counts not in self._tiles:
            size = CPU if query.device.type == "cpu" else OTHERS
            self._tiles[counts] = list(self._cut(counts, size))
        return self._tiles[counts]

    def _cut(self, counts: tuple[int, ...], size: Size) -> Iterator[Tile]:
        pairs, shared, queries, keys = counts
        rows = max(1, min(size.rows, size.scores // keys) // shared)
        together = max(1, size.scores // (8 * shared * min(rows, queries) * keys))
        for start in range(0, queries, rows):
            span = slice(start, min(queries, start + rows))
            first, last = self._seen(span, keys)
            for pair in range(0, pairs if first < last else 0, together):
                yield Tile(slice(pair, min(pairs, pair + together)), span, slice(first, last))

    def _seen(self, queries: slice, keys: int) -> tuple[int, int]:
        """Find the range of the keys that any of these queries attends to, the end exclusive."""
        first, last = 0, keys
        if self.causal:
            last = min(keys, queries.stop)
        if self.window is not None:
            first = max(0, queries.start - self.window + 1)
        if self.mask is None:
            return first, last
        visible = self.mask[..., queries, first:last]
        if self.added:
            visible = visible > torch.finfo(visible.dtype).min / 2
            visible = visible | ~visible.any(
                -1, keepdim=True
            )  # softmax of a row of minima is uniform
        numbers = visible.flatten(0, 3).any(0).nonzero()
        if len(numbers) == 0:
            return 0, 0
        return first + int(numbers[0]), first + int(numbers[-1]) + 1

    def of(self, tile: Tile, groups: int) -> Shaped[Tensor, "#N #R I J"] | None:
        """Slice the mask of one tile, for G key heads."""
        if self.mask is None:
            return None
        part = self.mask[..., tile.queries, tile.keys]
        if part.shape[0] == part.shape[1] == 1:
            return part[0]
        pairs = torch.arange(tile.pairs.start, tile.pairs.stop, device=part.device)
        return part[pairs // groups % part.shape[0], pairs % groups % part.shape[1]]

    def forbid(self, scores: Float[Tensor, "N R I J"], tile: Tile, groups: int, to: float) -> None:
        """Write `to` wherever a query may not attend to a key, in place."""
        mask = self.of(tile, groups)
        if mask is not None and not self.added:
            scores.masked_fill_(~mask, to)
        if self.causal:
            self._forbid(scores, tile, tile.queries.start + 1, tile.keys.stop, to, behind=0)
        if self.window is not None:
            end = tile.queries.stop - self.window
            self._forbid(scores, tile, tile.keys.start, end, to, behind=self.window)

    @staticmethod
    def _forbid(
        scores: Tensor, tile: Tile, start: int, stop: int, to: float, *, behind: int
    ) -> None:
        """Mask keys in `start` to `stop` after the query, or `behind` or more before it."""
        start, stop = max(start, tile.keys.start), min(stop, tile.keys.stop)
        if start >= stop:
            return
        keys = torch.arange(start, stop, device=scores.device)
        queries = torch.arange(tile.queries.start, tile.queries.stop, device=scores.device)[:, None]
        unseen: Bool[Tensor, "I J"] = keys <= queries - behind if behind else keys > queries
        edge = scores[..., start - tile.keys.start : stop - tile.keys.start]
        edge.masked_fill_(unseen, to)
