"""Load corpora without a network: Python code of this machine, or text of the user.

A source has lists of documents (files) by split, and a fingerprint of their contents. It is
tokenised once, then cached.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hessblocks.conventions import AnyPath
from hessblocks.data.corpus import Corpus, cached_corpus, check_vocabulary, write_corpus
from hessblocks.data.texts import TextFile, begins_as_text, text_file
from hessblocks.errors import ArgumentError, RunError
from hessblocks.escape import printable
from hessblocks.storage import sha256

DATA_VERSION = 1
"""Version of the tokenisation; increase it when the same files give other tokens."""
DEFAULT_VOCABULARY = 4096


class CorpusWarning(UserWarning):
    """Warning that a corpus differs from the requested one."""


def load_corpus(path: AnyPath | None = None, vocabulary: int = DEFAULT_VOCABULARY) -> Corpus:
    """Load Python code of the standard library, or text of the user; built once, then cached.

    Args:
        path: file or folder of UTF-8 text; None: the standard library.
        vocabulary: size of the vocabulary to learn; a short text gets a smaller one, with a
            warning.

    Returns:
        The corpus, with all files verified.

    Raises:
        ArgumentError: `vocabulary` is too small, or `path` is missing, unreadable, or without text.
        RunError: the cache cannot be written, or the interpreter has no source files.

    Cost:
        The standard library (12 MB, 3.5 million tokens): 5 seconds on 2 cores, once.
    """
    check_vocabulary(vocabulary)
    if path is None:
        source = standard_library()
        return load_source(source, f"{source.name}-{sys.implementation.cache_tag}", vocabulary)
    if path == "":  # this would mean the current folder
        raise ArgumentError("--data: expected a file or folder, got an empty name.")
    source = user_files(Path(path))
    key = hashlib.sha256(str(Path(path).resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", source.name)[:40]
    return load_source(source, f"{name}-{key[:8]}", vocabulary)


def load_source(source: Source, entry: str, vocabulary: int) -> Corpus:
    """Open the cache entry of a source, or build it; warn if the corpus differs from the request.

    Args:
        source: files to learn from, by split.
        entry: name of the cache entry.
        vocabulary: size of the vocabulary to learn.

    Returns:
        The corpus, with all files verified.

    Raises:
        ArgumentError: there is no text.
        RunError: the cache cannot be written, or the files changed meanwhile.
    """
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


def _build(source: Source, vocabulary: int, folder: Path) -> Mapping[str, Any]:
    """Learn the encoding from the training split, write every split, and describe the corpus."""
    texts = {split: [text for _, text in source.read(split)] for split in source.splits}
    counts = {split: len(texts[split]) for split in texts}
    if source.by_tail:
        cut = [text.cut(round((1 - VALIDATION_SHARE) * len(text))) for text in texts["train"]]
        texts = {"train": [head for head, _ in cut], "validation": [tail for _, tail in cut]}
    for split in ("train", "validation"):
        if not any(block.strip() for text in texts[split] for block in text.blocks()):
            raise ArgumentError(
                f"--data: {source.name} has too little text (UTF-8) to train on and to hold some "
                "out; is it binary or empty? Give text or code."
            )
    texts = {split: files for split, files in texts.items() if files}
    contents = {
        "split": "end of each file" if source.by_tail else "by file",
        "left_out": sum(map(len, source.splits.values())) - sum(counts.values()),
        **write_corpus(folder, texts, vocabulary),
    }
    if fingerprint(source.root, source.paths) != source.fingerprint:
        raise RunError(f"--data: {source.name} was changed while it was read; start again.")
    return contents


VALIDATION_SHARE = 0.1
"""Share of the files, or of each file's end, that is held out."""
FEW_FILES = 20
"""With fewer files, each file is split, instead of the list of files."""
TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
_LEFT_OUT = frozenset({"__pycache__", "site-packages", "dist-packages", "pydoc_data"})


@dataclass(frozen=True, kw_only=True)
class Source:
    """Files to learn from, by split."""

    name: str
    """Short name, shown to the user."""
    root: Path
    """Folder that the paths are relative to."""
    paths: Sequence[str]
    """Relative paths of the files in the fingerprint, in order."""
    splits: dict[str, tuple[str, ...]]
    """Split → relative paths (with /) of its files; without validation files, see `by_tail`."""
    fingerprint: str
    """SHA-256 of the relative paths and contents."""
    links: int | None = None
    """Number of links in a folder of the user, which are not followed; None for other sources."""

    @property
    def by_tail(self) -> bool:
        """True if the end of each file is the validation split, since there are few files."""
        return "validation" not in self.splits

    def read(self, split: str) -> Iterator[tuple[str, TextFile]]:
        """Open each file of a split; yield its path and text, and skip files that are not text.

        A file is not text if it is blank, contains a zero byte, or is not UTF-8.

        Raises:
            ArgumentError: a file cannot be read, or the only one is not text.
        """
        for relative in self.splits.get(split, ()):
            try:
                text = text_file(self.root / relative)
            except OSError as error:
                raise _unreadable(self.root / relative, error) from error
            except UnicodeError as error:
                if len(self.paths) == 1:
                    raise _no_text(self.name) from error
                continue
            if text is not None:
                yield relative, text


