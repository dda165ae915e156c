"""Find tests by their name, wherever their file stands."""

import functools
import re
from pathlib import Path

from tests.mutants.sources import TOP

ROOTS = (TOP / "tests", TOP / "experiments" / "tests")


@functools.cache
def _tests_of_files(roots: tuple[Path, ...]) -> dict[Path, frozenset[str]]:
    """Names of the tests of each file."""
    files = [file for root in roots for file in root.rglob("test_*.py")]
    return {
        file: frozenset(re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.M))
        for file in files
    }


def found_test(words: str, roots: tuple[Path, ...] = ROOTS) -> str:
    """Return what pytest calls `test_x[case]`, `test_file.py` or `folder/test_file.py::test_x`.

    Raises:
        ValueError: There is none, or more than one.
    """
    file, _, name = words.partition("::") if re.match(r"[\w/]+\.py", words) else ("", "", words)
    plain = name.partition("[")[0]
    known = _tests_of_files(roots)
    found = [
        path
        for path, names in known.items()
        if f"/{path.as_posix()}".endswith(f"/{file}" if file else "")
        and (plain in names if name else names)
    ]
    if len(found) != 1:
        where = ", ".join(str(path) for path in sorted(found)) or "nowhere"
        raise ValueError(f"expected one test {words}, found {len(found)}: {where}")
    return f"{found[0]}::{name}" if name else str(found[0])
