"""The text that the points of a study train on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from hessblocks.data import Corpus, load_corpus, load_docstring_corpus
from hessblocks.storage import Scalar
from hessblocks.studies.engine import whole
from hessblocks.training import RunSize

LIBRARY = "library"
"""The source of the standard library; what settings without `data` mean."""
HUB = "hub:"
"""Begins the name of a dataset of the Hugging Face hub."""


@dataclass(frozen=True, kw_only=True)
class TextSize(RunSize):
    """Sizes of model and training, and a text other than the standard library."""

    data: str
    """docstrings, or hub:NAME."""


def text_of(settings: Mapping[str, Scalar]) -> Corpus:
    """The text of a point: `data` is library, docstrings or hub:NAME.

    Raises:
        RunError: the hub's dataset cannot be had.
    """
    return _text(str(settings.get("data", LIBRARY)), whole(settings, "vocab_size"))


@cache
def _text(data: str, vocabulary: int) -> Corpus:
    if data == LIBRARY:
        return load_corpus(None, vocabulary)
    if data == "docstrings":
        return load_docstring_corpus(vocabulary)
    from hessblocks.data import load_hub_corpus

    return load_hub_corpus(data.removeprefix(HUB), vocabulary)
