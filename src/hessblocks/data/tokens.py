"""Tokenise text: byte-level byte-pair encoding (BPE) learnt from it, and token files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hessblocks.conventions import AnyPath
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
