"""Tangent of attention's first backward pass, which is also its double backward pass.

Letters: N pairs of sequence and key head, R query heads per key head, T queries, S keys, D head
width, V value width; those of `tiles`; K vectors; (a, b, c) tangents of (q, k, v), or cotangents of
(q̄, k̄, v̄). Since ⟨a, q̄⟩ + ⟨b, k̄⟩ + ⟨c, v̄⟩ = ⟨G, Ȯ⟩ for constant G, both need the same formulas

    Ṡ = s (a kᵀ + q bᵀ),  Ṗ = P ∘ (Ṡ − ρ) with ρ = Σ P ∘ Ṡ,  Ȯ = Ṗ v + P c,  δ̇ = Σ G ∘ Ȯ,
    X = G vᵀ − δ,  Z = P ∘ X,  Ż = Ṗ ∘ X + P ∘ (G cᵀ − δ̇)
    of q̄: s (Ż k + Z b);  of k̄: s (Żᵀ q + Zᵀ a);  of v̄: Ṗᵀ G;  of O: Ȯ;  of L: ρ

A cotangent of L is subtracted from δ. The first derivative of a softcap c tanh(S / c) multiplies Ṡ
and Z; its second derivative adds a term to Ż.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.curvature.attention.tiles import Tile, TiledHeads, columns, put, rows, slope


@dataclass(frozen=True)
class RowConstants:
    """Numbers per row that the forward and the first backward pass save."""

    top: Float[Tensor, "N R T"]
    """See `attend`."""
    rest: Float[Tensor, "N R T"]
    """See `attend`."""
    cotangent: Float[Tensor, "N R T V"] | None = None
    """G; None if only the tangents of O and L are wanted."""
    met: Float[Tensor, "N R T"] | None = None
    """δ."""


@dataclass(frozen=True)
class Tangents:
    """K tangents of queries, keys and values, or of the passes' results; None means zeros."""

    query: Float[Tensor, "*K N R T D"] | None = None
    key: Float[Tensor, "*K N S D"] | None = None
    value: Float[Tensor, "*K N S V"] | None = None
    mean: Float[Tensor, "*K N R T"] | None = None
    """ρ, of L."""
    out: Float[Tensor, "*K N R T V"] | None = None
    """Tangent of O."""

    def number(self, which: int) -> Tangents:
        """Pick the k-th of the K vectors."""
        return Tangents(**{n: None if t is None else t[which] for n, t in vars(self).items()})


def push_forward(
    heads: TiledHeads, per_row: RowConstants, tangents: Tangents, count: int, wanted: Sequence[bool]
) -> Tangents:
    """Compute the tangents of the forward pass and, if G is given, of the backward pass.

    Args:
        heads: queries, keys, values.
        per_row: numbers saved by the first two passes.
        tangents: K tangents of queries, keys and values.
        count: K; all K share P, X and Z of a tile.
        wanted: whether the tangents of q̄, k̄ and v̄ are wanted.

    Returns:
        Tangents of q̄, k̄, v̄, L and O.

    Cost: 12 products of queries × keys × width per tile, 2 of them once for all K.
    """
    likes = (heads.query, heads.key, heads.value)
    q, k, v = (
        like.new_zeros(count, *like.shape) if wants else None
        for like, wants in zip(likes, wanted, strict=True)
    )
    shape = (count, *heads.query.shape[:3])
    out = heads.query.new_zeros(*shape, heads.value.shape[-1])
    results = Tangents(q, k, v, heads.query.new_zeros(shape), out)
    for tile in heads.tiles:
        work = _TileWork(heads, per_row, tile)
        for which in range(count):
            work.push(tangents.number(which), results.number(which))
    return results


