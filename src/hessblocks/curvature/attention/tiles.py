"""Tiled attention and its first backward pass, with recomputed scores (as in FlashAttention).

A `Visibility` says which keys each query may attend to, and splits these into tiles.

Letters: q, k, v a tile's rows; s scale; P weights; O = P v; G = ∂L/∂O, in shapes the number of key
heads; δ = Σ G ∘ O per row; B sequences, N = B G pairs of sequence and key head (n of a tile), R
query heads per key head, T queries, S keys, I rows of a tile (its queries of all R heads; in masks
of one head), J its keys, D head width, V value width.

    Z = P ∘ (G vᵀ − δ);  q̄ = s Z k,  k̄ = s Zᵀ q,  v̄ = Pᵀ G

A softcap applies c tanh(S / c) before the softmax; its derivative multiplies Z.
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
            # softmax of a row of minima is uniform
            visible = visible | ~visible.any(-1, keepdim=True)
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


@dataclass(frozen=True)
class TiledHeads:
    """Queries, keys and values, with scale, masks and softcap."""

    query: Float[Tensor, "N R T D"]
    key: Float[Tensor, "N S D"]
    value: Float[Tensor, "N S V"]
    visibility: Visibility
    groups: int
    """G, the number of key heads."""

    @property
    def tiles(self) -> list[Tile]:
        """Split all queries and keys into tiles."""
        return self.visibility.tiles(self.query, self.key.shape[1])

    def scores(self, tile: Tile) -> tuple[Float[Tensor, "n I J"], Float[Tensor, "n I J"] | None]:
        """Compute a tile's scores without the mask, and t = tanh(S / c) if there is a softcap."""
        visibility, bent = self.visibility, None
        q, k = rows(self.query, tile), columns(self.key, tile)
        scores = torch.bmm(q, k.mT).mul_(visibility.scale)
        if visibility.softcap is not None:
            bent = scores.div_(visibility.softcap).tanh_()
            scores = bent * visibility.softcap
        if visibility.added:
            mask = visibility.of(tile, self.groups)
            assert mask is not None
            self._by_head(scores).add_(mask)
        return scores, bent

    def weights(
        self, tile: Tile, top: Float[Tensor, "N R T"], rest: Float[Tensor, "N R T"]
    ) -> tuple[Float[Tensor, "n I J"], Float[Tensor, "n I J"] | None]:
        """Compute P of a tile from the log-sum-exp `top` + `rest`, and t if there is a softcap."""
        bent = None
        if self.visibility.added or self.visibility.softcap is not None:
            weights, bent = self.scores(tile)
            weights.sub_(rows(top, tile)).sub_(rows(rest, tile))  # top + rest loses rest at −3e38
        else:
            q, k = rows(self.query, tile), columns(self.key, tile)
            weights = torch.baddbmm(-rows(top + rest, tile), q, k.mT, alpha=self.visibility.scale)
        weights.exp_()
        self.forbid(weights, tile, 0.0)
        return weights, bent

    def forbid(self, scores: Float[Tensor, "n I J"], tile: Tile, to: float) -> None:
        """Overwrite the scores of masked keys; see `Visibility.forbid`."""
        self.visibility.forbid(self._by_head(scores), tile, self.groups, to)

    def _by_head(self, scores: Tensor) -> Tensor:
        by_head: Tensor = scores.unflatten(1, (self.query.shape[1], -1))
        return by_head


def rows(x: Float[Tensor, "N R T *D"], tile: Tile) -> Float[Tensor, "n I D"]:
    """Slice a tile's rows, and merge its R heads into one axis; (N, R, T) becomes a column."""
    part = (x if x.ndim == 4 else x[..., None])[tile.pairs, :, tile.queries]
    return part.flatten(1, 2)


def columns(x: Float[Tensor, "N S D"], tile: Tile) -> Float[Tensor, "n J D"]:
    """Slice a tile's keys or values."""
    return x[tile.pairs, tile.keys]


def attend(
    heads: TiledHeads,
) -> tuple[Float[Tensor, "N R T V"], Float[Tensor, "N R T"], Float[Tensor, "N R T"]]:
    """Compute O and the log-sum-exp of the scores, as the largest score plus a rest.

    Returns:
        O, largest score and rest; for a row without permitted keys, O is 0 and the largest is −∞.
    """
    query, value = heads.query, heads.value
    out = query.new_zeros(*query.shape[:3], value.shape[-1])
    top, rest = query.new_full(query.shape[:3], -torch.inf), query.new_zeros(query.shape[:3])
    for tile in heads.tiles:
        scores, _ = heads.scores(tile)
        heads.forbid(scores, tile, -torch.inf)
        largest = scores.amax(-1, keepdim=True)
        scores.sub_(largest.masked_fill(largest == -torch.inf, 0.0)).exp_()
        sums = scores.sum(-1, keepdim=True)
        mixed = torch.bmm(scores, columns(value, tile)).div_(sums.masked_fill(sums == 0, 1.0))
        put(out, tile, mixed)
        put(top, tile, largest[..., 0])
        put(rest, tile, sums.masked_fill_(sums == 0, 1.0).log_()[..., 0])
    return out, top, rest


def pull_back(
    heads: TiledHeads,
    cotangent: Float[Tensor, "N R T V"],
    met: Float[Tensor, "N R T"],
    top: Float[Tensor, "N R T"],
    rest: Float[Tensor, "N R T"],
) -> tuple[Float[Tensor, "N R T D"], Float[Tensor, "N S D"], Float[Tensor, "N S V"]]:
    """Compute the first backward pass: q̄, k̄ and v̄ from G and δ (`met`)."""
    for_query, for_key = torch.zeros_like(heads.query), torch.zeros_like(heads.key)
    for_value = torch.zeros_like(heads.value)
    scale = heads.visibility.scale
    for tile in heads.tiles:
        weights, bent = heads.weights(tile, top, rest)
        g, k, v = rows(cotangent, tile), columns(heads.key, tile), columns(heads.value, tile)
        columns(for_value, tile).baddbmm_(weights.mT, g)
        weights.mul_(torch.baddbmm(-rows(met, tile), g, v.mT))
        if bent is not None:
            weights.mul_(slope(bent))
        put(for_query, tile, torch.bmm(weights, k).mul_(scale))
        columns(for_key, tile).baddbmm_(weights.mT, rows(heads.query, tile), alpha=scale)
    return for_query, for_key, for_value


def slope(bent: Float[Tensor, "n I J"]) -> Float[Tensor, "n I J"]:
    """Compute the derivative of the softcap, 1 − t², from t."""
    return (bent * bent).neg_().add_(1)


def put(target: Float[Tensor, "N R T *D"], tile: Tile, part: Float[Tensor, "n I *D"]) -> None:
    """Write a tile's rows into `target`."""
    entries = target[tile.pairs, :, tile.queries]
    entries.copy_(part.reshape(entries.shape))
