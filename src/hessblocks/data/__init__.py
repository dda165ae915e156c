"""Text corpora and tokenisers."""

from hessblocks.data.bigrams import BIGRAMS, BigramTable
from hessblocks.data.corpus import (
    END_OF_TEXT,
    MASK,
    PADDING,
    SPECIAL,
    CacheWarning,
    Corpus,
    Entry,
    Example,
    Windows,
    cache_root,
    cached,
    cached_corpus,
    check_vocabulary,
    write_corpus,
)
from hessblocks.data.python_code import (
    DEFAULT_VOCABULARY,
    CorpusWarning,
    Source,
    fingerprint,
    is_test,
    load_corpus,
    load_source,
    python_files,
    split_by_file,
    standard_library,
    user_files,
)
from hessblocks.data.text_batch import (
    documents_of,
    encoded,
    start_words,
    template_start,
    text_batch,
)

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
