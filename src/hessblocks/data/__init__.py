"""Corpora and their tokenisers."""

from hessblocks.data.cache import CacheWarning, cache_root
from hessblocks.data.corpus import Corpus, Windows
from hessblocks.data.python_code import DEFAULT_VOCABULARY, CorpusWarning, load_corpus

__all__ = [
    "DEFAULT_VOCABULARY",
    "CacheWarning",
    "Corpus",
    "CorpusWarning",
    "Windows",
    "cache_root",
    "load_corpus",
]
