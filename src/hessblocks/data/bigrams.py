"""Bigram table: a baseline loss that a useful model must beat.

Letters: B sequences, T tokens.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
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
        self._followed = self._pairs.T.tocsr()
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
        return float(-np.log(self._after(before, token)).mean())

    def masked_loss(self, tokens: Int[Tensor, "B T"], masked: Bool[Tensor, "B T"]) -> float:
        """Compute the mean loss of the masked tokens, given both neighbours.

        The probability of b between a and c is P(b | a) P(c | b), normalised over all b. The factor
        of a neighbour that is masked or outside the sequence is left out.

        Args:
            tokens: held-out sequences.
            masked: True at the tokens to predict.

        Returns:
            Nats per masked token.

        Raises:
            ArgumentError: a token that the table cannot know.
        """
        self._check(tokens.numpy())
        text = np.where(masked.numpy(), -1, tokens.numpy())
        text = np.pad(text, ((0, 0), (1, 1)), constant_values=-1)
        row, column = np.nonzero(masked.numpy())
        # left neighbour, right neighbour and masked token
        triples = np.stack([text[row, column], text[row, column + 2], tokens.numpy()[row, column]])
        chunk = max(1, _ROWS // len(self._alone))
        starts = range(0, triples.shape[1], chunk)
        losses = [self._between(*triples[:, start : start + chunk]) for start in starts]
        return float(np.concatenate(losses).mean())

    def _check(self, tokens: np.ndarray[Any, Any]) -> None:
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < self._vocabulary:
            raise ArgumentError(f"tokens: expected numbers from 0 to {self._vocabulary - 1}")

    def _after(self, before: Any, token: Any) -> Any:
        """Compute P(token | before), elementwise."""
        counts = np.asarray(self._pairs[before, token]).ravel()
        return _smoothed(counts, self._kinds[before], self._begun[before], self._alone[token])

    def _between(self, left: Any, right: Any, truth: Any) -> Any:
        """Compute −log P(truth | left, right); −1 means that a neighbour is masked or outside."""
        every = np.log(self._alone)[None].repeat(len(truth), axis=0)
        here = left >= 0
        before = left[here]
        counts, kinds, begun = (
            self._pairs[before].toarray(),
            self._kinds[before],
            self._begun[before],
        )
        every[here] = np.log(_smoothed(counts, kinds[:, None], begun[:, None], self._alone))
        here = right >= 0
        counts, ends = self._followed[right[here]].toarray(), self._alone[right[here]]
        every[here] += np.log(_smoothed(counts, self._kinds, self._begun, ends[:, None]))
        truth_scores = every[np.arange(len(truth)), truth]
        return torch.logsumexp(torch.from_numpy(every), dim=1).numpy() - truth_scores


def _smoothed(counts: Any, kinds: Any, begun: Any, alone: Any) -> Any:
    """Compute (c(a, b) + d(a) P(b)) / (c(a) + d(a)); P(b) for a token a that nothing follows."""
    total = begun + kinds
    return np.where(total > 0, (counts + kinds * alone) / np.maximum(total, 1), alone)
