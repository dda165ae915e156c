"""Examples in docstrings print what they say, and every public name has one."""

import doctest
import functools
import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hessblocks as hb
from tests.house.source import ROOT, files, module_of

WITH = [path for path in files() if ">>> " in path.read_text(encoding="utf-8")]
SECTION = "\nExamples:\n"


@functools.cache
def public() -> Mapping[str, Any]:
    """Functions and classes that `hessblocks` itself offers, by name."""
    found = {name: getattr(hb, name) for name in hb.__all__}
    return {name: it for name, it in found.items() if callable(it) and not inspect.ismodule(it)}


def place(offered: Any) -> str:
    """Name of a function or class, as doctest gives it."""
    return f"{offered.__module__}.{offered.__qualname__}"


def examples_of(path: Path) -> list[doctest.DocTest]:
    """Examples of a module; those of public names know only what they import themselves."""
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module_of(path)))
    alone = {place(it) for it in public().values()}
    for test in found:
        if test.name in alone:
            test.globs = {"__name__": "__main__"}
    return [test for test in found if test.examples]


def lacking(offered: Mapping[str, Any]) -> list[str]:
    """Names whose own docstring has no example in a section `Examples:`."""
    parse = doctest.DocTestParser().get_examples
    docs = {name: inspect.cleandoc(it.__doc__ or "") for name, it in offered.items()}
    return [name for name, doc in docs.items() if not parse(doc.partition(SECTION)[2])]


LONG = {"inspection/comparing.py", "curvature/check_derivatives.py", "training/following.py"}
"""Modules whose examples train or search for seconds."""


def place_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(one, id=place_of(one), marks=[pytest.mark.slow] * (place_of(one) in LONG))
        for one in WITH
    ],
)
def test_examples_print_what_they_say(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path))
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in examples_of(path):
        runner.run(test)
    assert runner.tries > 0
    assert runner.failures == 0


def test_every_public_name_has_an_example() -> None:
    assert len(public()) > 50
    assert lacking(public()) == []


def test_the_examples_of_public_names_are_run() -> None:
    run = {
        test.name
        for path in WITH
        for test in examples_of(path)
        if not any(doctest.SKIP in example.options for example in test.examples)
    }
    assert not {name for name, it in public().items() if place(it) not in run}


def test_a_planted_name_without_an_example_is_seen() -> None:
    def bare() -> None:
        """Do nothing."""

    def elsewhere() -> None:
        """Do nothing.

        >>> 1
        1
        """

    class Heir(hb.Hessian):
        pass

    def promised() -> None:
        """Do nothing.

        Examples:
            None yet.
        """

    planted = {it.__name__: it for it in (bare, elsewhere, Heir, promised)}
    assert lacking(planted | {"trace": hb.trace}) == ["bare", "elsewhere", "Heir", "promised"]


def test_a_planted_wrong_example_is_seen() -> None:
    def wrong() -> None:
        """Add.

        >>> 1 + 1
        3
        """

    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(verbose=False)
    (test,) = finder.find(wrong, "wrong", globs={})
    assert runner.run(test, out=lambda text: None).failed == 1
