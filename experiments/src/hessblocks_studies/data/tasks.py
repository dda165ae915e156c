"""Make labelled tasks from docstrings, with exact labels, as substitutes for GLUE.

matching: a function's signature with a docstring; does it belong to the function? Half have their
    docstring, half have that of another function of the same split.
acceptability: a sentence of a docstring; is it unchanged? In half of the sentences two different
    words are swapped.
topic: a docstring; its package, one of the largest, according to its file.

All tasks are split by file like the docstrings; classes are equally frequent in each split.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hessblocks.errors import RunError, check_name
from hessblocks_studies.data.docstrings import SPLITS, Docstring

CLASSES = 6
"""Number of packages of the topic task."""
WORDS = (5, 30)
"""Smallest and largest number of words of a sentence."""
SHORTEST = 20
"""Smallest number of characters of a docstring; shorter ones contain too little information."""
LONGEST = 400
"""Number of characters at which a docstring is cut."""
SEPARATOR = "\n"
Records = Sequence[Docstring]
Classes = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LabelledText:
    """Text with its class."""

    text: str
    """Input text of the model."""
    label: int
    """Index of the class, from 0."""
    file: str
    """Source file of the text."""
    origin: str
    """Text before any change; no two splits share one."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Classification task."""

    name: str
    """Short name of the task."""
    classes: Classes
    """Meaning of the labels."""
    splits: Mapping[str, tuple[LabelledText, ...]]
    """Split (train, validation, test) → examples, equally many of each class."""

    def first(self, split: str, count: int | None) -> tuple[LabelledText, ...]:
        """Return the first `count` examples of a split (None: all); classes alternate."""
        return self.splits[split][: None if count is None else count - count % len(self.classes)]


def make_task(name: str, records: Records, seed: int = 0) -> Task:
    """Make one of `TASKS` from docstrings.

    Args:
        name: matching, acceptability or topic.
        records: docstrings with their splits.
        seed: seed of random choices (partners, swapped words, selected examples).

    Returns:
        The task; no text is in two splits.

    Raises:
        ArgumentError: unknown name.
        RunError: a split has too few docstrings.
    """
    check_name("task", name, TASKS)
    usable = [record for record in records if record.kind != "prose"]
    classes, make = TASKS[name]
    classes = classes or _packages(usable)
    splits: dict[str, tuple[LabelledText, ...]] = {}
    used: set[str] = set()
    for number, split in enumerate(reversed(SPLITS)):  # a text belongs to one split, test first
        draw = np.random.default_rng([seed, list(TASKS).index(name), number])
        examples = make([record for record in usable if record.split == split], draw, classes)
        splits[split] = balanced([e for e in examples if e.origin not in used], len(classes), draw)
        used |= {example.origin for example in examples}
        if not splits[split]:
            raise RunError(
                f"docstrings: the {split} split has no example of some class of {name}; this "
                "interpreter's standard library is too small for it."
            )
    return Task(name=name, classes=classes, splits=splits)


def balanced(
    examples: Sequence[LabelledText], classes: int, draw: np.random.Generator
) -> tuple[LabelledText, ...]:
    """Draw equally many examples of each class, as many as the rarest has; classes alternate."""
    by_class: list[list[LabelledText]] = [[] for _ in range(classes)]
    for index in draw.permutation(len(examples)):
        by_class[examples[index].label].append(examples[index])
    return tuple(example for turn in zip(*by_class, strict=False) for example in turn)


def sentences(text: str) -> list[str]:
    """List plain sentences of the first paragraph: only words, ended by a full stop."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    parts = re.split(r"(?<=\.)\s+(?=[A-Z])", paragraph)
    plain = re.compile(r"[A-Z][A-Za-z0-9',;()\- ]+\.")
    return [s for s in parts if plain.fullmatch(s) and WORDS[0] <= len(s.split()) <= WORDS[1]]


def swapped(sentence: str, draw: np.random.Generator) -> str:
    """Swap two different words of a sentence; the full stop stays at its end."""
    words = sentence[:-1].split()
    pairs = [
        (i, j)
        for i in range(len(words))
        for j in range(i + 1, len(words))
        if words[i].lower() != words[j].lower()
    ]
    first, second = pairs[int(draw.integers(len(pairs)))]
    words[first], words[second] = words[second], words[first]
    return " ".join(words) + "."


def _matching(records: Records, draw: np.random.Generator, _: Classes) -> list[LabelledText]:
    functions = _distinct([record for record in records if record.kind == "function"])
    order = draw.permutation(len(functions))
    half = len(order) // 2
    matched, swapped_in = order[:half], order[half:]
    pairs = [(functions[i], functions[i], 1) for i in matched]
    turned = np.roll(swapped_in, 1)
    pairs += [(functions[i], functions[j], 0) for i, j in zip(swapped_in, turned, strict=True)]
    return [
        _example(function, f"{function.signature}{SEPARATOR}{_text(partner)}", label)
        for function, partner, label in pairs
        if label or _text(function) != _text(partner)
    ]


def _acceptability(records: Records, draw: np.random.Generator, _: Classes) -> list[LabelledText]:
    sources = {sentence: record for record in records for sentence in sentences(record.text)}
    usable = [s for s in sources if len({word.lower() for word in s[:-1].split()}) > 1]
    flips = draw.permutation(len(usable)) % 2
    return [
        _example(sources[s], s if flip else swapped(s, draw), int(flip), origin=s)
        for s, flip in zip(usable, flips, strict=True)
    ]


def _topic(records: Records, _: object, packages: Classes) -> list[LabelledText]:
    return [
        _example(record, _text(record), packages.index(record.package))
        for record in _distinct(records)
        if record.package in packages
    ]


def _packages(records: Records) -> Classes:
    """Choose the packages whose smallest split is largest."""
    counts = Counter((r.package, r.split) for r in _distinct(records) if r.package)
    packages = {package for package, _ in counts}
    least = {package: min(counts[package, split] for split in SPLITS) for package in packages}
    return tuple(sorted(sorted(packages, key=lambda p: (-least[p], p))[:CLASSES]))


def _example(record: Docstring, text: str, label: int, origin: str | None = None) -> LabelledText:
    return LabelledText(text=text, label=label, file=record.file, origin=origin or text)


def _distinct(records: Records) -> list[Docstring]:
    """Select docstrings with enough information, each text once."""
    by_text = {_text(record): record for record in records if len(record.text) >= SHORTEST}
    return list(by_text.values())


def _text(record: Docstring) -> str:
    return record.text[:LONGEST]


TASKS: dict[
    str, tuple[Classes, Callable[[Records, np.random.Generator, Classes], list[LabelledText]]]
] = {
    "matching": (("another function's", "its own"), _matching),
    "acceptability": (("two words swapped", "as written"), _acceptability),
    "topic": ((), _topic),
}
"""Name → classes (empty: the largest packages), and function that makes the examples of a split."""
