"""Bigram table of both neighbours: a baseline loss for masked language models.

Letters: B sequences, T tokens.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hessblocks.data import BigramTable

_ENTRIES = 2**22
"""Most entries of dense rows in memory at once."""


class MaskedBigramTable(BigramTable):
    """Probabilities of a masked token between its neighbours."""

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
        chunk = max(1, _ENTRIES // len(self._alone))
        starts = range(0, triples.shape[1], chunk)
        losses = [self._between(*triples[:, start : start + chunk]) for start in starts]
        return float(np.concatenate(losses).mean())

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
        every[here] = np.log(self._smoothed(counts, kinds[:, None], begun[:, None], self._alone))
        here, followed = right >= 0, self._pairs.T.tocsr()
        counts, ends = followed[right[here]].toarray(), self._alone[right[here]]
        every[here] += np.log(self._smoothed(counts, self._kinds, self._begun, ends[:, None]))
        truth_scores = every[np.arange(len(truth)), truth]
        return torch.logsumexp(torch.from_numpy(every), dim=1).numpy() - truth_scores
