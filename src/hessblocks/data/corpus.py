"""Tokenise a corpus by byte-pair encoding (BPE) learnt from it, and see it as equal windows."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from jaxtyping import Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.utils.data import Dataset

from hessblocks.conventions import AnyPath
from hessblocks.data.cache import Build, cached
from hessblocks.errors import ArgumentError

END_OF_TEXT = "<|endoftext|>"
"""Ends each document; token 0."""
SMALLEST_VOCABULARY = 257
"""256 bytes and the end of text."""
LEARNING_CHARACTERS = 64_000_000
"""The encoding is learnt from at most about so many characters, spread evenly over the text."""
_CHUNK = 1 << 20
_BATCH = 64


def check_vocabulary(size: int) -> None:
    """Refuse a vocabulary that cannot hold every byte.

    Raises:
        ArgumentError: fewer than `SMALLEST_VOCABULARY` entries.
    """
    if size < SMALLEST_VOCABULARY:
        raise ArgumentError(
            f"--vocab-size: expected at least {SMALLEST_VOCABULARY} (256 bytes and the end of "
            f"text), got {size}."
        )


def learn_encoding(
    texts: Iterable[str], vocabulary: int, special: Sequence[str] = (END_OF_TEXT,)
) -> Any:
    """Learn byte-level BPE in which each merge was seen at least twice.

    Args:
        texts: what to learn from.
        vocabulary: most entries; a short text supports fewer.
        special: tokens that no text is made of, the first ones of the vocabulary.

    Returns:
        A `tokenizers.Tokenizer`; the same for the same text, whatever the number of threads.
    """
    encoding = Tokenizer(models.BPE())
    encoding.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoding.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    encoding.train_from_iterator(texts, trainer)
    return encoding


def thinned(
    texts: Iterable[str], characters: int, most: int = LEARNING_CHARACTERS
) -> Iterator[str]:
    """Take every k-th piece of the texts, k such that about `most` characters remain.

    Args:
        texts: documents.
        characters: how long they are together.
        most: how many remain.

    Returns:
        The pieces that remain, in order.
    """
    step = max(1, -(-characters // most))
    pieces = (piece for text in texts for piece in pieces_of(text))
    return itertools.islice(pieces, 0, None, step)


def pieces_of(text: str) -> Iterator[str]:
    """Cut the text into pieces of about a million characters, at line ends where possible."""
    start = 0
    while len(text) - start > _CHUNK:
        # rfind gives −1 where there is no line end, and `+ 1` makes that false
        cut = text.rfind("\n", start, start + _CHUNK) + 1 or start + _CHUNK
        yield text[start:cut]
        start = cut
    yield text[start:]


def token_type(vocabulary: int) -> np.dtype[Any]:
    """Choose the smallest unsigned type that holds every token."""
    return np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)


def write_corpus(
    folder: AnyPath,
    texts: Mapping[str, Sequence[str]],
    vocabulary: int,
    special: Sequence[str] = (END_OF_TEXT,),
) -> dict[str, Any]:
    """Learn the encoding from the training split and write every split.

    Args:
        folder: gets tokenizer.json and a file `<split>.bin` for each split.
        texts: documents of each split, train among them.
        vocabulary: most entries.
        special: as `learn_encoding` takes it.

    Returns:
        What was made: vocabulary, and documents, characters and tokens of each split.
    """
    folder, train = Path(folder), texts["train"]
    encoding = learn_encoding(thinned(train, sum(map(len, train))), vocabulary, special)
    (folder / "tokenizer.json").write_text(encoding.to_str(), encoding="utf-8")
    return {
        "vocabulary": encoding.get_vocab_size(),
        "splits": {
            split: {
                "documents": len(documents),
                "characters": sum(map(len, documents)),
                "tokens": write_tokens(documents, encoding, folder / f"{split}.bin"),
            }
            for split, documents in texts.items()
        },
    }


def write_tokens(texts: Iterable[str], encoding: Any, path: Path) -> int:
    """Encode documents, each ended by the end of text, into a file of bare numbers.

    Args:
        texts: documents.
        encoding: as `learn_encoding` returns it.
        path: file to write.

    Returns:
        How many tokens it holds.

    Cost:
        Memory for 64 pieces of a million characters at most.
    """
    kind = token_type(encoding.get_vocab_size())
    ended = (itertools.chain(pieces_of(text), [END_OF_TEXT]) for text in texts)
    pieces = itertools.chain.from_iterable(ended)
    written = 0
    with path.open("wb") as file:
        while batch := list(itertools.islice(pieces, _BATCH)):
            # no special tokens: the end of text is a piece of its own
            for tokens in encoding.encode_batch_fast(batch, add_special_tokens=False):
                np.asarray(tokens.ids, dtype=kind).tofile(file)
                written += len(tokens.ids)
    return written


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
