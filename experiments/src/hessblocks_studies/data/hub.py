"""Load texts and labelled tasks of the Hugging Face hub, with the extra `hub` (datasets).

A name is one of `TEXTS`, a dataset of the hub, or a local folder in the same layout, which requires
no network.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from hessblocks.data import (
    SPECIAL,
    Corpus,
    cached_corpus,
    check_vocabulary,
    fingerprint,
    write_corpus,
)
from hessblocks.errors import ArgumentError, RunError, check_name
from hessblocks_studies.data.tasks import SEPARATOR, LabelledText, Task

HUB_VERSION = 1
"""Version of the cache; increased whenever equal texts give other tokens."""
COLUMN = "text"
TEXTS: Mapping[str, tuple[str, str | None, str]] = {
    "wikipedia": ("wikimedia/wikipedia", "20231101.en", COLUMN),
    "codeparrot": ("codeparrot/codeparrot-clean", None, "content"),
}
"""Short name → dataset, configuration and text column."""
CHARACTERS = 2_000_000_000
"""Maximum number of characters."""
HELD_OUT = 200
"""Every `HELD_OUT`-th document belongs to the validation split."""
GLUE: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cola": (("sentence",), ("unacceptable", "acceptable")),
    "sst2": (("sentence",), ("negative", "positive")),
    "mrpc": (("sentence1", "sentence2"), ("not equivalent", "equivalent")),
    "qqp": (("question1", "question2"), ("not duplicate", "duplicate")),
    "mnli": (("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
    "qnli": (("question", "sentence"), ("entailment", "not entailment")),
    "rte": (("sentence1", "sentence2"), ("entailment", "not entailment")),
}
"""Task → text columns and classes; STS-B is a regression and left out."""
VALIDATION = {"mnli": "validation_matched"}
"""Name of the labelled held-out split, if it is not `validation`."""


def load_hub_corpus(name: str, vocabulary: int, *, characters: int = CHARACTERS) -> Corpus:
    """Load a text dataset as tokens, each document with an end of text; built once, then cached.

    Args:
        name: one of `TEXTS`, a dataset's name, or a local folder of json, csv or parquet files.
        vocabulary: entries of the encoding, learnt from the training split.
        characters: maximum number of characters.

    Returns:
        Splits train and validation (each `HELD_OUT`-th document).

    Raises:
        ArgumentError: the vocabulary is too small, the text is too short, or datasets is not
            installed.

    Cost:
        Memory for the whole text during the first encoding.
    """
    check_vocabulary(vocabulary)
    path, configuration, column = TEXTS.get(name, (name, None, COLUMN))
    local = Path(path)
    files = [str(p.relative_to(local)) for p in sorted(local.rglob("*")) if p.is_file()]
    key = {
        "hub version": HUB_VERSION,
        "dataset": f"{path}, {configuration}" if configuration else path,
        "files": fingerprint(local, files) if local.is_dir() else "",
        "column": column,
        "characters": characters,
        "tokenizers": tokenizers.__version__,
        "vocabulary": vocabulary,
    }
    digest = hashlib.sha256(repr(sorted(key.items())).encode()).hexdigest()[:8]
    short = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(name).name)[:40]

    def build(folder: Path) -> Mapping[str, Any]:
        rows = _dataset(path, configuration, "train", streaming=True)
        return _encode(list(_texts(rows, column, characters)), vocabulary, folder, name)

    return cached_corpus(name, f"hub-{short}-{digest}", key, build)


def load_glue(name: str, source: str = "nyu-mll/glue") -> Task:
    """Load a GLUE classification task; its labelled validation split becomes the test split.

    Args:
        name: name of the task, in lower case.
        source: the dataset, or a local folder with one subfolder per task, which contains train and
            validation files (json, csv or parquet).

    Returns:
        The task; the last tenth of the training split becomes the validation split.

    Raises:
        ArgumentError: unknown task, or datasets is not installed.
        RunError: a label is not a class.
    """
    check_name("task", name, GLUE)
    columns, classes = GLUE[name]
    local = Path(source, name)
    path, configuration = (str(local), None) if local.is_dir() else (source, name)
    held_out = "validation" if local.is_dir() else VALIDATION.get(name, "validation")
    train = _examples(_dataset(path, configuration, "train"), columns, len(classes), name)
    test = _examples(_dataset(path, configuration, held_out), columns, len(classes), name)
    cut = max(1, len(train) // 10)
    splits = {"train": train[:-cut], "validation": train[-cut:], "test": test}
    return Task(name=name, classes=classes, splits=splits)


def _dataset(path: str, configuration: str | None, split: str, **options: Any) -> Iterable[Any]:
    try:
        import datasets
    except ImportError as error:
        raise ArgumentError(f"hub: {error}; run pip install 'hessblocks-studies[hub]'.") from error

    dataset: Iterable[Any] = datasets.load_dataset(path, configuration, split=split, **options)
    return dataset


def _texts(rows: Iterable[Any], column: str, characters: int) -> Iterator[str]:
    taken = 0
    for row in rows:
        if not (row[column] or "").strip():
            continue
        yield row[column]
        taken += len(row[column])
        if taken >= characters:
            return


def _encode(texts: list[str], vocabulary: int, folder: Path, name: str) -> Mapping[str, Any]:
    validation = texts[HELD_OUT - 1 :: HELD_OUT] or texts[-1:]
    train = [text for number, text in enumerate(texts, start=1) if number % HELD_OUT]
    train = train if len(texts) >= HELD_OUT else texts[:-1]
    if not train:
        raise ArgumentError(f"--data: {name} has {len(texts)} documents; expected at least 2.")
    splits = {"train": train, "validation": validation}
    counts = write_corpus(folder, splits, vocabulary, SPECIAL["masked-lm"])
    return {"split": f"each {HELD_OUT}th document", **counts}


def _examples(
    rows: Iterable[Any], columns: tuple[str, ...], classes: int, name: str
) -> tuple[LabelledText, ...]:
    examples = []
    for row in rows:
        if not 0 <= int(row["label"]) < classes:
            raise RunError(
                f"hub: {name} has the label {row['label']}; expected 0 to {classes - 1}."
            )
        text = SEPARATOR.join(str(row[column]) for column in columns)
        examples.append(LabelledText(text=text, label=int(row["label"]), file=name, origin=text))
    return tuple(examples)
