"""The bigram table against counting by hand."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from hessblocks.data.bigrams import BigramTable
from hessblocks.errors import ArgumentError
from tests.data.counted_bigrams import HELD_OUT, TEXT, V, probability

TABLE = BigramTable(TEXT.astype(np.uint16), V)


def test_the_loss_is_that_of_the_definition() -> None:
    losses = [-math.log(probability(a, b)) for row in HELD_OUT.tolist() for a, b in pairwise(row)]
    assert TABLE.loss(HELD_OUT) == pytest.approx(sum(losses) / len(losses), rel=1e-12)


def test_probabilities_sum_to_one() -> None:
    for before in (None, *range(V)):
        assert sum(probability(before, token) for token in range(V)) == pytest.approx(1)


def test_of_a_chain_it_is_the_entropy_of_a_step() -> None:
    """Held-out text of the same chain costs what a step of it does, in nats."""
    step = np.array([[0.9, 0.1, 0.0], [0.0, 0.5, 0.5], [0.7, 0.0, 0.3]])
    draw = np.random.default_rng(3)
    chain = [0]
    for _ in range(60_000):
        chain.append(int(draw.choice(3, p=step[chain[-1]])))
    text = np.array(chain)
    table = BigramTable(text[:50_000], 3)
    share = np.bincount(text, minlength=3) / len(text)
    entropy = -sum(share[a] * p * math.log(p) for a in range(3) for p in step[a] if p)
    found = table.loss(torch.from_numpy(text[50_000:60_000])[None])
    assert found == pytest.approx(entropy, abs=0.02)


@pytest.mark.bad_input
def test_what_the_table_cannot_tell_is_refused() -> None:
    for tokens in ([[0, -100, 1]], [[0, V, 1]]):
        with pytest.raises(ArgumentError, match="expected numbers from 0 to 6"):
            TABLE.loss(torch.tensor(tokens))
    with pytest.raises(ArgumentError, match="expected numbers from 0 to 2"):
        BigramTable(np.array([0, 3]), 3)
