"""An attention layer in fewer coordinates, with blocks of the same Frobenius norm.

The inputs of sums are sums of 12 symbols' and 18 positions' vectors: they span at most 30 of the
width's directions. In an orthonormal basis U of that span (and R of the span of the projected queries
and keys), x → x U, W → Uᵀ W R changes every block by orthogonal factors alone.

Letters: D width, K head width, U (D, d) and R (K, k) orthonormal columns.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hessblocks.theory import AttentionLayer

NEGLIGIBLE = 1e-13
"""Share of the largest eigenvalue of a Gram matrix below which a direction is rounding."""


def compressed(layer: AttentionLayer) -> AttentionLayer:
    """The same layer in a basis of what its inputs span.

    Args:
        layer: one head, queries and keys apart.

    Returns:
        A layer whose query, key, value and projection blocks have the norms of the given one's.
    """
    assert layer.key is not None
    assert layer.query.shape[0] == 1
    inputs = _basis(layer.x.flatten(0, 1))
    query, key = inputs.T @ layer.query, inputs.T @ layer.key
    scores = _basis(torch.cat([query[0], key[0]]))
    return replace(
        layer,
        x=layer.x @ inputs,
        query=query @ scores,
        key=key @ scores,
        value=inputs.T @ layer.value,
    )


def _basis(rows: Tensor) -> Tensor:
    """Orthonormal columns that span the rows."""
    wide = rows.double()
    sizes, vectors = torch.linalg.eigh(wide.T @ wide)
    kept: Tensor = vectors[:, sizes > NEGLIGIBLE * sizes[-1]].to(rows.dtype)
    return kept
