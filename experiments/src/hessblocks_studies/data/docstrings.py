"""Load the docstrings of the standard library, split by file for all tasks.

A file's split is decided within its package, so that every package with several files has files
in each split. Pretraining sees no text of a test file.
"""

import ast
import hashlib
import json
import platform
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hessblocks import data
from hessblocks.storage import parse_json

DOCSTRINGS_VERSION = 2
"""Version of the cache; increased whenever equal files give other records or splits."""
ENTRY = f"docstrings-{sys.implementation.cache_tag}"
"""Name of the cache entry, one per version of Python."""
SPLITS = ("train", "validation", "test")
SHARES = {"test": 0.15, "validation": 0.1}
"""Smallest shares of each package's docstrings in these splits, if its files allow it."""
LARGE = 0.4
"""A file with more than this share of its package's docstrings belongs to the training split."""
TOPICS = "pydoc_data/topics.py"
"""Documentation of the language, as long as all docstrings; it belongs to the training split."""


@dataclass(frozen=True, kw_only=True)
class Docstring:
    """Docstring of a module, class or function."""

    file: str
    """Relative path of the source file, with / as separator."""
    split: str
    """Split: train, validation or test."""
    kind: str
    """Kind: module, class, function or prose."""
    signature: str
    """`name(first, second)` of a function; name of a class; otherwise empty."""
    text: str
    """Text of the docstring, without indentation."""

    @property
    def package(self) -> str:
        """Top-level package; empty for a module without a package."""
        return self.file.split("/")[0] if "/" in self.file else ""


def load_docstrings() -> tuple[Docstring, ...]:
    """Load all docstrings of the interpreter's standard library, without its tests.

    Returns:
        The docstrings, ordered by file path, then pydoc's prose.

    Raises:
        RunError: the cache cannot be written, or the interpreter has no source files.

    Cost:
        About 10 seconds in the first call; later the time to read 2 MB.
    """
    entry = _records()
    lines = (entry.folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(Docstring(**parse_json(line)) for line in lines)


def load_docstring_corpus(vocabulary: int) -> data.Corpus:
    """Load the docstrings as tokens, each with an end of text; splits train, validation and test.

    Args:
        vocabulary: entries of the encoding, learnt from the training split, including `data.MASK`
            and `data.PADDING`.

    Returns:
        The corpus, with verified files.

    Raises:
        ArgumentError: `vocabulary` is too small.
        RunError: see `load_docstrings`.
    """
    data.check_vocabulary(vocabulary)
    key = {
        "docstrings": _records().manifest["files"]["records.jsonl"],
        "vocabulary": vocabulary,
        "data version": DOCSTRINGS_VERSION,
    }
    return data.cached_corpus("docstrings", ENTRY, key, partial(_encode, vocabulary))


def docstrings_of(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, signature, docstring) of each module, class and function of a source, in order.

    A text that is not Python of this version yields nothing.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ignore warnings about escape sequences in other code
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module):
            kind_and_signature = ("module", "")
        elif isinstance(node, ast.ClassDef):
            kind_and_signature = ("class", node.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            kind_and_signature = ("function", _signature(node))
        else:
            continue
        if documented := (ast.get_docstring(node) or "").strip():
            yield *kind_and_signature, documented


def assigned(counts: Mapping[str, int]) -> dict[str, str]:
    """Assign each file to a split, package by package.

    Args:
        counts: relative path → number of docstrings.

    Returns:
        Relative path → split. Within a package, files in the order of their paths' SHA-256 go to
        test and then to validation until each split has its share. Large files and the remaining
        files go to training.
    """
    packages: dict[str, list[str]] = {}
    for path in counts:
        packages.setdefault(path.split("/")[0] if "/" in path else "", []).append(path)
    return {
        path: split
        for files in packages.values()
        for path, split in _assigned(files, counts).items()
    }


def _assigned(files: Sequence[str], counts: Mapping[str, int]) -> dict[str, str]:
    total = sum(counts[file] for file in files)
    order = sorted(files, key=lambda path: hashlib.sha256(path.encode()).digest())
    small = iter([file for file in order if counts[file] <= LARGE * total])
    splits = dict.fromkeys(files, "train")
    for split, share in SHARES.items():
        taken = 0
        while taken < share * total and (file := next(small, None)) is not None:
            splits[file] = split
            taken += counts[file]
    return splits


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    names = [argument.arg for argument in every if argument.arg not in ("self", "cls")]
    return f"{node.name}({', '.join(names)})"


def _records() -> data.Entry:
    source = data.standard_library()
    key = {
        "docstrings version": DOCSTRINGS_VERSION,
        "interpreter": f"{platform.python_implementation()} {platform.python_version()}",
        "files": source.fingerprint,
    }
    return data.cached(ENTRY, key, partial(_collect, source))


def _collect(source: data.Source, folder: Path) -> Mapping[str, Any]:
    documented = {
        path: list(docstrings_of("".join(text.blocks())))
        for split in ("train", "validation")
        for path, text in source.read(split)
    }
    splits = assigned({path: len(items) for path, items in documented.items()})
    records = [
        Docstring(file=path, split=splits[path], kind=kind, signature=signature, text=text)
        for path in sorted(documented)
        for kind, signature, text in documented[path]
    ]
    records += _prose()
    lines = [json.dumps(asdict(record), ensure_ascii=False) for record in records]
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return {
        split: {
            "docstrings": sum(record.split == split for record in records),
            "characters": sum(len(record.text) for record in records if record.split == split),
        }
        for split in SPLITS
    }


def _prose() -> list[Docstring]:
    """List the entries of pydoc's topics; empty if the interpreter lacks them."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return []
    topic = partial(Docstring, file=TOPICS, split="train", kind="prose", signature="")
    return [topic(text=entry.strip()) for entry in topics.values()]


def _encode(vocabulary: int, folder: Path) -> Mapping[str, Any]:
    records = load_docstrings()
    held_out = {record.text for record in records if record.split != "train"}
    texts = {s: [record.text for record in records if record.split == s] for s in SPLITS}
    # inherited docstrings are held out too
    texts["train"] = [text for text in texts["train"] if text not in held_out]
    counts = data.write_corpus(folder, texts, vocabulary, data.SPECIAL["masked-lm"])
    return {"split": "by file within each package", **counts}
