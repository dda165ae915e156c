"""Load Python code of installed packages, optionally without generated tables."""

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path

from hessblocks.data import (
    DEFAULT_VOCABULARY,
    Corpus,
    Source,
    check_vocabulary,
    fingerprint,
    is_test,
    load_source,
    python_files,
    split_by_file,
    standard_library,
)
from hessblocks.errors import ArgumentError
from hessblocks.escape import printable

FEW_FILES = 20
"""Smallest number of source files of a package."""
NO_TABLES = "-no-tables"
"""Suffix of a cache entry without tables."""
_LITERAL = re.compile(r"""[\[({]*\s*[bru]{0,2}["'\d+-]""", re.IGNORECASE)


def load_library_corpus(vocabulary: int = DEFAULT_VOCABULARY) -> Corpus:
    """Load the standard library without its tables; built once, then cached.

    Args:
        vocabulary: entries of the vocabulary to learn.

    Returns:
        The corpus, with verified files; in the whole library 26 of 100 held-out tokens are tables.

    Raises:
        ArgumentError: `vocabulary` is too small.
        RunError: the cache cannot be written, or the interpreter has no source files.
    """
    check_vocabulary(vocabulary)
    source = library_code()
    entry = f"{source.name}-{sys.implementation.cache_tag}{NO_TABLES}"
    return load_source(source, entry, vocabulary)


def library_code() -> Source:
    """List the standard library's source, without code pages (`encodings`) and other tables."""
    library = standard_library()
    paths = [path for path in library.paths if not is_test(path) and path[:10] != "encodings/"]
    splits = split_by_file([path for path in paths if not is_table(library.root / path)])
    return replace(library, splits=splits | {"test-domain": library.splits["test-domain"]})


def load_package_corpus(
    name: str, vocabulary: int = DEFAULT_VOCABULARY, *, tables: bool = True
) -> Corpus:
    """Load Python code of installed packages; built once, then cached.

    Args:
        name: import name of the package; several names are joined by +.
        vocabulary: entries of the vocabulary to learn.
        tables: whether files with `is_table` are included.

    Returns:
        The corpus, with verified files.

    Raises:
        ArgumentError: `vocabulary` is too small, or no such package has source files.
        RunError: the cache cannot be written.

    Cost:
        torch (46 MB): 40 seconds of processor time in the first call.
    """
    check_vocabulary(vocabulary)
    source = package_files(name, tables=tables)
    return load_source(source, f"package-{name}{'' if tables else NO_TABLES}", vocabulary)


def package_files(name: str, *, tables: bool = True) -> Source:
    """List the Python source files of installed packages, without folders of tests.

    Args:
        name: import name; the package is found without importing it. Several are joined by +.
        tables: whether files with `is_table` are included.

    Returns:
        Splits train and validation, by file.

    Raises:
        ArgumentError: there is no such top-level package, it has too few source files, or several
            packages are in different folders.
    """
    roots = [_package(folder) for folder in name.split("+")]
    root = roots[0] if len(roots) == 1 else roots[0].parent
    if len(roots) > 1 and {folder.parent for folder in roots} != {root}:
        raise ArgumentError(f"package {printable(name)}: they lie in different folders; name one.")
    sources = [folder.relative_to(root) / path for folder in roots for path in python_files(folder)]
    paths = [path.as_posix() for path in sources if not is_test(path.as_posix())]
    paths = [path for path in paths if tables or not is_table(root / path)]
    if len(paths) < FEW_FILES:
        raise ArgumentError(f"package {printable(name)}: {len(paths)} source files are too few.")
    return Source(
        name=name,
        root=root,
        paths=paths,
        splits=split_by_file(paths),
        fingerprint=fingerprint(root, paths),
    )


def is_table(path: Path) -> bool:
    """Tell whether most lines, without blank lines and comments, begin with a literal."""
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in map(str.strip, text.splitlines()) if line and line[0] != "#"]
    return sum(bool(_LITERAL.match(line)) for line in lines) > len(lines) / 2


def _package(name: str) -> Path:
    """Return the folder of a package."""
    spec = importlib.util.find_spec(name) if name.isidentifier() and name != "__main__" else None
    if spec is None:
        raise ArgumentError(f"package {printable(name)}: not installed; install it.")
    if len(folders := spec.submodule_search_locations or []) != 1:
        raise ArgumentError(f"package {printable(name)}: no package in one folder; name another.")
    return Path(folders[0])
