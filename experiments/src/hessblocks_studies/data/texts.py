"""Load the text that the points of a study train on."""

from dataclasses import dataclass, replace
from functools import cache

from hessblocks.data import Corpus, load_corpus
from hessblocks_studies.data.docstrings import load_docstring_corpus
from hessblocks_studies.data.run_size import RunSize
from hessblocks_studies.data.source_code import load_library_corpus, load_package_corpus

HUB = "hub:"
"""Begins the name of a dataset of the Hugging Face hub."""
PACKAGE = "package:"
"""Begins the name of an installed package, whose source is the text; of several, with + between."""
CODE = "python"
"""The source of the standard library, where more is said of it."""
NO_TABLES = ", no tables"
"""Behind the name of source code of which generated tables are left out."""


@dataclass(frozen=True, kw_only=True)
class TextSize(RunSize):
    """Sizes of model and training, and the text."""

    data: str | None = None
    """docstrings, package:NAME or hub:NAME; None for the source of the standard library. The code
    of stores from before 25 November 2026 has its tables; python or package:NAME, with `NO_TABLES`
    behind it, has none."""


HEADS = 4
"""Heads of the narrower blocks, in sizes that have so many."""
HEAD_WIDTH = 64
"""Head width of the wider blocks, which have more heads, not wider ones."""


def widened(size: TextSize, width: int) -> TextSize:
    """The size at another width, the MLP in proportion."""
    heads = max(min(HEADS, size.heads), width // HEAD_WIDTH)
    return replace(size, width=width, heads=heads, mlp_width=size.mlp_width * width // size.width)


def text_of(size: TextSize) -> Corpus:
    """The text of a point.

    Args:
        size: says which, and the entries of the vocabulary.

    Returns:
        Its tokens.

    Raises:
        ArgumentError: the hub's dataset is asked for and datasets is not installed, or a package
            that is not there.
        RunError: it cannot be had.
    """
    return _text(size.data, size.vocab_size)


@cache
def _text(data: str | None, vocabulary: int) -> Corpus:
    if data is None:
        return load_corpus(None, vocabulary)
    if data == "docstrings":
        return load_docstring_corpus(vocabulary)
    code, tables = data.removesuffix(NO_TABLES), not data.endswith(NO_TABLES)
    if code == CODE:
        return load_corpus(None, vocabulary) if tables else load_library_corpus(vocabulary)
    if code.startswith(PACKAGE):
        return load_package_corpus(code.removeprefix(PACKAGE), vocabulary, tables=tables)
    from hessblocks_studies.data.hub import load_hub_corpus

    return load_hub_corpus(data.removeprefix(HUB), vocabulary)
