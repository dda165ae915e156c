"""Rank collapse: the depth from which on all tokens point the same way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

COLLAPSED = 0.99
"""Mean cosine between different tokens above which they count as one direction."""


def rank_collapse(similarities: Sequence[float], *, above: float = COLLAPSED) -> int | None:
    """Find the layer from which on the token similarity stays above a threshold.

    Args:
        similarities: mean cosine between tokens after each layer, in order.
        above: the threshold.

    Returns:
        The layer, counted from 0; None where the last layer still tells tokens apart.

    Source: rank collapse as in Dong et al. (2021), arXiv 2103.03404; the threshold is ours.

    >>> rank_collapse([0.2, 0.995, 0.4, 0.995, 0.999])
    3
    """
    collapsed = sum(1 for _ in takewhile(lambda one: one > above, reversed(similarities)))
    return len(similarities) - collapsed if collapsed else None
