"""Load the training text of a point."""

from dataclasses import dataclass, replace
from functools import cache

from hessblocks.data import Corpus, load_corpus
from hessblocks_studies.data.docstrings import load_docstring_corpus
from hessblocks_studies.data.run_size import RunSize
from hessblocks_studies.data.source_code import load_library_corpus, load_package_corpus

HUB = "hub:"
"""Prefix of a dataset's name on the Hugging Face hub."""
PACKAGE = "package:"
"""Prefix of an installed package's name, whose source is the text; several are joined by +."""
CODE = "python"
"""Name of the standard library's source, for use with a suffix."""
NO_TABLES = ", no tables"
"""Suffix of source code without generated tables."""


@dataclass(frozen=True, kw_only=True)
class TextSize(RunSize):
    """Sizes of model and training, and the name of the text."""

    data: str | None = None
    """Text: docstrings, package:NAME or hub:NAME; None for the source of the standard library. In
    stores from before 25 November 2026 code includes tables; python or package:NAME with the suffix
    `NO_TABLES` excludes them."""


HEADS = 4
"""Number of heads of narrow blocks, in sizes with this number."""
HEAD_WIDTH = 64
"""Head width of wide blocks, which have more heads instead of wider ones."""


def widened(size: TextSize, width: int) -> TextSize:
    """Change the width of a size; scale the MLP in proportion."""
    heads = max(min(HEADS, size.heads), width // HEAD_WIDTH)
    return replace(size, width=width, heads=heads, mlp_width=size.mlp_width * width // size.width)


def text_of(size: TextSize) -> Corpus:
    """Load the text of a point.

    Args:
        size: sizes with the name of the text and of the vocabulary.

    Returns:
        The text as tokens.

    Raises:
        ArgumentError: the text is on the hub and datasets is not installed, or a package is
            missing.
        RunError: the text cannot be loaded.
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
