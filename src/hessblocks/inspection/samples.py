"""The tokens on which curvature is measured: held-out text in the model's own tokens, or random ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from hessblocks.data import (
    DEFAULT_VOCABULARY,
    END_OF_TEXT,
    Corpus,
    CorpusWarning,
    Windows,
    load_corpus,
)
from hessblocks.errors import ArgumentError
from hessblocks.inspection.subject import Subject

RANDOM = "random"
PYTHON_CODE = "python-code"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Where the tokens come from and how many are drawn."""

    data: str
    """`python-code`, `random`, or a file or folder of text."""
    sequences: int
    """Windows."""
    tokens: int
    """Tokens of each."""
    seed: int
    """Of the draw."""

    @property
    def random(self) -> bool:
        """Whether tokens are drawn uniformly from the vocabulary instead of from text."""
        return self.data == RANDOM

    def corpus(self, vocabulary: int) -> Corpus:
        """The text, with an encoding of its own."""
        return load_corpus(None if self.data == PYTHON_CODE else Path(self.data), vocabulary)


def random_batch(subject: Subject, sample: Sample) -> dict[str, Int[Tensor, "sequences tokens"]]:
    """Tokens drawn uniformly from the model's vocabulary."""
    generator = torch.Generator().manual_seed(sample.seed)
    shape = (sample.sequences, sample.tokens)
    return {"input_ids": torch.randint(subject.vocabulary, shape, generator=generator)}


def corpus_batch(corpus: Corpus, sample: Sample) -> dict[str, Int[Tensor, "sequences tokens"]]:
    """Held-out windows of a corpus in its own encoding.

    Raises:
        ArgumentError: fewer held-out windows than asked for.
    """
    return _drawn(corpus.splits["validation"], corpus.name, sample)


def encoded_batch(subject: Subject, sample: Sample) -> dict[str, Int[Tensor, "sequences tokens"]]:
    """Held-out windows of text in the encoding that came with the model.

    Raises:
        ArgumentError: the model has no tokeniser, its vocabulary is too small for the tokeniser, or
            there are fewer held-out windows than asked for.
    """
    if subject.encode is None:
        raise ArgumentError(
            f"MODEL: {subject.name} has no tokenizer beside it, so that text cannot become its tokens; "
            "save the tokenizer into the same folder, or ask for random tokens with --data random."
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "--vocab-size", CorpusWarning)
        corpus = sample.corpus(DEFAULT_VOCABULARY)
    ids = [token for text in _documents(corpus) for token in subject.encode(text)]
    if ids and max(ids) >= subject.vocabulary:
        raise ArgumentError(
            f"MODEL: the tokenizer of {subject.name} gives token ids up to {max(ids)}, the model knows "
            f"those below {subject.vocabulary}; give the tokenizer that it was trained with, or ask for "
            "random tokens with --data random."
        )
    return _drawn(np.asarray(ids), corpus.name, sample)


def _documents(corpus: Corpus) -> Iterator[str]:
    """The held-out documents as text again."""
    ids = np.asarray(corpus.splits["validation"])
    ends = np.flatnonzero(ids == corpus.tokenizer.token_to_id(END_OF_TEXT))
    for piece in np.split(ids, ends + 1):
        if text := corpus.tokenizer.decode(piece.tolist()):
            yield text


def _drawn(ids: np.ndarray[Any, Any], name: str, sample: Sample) -> dict[str, Tensor]:
    """Windows without replacement, the same for the same seed."""
    windows = Windows(ids, sample.tokens)
    if len(windows) < sample.sequences:
        raise ArgumentError(
            f"--sequences: {sample.sequences} windows of {sample.tokens} tokens were asked for, the "
            f"held-out text of {name} has {len(windows)}; ask for fewer or shorter ones."
        )
    generator = np.random.default_rng(sample.seed)
    chosen = generator.choice(len(windows), size=sample.sequences, replace=False)
    return {"input_ids": torch.stack([windows[int(index)]["input_ids"] for index in chosen])}