def standard_library() -> Source:
    """List the source files of the standard library; its tests are a separate split.

    Generated files are left out: `_sysconfigdata*` (paths of this machine) and `pydoc_data`
    (prose).

    Returns:
        Splits train and validation, by file, and test-domain: a tenth of the tests.

    Raises:
        RunError: the interpreter has no source files.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = [p for p in python_files(root) if not Path(p).name.startswith("_sysconfigdata")]
    if len(library := [p for p in paths if not is_test(p)]) < FEW_FILES:
        raise RunError(
            f"python-code: the interpreter ({sys.executable}) has no source of its standard "
            "library; give text of your own with --data PATH."
        )
    splits = split_by_file(library) | {"test-domain": _held_out([p for p in paths if is_test(p)])}
    digest = fingerprint(root, paths)
    return Source(name="python-code", root=root, paths=paths, splits=splits, fingerprint=digest)


def user_files(path: AnyPath) -> Source:
    """List a file, or the files of a folder.

    Links, hidden files and the contents of hidden folders are left out.

    Args:
        path: file or folder.

    Returns:
        Splits train and validation by file; if there are few files, only train, and each file is
        split.

    Raises:
        ArgumentError: there is nothing at `path`, it cannot be read, or it contains no file.
    """
    path = Path(path)
    try:
        if not path.is_file() and not path.is_dir():
            raise ArgumentError(f"--data: {path} is not a file or folder; give one that exists.")
        root, names = (path, list(_files(path))) if path.is_dir() else (path.parent, [path.name])
        paths = [name for name in names if root != path or not (root / name).is_symlink()]
        if not paths:
            only = "no files but links, which are not followed" if names else "no files"
            raise ArgumentError(f"--data: {path} holds {only}; give a folder with text or code.")
        if root != path and not begins_as_text(path):  # before the whole file is hashed
            raise _no_text(printable(path.resolve().name))
        return Source(
            name=printable(path.resolve().name),
            root=root,
            paths=paths,
            splits={"train": tuple(paths)} if len(paths) < FEW_FILES else split_by_file(paths),
            fingerprint=fingerprint(root, paths),
            links=len(names) - len(paths),
        )
    except OSError as error:
        raise _unreadable(error.filename or path, error) from error


def _no_text(name: str) -> ArgumentError:
    return ArgumentError(f"--data: {name} is not UTF-8 text; convert it, or give text or code.")


def _unreadable(path: Path | str, error: OSError) -> ArgumentError:
    return ArgumentError(
        f"--data: {path} cannot be read ({error.strerror}); change its permissions or leave it out."
    )


def python_files(root: AnyPath) -> list[str]:
    """List Python files below `root`, sorted."""
    return [path for path in _files(Path(root)) if path.endswith(".py")]


def is_test(path: str) -> bool:
    """Tell whether a relative path is in a folder of tests."""
    return not TEST_FOLDERS.isdisjoint(path.split("/"))


def _files(root: Path) -> Iterator[str]:
    """List files below `root`, sorted; hidden files and linked folders are left out."""

    def refuse(error: OSError) -> None:
        raise _unreadable(error.filename, error) from error

    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = sorted(n for n in folders if n[0] != "." and n not in _LEFT_OUT)
        for path in (Path(folder, name) for name in sorted(names) if name[0] != "."):
            if path.is_file():
                yield path.relative_to(root).as_posix()


def _held_out(paths: Sequence[str]) -> tuple[str, ...]:
    """Select the tenth of the files whose paths have the smallest SHA-256."""

    def place(relative: str) -> bytes:
        return hashlib.sha256(relative.encode("utf-8", "surrogateescape")).digest()

    return tuple(sorted(paths, key=place)[: round(VALIDATION_SHARE * len(paths))])


def split_by_file(paths: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Hold out a tenth of the files for validation."""
    chosen = dict.fromkeys(_held_out(paths))
    return {"train": tuple(p for p in paths if p not in chosen), "validation": tuple(chosen)}


def fingerprint(root: AnyPath, paths: Iterable[str]) -> str:
    """Hash files by relative path and contents (SHA-256); about a second per gigabyte.

    Args:
        root: folder that the paths are relative to.
        paths: relative paths, in order.

    Returns:
        Hexadecimal digits.
    """
    root, digest = Path(root), hashlib.sha256()
    for relative in paths:
        line = f"{relative}\0{sha256(root / relative)}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
