"""Corpora and their tokenisers."""

from hessblocks.data.addition import SYMBOLS, addition_batch
from hessblocks.data.bigrams import BigramTable
from hessblocks.data.cache import CacheWarning, cache_root, cached
from hessblocks.data.corpus import Corpus, Example, Windows
from hessblocks.data.docstrings import MASK, PADDING, load_docstring_corpus, load_docstrings
from hessblocks.data.hub import load_glue, load_hub_corpus
from hessblocks.data.python_code import (
    DEFAULT_VOCABULARY,
    CorpusWarning,
    load_corpus,
    load_package_corpus,
)
from hessblocks.data.tasks import SEPARATOR, TASKS, LabelledText, Task, make_task
from hessblocks.data.tokens import END_OF_TEXT

__all__ = [
    "DEFAULT_VOCABULARY",
    "CacheWarning",
    "Corpus",
    "CorpusWarning",
    "Windows",
    "cache_root",
    "load_corpus",
]
