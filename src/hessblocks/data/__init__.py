"""Text corpora and their tokenisers."""

from hessblocks.data.cache import CacheWarning, Entry, cache_root, cached
from hessblocks.data.corpus import Corpus, Example, Windows, cached_corpus
from hessblocks.data.python_code import (
    DEFAULT_VOCABULARY,
    CorpusWarning,
    load_corpus,
    load_package_corpus,
)
from hessblocks.data.sources import Source, fingerprint, standard_library
from hessblocks.data.text_batch import documents_of, encoded, text_batch
from hessblocks.data.tokens import END_OF_TEXT, check_vocabulary, write_corpus

__all__ = [
    "DEFAULT_VOCABULARY",
    "CacheWarning",
    "Corpus",
    "CorpusWarning",
    "Windows",
    "cache_root",
    "load_corpus",
    "text_batch",
]
