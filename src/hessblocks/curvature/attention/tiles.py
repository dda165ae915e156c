"""Tiled attention and its first backward pass, with recomputed scores (as in FlashAttention).

Letters: q, k, v a tile's rows; s scale; P weights; O = P v; G = ∂L/∂O; δ = Σ G ∘ O per row;
N pairs of sequence and key head (n of a tile), R query heads per key head, T queries, S keys, I
rows of a tile (its queries of all R heads), J its keys, D head width, V value width.

    Z = P ∘ (G vᵀ − δ);  q̄ = s Z k,  k̄ = s Zᵀ q,  v̄ = Pᵀ G

A softcap applies c tanh(S / c) before the softmax; its derivative multiplies Z.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.curvature.attention.visibility import Tile, Visibility


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
        scores = torch.bmm(rows(self.query, tile), columns(self.key, tile).mT).mul_(
            visibility.scale
        )
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
