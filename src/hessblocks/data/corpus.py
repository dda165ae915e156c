"""Tokenise a corpus by byte-pair encoding (BPE) learnt from it, and cut it into windows.

The tokens are kept in a per-user cache: folders with a manifest, built once, verified at each use.
"""

import hashlib
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from filelock import FileLock
from jaxtyping import Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.utils.data import Dataset

from hessblocks import storage
from hessblocks.conventions import AnyPath
from hessblocks.data.texts import Text, cut_runs, pieces_of, slices_of, thinned
from hessblocks.errors import ArgumentError, RunError, in_units
from hessblocks.settings import VOCABULARY

Build = Callable[[Path], Mapping[str, Any]]
"""Function that fills a folder and returns a description of its contents, as JSON values."""


class CacheWarning(UserWarning):
    """Warning that a cache entry was damaged or of another version, and is built again."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Cache entry: a folder whose files are verified."""

    folder: Path
    """Folder of the files."""
    manifest: Mapping[str, Any]
    """Content of seal.json: `files`, name → SHA-256, and `progress` with the `contents`."""


def cache_root() -> Path:
    """Return the cache folder: `HESSBLOCKS_CACHE`, else `hessblocks` in the user's cache folder."""
    if configured := os.environ.get("HESSBLOCKS_CACHE"):
        return Path(configured)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "hessblocks"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "hessblocks" / "cache"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "hessblocks"


def cached(name: str, key: Mapping[str, Any], build: Build) -> Entry:
    """Open a cache entry; build it if it is missing, damaged, or made from another key.

    If several processes ask at once, one builds the entry and the others wait.

    Args:
        name: name of the folder in the cache.
        key: everything that the contents depend on, as JSON values.
        build: fills a folder and returns a description of the contents, as JSON values.

    Returns:
        The entry, with all files verified.

    Raises:
        RunError: the cache cannot be written.

    Cost:
        SHA-256 of all files of the entry, about a second per gigabyte.
    """
    root = cache_root()
    folder = root / name
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{name}.lock"):
            if fault := storage.check_manifest(folder, storage.identity_of(key)):
                if folder.exists():
                    outdated = "is of another version of text or code"
                    words = outdated if fault == "is of another run" else fault
                    warnings.warn(f"cache: {name} {words}; building it again", CacheWarning, 2)
                storage.remove_partials(root, name)
                with storage.atomic_folder(folder) as temporary:
                    progress = {"contents": build(temporary)}
                    storage.write_manifest(temporary, storage.identity_of(key), name, progress)
    except OSError as error:
        raise RunError(
            f"cache: {root} cannot be used ({error.strerror or error}); free some space or set "
            "HESSBLOCKS_CACHE to another folder."
        ) from error
    return Entry(folder=folder, manifest=storage.read_object(folder / storage.MANIFEST))


END_OF_TEXT = "<|endoftext|>"
"""Special token at the end of each document; its id is 0."""
MASK, PADDING = "<|mask|>", "<|padding|>"
SPECIAL = {"causal-lm": (END_OF_TEXT,), "masked-lm": (END_OF_TEXT, MASK, PADDING)}
"""Task → special tokens, the first entries of its vocabulary."""
LEARNING_CHARACTERS = 64_000_000
"""About how many characters the encoding is learnt from at most; evenly spread over the text."""
_BATCH = 1 << 21
"""Characters encoded at once; each takes about 100 bytes meanwhile."""


def check_vocabulary(size: int) -> None:
    """Refuse a vocabulary that cannot hold every byte.

    Raises:
        ArgumentError: `size` is below 257: 256 bytes and the end of text.
    """
    if refusal := VOCABULARY.refusal(size):
        raise ArgumentError(f"--vocab-size: {refusal}")


