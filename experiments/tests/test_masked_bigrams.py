"""The bigram table of both neighbours against counting by hand."""

import math

import numpy as np
import pytest
import torch

from hessblocks.errors import ArgumentError
from hessblocks_studies.masked import MaskedBigramTable
from tests.data.counted_bigrams import HELD_OUT, TEXT, V, probability

TABLE = MaskedBigramTable(TEXT.astype(np.uint16), V)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_masked_token_is_told_from_both_neighbours_that_are_seen(share: float) -> None:
    masked = torch.from_numpy(np.random.default_rng(2).random(HELD_OUT.shape) < share)
    losses = []
    for row, hidden in zip(HELD_OUT.tolist(), masked.tolist(), strict=True):
        seen = [None if h else t for t, h in zip(row, hidden, strict=True)]
        for place, token in enumerate(row):
            if not hidden[place]:
                continue
            left = seen[place - 1] if place > 0 else None
            right = seen[place + 1] if place + 1 < len(row) else None
            every = [
                probability(left, b) * (1 if right is None else probability(b, right))
                for b in range(V)
            ]
            losses.append(-math.log(every[token] / sum(every)))
    assert TABLE.masked_loss(HELD_OUT, masked) == pytest.approx(
        sum(losses) / len(losses), rel=1e-12
    )


@pytest.mark.bad_input
def test_a_token_outside_of_the_vocabulary_is_refused() -> None:
    for tokens in ([[0, -100, 1]], [[0, V, 1]]):
        with pytest.raises(ArgumentError, match="expected numbers from 0 to 6"):
            TABLE.masked_loss(torch.tensor(tokens), torch.ones(1, 3, dtype=torch.bool))