class _TileWork:
    """Computation of one tile: numbers that all vectors share, and each vector's terms."""

    def __init__(self, heads: TiledHeads, per_row: RowConstants, tile: Tile) -> None:
        self._tile, self._scale = tile, heads.visibility.scale
        self._q, self._k = rows(heads.query, tile), columns(heads.key, tile)
        self._v = columns(heads.value, tile)
        self._weights, bent = heads.weights(tile, per_row.top, per_row.rest)
        self._slope = None if bent is None else slope(bent)
        if per_row.cotangent is not None:
            assert per_row.met is not None
            self._g = rows(per_row.cotangent, tile)
            self._centred = torch.baddbmm(-rows(per_row.met, tile), self._g, self._v.mT)
            self._met = self._weights * self._centred
            if bent is not None and self._slope is not None:
                assert heads.visibility.softcap is not None
                self._met.mul_(self._slope)
                self._bend = bent.mul_(self._met).mul_(-2 / heads.visibility.softcap)

    def push(self, tangents: Tangents, results: Tangents) -> None:
        """Compute one vector's terms of this tile, and write or add them to `results`."""
        a, b, c = (
            None if tangents.query is None else rows(tangents.query, self._tile),
            None if tangents.key is None else columns(tangents.key, self._tile),
            None if tangents.value is None else columns(tangents.value, self._tile),
        )
        moved = self._moved_scores(a, b)
        shares = None if moved is None else self._moved_weights(moved, results)
        left, right = (self._weights, c) if shares is None else (shares, self._v)
        assert right is not None  # one of a, b and c is given
        out = torch.bmm(left, right)
        if shares is not None and c is not None:
            out.baddbmm_(self._weights, c)
        assert results.out is not None
        put(results.out, self._tile, out)
        if results.value is not None and shares is not None:
            columns(results.value, self._tile).baddbmm_(shares.mT, self._g)
        if results.query is not None or results.key is not None:
            self._add(self._moved_pull(moved, shares, out, c), a, b, results)

    def _moved_scores(self, a: Tensor | None, b: Tensor | None) -> Tensor | None:
        """Compute Ṡ, before the softcap."""
        scale = self._scale
        if a is None or b is None:
            left, right = (self._q, b) if a is None else (a, self._k)
            return None if right is None else torch.bmm(left, right.mT).mul_(scale)
        left, right = torch.cat([a, self._q], -1).mul_(scale), torch.cat([self._k, b], -1)
        return torch.bmm(left, right.mT)

    def _moved_weights(self, moved: Tensor, results: Tangents) -> Tensor:
        """Compute ρ and Ṗ; write ρ into `results`."""
        shares = (moved if self._slope is None else moved * self._slope) * self._weights
        mean = shares.sum(-1, keepdim=True)
        assert results.mean is not None
        put(results.mean, self._tile, mean[..., 0])
        return shares.addcmul_(self._weights, mean, value=-1)

    def _moved_pull(
        self, moved: Tensor | None, shares: Tensor | None, out: Tensor, c: Tensor | None
    ) -> Tensor:
        """Compute Ż."""
        change = -(self._g * out).sum(-1, keepdim=True)
        if c is not None:
            change = torch.baddbmm(change, self._g, c.mT)
        pulled = self._weights * change
        if shares is not None:
            pulled.addcmul_(shares, self._centred)
        if self._slope is not None:
            pulled.mul_(self._slope)
            if moved is not None:
                pulled.addcmul_(self._bend, moved)
        return pulled

    def _add(self, pulled: Tensor, a: Tensor | None, b: Tensor | None, results: Tangents) -> None:
        """Add s (Ż k + Z b) and s (Żᵀ q + Zᵀ a) to the results."""
        scale, tile = self._scale, self._tile
        if results.query is not None:
            change = torch.bmm(pulled, self._k)
            if b is not None:
                change.baddbmm_(self._met, b)
            put(results.query, tile, change.mul_(scale))
        if results.key is not None:
            strip = columns(results.key, tile)
            strip.baddbmm_(pulled.mT, self._q, alpha=scale)
            if a is not None:
                strip.baddbmm_(self._met.mT, a, alpha=scale)
