"""Probabilities of a bigram table, counted by hand."""

from collections import Counter
from itertools import pairwise

import numpy as np
import torch

V = 7
TEXT = np.random.default_rng(0).choice(V - 1, size=60, p=[0.4, 0.3, 0.1, 0.1, 0.05, 0.05])
HELD_OUT = torch.from_numpy(np.random.default_rng(1).choice(V, size=(5, 8)))


def probability(before: int | None, token: int) -> float:
    """From the definition; token 6 is never met."""
    pairs, words = Counter(pairwise(TEXT.tolist())), Counter(TEXT.tolist())
    alone = (words[token] + 1) / (len(TEXT) + V)
    if before is None:
        return alone
    kinds = sum(pairs[before, b] > 0 for b in range(V))
    begun = sum(pairs[before, b] for b in range(V))
    total = begun + kinds
    return (pairs[before, token] + kinds * alone) / total if total else alone
