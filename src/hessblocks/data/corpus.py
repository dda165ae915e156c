"""Tokenised corpus on disk, seen as windows of equal length."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Dataset

from hessblocks.data.cache import Build, cached
from hessblocks.data.tokens import token_type
from hessblocks.errors import ArgumentError

Example = dict[str, Int[Tensor, "... tokens"]]


class Windows(Dataset[Example]):
    """Non-overlapping windows of `context` tokens; what is left at the end is not used."""

    def __init__(self, tokens: np.ndarray[Any, Any], context: int) -> None:
        self.tokens = tokens
        self.context = context

    def __len__(self) -> int:
        return len(self.tokens) // self.context

    def __getitem__(self, index: int) -> Example:
        start = range(len(self))[index] * self.context
        window = self.tokens[start : start + self.context].astype(np.int64)
        input_ids = torch.from_numpy(window)
        return {"input_ids": input_ids, "labels": input_ids}

    def drawn(
        self, count: int, seed: int, option: str = "count", text: str = "the text"
    ) -> Int[Tensor, "count tokens"]:
        """Draw so many windows without replacement, the same for the same seed.

        Args:
            count: how many.
            seed: of the draw.
            option: that asked for them, for the error.
            text: what the windows are of, for the error.

        Returns:
            The tokens of each window.

        Raises:
            ArgumentError: there are fewer.
        """
        if len(self) < count:
            raise ArgumentError(
                f"{option}: {count} windows of {self.context} tokens were asked for, {text} has "
                f"{len(self)}; ask for fewer or shorter ones."
            )
        chosen = np.random.default_rng(seed).choice(len(self), size=count, replace=False)
        return torch.stack([self[int(index)]["input_ids"] for index in chosen])


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text as tokens, split into training and held-out documents."""

    name: str
    """Short name, such as `python-code`."""
    tokenizer: Any
    """The `tokenizers.Tokenizer` that was learnt from the training split."""
    splits: Mapping[str, np.ndarray[Any, Any]]
    """Tokens of each split (train, validation, perhaps test-domain), memory-mapped."""
    description: Mapping[str, Any]
    """How it was made: versions, files and tokens of each split."""
    fingerprint: str
    """SHA-256 over the contents: equal fingerprints mean equal tokens."""

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary."""
        size: int = self.tokenizer.get_vocab_size()
        return size

    def windows(self, split: str, context: int) -> Windows:
        """Cut a split into non-overlapping windows.

        Args:
            split: train, validation or test-domain.
            context: tokens of a window, at least 2.

        Returns:
            A dataset of {"input_ids", "labels"}, each (context,), equal to each other.

        Raises:
            ArgumentError: no such split, or it is shorter than one window.
        """
        if split not in self.splits:
            raise ArgumentError(f"split: {split!r} is unknown; known: {', '.join(self.splits)}.")
        if context < 2:
            raise ArgumentError(f"--context: expected at least 2 tokens, got {context}.")
        tokens = self.splits[split]
        if len(tokens) < context:
            raise ArgumentError(
                f"--data: the {split} split of {self.name} has {len(tokens)} tokens, fewer than "
                f"one context of {context}; give more text or a shorter --context."
            )
        return Windows(tokens, context)

    def curvature_batch(self, sequences: int, tokens: int, seed: int = 0) -> Example:
        """Draw held-out windows without replacement, the same for the same seed.

        Args:
            sequences: how many windows.
            tokens: tokens of each.
            seed: of the draw.

        Returns:
            {"input_ids", "labels"}, each (sequences, tokens).

        Raises:
            ArgumentError: the validation split has fewer windows.
        """
        windows = self.windows("validation", tokens)
        text = f"the validation split of {self.name}"
        input_ids = windows.drawn(sequences, seed, "--curvature-sequences", text)
        return {"input_ids": input_ids, "labels": input_ids}


def cached_corpus(name: str, place: str, key: Mapping[str, Any], build: Build) -> Corpus:
    """Open the corpus of a cache entry; build it where it is missing.

    Args:
        name: of the corpus.
        place: of the entry, without its vocabulary.
        key: everything the tokens depend on besides the tokenizers, with `vocabulary`.
        build: writes the files of `write_corpus` and says what was made.

    Returns:
        The corpus, its files verified.
    """
    key = {**key, "tokenizers": tokenizers.__version__}
    entry = cached(f"{place}-v{key['vocabulary']}", key, build)
    tokenizer = tokenizers.Tokenizer.from_file(str(entry.folder / "tokenizer.json"))
    kind = token_type(tokenizer.get_vocab_size())
    contents = entry.manifest["contents"]
    hashes = sorted((name, file["sha256"]) for name, file in entry.manifest["files"].items())
    return Corpus(
        name=name,
        tokenizer=tokenizer,
        splits={
            split: np.memmap(entry.folder / f"{split}.bin", dtype=kind, mode="r")
            for split in contents["splits"]
        },
        description=contents,
        fingerprint=hashlib.sha256(repr(hashes).encode()).hexdigest(),
    )
