"""Bigram table: a baseline loss that a useful model must beat.

Letters: B sequences, T tokens.
"""

from typing import Any

import numpy as np
from jaxtyping import Int
from scipy import sparse
from torch import Tensor

from hessblocks.errors import ArgumentError

_ROWS = 2**22
"""Most entries of dense rows, and most tokens, in memory at once."""
BIGRAMS = "bigram table"
"""Name of the table in lists of blocks."""


class BigramTable:
    """Probabilities of a token given the one before, interpolated with unigram probabilities.

    P(b | a) = (c(a, b) + d(a) P(b)) / (c(a) + d(a)), where c counts in the text, d(a) is the number
    of different tokens that follow a, and P(b) = (c(b) + 1) / (N + V). Nothing is tuned.

    Source: Witten & Bell (1991), method C.
    """

    def __init__(self, tokens: np.ndarray[Any, Any], vocabulary: int) -> None:
        """Count the tokens and pairs of a text.

        Args:
            tokens: token ids of the text.
            vocabulary: size V of the vocabulary.

        Raises:
            ArgumentError: a token id is not below `vocabulary`.
        """
        self._vocabulary = vocabulary
        for start in range(0, len(tokens), _ROWS):
            self._check(tokens[start : start + _ROWS])
        shape = (vocabulary, vocabulary)
        counts, self._pairs = np.zeros(vocabulary), sparse.csr_array(shape)
        for start in range(0, len(tokens), _ROWS):  # a long text is read in pieces
            text = tokens[start : start + _ROWS + 1].astype(np.int64)
            ones = np.ones(len(text) - 1)
            self._pairs += sparse.csr_array((ones, (text[:-1], text[1:])), shape=shape)
            counts += np.bincount(text[:_ROWS], minlength=vocabulary)
        self._kinds = np.diff(self._pairs.indptr).astype(np.float64)
        self._begun = self._pairs.sum(axis=1)
        self._alone = (counts + 1.0) / (len(tokens) + vocabulary)

    def loss(self, tokens: Int[Tensor, "B T"]) -> float:
        """Compute the mean loss of each token but the first, given the token before it.

        Args:
            tokens: held-out sequences.

        Returns:
            Nats per token.

        Raises:
            ArgumentError: a token that the table cannot know.
        """
        self._check(tokens.numpy())
        before, token = tokens[:, :-1].numpy().ravel(), tokens[:, 1:].numpy().ravel()
        counts = np.asarray(self._pairs[before, token]).ravel()
        follows = self._kinds[before], self._begun[before], self._alone[token]
        return float(-np.log(self._smoothed(counts, *follows)).mean())

    def _check(self, tokens: np.ndarray[Any, Any]) -> None:
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < self._vocabulary:
            raise ArgumentError(f"tokens: expected numbers from 0 to {self._vocabulary - 1}")

    @staticmethod
    def _smoothed(counts: Any, kinds: Any, begun: Any, alone: Any) -> Any:
        """Compute (c(a, b) + d(a) P(b)) / (c(a) + d(a)); P(b) where nothing follows a."""
        total = begun + kinds
        return np.where(total > 0, (counts + kinds * alone) / np.maximum(total, 1), alone)