def learn_encoding(
    texts: Iterable[str], vocabulary: int, special: Sequence[str] = (END_OF_TEXT,)
) -> Any:
    """Learn byte-level BPE; each merge occurs at least twice in the texts.

    A word of more than 8,192 characters, whose cost would be quadratic, is learnt from in pieces.

    Args:
        texts: texts to learn from.
        vocabulary: largest size of the vocabulary; a short text supports fewer entries.
        special: special tokens, the first entries of the vocabulary.

    Returns:
        A `tokenizers.Tokenizer`, which does not depend on the number of threads.
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
    slices = [[run for text in texts for part in slices_of(text) for run in cut_runs(part)]]
    # one batch: the trainer then needs no Python; popped, so that its memory is freed afterwards
    batches = (slices.pop() for _ in range(1))
    _run_interruptibly(lambda: encoding.train_from_iterator(batches, trainer))
    return encoding


def _run_interruptibly(run: Callable[[], object]) -> None:
    """Run in a thread, since the tokeniser's trainer ignores signals such as Ctrl-C."""
    pool = ThreadPool(1)
    try:
        pool.apply_async(run).get()
    finally:
        pool.terminate()  # does not wait; the thread ends with the process


def token_type(vocabulary: int) -> np.dtype[Any]:
    """Choose the smallest unsigned integer type for all token ids."""
    return np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)


def write_corpus(
    folder: AnyPath,
    texts: Mapping[str, Sequence[Text]],
    vocabulary: int,
    special: Sequence[str] = (END_OF_TEXT,),
) -> dict[str, Any]:
    """Learn the encoding from the training split and write the tokens of every split.

    Args:
        folder: folder for tokenizer.json and a file `<split>.bin` for each split.
        texts: split → documents; `train` is one of the splits.
        vocabulary: largest size of the vocabulary.
        special: special tokens, as in `learn_encoding`.

    Returns:
        Size of the vocabulary, and numbers of documents, characters and tokens of each split.
    """
    folder, train = Path(folder), texts["train"]
    pieces = thinned(train, sum(map(len, train)), LEARNING_CHARACTERS)
    encoding = learn_encoding(pieces, vocabulary, special)
    storage.write_text(folder / "tokenizer.json", encoding.to_str())
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


def write_tokens(texts: Iterable[Text], encoding: Any, path: Path) -> int:
    """Encode documents, each followed by END_OF_TEXT, into a file of raw unsigned integers.

    Args:
        texts: documents.
        encoding: tokeniser from `learn_encoding`.
        path: file to write.

    Returns:
        Number of tokens in the file.

    Cost:
        Memory for two million characters and their tokens.
    """
    kind = token_type(encoding.get_vocab_size())
    with path.open("wb") as file:
        for batch in _batches(texts):
            # END_OF_TEXT is a piece of the text already, so that none is added
            for tokens in encoding.encode_batch_fast(batch, add_special_tokens=False):
                file.write(np.asarray(tokens.ids, dtype=kind).tobytes())
    return path.stat().st_size // kind.itemsize


