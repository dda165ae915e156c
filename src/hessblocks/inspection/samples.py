"""The tokens on which a model is looked at: held-out text in the model's own tokens, or random ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
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
from hessblocks.settings import InspectionSettings

RANDOM = "random"
PYTHON_CODE = "python-code"


def corpus_of(settings: InspectionSettings, vocabulary: int) -> Corpus:
    """The text that is asked for, with an encoding of its own."""
    return load_corpus(None if settings.data == PYTHON_CODE else Path(settings.data), vocabulary)


def random_batch(
    subject: Subject, settings: InspectionSettings
) -> dict[str, Int[Tensor, "sequences tokens"]]:
    """Tokens drawn uniformly from the model's vocabulary."""
    generator = torch.Generator().manual_seed(settings.seed)
    shape = (settings.sequences, settings.tokens)
    return {"input_ids": torch.randint(subject.vocabulary, shape, generator=generator)}


def encoded_batch(
    subject: Subject, settings: InspectionSettings
) -> dict[str, Int[Tensor, "sequences tokens"]]:
    """Held-out windows of text in the encoding that came with the model, or random tokens.

    Returns:
        {"input_ids": (sequences, tokens)}.

    Raises:
        ArgumentError: the model has no tokeniser, its vocabulary is too small for the tokeniser, or
            there are fewer held-out windows than asked for.
    """
    if settings.data == RANDOM:
        return random_batch(subject, settings)
    if subject.encode is None:
        raise ArgumentError(
            f"MODEL: {subject.name} has no tokenizer beside it, so that text cannot become its tokens; "
            "save the tokenizer into the same folder, or ask for random tokens with --data random."
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "--vocab-size", CorpusWarning)
        corpus = corpus_of(settings, DEFAULT_VOCABULARY)
    ids = [token for text in _documents(corpus) for token in subject.encode(text)]
    if ids and max(ids) >= subject.vocabulary:
        raise ArgumentError(
            f"MODEL: the tokenizer of {subject.name} gives token ids up to {max(ids)}, the model knows "
            f"those below {subject.vocabulary}; give the tokenizer that it was trained with, or ask for "
            "random tokens with --data random."
        )
    return drawn(np.asarray(ids), corpus.name, settings)


def _documents(corpus: Corpus) -> Iterator[str]:
    """The held-out documents as text again."""
    ids = np.asarray(corpus.splits["validation"])
    ends = np.flatnonzero(ids == corpus.tokenizer.token_to_id(END_OF_TEXT))
    for piece in np.split(ids, ends + 1):
        if text := corpus.tokenizer.decode(piece.tolist()):
            yield text


def drawn(
    ids: np.ndarray[Any, Any], name: str, settings: InspectionSettings
) -> dict[str, Int[Tensor, "sequences tokens"]]:
    """Windows without replacement, the same for the same seed.

    Args:
        ids: held-out tokens.
        name: of the text, for the error.
        settings: how many windows of how many tokens, and the seed.

    Returns:
        {"input_ids": (sequences, tokens)}.

    Raises:
        ArgumentError: fewer held-out windows than asked for.
    """
    windows, text = Windows(ids, settings.tokens), f"the held-out text of {name}"
    return {"input_ids": windows.drawn(settings.sequences, settings.seed, "--sequences", text)}
