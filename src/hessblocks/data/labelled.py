"""Labelled text of the user's own: a file of rows, some of them held out."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hessblocks.conventions import AnyPath
from hessblocks.errors import ArgumentError
from hessblocks.shown import printable
from hessblocks.storage import sha256

TABLES: dict[str, dict[str, Any]] = {
    ".csv": {"delimiter": ","},
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}
"""Kinds of tables, by the end of the file's name; .jsonl has one JSON object a line. Quotes of a .tsv are text, as in
GLUE's files: an open one would join rows."""
Texts = tuple[str, ...]
SEPARATOR = "\n"
"""Between two texts that are read as one."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One text, or two that are judged together, and its label."""

    texts: Texts
    """What the model reads."""
    label: str
    """Name of its class."""


@dataclass(frozen=True, kw_only=True)
class LabelledFile:
    """Rows to learn from and rows that are held out; no text stands in both."""

    name: str
    """Of the file."""
    fingerprint: str
    """SHA-256 of the file."""
    classes: tuple[str, ...]
    """Names of the labels: by number where all are whole numbers, else by letter."""
    train: tuple[Row, ...]
    """In the order of the file."""
    held_out: tuple[Row, ...]
    """In the order of the file."""


def load_labelled(
    path: AnyPath, columns: Sequence[str], label: str, share: float, seed: int
) -> LabelledFile:
    """Read labelled rows, and hold some texts of each label out.

    Args:
        path: a .csv or .tsv file whose first line names its columns, or a .jsonl file; UTF-8.
        columns: of the text, or of both texts of a pair.
        label: column of the label.
        share: of the texts of each label that is held out, at least one of them; rows of equal texts stay together.
        seed: of the texts that are drawn.

    Returns:
        The rows.

    Raises:
        ArgumentError: a file that cannot be read, a missing column, an empty text or label, fewer than two labels, or
            a label that cannot be both learnt and held out.
    """
    path = Path(path)
    rows = [_row(path, number, found, columns, label) for number, found in _read(path)]
    if len(classes := {row.label for row in rows}) < 2:
        only = f"one label, {next(iter(classes))!r}" if classes else "no rows"
        raise ArgumentError(f"--data: {path} has {only}; expected rows of two labels or more.")
    held = _held_out(path, rows, share, seed)
    split = {
        side: tuple(row for row in rows if (row.texts in held) == side) for side in (True, False)
    }
    if unknown := sorted(classes - {row.label for row in split[False]}):
        raise ArgumentError(
            f"--data: {path} has the label {unknown[0]!r} in held-out rows alone, on texts that stand there with "
            "other labels too; remove those rows, or take another --seed."
        )
    return LabelledFile(
        name=printable(path.name),
        fingerprint=sha256(path),
        classes=tuple(sorted(classes, key=_order(classes))),
        train=split[False],
        held_out=split[True],
    )


def _read(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Number and entries of each row; the first row is that of the first text."""
    if path.suffix not in (*TABLES, ".jsonl"):
        raise ArgumentError(f"--data: {path}: expected a name that ends in .csv, .tsv or .jsonl.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ArgumentError(f"--data: {path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ArgumentError(f"--data: {path} is no UTF-8 text; save it as UTF-8.") from error
    try:
        if path.suffix == ".jsonl":
            found: Iterator[Any] = map(json.loads, filter(str.strip, text.split("\n")))
        else:
            with _entries_up_to(len(text)):
                table = csv.DictReader(
                    io.StringIO(text, newline=""), strict=True, **TABLES[path.suffix]
                )
                names = list(table.fieldnames or [])
                if twice := [name for name in names if names.count(name) > 1]:
                    raise ArgumentError(f"--data: {path} has two columns {twice[0]!r}; rename one.")
                found = iter(list(table))
        yield from enumerate(found, start=1)
    except (csv.Error, json.JSONDecodeError, RecursionError) as error:
        raise ArgumentError(f"--data: {path} is damaged ({error}); mend it.") from error


@contextmanager
def _entries_up_to(size: int) -> Iterator[None]:
    """Inside, csv reads entries of so many characters; above 131,072 it calls a file damaged otherwise."""
    before = csv.field_size_limit()
    csv.field_size_limit(max(before, size))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _row(path: Path, number: int, found: Any, columns: Sequence[str], label: str) -> Row:
    """The row, each entry of which must be there."""
    if (
        not isinstance(found, Mapping) or None in found
    ):  # csv: more entries than the first line names
        raise ArgumentError(
            f"--data: {path}, row {number}: expected one entry for each column, no more."
        )
    for name in (*columns, label):
        if name not in found:
            known = ", ".join(map(str, found)) or "none"
            option = "--label" if name == label else "--text"
            raise ArgumentError(
                f"{option}: {path}, row {number} has no column {name!r}; it has {known}."
            )
        if found[name] is None or not str(found[name]).strip():
            raise ArgumentError(
                f"--data: {path}, row {number} has nothing under {name!r}; fill it in or remove the row."
            )
    texts, said = tuple(found[name] for name in columns), found[label]
    if not all(isinstance(one, str) for one in texts) or not isinstance(said, str | int):
        raise ArgumentError(
            f"--data: {path}, row {number}: expected texts, and a label that is a text or a whole number."
        )
    return Row(texts=texts, label=str(said).strip())


def _held_out(path: Path, rows: Sequence[Row], share: float, seed: int) -> set[Texts]:
    """Texts that are held out, drawn label by label."""
    label_of: dict[Texts, str] = {}
    for row in rows:
        label_of.setdefault(row.texts, row.label)
    by_label: dict[str, list[Texts]] = {}
    for texts, label in label_of.items():
        by_label.setdefault(label, []).append(texts)
    draw, held = np.random.default_rng(seed), set[Texts]()
    for label, own in sorted(by_label.items()):
        if (count := len(own)) < 2:
            raise ArgumentError(
                f"--data: {path} has the label {label!r} on one text alone; expected two or more, one to learn "
                "from and one to hold out."
            )
        chosen = draw.permutation(count)[: min(max(1, round(share * count)), count - 1)]
        held |= {own[index] for index in chosen}
    return held


def _order(classes: set[str]) -> Any:
    """By number where all labels are whole numbers."""
    whole = all(one.removeprefix("-").isdecimal() for one in classes)
    return (lambda one: (int(one), one)) if whole else str