def _batches(texts: Iterable[Text]) -> Iterator[list[str]]:
    """Yield lists of pieces of about `_BATCH` characters; each document ends with END_OF_TEXT."""
    pieces = (p for text in texts for p in itertools.chain(pieces_of(text), [END_OF_TEXT]))
    parts, counted = itertools.tee(itertools.chain.from_iterable(map(slices_of, pieces)))
    pairs = zip(parts, itertools.accumulate(map(len, counted)), strict=True)
    for _, batch in itertools.groupby(pairs, lambda pair: pair[1] // _BATCH):
        yield [part for part, _ in batch]


Example = dict[str, Int[Tensor, "... tokens"]]


class Windows(Dataset[Example]):
    """Dataset of windows of `context` tokens that share none; a shorter rest is dropped.

    Each begins with the tokens `first`, such as `<bos>`, which count in `context`.
    """

    def __init__(
        self, tokens: np.ndarray[Any, Any], context: int, first: Sequence[int] = ()
    ) -> None:
        self.tokens, self.context = tokens, context
        self.first = np.asarray(first, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.tokens) // max(1, self.context - len(self.first))

    def __getitem__(self, index: int) -> Example:
        taken = max(1, self.context - len(self.first))
        start = range(len(self))[index] * taken
        window = self.tokens[start : start + taken].astype(np.int64)
        input_ids = torch.from_numpy(np.concatenate([self.first, window]))
        return {"input_ids": input_ids, "labels": input_ids}

    def drawn(
        self, count: int, seed: int, option: str = "count", text: str = "the text"
    ) -> Int[Tensor, "count tokens"]:
        """Draw windows without replacement, the same for the same seed.

        Args:
            count: number of windows.
            seed: seed of the draw.
            option: option or argument that sets `count`, for the error.
            text: name of the text, for the error.

        Returns:
            Token ids of each window.

        Raises:
            ArgumentError: there are fewer windows.
        """
        if len(self) < count:
            raise ArgumentError(
                f"{option}: {count} windows of {self.context} tokens do not fit: {text} has "
                f"{len(self.tokens):,} tokens; give fewer or shorter ones, or more text (about "
                f"{in_units(4 * count * self.context)})."
            )
        chosen = np.random.default_rng(seed).choice(len(self), size=count, replace=False)
        return torch.stack([self[int(index)]["input_ids"] for index in chosen])


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text as tokens, split into training and held-out documents."""

    name: str
    """Short name, such as `python-code`."""
    tokenizer: Any
    """`tokenizers.Tokenizer` learnt from the training split."""
    splits: Mapping[str, np.ndarray[Any, Any]]
    """Split (train, validation, perhaps test-domain) → token ids, memory-mapped."""
    description: Mapping[str, Any]
    """Versions, files and tokens of each split."""
    fingerprint: str
    """SHA-256 of the files: equal fingerprints mean equal tokens."""

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary."""
        return int(self.tokenizer.get_vocab_size())

    def windows(self, split: str, context: int) -> Windows:
        """Cut a split into non-overlapping windows.

        Args:
            split: train, validation or test-domain.
            context: tokens per window, at least 2.

        Returns:
            A dataset of {"input_ids", "labels"}, both of shape (context,) and equal.

        Raises:
            ArgumentError: there is no such split, or it is shorter than one window.
        """
        if split not in self.splits:
            raise ArgumentError(f"split: {split!r} is unknown; known: {', '.join(self.splits)}.")
        if context < 2:
            raise ArgumentError(f"--context: expected at least 2 tokens, got {context}.")
        if len(tokens := self.splits[split]) < context:
            raise ArgumentError(
                f"--data: the {split} split of {self.name} has {len(tokens)} tokens, fewer than "
                f"one context of {context}; give more text or a shorter --context."
            )
        return Windows(tokens, context)

    def curvature_batch(self, sequences: int, tokens: int, seed: int = 0) -> Example:
        """Draw held-out windows without replacement, the same for the same seed.

        Args:
            sequences: number of windows.
            tokens: tokens of each window.
            seed: seed of the draw.

        Returns:
            {"input_ids", "labels"}, each (sequences, tokens).

        Raises:
            ArgumentError: the validation split has fewer windows.
        """
        windows = self.windows("validation", tokens)
        text = f"the validation split of {self.name}"
        input_ids = windows.drawn(sequences, seed, "--curvature-sequences", text)
        return {"input_ids": input_ids, "labels": input_ids}


def cached_corpus(name: str, entry_name: str, key: Mapping[str, Any], build: Build) -> Corpus:
    """Open the corpus of a cache entry; build it if it is missing.

    Args:
        name: name of the corpus.
        entry_name: path of the entry in the cache, without the size of the vocabulary.
        key: all that the tokens depend on, with `vocabulary`; the version of tokenizers is added.
        build: writes the files of `write_corpus`, and returns its description.

    Returns:
        The corpus, from verified files.
    """
    key = {**key, "tokenizers": tokenizers.__version__}
    entry = cached(f"{entry_name}-v{key['vocabulary']}", key, build)
    tokenizer = tokenizers.Tokenizer.from_file(str(entry.folder / "tokenizer.json"))
    kind = token_type(tokenizer.get_vocab_size())
    contents = entry.manifest["progress"]["contents"]
    hashes = sorted(entry.manifest["files"].items())
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
