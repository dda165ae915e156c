"""Load corpora that need no network: the standard library's code, or the user's own files."""

from __future__ import annotations

import hashlib
import platform
import re
import sys
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hessblocks.conventions import AnyPath
from hessblocks.data import sources
from hessblocks.data.corpus import Corpus, cached_corpus
from hessblocks.data.tokens import check_vocabulary, write_corpus
from hessblocks.errors import ArgumentError

DATA_VERSION = 1
"""Raised whenever the same files would give other tokens."""
DEFAULT_VOCABULARY = 4096


class CorpusWarning(UserWarning):
    """Warning that a corpus is not quite what was asked for."""


def load_corpus(path: AnyPath | None = None, vocabulary: int = DEFAULT_VOCABULARY) -> Corpus:
    """Load Python code of the standard library, or text of the user's; built once, then cached.

    Args:
        path: file or folder of UTF-8 text; None means the standard library.
        vocabulary: entries of the vocabulary to learn; a text that supports fewer gets a smaller
            one, with a warning.

    Returns:
        The corpus, its files verified.

    Raises:
        ArgumentError: `vocabulary` is too small, or `path` is missing, unreadable, or without text.
        RunError: the cache cannot be written, or the interpreter has no source files.

    Cost:
        The standard library (12 MB, 3.5 million tokens): 5 seconds on 2 cores, once.
    """
    check_vocabulary(vocabulary)
    if path is None:
        source = sources.standard_library()
        return _load(source, f"{source.name}-{sys.implementation.cache_tag}", vocabulary)
    source = sources.user_files(Path(path))
    place = hashlib.sha256(str(Path(path).resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", source.name)[:40]
    return _load(source, f"{name}-{place[:8]}", vocabulary)


def load_package_corpus(name: str, vocabulary: int = DEFAULT_VOCABULARY) -> Corpus:
    """Load Python code of an installed package; built once, then cached.

    Args:
        name: of the package, as it is imported.
        vocabulary: entries of the vocabulary to learn.

    Returns:
        The corpus, its files verified.

    Raises:
        ArgumentError: `vocabulary` is too small, or there is no such package with source files.
        RunError: the cache cannot be written.

    Cost:
        torch (46 MB): 40 seconds of processor time, once.
    """
    check_vocabulary(vocabulary)
    return _load(sources.package_files(name), f"package-{name}", vocabulary)


def _load(source: sources.Source, entry: str, vocabulary: int) -> Corpus:
    """Open the cache entry, or build it; warn where the corpus is not quite what was asked for."""
    key = {
        "data version": DATA_VERSION,
        "interpreter": f"{platform.python_implementation()} {platform.python_version()}",
        "vocabulary": vocabulary,
        "files": source.fingerprint,
    }
    corpus = cached_corpus(source.name, entry, key, partial(_build, source, vocabulary))
    if corpus.vocab_size < vocabulary:
        _warn(
            f"--vocab-size: the text of {corpus.name} supports {corpus.vocab_size} entries, not "
            f"{vocabulary}; the smaller vocabulary is used"
        )
    if source.links is not None and (lost := source.links + corpus.description["left_out"]):
        _warn(
            f"--data: {lost} files of {corpus.name} are empty, not UTF-8 text, or links and are "
            "left out"
        )
    return corpus


def _warn(message: str) -> None:
    warnings.warn(message, CorpusWarning, stacklevel=4)


def _build(source: sources.Source, vocabulary: int, folder: Path) -> Mapping[str, Any]:
    """Learn the encoding from the training split, write every split, and say what was made."""
    texts = {split: [text for _, text in source.read(split)] for split in source.splits}
    found = {split: len(texts[split]) for split in texts}
    if source.by_tail:
        texts = _cut_tails(texts["train"])
    if not all(any(text.strip() for text in texts[split]) for split in ("train", "validation")):
        raise ArgumentError(
            f"--data: {source.name} has too little text (UTF-8) to train on and to hold some out; "
            "is it binary or empty? Give text or code."
        )
    return {
        "split": "end of each file" if source.by_tail else "by file",
        "left_out": sum(map(len, source.splits.values())) - sum(found.values()),
        **write_corpus(folder, {split: own for split, own in texts.items() if own}, vocabulary),
    }


def _cut_tails(texts: list[str]) -> dict[str, list[str]]:
    """The last tenth of each text held out, cut at a line end where there is one near."""
    parts: dict[str, list[str]] = {"train": [], "validation": []}
    for text in texts:
        at = round((1 - sources.VALIDATION_SHARE) * len(text))
        cut = text.rfind("\n", 0, at) + 1
        cut = cut if cut > at // 2 else at
        parts["train"].append(text[:cut])
        parts["validation"].append(text[cut:])
    return parts
