"""Examples in docstrings print what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

from tests.house.source import ROOT, files, module_of

WITH = [path for path in files() if ">>> " in path.read_text(encoding="utf-8")]
FEWEST = 10
"""Modules with examples: this many at least."""


def failures(module: object) -> tuple[int, int]:
    """Examples of a module that print something else, and how many it has."""
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS)  # type: ignore[arg-type]
    return results.failed, results.attempted


@pytest.mark.parametrize("path", WITH, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_print_what_they_say(path: Path) -> None:
    failed, attempted = failures(importlib.import_module(module_of(path)))
    assert attempted > 0
    assert failed == 0


def test_pure_functions_have_examples() -> None:
    assert len(WITH) >= FEWEST


def test_a_planted_wrong_example_is_seen() -> None:
    def wrong() -> None:
        """Add.

        >>> 1 + 1
        3
        """

    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(verbose=False)
    (test,) = finder.find(wrong, "wrong", globs={})
    assert runner.run(test, out=lambda text: None).failed == 1
